package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// The pods that a killed client was evicting may have gone since, and others of their names may have
// come, which hold nothing: a resumed run asks the exporter again.
func TestResumedEvictionAsksForTheHoldersAgain(t *testing.T) {
	w := newWorld(t, "a")
	w.newTestRun(evicting())
	n := w.nodes["a"]
	n.holders = []api.Hold{podHold("ml/train-0")}

	run, c := w.load("laptop")
	engine := c.engine()
	engine.Report = func(node Node) {
		w.mu.Lock()
		defer w.mu.Unlock()

		w.isKilled = node.Phase == Evicting
	}

	if err := engine.Execute(t.Context(), run); !errors.Is(err, errKilled) || len(n.evicted) != 0 {
		t.Fatalf("got %v, evicted %v", err, n.evicted)
	}

	w.isKilled = false
	n.cordonedBy = ""
	n.holders = []api.Hold{podHold("ml/other-0")}

	if err := w.execute("other"); err != nil {
		t.Fatal(err)
	}

	w.expectNode("a", Done, "new", "")

	if want := []Pod{{"ml", "other-0"}}; !slices.Equal(n.evicted, want) {
		t.Errorf("evicted %v; expected %v", n.evicted, want)
	}
}

// What a node offered when it was cordoned is kept over a failure, and read anew for the rollback.
func TestRemembersWhatTheNodeOffered(t *testing.T) {
	w := newWorld(t, "a")
	w.newTestRun(Options{})
	n := w.nodes["a"]
	n.notOffered = 1000

	if err := w.execute("laptop"); err == nil {
		t.Fatal("no error")
	}

	n.notOffered = 0
	before := n.before

	if err := w.execute("other", resume); err != nil {
		t.Fatal(err)
	}

	if err := w.rollBack(); err != nil {
		t.Fatal(err)
	}

	for i, want := range map[int]string{0: "old", len(before): "old", len(n.before) - 1: "new"} {
		if got := n.before[i]; got == nil || got.Resources[want] != 1 || got.Devices == nil {
			t.Errorf("call %d: got %+v; expected %s", i, got, want)
		}
	}

	if saved := w.savedNode("a"); saved.Before != nil {
		t.Errorf("it is kept after the end: %+v", saved.Before)
	}
}

// An exporter that does not answer at the cordon is asked again, and if it does not answer for longer
// than the timeout, nothing is changed: what the node offers later could not be compared.
func TestAsksAgainWhatTheNodeHas(t *testing.T) {
	for _, test := range []struct {
		silent int
		phase  Phase
		layout string
	}{{3, Done, "new"}, {1000, Failed, "old"}} {
		w := newWorld(t, "a")
		w.newTestRun(Options{})
		n := w.nodes["a"]

		run, c := w.load("laptop")
		engine := c.engine()
		engine.Report = func(node Node) {
			if node.Phase == Cordoning {
				w.mu.Lock()
				n.silent = test.silent
				w.mu.Unlock()
			}
		}

		err := engine.Execute(t.Context(), run)
		if (err == nil) != (test.phase == Done) {
			t.Errorf("silent %d times: got %v", test.silent, err)
		}

		w.expectNode("a", test.phase, test.layout, "")

		for i, before := range n.before {
			if before == nil || before.Devices == nil {
				t.Errorf("silent %d times, call %d: the devices before are not known: %+v", test.silent, i, before)
			}
		}

		if test.phase == Failed && !strings.Contains(err.Error(), "devices") {
			t.Errorf("got %v", err)
		}
	}
}

// A node is replaced by another of its name while the operation runs: its exporter does not know the
// operation. That stops the run once; then the node is begun anew.
func TestReplacedWhileItRuns(t *testing.T) {
	for _, undo := range []bool{false, true} {
		t.Run(fmt.Sprintf("rollback %t", undo), func(t *testing.T) {
			w := newWorld(t, "a", "b")
			w.newTestRun(Options{})

			if undo {
				if err := w.execute("laptop"); err != nil {
					t.Fatal(err)
				}
			}

			run, c := w.load("laptop")
			if undo {
				if err := run.RollBack(nil); err != nil {
					t.Fatal(err)
				}
			}

			n := w.nodes["a"]
			engine := c.engine()
			engine.Report = func(node Node) {
				if node.Name == "a" && node.Phase == Running {
					w.mu.Lock()
					n.ops = nil
					n.layout = "old"
					w.mu.Unlock()
				}
			}

			if err := engine.Execute(t.Context(), run); err == nil || !strings.Contains(err.Error(), "does not know") {
				t.Fatalf("got %v", err)
			}

			w.expectNode("a", Failed, "old", run.Name)

			if saved := w.savedNode("a"); saved.Before != nil {
				t.Error("what the other node offered is kept")
			}

			err := w.execute("other", resume)
			if undo && err != nil { // the operation that is to be undone is not known either
				err = w.execute("other", resume)
			}

			if err != nil {
				t.Fatal(err)
			}

			layout := "new"
			if undo {
				layout = "old"
			}

			w.expectNode("a", Done, layout, "")
			w.expectNode("b", Done, layout, "")
		})
	}
}

// A node that has its layout by now, after a failure or by another client, is not uncordoned before
// it offers the devices.
func TestAwaitsAllocatableWithoutAnOperation(t *testing.T) {
	for _, at := range []Phase{Waiting, Planning} {
		t.Run(string(at), func(t *testing.T) {
			w := newWorld(t, "a")
			w.newTestRun(Options{})
			n := w.nodes["a"]

			if at == Waiting {
				n.end = api.Interrupted

				if err := w.execute("laptop"); err == nil {
					t.Fatal("no error")
				}

				n.layout = "new"
				n.notOffered = 1000
			}

			run, c := w.load("laptop")
			run.Resume()

			engine := c.engine()
			engine.Report = func(node Node) {
				if node.Phase == Planning {
					w.mu.Lock()
					n.layout = "new"
					n.notOffered = 1000
					w.mu.Unlock()
				}
			}

			if err := engine.Execute(t.Context(), run); err == nil || !strings.Contains(err.Error(), "allocatable") {
				t.Errorf("got %v", err)
			}

			w.expectNode("a", Failed, "new", run.Name)

			n.notOffered = 0

			if err := w.execute("laptop", resume); err != nil {
				t.Fatal(err)
			}

			w.expectNode("a", Done, "new", "")
		})
	}
}

// An operator has accepted the layout that a degraded operation has left: the resumed run plans
// again, at once.
func TestAcceptedOperation(t *testing.T) {
	w := newWorld(t, "a")
	w.newTestRun(Options{})
	n := w.nodes["a"]
	n.end = api.Degraded

	if err := w.execute("laptop"); err == nil {
		t.Fatal("no error")
	}

	n.ops[0].State = api.Accepted
	n.end = api.Succeeded

	if err := w.execute("laptop", resume); err != nil {
		t.Fatal(err)
	}

	w.expectNode("a", Done, "new", "")
}
