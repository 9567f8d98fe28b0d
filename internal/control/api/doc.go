// Package api has the documents of partition control's HTTP API, and the types of its problems. The
// engine, the server and the command line share it.
package api

// Version is the apiVersion of every document.
const Version = "mig-exporter/v1"
