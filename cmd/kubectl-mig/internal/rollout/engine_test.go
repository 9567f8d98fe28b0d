package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

func resume(r *Run) { r.Resume() }

func evicting() Options { return Options{Eviction: &Eviction{GracePeriodSeconds: -1}} }

func TestOneNodeAfterAnother(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.newTestRun(Options{})
	w.nodes["a"].notOffered = 3
	w.nodes["b"].silent = 3

	if err := w.execute("laptop"); err != nil {
		t.Fatal(err)
	}

	for name := range w.nodes {
		w.expectNode(name, Done, "new", "")
	}

	if w.most != 1 {
		t.Errorf("%d nodes were cordoned at a time; expected 1", w.most)
	}
}

func TestMaxUnavailable(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d", "e")
	w.newTestRun(Options{MaxUnavailable: 2})

	if err := w.execute("laptop"); err != nil {
		t.Fatal(err)
	}

	for name := range w.nodes {
		w.expectNode(name, Done, "new", "")
	}

	if w.most > 2 {
		t.Errorf("%d nodes were cordoned at a time; expected at most 2", w.most)
	}
}

// A node in the middle fails: those before it have their layout, those after it are not begun.
func TestStopsAtTheFirstFailure(t *testing.T) {
	for _, test := range []struct {
		end    api.OperationState
		cordon bool // it stays
		retry  Phase
	}{
		{api.RolledBack, false, Waiting},
		{api.Failed, false, Waiting},
		{api.Interrupted, true, Waiting},
		{api.Degraded, true, Running},
		{api.Stuck, true, Running},
		{api.Unsettled, true, Running},
	} {
		t.Run(string(test.end), func(t *testing.T) {
			w := newWorld(t, "a", "b", "c")
			run := w.newTestRun(Options{})
			w.nodes["b"].end = test.end

			var stopped *StoppedError
			if err := w.execute("laptop"); !errors.As(err, &stopped) || len(stopped.Failed) != 1 ||
				stopped.Left != 1 || !strings.Contains(err.Error(), string(test.end)) {
				t.Fatalf("got %v", err)
			}

			cordonedBy := ""
			if test.cordon {
				cordonedBy = run.Name
			}

			w.expectNode("a", Done, "new", "")
			w.expectNode("b", Failed, w.nodes["b"].layout, cordonedBy)
			w.expectNode("c", Waiting, "old", "")

			if got := w.savedNode("b").Retry; got != test.retry {
				t.Errorf("a resumed run goes on in %s; expected %s", got, test.retry)
			}

			// It does nothing further unless the operator resumes it.
			if err := w.execute("laptop"); !errors.As(err, &stopped) {
				t.Errorf("executed again: got %v", err)
			}

			w.expectNode("c", Waiting, "old", "")
		})
	}
}

// Nodes in progress are finished when another one fails.
func TestFinishesNodesInProgress(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d")
	w.newTestRun(Options{MaxUnavailable: 2})
	w.nodes["a"].end = api.RolledBack
	w.nodes["b"].notOffered = 10

	var stopped *StoppedError
	if err := w.execute("laptop"); !errors.As(err, &stopped) || len(stopped.Failed) != 1 {
		t.Fatalf("got %v", err)
	}

	w.expectNode("a", Failed, "old", "")

	for name := range w.nodes {
		if phase := w.savedNode(name).Phase; name != "a" && phase != Done && phase != Waiting {
			t.Errorf("node %s is left %s", name, phase)
		}
	}
}

func TestResumesAfterAFailure(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.newTestRun(Options{})
	w.nodes["b"].end = api.RolledBack

	if err := w.execute("laptop"); err == nil {
		t.Fatal("no error")
	}

	w.nodes["b"].end = api.Succeeded

	if err := w.execute("other", resume); err != nil {
		t.Fatal(err)
	}

	for name := range w.nodes {
		w.expectNode(name, Done, "new", "")
	}
}

