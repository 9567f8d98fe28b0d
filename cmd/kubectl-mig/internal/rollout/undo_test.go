package rollout

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// rollBack rolls the saved run back, on all nodes or on those that are named.
func (w *world) rollBack(names ...string) error {
	w.t.Helper()

	return w.execute("laptop", func(r *Run) {
		if err := r.RollBack(names); err != nil {
			w.t.Error(err)
		}
	})
}

// The answer to a start is lost, and the exporter does not answer for longer than the timeout: a
// rollback looks for the operation, which the exporter has executed or not.
func TestRollbackOfAStartWithoutAnAnswer(t *testing.T) {
	for _, executed := range []bool{true, false} {
		w := newWorld(t, "a", "b")
		run := w.newTestRun(Options{})
		n := w.nodes["b"]
		n.startsWithoutAnswer = true
		n.losesStarts = !executed

		if err := w.execute("laptop"); err == nil {
			t.Fatal("no error")
		}

		layout := "new"
		if !executed {
			layout = "old"
		}

		w.expectNode("b", Failed, layout, run.Name)

		n.silent = 0
		n.startsWithoutAnswer = false

		if saved := w.savedNode("b"); saved.Operation != "" || saved.Plan == "" {
			t.Fatalf("the state has %+v", saved)
		}

		for _, op := range n.ops {
			op.State = api.Succeeded // meanwhile it has ended
		}

		if err := w.rollBack(); err != nil {
			t.Error(err)
		}

		if last := n.before[len(n.before)-1]; !executed && last == nil {
			t.Error("what the node offered when it was cordoned is forgotten: a node with DRA would never settle")
		}

		w.expectNode("a", Done, "old", "")
		w.expectNode("b", Done, "old", "")
	}
}

// A node whose operation was interrupted cannot be rolled back. It stays cordoned, which is no
// success, whatever becomes of the others.
func TestRollbackLeavesAnInterruptedNodeOut(t *testing.T) {
	w := newWorld(t, "a", "b")
	run := w.newTestRun(Options{})
	w.nodes["b"].end = api.Interrupted

	if err := w.execute("laptop"); err == nil {
		t.Fatal("no error")
	}

	var stopped *StoppedError
	if err := w.rollBack(); !errors.As(err, &stopped) || len(stopped.Failed) != 1 ||
		!strings.Contains(err.Error(), "b: it is left out of the rollback and stays cordoned: operation b-op-0 is interrupted") {
		t.Errorf("got %v", err)
	}

	w.expectNode("a", Done, "old", "")
	w.expectNode("b", Failed, "old", run.Name)

	saved, _ := w.load("laptop")
	if !saved.Resume() {
		t.Error("nothing is left")
	}

	if err := saved.RollBack([]string{"b"}); err == nil || !strings.Contains(err.Error(), "kubectl uncordon") {
		t.Errorf("got %v", err)
	}
}

// After the eviction of a rollback, a holder that is not confirmed is waited for, as in a run.
func TestRollbackAwaitsAHolderThatLingers(t *testing.T) {
	for _, test := range []struct {
		lagging int
		phase   Phase
	}{{5, Done}, {1000, Failed}} {
		w := newWorld(t, "a")
		w.newTestRun(evicting())

		if err := w.execute("laptop"); err != nil {
			t.Fatal(err)
		}

		n := w.nodes["a"]
		n.holders = []api.Hold{podHold("ml/train-0")}
		n.leftover = []api.Hold{{Kind: api.HoldUnconfirmed, What: "ml/train-0 (main): not listed"}}
		n.lags = test.lagging
		start := w.now

		err := w.rollBack()
		if test.phase == Done {
			if err != nil {
				t.Error(err)
			}

			w.expectNode("a", Done, "old", "")

			continue
		}

		if err == nil || !strings.Contains(err.Error(), "not known who") {
			t.Errorf("got %v", err)
		}

		if waited := w.now.Sub(start); waited < time.Minute || waited > 2*time.Minute {
			t.Errorf("it has waited for %s", waited)
		}

		w.expectNode("a", Failed, "new", "")
	}
}

// A node whose layout has not changed stays cordoned only as long as it cannot be uncordoned: a
// resumed run that fails on it again lifts the cordon, and so does a rollback of the run.
func TestUnchangedNodeThatCannotBeUncordoned(t *testing.T) {
	for _, undo := range []bool{false, true} {
		w := newWorld(t, "a", "b")
		run := w.newTestRun(Options{})
		n := w.nodes["b"]
		n.end = api.RolledBack
		n.keepsCordon = true

		if err := w.execute("laptop"); err == nil || !strings.Contains(err.Error(), "rolled-back") {
			t.Fatalf("got %v", err)
		}

		w.expectNode("b", Failed, "old", run.Name)

		n.keepsCordon = false
		n.refuse = &api.Problem{Type: api.Infeasible, Detail: "no room"}

		if undo {
			if err := w.rollBack(); err != nil {
				t.Error(err)
			}

			w.expectNode("b", Done, "old", "")

			continue
		}

		if err := w.execute("laptop", resume); err == nil || !strings.Contains(err.Error(), "no room") {
			t.Errorf("got %v", err)
		}

		w.expectNode("b", Failed, "old", "")
	}
}

// A changed node that cannot be uncordoned is, when the run is resumed.
func TestChangedNodeThatCannotBeUncordoned(t *testing.T) {
	w := newWorld(t, "a")
	run := w.newTestRun(Options{})
	n := w.nodes["a"]
	n.keepsCordon = true

	if err := w.execute("laptop"); err == nil || !strings.Contains(err.Error(), "uncordon: not now") {
		t.Fatalf("got %v", err)
	}

	w.expectNode("a", Failed, "new", run.Name)

	n.keepsCordon = false

	if err := w.execute("laptop", resume); err != nil {
		t.Fatal(err)
	}

	w.expectNode("a", Done, "new", "")
}
