// Package fleet answers from Prometheus' history which whole GPUs of a fleet could be slices. It
// queries means over five minutes and the largest use of memory in each hour, a few nodes at a time,
// fills an [advise.Record] for each GPU with them, and decides by the rules of package advise. It is
// coarser than an Advisor: an Advisor sees every poll and judges each workload by itself, this
// package judges a GPU with all that ran on it.
package fleet