func TestUnsettledNodeThatSettlesLater(t *testing.T) {
	w := newWorld(t, "a")
	run := w.newTestRun(Options{})
	w.nodes["a"].end = api.Unsettled

	if err := w.execute("laptop"); err == nil || !strings.Contains(err.Error(), "unsettled") {
		t.Fatalf("got %v", err)
	}

	w.expectNode("a", Failed, "new", run.Name)
	w.nodes["a"].end = api.Succeeded

	if err := w.execute("laptop", resume); err != nil {
		t.Fatal(err)
	}

	w.expectNode("a", Done, "new", "")

	if n := len(w.nodes["a"].ops); n != 1 {
		t.Errorf("%d operations; expected one", n)
	}
}

func TestSkipsALayoutThatStands(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.newTestRun(Options{})
	w.nodes["a"].layout = "new"

	if err := w.execute("laptop"); err != nil {
		t.Fatal(err)
	}

	w.expectNode("a", Skipped, "new", "")
	w.expectNode("b", Done, "new", "")

	if slices.Contains(w.log, "cordon a") {
		t.Error("a node without anything to do was cordoned")
	}
}

// A cordon that another client has made, or the exporter, is not lifted.
func TestForeignCordon(t *testing.T) {
	for _, by := range []string{"person", "exporter"} {
		w := newWorld(t, "a")
		w.newTestRun(Options{})
		w.nodes["a"].cordonedBy = by

		if err := w.execute("laptop"); err != nil {
			t.Fatal(err)
		}

		w.expectNode("a", Done, "new", by)
	}
}

func TestEvictsTheHoldersOnly(t *testing.T) {
	w := newWorld(t, "a")
	w.newTestRun(evicting())
	n := w.nodes["a"]
	n.holders = []api.Hold{
		podHold("ml/train-0"),
		{Kind: api.HoldProcess, PID: 7, What: "7"},
		{Kind: api.HoldActivity, What: "active within the last 1m"},
		podHold("ml/train-1"),
	}
	// The kubelet's list lags behind.
	n.leftover = []api.Hold{{Kind: api.HoldUnconfirmed, What: "ml/train-0 (main): not listed any more"}}

	if err := w.execute("laptop"); err != nil {
		t.Fatal(err)
	}

	w.expectNode("a", Done, "new", "")

	if want := []Pod{{"ml", "train-0"}, {"ml", "train-1"}}; !slices.Equal(n.evicted, want) {
		t.Errorf("evicted %v; expected %v", n.evicted, want)
	}
}

// What stops a node before it is cordoned.
func TestRefusedBeforeTheCordon(t *testing.T) {
	pod := podHold("ml/train-0")

	for _, test := range []struct {
		name    string
		options Options
		holders []api.Hold
		refuse  *api.Problem
		want    string
	}{
		{"evictions are off", Options{}, []api.Hold{pod}, nil, "ml/train-0; --evict"},
		{"unknown holder", evicting(), []api.Hold{pod, {Kind: api.HoldUnknown, What: "processes: denied"}},
			nil, "not known who holds"},
		{"unconfirmed holder", evicting(), []api.Hold{{Kind: api.HoldUnconfirmed, What: "ml/x (c): gone"}},
			nil, "not known who holds"},
		{"a process without a pod", evicting(), []api.Hold{{Kind: api.HoldProcess, PID: 7, What: "7"}},
			nil, "not by pods"},
		{"a batch job", evicting(), []api.Hold{pod, {Kind: api.HoldJob, What: "job 7"}}, nil, "job 7"},
		{"an unreadable name", evicting(), []api.Hold{{Kind: api.HoldPod, What: "train"}}, nil, "train"},
		{"infeasible", evicting(), nil, &api.Problem{Type: api.Infeasible, Detail: "no room"}, "no room"},
		{"no answer", evicting(), nil, &api.Problem{Type: api.Unavailable, Detail: "no driver"}, "no driver"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, "a")
			w.newTestRun(test.options)
			w.nodes["a"].holders = test.holders
			w.nodes["a"].refuse = test.refuse

			if err := w.execute("laptop"); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; expected %q", err, test.want)
			}

			w.expectNode("a", Failed, "old", "")

			if slices.Contains(w.log, "cordon a") || slices.Contains(w.log, "evict a") {
				t.Error("the node was cordoned, or pods evicted")
			}
		})
	}
}

