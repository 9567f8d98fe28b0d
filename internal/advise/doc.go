// Package advise says which GPUs are too big for what runs on them, and which GPU instances are too
// big, too small, idle or free.
//
// An [Advisor] observes every Snapshot, keeps the evidence of each workload in histograms that
// forget, and computes a [Report] from it. It has no clock but the time of the Snapshots and does
// no input or output: given the same Snapshots it gives the same Report.
//
//	if a.Observe(snapshot) {
//		report := a.Recommend(snapshot)
//		report.Pack(snapshot) // on how few GPUs do the slices fit?
//	}
//
// The evidence of a workload outlives its pods and its devices: a [Key] is the owner, the GPU model
// and the profile. [Choose] gives the same answers for a history that was kept elsewhere, as
// Prometheus has it: see [Record].
//
// Read whole.go first: it tries each smaller profile for a workload. Each trial asks what the slice
// does to kernels (stretch.go), to requests that wait (latency.go, by the queues of backlog.go), to
// throughput (losses.go), and whether it has the memory (evidence.go, starts.go) and the media engines
// (engineneeds.go). slice.go judges workloads that are on a slice already, and pack.go places the
// recommended slices.
package advise
