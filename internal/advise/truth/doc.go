// Package truth holds the right-sizing advice of package advise against what really happens: generated nodes are
// observed for two weeks, what was recommended is applied, and the same workloads run on in their slices for a week. It
// has tests only; make evaluate runs all of it and writes docs/rightsizing-evaluation.md. make replay holds the advice
// against a trace.
package truth
