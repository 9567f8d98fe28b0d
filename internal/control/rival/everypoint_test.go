package rival

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// TestRivalAtEveryPoint runs a whole program of the rival at one point of an operation, for every
// point that it has. The gaps are exactly where they are said to be: only an identical tree, or one
// made after the last reading began, is mistaken for our own.
func TestRivalAtEveryPoint(t *testing.T) {
	for _, o := range []order{
		{GPU: 1, Program: rebuildTheSame},
		{GPU: 1, Program: clearAndBuild, Layout: tree{whole(profile1g, 0), whole(profile1g, 1), whole(profile2g, 2)}},
		{GPU: 1, Program: clearAndBuild, Layout: tree{}},
		{GPU: 1, Program: editComputes}, // into two
	} {
		name := o.Program
		if o.Layout != nil {
			name = fmt.Sprint(name, " ", len(o.Layout))
		}

		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var gaps [3]int

			for n := 1; ; n++ {
				h, reached := disturbed(t, o, n)
				if !reached {
					break
				}

				h.report(t)

				for i, k := range h.judge.gaps {
					gaps[i] += k
				}

				if t.Failed() {
					t.Fatalf("at point %d", n)
				}
			}

			t.Logf("destroyed through the gaps: %d rebuilt identically, %d after the last reading", gaps[gapIdentical],
				gaps[gapAfterReading])

			same := o.Program == rebuildTheSame
			if mistaken := gaps[gapIdentical]; same != (mistaken > 0) {
				t.Errorf("%d identical trees were mistaken for our own, want some: %v", mistaken, same)
			}

			if same && gaps[gapAfterReading] == 0 {
				t.Error("no identical tree was destroyed after the last reading, want some")
			}
		})
	}
}

// oneSplit has an instance on the second GPU that can be split.
const oneSplit = `
version: 1
node: {hostname: rival, driver: "580.95.05", privileged: true}
gpus:
  - {model: A100-40GB, mig: true, layout: []}
  - {model: A100-40GB, mig: true, layout: ["2g.10gb@0"]}
`

// disturbed does an operation that destroys an instance and creates another, with the rival at its
// n-th point.
func disturbed(t *testing.T, o order, n int) (h *harness, reached bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h = newSameProcess(t, oneSplit, 1)
		h.startProgram()
		points := 0
		h.script = func(p point) {
			if p.GPU != o.GPU || p.Kind == wholeRead || p.Kind == planned {
				return
			}

			if points++; points == n {
				h.runToEnd(o)
			}
		}
		h.makeRequest(apply("1", map[string]api.DeviceRequest{"1g.5gb": {Count: 1}}))
		reached = points >= n
		h.ours.end()
		h.judge.finish()
	})

	return h, reached
}
