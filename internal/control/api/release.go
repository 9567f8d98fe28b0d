package api

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// Release answers a request to release or to reacquire a GPU.
type Release struct {
	APIVersion string   `json:"apiVersion"`
	GPU        gpu.UUID `json:"gpu"`
	Released   bool     `json:"released"`
	// Seconds is how long no GPU was read: how long NVML was closed.
	Seconds float64 `json:"seconds"`
	// Closed is why NVML stays closed, so that no GPU of the node is read until this one is
	// reacquired or unbound; empty if the others are read.
	Closed string `json:"closed,omitempty"`
}
