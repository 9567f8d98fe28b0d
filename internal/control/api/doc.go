// Package api has the documents of partition control's HTTP API, and the types of its problems. The
// engine, the server and the command line share it.
package api

// Version is the apiVersion of every document.
const Version = "mig-exporter/v1"

// CredentialsUnchecked begins the detail of an Unavailable problem if the server cannot check who the caller
// is. The GPUs and their driver have nothing to do with it.
const CredentialsUnchecked = "credentials cannot be checked"
