// Package api is what partition control says on the wire: the documents of its HTTP API and their
// problem types. It is shared by the engine, the server and the command line.
package api

// Version is the apiVersion of every document.
const Version = "mig-exporter/v1"
