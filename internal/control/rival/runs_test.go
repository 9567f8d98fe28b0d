package rival

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// requestsPerNode is how long a node lives: what has happened to it is the beginning of what comes
// next.
const requestsPerNode = 40

// nodes runs a test for each node that so many requests need, some side by side: in processes they
// mostly wait.
func nodes(t *testing.T, requests int, run func(t *testing.T, seed uint64) *harness) {
	t.Helper()
	sum := &summary{outcomes: map[string]int{}}
	t.Cleanup(func() { sum.check(t) })

	for n := range (requests + requestsPerNode - 1) / requestsPerNode {
		seed := *firstSeed + uint64(n)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			h := run(t, seed)
			sum.add(h)
			h.report(t)
		})
	}
}

// TestInOneProcess makes thousands of requests of our program while the rival is at work between
// any two driver calls.
func TestInOneProcess(t *testing.T) {
	nodes(t, *runs, func(t *testing.T, seed uint64) (h *harness) {
		synctest.Test(t, func(t *testing.T) {
			h = newSameProcess(t, scenario, seed)
			h.makeRequests(requestsPerNode)
		})

		return h
	})
}

// TestInProcesses makes hundreds of requests of our program, which is a process as the rival is
// another. Either is killed.
func TestInProcesses(t *testing.T) {
	nodes(t, *processRuns, func(t *testing.T, seed uint64) *harness {
		h := newProcesses(t, scenario, seed)
		h.makeRequests(requestsPerNode)

		return h
	})
}

// TestAlone makes requests while the rival stands still: whatever fails and is killed, no rule is
// broken. So the rules hold for what is right, too.
func TestAlone(t *testing.T) {
	nodes(t, *runs/10, func(t *testing.T, seed uint64) (h *harness) {
		synctest.Test(t, func(t *testing.T) {
			h = newSameProcess(t, scenario, seed)
			h.alone = true
			h.makeRequests(requestsPerNode)
		})

		return h
	})
}

// summary is what has happened in many runs.
type summary struct {
	mu                          sync.Mutex
	requests, handovers, broken int
	kills                       int
	alone                       bool
	gaps                        [3]int
	outcomes                    map[string]int
}

func (s *summary) add(h *harness) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests += h.requests
	s.kills += h.kills
	s.alone = h.alone

	s.handovers += h.judge.handovers
	if len(h.judge.broken) > 0 {
		s.broken++
	}

	for i, n := range h.judge.gaps {
		s.gaps[i] += n
	}

	for name, n := range h.judge.outcomes {
		s.outcomes[name] += n
	}
}

// check logs the totals, and fails if too little happened in the runs to show anything.
func (s *summary) check(t *testing.T) {
	t.Helper()

	names := []string{}
	for name, n := range s.outcomes {
		names = append(names, fmt.Sprintf("%s: %d", name, n))
	}

	slices.Sort(names)
	t.Logf("%d requests, %d kills of our process, %d turns of the rival; instances of the rival's destroyed through the "+
		"gaps: %d rebuilt "+
		"identically between two readings, %d after the last reading; %d nodes with a broken rule; operations %v",
		s.requests, s.kills, s.handovers, s.gaps[gapIdentical], s.gaps[gapAfterReading], s.broken, names)

	if s.requests < 10*requestsPerNode {
		return
	}

	if s.outcomes["apply succeeded"] == 0 {
		t.Error("these runs show nothing: no operation has succeeded")
	}

	if s.kills == 0 {
		t.Error("these runs show nothing: no process was killed")
	}

	if s.handovers == 0 && !s.alone {
		t.Error("these runs show nothing: the rival had no turn")
	}
}
