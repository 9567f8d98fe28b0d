package truth

import (
	"flag"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

var (
	nodes     = flag.Int("nodes", 8, "nodes to evaluate")
	fullNodes = flag.Int("full", 1, "nodes to observe with the full simulator, too")
	fullHours = flag.Int("full-hours", 26, "hours for which the full simulator runs them on whole GPUs, and an eighth of "+
		"it in slices")
	report = flag.String("report", "", "file to write the report to")
	seed   = flag.Uint64("seed", 1, "seed of the nodes")
)

// evaluateAll evaluates generated nodes, on all processors.
func evaluateAll(seed uint64, count int) []*result {
	results := make([]*result, count)
	next := make(chan int)

	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for i := range next {
				results[i] = evaluate(newNode(seed, i))
			}
		})
	}

	for i := range results {
		next <- i
	}

	close(next)
	wait.Wait()

	return results
}

// processorTime returns how long this process has computed.
func processorTime(t *testing.T) time.Duration {
	t.Helper()

	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}

	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// TestAdviceIsTrue: what is recommended is applied, and the limits hold.
func TestAdviceIsTrue(t *testing.T) {
	began := time.Now()
	usedBefore := processorTime(t)
	results := evaluateAll(*seed, *nodes)
	used := processorTime(t) - usedBefore

	for _, r := range results {
		for _, wrong := range r.wrong {
			t.Error(wrong)
		}
	}

	s := summarize(results)
	for _, v := range slices.Concat(violations(s.records), s.shareViolations()) {
		t.Error(v)
	}

	if s.given(byDefault) == 0 || s.given(strictly) == 0 {
		t.Errorf("%d workloads are recommended by default, %d strictly: nothing was tested", s.given(byDefault),
			s.given(strictly))
	}

	if s.sharedPackings == 0 {
		t.Errorf("none of %d small packings puts several slices on a GPU", s.smallPackings)
	}

	if s.count(naively, (*verdict).harmed) == 0 {
		t.Error("the naive rule harmed no workload: the generator has none that can be harmed")
	}

	if *report != "" {
		for _, one := range append(shapes(1, true), shapes(1, false)...) {
			r, _ := mustReplay(t, &one)
			s.replays = append(s.replays, r)
		}

		s.full = compareNodes(t, *seed, *fullNodes, *fullHours*60, *fullHours*60/8)
		s.used = used

		s.took = time.Since(began)
		if err := os.WriteFile(*report, []byte(s.render()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
