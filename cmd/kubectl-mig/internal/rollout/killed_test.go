package rollout

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// newMixedWorld returns a world in which a run does everything that it can do.
func newMixedWorld(t *testing.T) *world {
	t.Helper()

	w := newWorld(t, "busy", "cordoned", "late", "standing")
	w.nodes["busy"].holders = []api.Hold{podHold("ml/train-0"), {Kind: api.HoldProcess, PID: 7}}
	w.nodes["busy"].leftover = []api.Hold{{Kind: api.HoldUnconfirmed, What: "ml/train-0 (main): gone"}}
	w.nodes["cordoned"].cordonedBy = "person"
	w.nodes["late"].notOffered = 2
	w.nodes["standing"].layout = "new"

	return w
}

// expectMixed checks that all nodes have got their layout, once.
func (w *world) expectMixed() {
	w.t.Helper()

	w.expectNode("busy", Done, "new", "")
	w.expectNode("cordoned", Done, "new", "person")
	w.expectNode("late", Done, "new", "")
	w.expectNode("standing", Skipped, "new", "")

	for name, n := range w.nodes {
		want := 1
		if name == "standing" {
			want = 0
		}

		if len(n.ops) != want {
			w.t.Errorf("node %s: %d operations; expected %d", name, len(n.ops), want)
		}

		if saved := w.savedNode(name); len(n.ops) == 1 && saved.Operation != n.ops[0].ID {
			w.t.Errorf("node %s: the state has operation %q", name, saved.Operation)
		}
	}

	if want := []Pod{{"ml", "train-0"}}; !slices.Equal(w.nodes["busy"].evicted, want) {
		w.t.Errorf("evicted %v; expected %v", w.nodes["busy"].evicted, want)
	}
}

// restartExporters lets the exporters forget what they keep in memory.
func (w *world) restartExporters() {
	for _, n := range w.nodes {
		clear(n.plans)
		clear(n.keys)
	}
}

// The client is killed before and after the effect of each call, and another one resumes the run.
func TestKilledAtEachPoint(t *testing.T) {
	for _, atATime := range []int{1, 2} {
		options := evicting()
		options.MaxUnavailable = atATime

		for _, f := range []fault{killBefore, killAfter} {
			for _, restarts := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d at a time, fault %d, exporters restart %t", atATime, f, restarts),
					func(t *testing.T) { killAtEachPoint(t, options, f, restarts) })
			}
		}
	}
}

func killAtEachPoint(t *testing.T, options Options, f fault, restarts bool) {
	for at := 1; ; at++ {
		w := newMixedWorld(t)
		w.newTestRun(options)
		w.faultAt = at
		w.fault = f

		err := w.execute("laptop")
		if !w.isKilled {
			if err != nil {
				t.Fatal(err)
			}

			if at < 30 {
				t.Errorf("only %d points", at)
			}

			return
		}

		if !errors.Is(err, errKilled) {
			t.Fatalf("killed at %d (%s): got %v", at, w.log[at-1], err)
		}

		w.isKilled = false
		if restarts {
			w.restartExporters()
		}

		if err := w.execute("other"); err != nil {
			t.Errorf("killed at %d (%s): resumed: %v", at, w.log[at-1], err)
		}

		w.expectMixed()

		if w.most > options.MaxUnavailable {
			t.Errorf("killed at %d (%s): %d nodes were cordoned at a time", at, w.log[at-1], w.most)
		}

		if t.Failed() {
			t.Fatalf("killed at %d: %v", at, w.log)
		}
	}
}

// The client is killed, resumed and killed again at each point.
func TestKilledAgain(t *testing.T) {
	for first := 1; ; first += 3 {
		for second := 1; ; second += 2 {
			w := newMixedWorld(t)
			w.newTestRun(evicting())
			w.faultAt = first
			w.fault = killAfter

			if err := w.execute("laptop"); err == nil {
				return // first is beyond the end
			}

			w.isKilled = false
			w.faultAt = w.calls + second

			err := w.execute("other")
			again := w.isKilled
			w.isKilled = false

			if again {
				err = w.execute("third")
			}

			if err != nil {
				t.Fatalf("killed at %d, then after %d: %v", first, second, err)
			}

			w.expectMixed()

			if t.Failed() {
				t.Fatalf("killed at %d, then after %d: %v", first, second, w.log)
			}

			if !again {
				break
			}
		}
	}
}

// The answer of each call is lost, although the call has had its effect.
func TestLostAnswers(t *testing.T) {
	for at := 1; ; at++ {
		w := newMixedWorld(t)
		w.newTestRun(evicting())
		w.faultAt = at
		w.fault = loseAnswer

		err := w.execute("laptop")
		if w.calls < at {
			return
		}

		if err != nil {
			t.Errorf("lost at %d (%s): %v", at, w.log[at-1], err)
		}

		w.expectMixed()

		if t.Failed() {
			t.Fatalf("lost at %d: %v", at, w.log)
		}
	}
}

// The rollback of a run is killed at each point.
func TestRollbackKilledAtEachPoint(t *testing.T) {
	for _, f := range []fault{killBefore, killAfter} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("fault %d, exporters restart %t", f, restarts), func(t *testing.T) {
				for at := 1; rollBackKilled(t, at, f, restarts) && !t.Failed(); at++ {
				}
			})
		}
	}
}

// rollBackKilled reports whether the client was killed before the rollback had ended.
func rollBackKilled(t *testing.T, at int, f fault, restarts bool) bool {
	t.Helper()

	w := newWorld(t, "a", "b")
	w.newTestRun(evicting())

	if err := w.execute("laptop"); err != nil {
		t.Fatal(err)
	}

	w.nodes["b"].holders = []api.Hold{podHold("ml/train-0")}

	run, c := w.load("laptop")
	if err := run.RollBack(nil); err != nil {
		t.Fatal(err)
	}

	if err := c.Save(t.Context(), run); err != nil {
		t.Fatal(err)
	}

	w.faultAt = w.calls + at
	w.fault = f

	err := c.engine().Execute(t.Context(), run)
	killed := w.isKilled

	if killed {
		w.isKilled = false
		if restarts {
			w.restartExporters()
		}

		err = w.execute("other")
	}

	if err != nil {
		t.Errorf("killed at %d: %v\n%v", at, err, w.log)
	}

	for name, n := range w.nodes {
		w.expectNode(name, Done, "old", "")

		if len(n.ops) != 2 || w.savedNode(name).RolledBackBy != n.ops[0].ID {
			t.Errorf("killed at %d: node %s: %d operations, rolled back by %q", at, name, len(n.ops),
				w.savedNode(name).RolledBackBy)
		}
	}

	return killed
}
