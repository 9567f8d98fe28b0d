// Package advise says which GPUs are too big for what runs on them, and which GPU instances are too
// big, too small, idle or free.
//
// An [Advisor] observes every Snapshot, keeps the evidence of each workload in histograms that
// forget, and computes a [Report] from it. It has no clock but the time of the Snapshots and does
// no input or output: given the same Snapshots it gives the same Report.
//
// The model behind a recommendation is in stretch.go: what a slice does to kernels that fill more
// SMs, or draw more bandwidth, than it has.
package advise
