// Package fleet answers from Prometheus' history which whole GPUs of a fleet could be slices. It
// asks for means over five minutes and for maxima of memory by the hour, a few nodes at a time,
// fills an [advise.Record] for each GPU with them, and decides by the rules of that package. It is
// coarser than an Advisor, which sees every poll and keeps workloads apart: here the unit is a GPU
// with all that ran on it.
package fleet
