// Package fleet answers from Prometheus' history which whole GPUs of a fleet could be slices. It asks means and
// maxima over five minutes, a few nodes at a time, and decides by the rules of package advise. It is coarser than an
// Advisor, which sees every poll and tells workloads apart: here the unit is a GPU with all that ran on it.
package fleet