// Messages name an instance in the way by its GPU's index, as migctl does, and by its UUID if the
// exporter does not say which GPU is which.
func TestNamesInstancesInTheWay(t *testing.T) {
	for _, test := range []struct {
		noIndexes  bool
		name       string
		blocker    api.Blocker
		ofABlocker string
	}{
		{false, "GPU 3 1g.10gb@4", api.Blocker{GPU: "GPU-0", Instance: "GPU-0"}, "GPU 3"},
		{true, "1g.10gb@4 (MIG-1)", api.Blocker{GPU: "GPU-0", Instance: "GPU-0"}, "GPU-0"},
	} {
		w := newWorld(t, "a")
		run := w.newTestRun(evicting())
		n := w.nodes["a"]
		n.noIndexes = test.noIndexes
		n.holders = []api.Hold{{Kind: api.HoldProcess, PID: 7, What: "python"}}

		_, c := w.load("laptop")
		previewer := &Previewer{Exporter: c, Evictions: c, Options: run.Options}
		v := previewer.Preview(t.Context(), []Target{{Node: "a"}}, run.Specs)[0]
		want := test.name + ": process 7 (python)"

		if !slices.Equal(v.InTheWay, []string{test.name}) || !strings.Contains(v.Refused, want) {
			t.Errorf("the plan names %q, and says %q; expected %q", v.InTheWay, v.Refused, want)
		}

		if err := w.execute("laptop"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the run: got %v; expected %q", err, want)
		}

		if got := indexesOf(t.Context(), c, "a").name(&test.blocker); got != test.ofABlocker {
			t.Errorf("a GPU as a whole is %q; expected %q", got, test.ofABlocker)
		}
	}
}

func TestUnconfirmedHolderAfterTheEviction(t *testing.T) {
	w := newWorld(t, "a")
	w.newTestRun(evicting())
	n := w.nodes["a"]
	n.holders = []api.Hold{podHold("ml/train-0")}
	n.leftover = []api.Hold{{Kind: api.HoldUnconfirmed, What: "ml/train-0 (main): not listed"}}

	run, c := w.load("laptop")
	engine := c.engine()
	engine.Report = func(node Node) {
		if node.Phase == Planning && node.Rounds > 0 {
			w.mu.Lock()
			n.lagging = 1000
			w.mu.Unlock()
		}
	}

	if err := engine.Execute(t.Context(), run); err == nil || !strings.Contains(err.Error(), "not known who") {
		t.Errorf("got %v", err)
	}

	w.expectNode("a", Failed, "old", "")
}

func TestPodDisruptionBudgetRefuses(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.newTestRun(evicting())
	w.nodes["a"].holders = []api.Hold{podHold("ml/train-0")}
	w.nodes["a"].budget = true

	if err := w.execute("laptop"); err == nil || !strings.Contains(err.Error(), "disruption budget") {
		t.Errorf("got %v", err)
	}

	w.expectNode("a", Failed, "old", "")
	w.expectNode("b", Waiting, "old", "")
}

func TestNodeGone(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.newTestRun(Options{})
	w.nodes["a"].gone = true

	if err := w.execute("laptop"); err == nil || !strings.Contains(err.Error(), "there is no node a") {
		t.Errorf("got %v", err)
	}

	w.expectNode("b", Waiting, "old", "")
}

