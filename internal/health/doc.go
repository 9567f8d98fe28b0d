// Package health judges the GPUs of a node and their instances by Snapshots: a state, the reasons
// for it, since when, and what an operator should do. It calls no driver and starts no goroutine.
//
// Unknown is not healthy: a reading that failed, or an event that we cannot receive, never counts
// as good news. A reading that the hardware does not offer does not count at all.
package health
