package api

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// Release answers a request to release or to reacquire a GPU.
type Release struct {
	APIVersion string   `json:"apiVersion"`
	GPU        gpu.UUID `json:"gpu"`
	Released   bool     `json:"released"`
	// Seconds is how long NVML was closed, so that no GPU was read.
	Seconds float64 `json:"seconds"`
	// Closed is why NVML stays closed, so that no GPU of the node is read until this one is
	// reacquired or unbound; empty if NVML is open again.
	Closed string `json:"closed,omitempty"`
}