// A client that has lost the run does nothing further.
func TestLostRun(t *testing.T) {
	for _, at := range []Phase{Cordoning, Planning, Starting, Running, Settling, Uncordoning} {
		t.Run(string(at), func(t *testing.T) {
			w := newWorld(t, "a", "b")
			w.newTestRun(Options{})

			run, c := w.load("laptop")
			engine := c.engine()
			calls := 0

			engine.Report = func(n Node) {
				if n.Phase == at {
					w.mu.Lock()
					c.lost = true
					calls = w.calls
					w.mu.Unlock()
				}
			}

			if err := engine.Execute(t.Context(), run); !errors.Is(err, ErrLost) {
				t.Errorf("got %v", err)
			}

			if w.calls != calls {
				t.Errorf("it has gone on: %v", w.log[calls:])
			}

			if err := w.execute("other"); err != nil {
				t.Fatal(err)
			}

			w.expectNode("a", Done, "new", "")
			w.expectNode("b", Done, "new", "")
		})
	}
}

func TestInterrupted(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.newTestRun(Options{})

	ctx, cancel := context.WithCancel(t.Context())
	run, c := w.load("laptop")
	engine := c.engine()
	engine.Report = func(n Node) {
		if n.Phase == Running {
			cancel()
		}
	}

	if err := engine.Execute(ctx, run); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}

	if err := w.execute("other"); err != nil {
		t.Fatal(err)
	}

	w.expectNode("a", Done, "new", "")
	w.expectNode("b", Done, "new", "")
}

