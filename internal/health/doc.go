// Package health judges from Snapshots how the GPUs of a node and their instances are: a state, the
// reasons for it, since when, and what an operator should do. It calls no driver and starts no
// goroutine.
//
// Unknown is not healthy: what we cannot read, or do not receive, is never taken for good news. What
// the hardware does not have is no reason for anything.
package health
