// Package sim is the simulated node: GPUs with the driver's partition rules, workloads, pods that
// ask for devices, and faults, all pure functions of a scenario, its seed and a clock. Together
// with the same operations at the same times it gives the same answers, byte for byte.
//
// It speaks its own types and those of the domain; the faces (simnvml, kubelet) put it behind the
// interfaces that real clients use. Errors are the sentinel errors of the domain (gpu.Err*) and
// ErrClosed.
//
// The state moves in steps of at most one second, cut also where something happens (a pod comes, an
// instance is made). Readings hold for a step; counters grow linearly within it, so that they do
// not depend on when they are read.
package sim
