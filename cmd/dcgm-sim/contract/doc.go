// Package contract holds the built libdcgm.so.4 of the simulated node to DCGM's headers and to the
// simulated host engine in process, with go-dcgm as the client. It has tests alone.
package contract