func TestRollsBackByName(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.newTestRun(Options{})
	w.nodes["c"].layout = "new"

	if err := w.execute("laptop"); err != nil {
		t.Fatal(err)
	}

	run, _ := w.load("laptop")
	for _, test := range []struct{ node, want string }{
		{"c", "nothing to undo"},
		{"d", "not of run"},
	} {
		if err := run.RollBack([]string{test.node}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("node %s: got %v", test.node, err)
		}
	}

	for _, names := range [][]string{{"b"}, nil} {
		if err := w.execute("laptop", func(r *Run) {
			if err := r.RollBack(names); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}

		w.expectNode("b", Done, "old", "")
	}

	w.expectNode("a", Done, "old", "")
	w.expectNode("c", Skipped, "new", "")

	run, _ = w.load("laptop")
	if err := run.RollBack(nil); err == nil {
		t.Error("all is undone; no error")
	}
}

// A run finds its rollback by the operation that it undoes: another rollback of the same GPUs is not
// taken for it.
func TestRollbackOfAnotherOperation(t *testing.T) {
	w := newWorld(t, "a")
	w.newTestRun(Options{})

	if err := w.execute("laptop"); err != nil {
		t.Fatal(err)
	}

	run, c := w.load("laptop")
	if err := run.RollBack(nil); err != nil {
		t.Fatal(err)
	}

	n := w.nodes["a"]
	engine := c.engine()
	engine.Report = func(node Node) {
		if node.Phase == Starting {
			w.mu.Lock()
			defer w.mu.Unlock()

			// A person has repartitioned the node, and rolls that back.
			n.add("a", &api.Operation{Verb: api.VerbRollback, RollbackOf: "theirs"}, "new")
		}
	}

	if err := engine.Execute(t.Context(), run); err != nil {
		t.Fatal(err)
	}

	w.expectNode("a", Done, "old", "")

	if got := w.savedNode("a").RolledBackBy; got != n.ops[0].ID || n.ops[0].RollbackOf != n.ops[2].ID {
		t.Errorf("rolled back by %s; the latest operation undoes %q", got, n.ops[0].RollbackOf)
	}
}

// A node whose operation is degraded is neither rolled back by the run nor uncordoned.
func TestRollbackOfADegradedOperation(t *testing.T) {
	for _, test := range []struct {
		end   api.OperationState
		later api.OperationState // as the operation is when the run is rolled back
		phase Phase
		own   bool // it stays cordoned by the run
	}{
		{api.Degraded, api.Degraded, Failed, true},
		{api.Stuck, api.Running, Failed, true},
		{api.Degraded, api.Accepted, Failed, true},
		{api.Degraded, api.RolledBack, Done, false},
		{api.Unsettled, api.Unsettled, Done, false},
	} {
		t.Run(fmt.Sprintf("%s, then %s", test.end, test.later), func(t *testing.T) {
			w := newWorld(t, "a")
			run := w.newTestRun(Options{})
			n := w.nodes["a"]
			n.end = test.end

			if err := w.execute("laptop"); err == nil {
				t.Fatal("no error")
			}

			w.expectNode("a", Failed, n.layout, run.Name)

			n.ops[0].State = test.later
			n.end = test.later

			if test.later == api.Unsettled {
				n.end = api.Succeeded
				n.ops[0].State = api.Succeeded
			}

			err := w.execute("laptop", func(r *Run) {
				if err := r.RollBack(nil); err != nil {
					t.Error(err)
				}
			})
			if (err == nil) != (test.phase == Done) {
				t.Errorf("got %v", err)
			}

			cordonedBy := ""
			if test.own {
				cordonedBy = run.Name
			}

			w.expectNode("a", test.phase, "old", cordonedBy)
		})
	}
}

// A node whose layout is neither the old nor the new one stays cordoned, whatever else fails later.
func TestUnclearNodeStaysCordoned(t *testing.T) {
	w := newWorld(t, "a")
	run := w.newTestRun(Options{})
	n := w.nodes["a"]
	n.end = api.Interrupted

	if err := w.execute("laptop"); err == nil {
		t.Fatal("no error")
	}

	n.refuse = &api.Problem{Type: api.Infeasible, Detail: "no room"}

	if err := w.execute("laptop", resume); err == nil {
		t.Fatal("no error")
	}

	w.expectNode("a", Failed, "old", run.Name)

	n.refuse = nil
	n.end = api.Succeeded

	if err := w.execute("laptop", resume); err != nil {
		t.Fatal(err)
	}

	w.expectNode("a", Done, "new", "")
}

// A node that is uncordoned in the middle, or replaced by another of its name, is cordoned again
// before pods are evicted and before the operation.
func TestUncordonedInTheMiddle(t *testing.T) {
	for _, at := range []Phase{Planning, Evicting, Starting} {
		t.Run(string(at), func(t *testing.T) {
			w := newWorld(t, "a")
			w.newTestRun(evicting())
			n := w.nodes["a"]
			n.holders = []api.Hold{podHold("ml/train-0")}

			run, c := w.load("laptop")
			engine := c.engine()
			engine.Report = func(node Node) {
				if node.Phase == at {
					w.mu.Lock()
					n.cordonedBy = ""
					w.mu.Unlock()
				}
			}

			if err := engine.Execute(t.Context(), run); err != nil {
				t.Fatal(err)
			}

			w.expectNode("a", Done, "new", "")
		})
	}
}

// An API server that is away for a while during an eviction does not end the run.
func TestAPIServerAwayInAnEviction(t *testing.T) {
	w := newWorld(t, "a")
	w.newTestRun(evicting())
	w.nodes["a"].holders = []api.Hold{podHold("ml/train-0")}
	w.nodes["a"].away = 3

	if err := w.execute("laptop"); err != nil {
		t.Fatal(err)
	}

	w.expectNode("a", Done, "new", "")
}

func TestNothingIsLeft(t *testing.T) {
	w := newWorld(t, "a", "b")
	run := w.newTestRun(Options{})

	if !run.Resume() {
		t.Error("a run that has not begun: nothing is left")
	}

	if err := w.execute("laptop"); err != nil {
		t.Fatal(err)
	}

	run, _ = w.load("laptop")
	if run.Resume() {
		t.Error("all nodes are done: something is left")
	}
}
