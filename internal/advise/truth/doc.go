// Package truth holds the right-sizing advice of package advise against what really happens:
// generated nodes are observed for two weeks, what was recommended is applied, and the same
// workloads run on in their slices for a week. It has tests only; make evaluate runs all of it and
// writes docs/rightsizing-evaluation.md. make replay holds the advice against a trace.
//
// The advice is compared with oracles. One knows what will happen. The other knows what can be
// observed: every minute, and all latencies. What memory is used between two readings it cannot
// know, nor can anything that reads it: what was seen has to fit with the memory that any advice
// has to keep free for that. What it does know is that memory grows: a slice that kills its
// workload within the week by growth that was seen is none that anybody should have found. Both
// refuse slices that an oracle would give that takes the largest use of memory that was seen for
// the need; the recall against that one is shown beside.
package truth
