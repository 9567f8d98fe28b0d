package rollout

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// world is a cluster of nodes with exporters, and the API server that keeps the state of runs. It
// checks with each deed that the saved state names it.
type world struct {
	t  *testing.T
	mu sync.Mutex

	now   time.Time
	nodes map[string]*fakeNode
	saved []byte // the state of the run
	owner string // who has saved it last
	calls int
	log   []string
	most  int // nodes that were unavailable by the run at one time

	// At this call the client is killed, or its answer is lost: before its effect or after it.
	faultAt  int
	fault    fault
	isKilled bool
}

type fault int

const (
	killBefore fault = iota + 1
	killAfter
	loseAnswer
)

var (
	errKilled = errors.New("killed")
	errLost   = errors.New("no answer")
)

type fakeNode struct {
	gone        bool
	layout      string
	cordonedBy  string // a run, "person" or "exporter"
	holders     []api.Hold
	leftover    []api.Hold // holders for a while after the pods have gone
	lagging     int        // how often they are still seen
	lags        int        // how often that is after an eviction; default: 2
	noIndexes   bool       // the exporter does not say which GPU is which
	budget      bool       // a PodDisruptionBudget refuses evictions
	stays       bool       // the pods are a DaemonSet's
	keepsCordon bool       // it cannot be uncordoned
	ops         []*api.Operation
	plans       map[string]string // layouts by the plans' ids
	keys        map[string]*api.Operation
	end         api.OperationState // of operations; default: succeeded
	notOffered  int                // how often allocatable is still behind
	refuse      *api.Problem       // of plans
	silent      int                // how often the exporter does not answer
	away        int                // how often the API server does not answer, in evictions
	evicted     []Pod
	before      []*Offer // of the calls of Missing

	// The exporter answers nothing any more after it has received a start, which it executes or not.
	startsWithoutAnswer, losesStarts bool
}

func newWorld(t *testing.T, names ...string) *world {
	t.Helper()

	w := &world{
		t:     t,
		now:   time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		nodes: map[string]*fakeNode{},
	}
	for _, name := range names {
		w.nodes[name] = &fakeNode{
			layout: "old",
			plans:  map[string]string{},
			keys:   map[string]*api.Operation{},
			end:    api.Succeeded,
		}
	}

	return w
}

// call does the effect of a call, unless the client is killed.
func (w *world) call(name, node string, effect func(*fakeNode) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.isKilled {
		return errKilled
	}

	w.calls++
	w.log = append(w.log, name+" "+node)
	isFault := w.calls == w.faultAt

	if isFault && w.fault == killBefore {
		w.isKilled = true
		return errKilled
	}

	err := effect(w.nodes[node])

	if isFault && w.fault == killAfter {
		w.isKilled = true
		return errKilled
	}

	if isFault && w.fault == loseAnswer {
		return errLost
	}

	w.countUnavailable()

	return err
}

// countUnavailable counts the nodes that the run has cordoned.
func (w *world) countUnavailable() {
	n := 0

	for _, node := range w.nodes {
		if node.cordonedBy != "" && node.cordonedBy != "person" && node.cordonedBy != "exporter" {
			n++
		}
	}

	w.most = max(w.most, n)
}

// savedNode returns a node of the saved state.
func (w *world) savedNode(name string) Node {
	var run Run
	if err := json.Unmarshal(w.saved, &run); err != nil {
		w.t.Errorf("the state cannot be read: %v", err)
	}

	i := slices.IndexFunc(run.Nodes, func(n Node) bool { return n.Name == name })

	return run.Nodes[i]
}

// expectPhase checks that the saved state names the deed.
func (w *world) expectPhase(name string, phase Phase) {
	if got := w.savedNode(name).Phase; got != phase {
		w.t.Errorf("node %s: the saved phase is %s in a deed of %s", name, got, phase)
	}
}

// Now implements Clock.
func (w *world) Now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.now
}

// Sleep implements Clock: it lets the time pass at once.
func (w *world) Sleep(ctx context.Context, d time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.now = w.now.Add(d)

	if w.isKilled {
		return errKilled
	}

	return ctx.Err()
}

// client is one client of the world: it implements Cluster, Exporter and Store.
type client struct {
	*world
	name string
	lost bool
}

func (c *client) Save(_ context.Context, run *Run) error {
	if c.lost {
		return ErrLost
	}

	return c.call("save", "", func(*fakeNode) error {
		if c.owner != c.name {
			return ErrLost
		}

		data, err := json.Marshal(run)
		c.saved = data

		return err
	})
}

func (c *client) Held() error {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.lost || c.owner != c.name {
		return ErrLost
	}

	return nil
}

func (c *client) Cordon(_ context.Context, node, run string) (own bool, err error) {
	err = c.call("cordon", node, func(n *fakeNode) error {
		if n.gone {
			return Refused(fmt.Errorf("there is no node %s", node))
		}

		if n.cordonedBy == "" {
			if saved := c.savedNode(node).Phase; saved != Cordoning && saved != Evicting && saved != Starting {
				c.t.Errorf("node %s is cordoned in the phase %s", node, saved)
			}

			n.cordonedBy = run
		}

		own = n.cordonedBy == run

		return nil
	})

	return own, err
}

func (c *client) Uncordon(_ context.Context, node, run string) error {
	return c.call("uncordon", node, func(n *fakeNode) error {
		c.expectPhase(node, Uncordoning)

		if n.keepsCordon {
			return Refused(errors.New("not now"))
		}

		if n.cordonedBy == run {
			n.cordonedBy = ""
		}

		return nil
	})
}

func (c *client) Evict(_ context.Context, node string, pods []Pod, _ Eviction) error {
	return c.call("evict", node, func(n *fakeNode) error {
		c.expectPhase(node, Evicting)

		if saved := c.savedNode(node).Pods; !slices.Equal(saved, pods) {
			c.t.Errorf("node %s: pods %v are evicted, the state has %v", node, pods, saved)
		}

		if n.cordonedBy == "" {
			c.t.Errorf("node %s: pods are evicted while it is schedulable", node)
		}

		if n.away > 0 {
			n.away--
			return errLost
		}

		if n.budget {
			return Refused(errors.New("it would violate the pod's disruption budget"))
		}

		for _, p := range pods {
			if !slices.Contains(n.evicted, p) {
				n.evicted = append(n.evicted, p)
			}
		}

		if n.holders != nil {
			n.holders = nil
			n.lagging = cmp.Or(n.lags, 2)
		}

		return nil
	})
}

// CheckEviction implements Evictions.
func (c *client) CheckEviction(_ context.Context, node string, pods []Pod, _ Eviction) error {
	if c.nodes[node].stays {
		return Refused(fmt.Errorf("%s stays", joinPods(pods)))
	}

	return nil
}

func (c *client) Offered(_ context.Context, node string) (offered map[string]int, err error) {
	err = c.call("offered", node, func(n *fakeNode) error {
		offered = map[string]int{n.layout: 1}
		return nil
	})

	return offered, err
}

func (c *client) Missing(
	_ context.Context, node string, _ map[string]int, before *Offer,
) (list []string, err error) {
	err = c.call("missing", node, func(n *fakeNode) error {
		n.before = append(n.before, before)

		if n.notOffered > 0 {
			n.notOffered--
			list = []string{"nvidia.com/mig-1g.10gb"}
		}

		return nil
	})

	return list, err
}

func (c *client) Inventory(_ context.Context, node string) (v *Inventory, err error) {
	err = c.call("inventory", node, func(n *fakeNode) error {
		v = &Inventory{Devices: map[string]int{"nvidia.com/mig-1g.10gb": 7}, Indexes: map[string]int{"GPU-0": 3}}
		if n.noIndexes {
			v.Indexes = nil
		}

		return answers(n)
	})

	return v, err
}

// answers fails while an exporter does not answer.
func answers(n *fakeNode) error {
	if n.silent > 0 {
		n.silent--
		return errors.New("connection refused")
	}

	return nil
}

// busy returns the problem if pods hold the devices: a plan is infeasible then, the start of an
// operation finds them busy.
func (n *fakeNode) busy(kind api.ProblemType) error {
	holders := n.holders

	if len(holders) == 0 && n.lagging > 0 {
		n.lagging--
		holders = n.leftover
	}

	if len(holders) == 0 {
		return nil
	}

	return &api.Problem{
		Type: kind,
		Blocking: []api.Blocker{{
			GPU: "GPU-0", Instance: "MIG-1", Profile: "1g.10gb", Placement: gpu.Placement{Start: 4, Size: 1}, Holders: holders,
		}},
	}
}

func (c *client) Plan(_ context.Context, node string, r api.PlanRequest) (plan *api.Plan, err error) {
	err = c.call("plan", node, func(n *fakeNode) error {
		if err := answers(n); err != nil {
			return err
		}

		if n.refuse != nil {
			return n.refuse
		}

		plan = &api.Plan{ID: fmt.Sprintf("%s-plan-%d", node, len(n.plans)), Hash: "hash", Node: node}
		if n.layout == r.Spec.Layout {
			return nil
		}

		if err := n.busy(api.Infeasible); err != nil {
			return err
		}

		plan.Steps = []mig.Step{{}}
		n.plans[plan.ID] = r.Spec.Layout

		return nil
	})

	return plan, err
}

func (c *client) Start(
	_ context.Context, node string, r api.OperationRequest, key string,
) (op *api.Operation, err error) {
	err = c.call("start", node, func(n *fakeNode) error {
		c.expectPhase(node, Starting)

		if saved := c.savedNode(node); saved.Key != key || saved.Plan != r.Plan || saved.Hash != r.Hash {
			c.t.Errorf("node %s: %v with key %s is started, the state has %v", node, r, key, saved)
		}

		if err := answers(n); err != nil {
			return err
		}

		if n.startsWithoutAnswer {
			n.silent = 1000
		}

		if n.losesStarts {
			return errLost
		}

		layout, ok := n.plans[r.Plan]
		op = n.keys[key]

		switch {
		case op != nil:
			return nil
		case !ok:
			return &api.Problem{Type: api.NotFound}
		case n.layout == layout:
			return &api.Problem{Type: api.StalePlan}
		case n.cordonedBy == "":
			c.t.Errorf("node %s is repartitioned while it is schedulable", node)
		}

		if err := n.busy(api.Busy); err != nil {
			return err
		}

		op = n.add(node, &api.Operation{Verb: api.VerbApply, Plan: r.Plan}, layout)
		n.keys[key] = op

		if n.startsWithoutAnswer {
			return errLost
		}

		return nil
	})

	return op, err
}

func (n *fakeNode) add(node string, op *api.Operation, layout string) *api.Operation {
	op.ID = fmt.Sprintf("%s-op-%d", node, len(n.ops))
	op.State = api.Pending
	op.GPUs = []api.OperationGPU{{GPU: "GPU-0"}}
	n.ops = slices.Insert(n.ops, 0, op)

	if n.end.Committed() {
		n.layout = layout
	}

	return op
}

func (c *client) Rollback(
	_ context.Context, node, operation, key string,
) (op *api.Operation, err error) {
	err = c.call("rollback", node, func(n *fakeNode) error {
		c.expectPhase(node, Starting)

		if err := n.busy(api.Busy); err != nil {
			return err
		}

		if op = n.keys[key]; op != nil {
			return nil
		}

		if n.layout == "old" {
			return &api.Problem{Type: api.StalePlan, Detail: "its layout is not the one that " + operation + " left"}
		}

		if n.cordonedBy == "" {
			c.t.Errorf("node %s is repartitioned while it is schedulable", node)
		}

		op = n.add(node, &api.Operation{Verb: api.VerbRollback, RollbackOf: operation}, "old")
		n.keys[key] = op

		return nil
	})

	return op, err
}

func (c *client) Operation(_ context.Context, node, id string) (op *api.Operation, err error) {
	err = c.call("operation", node, func(n *fakeNode) error {
		i := slices.IndexFunc(n.ops, func(o *api.Operation) bool { return o.ID == id })
		if i < 0 {
			return &api.Problem{Type: api.NotFound}
		}

		if err := answers(n); err != nil {
			return err
		}

		switch o := n.ops[i]; o.State { // a state with each look at it
		case api.Pending:
			o.State = api.Running
		case api.Running:
			o.State = n.end
		case api.Unsettled:
			if n.end == api.Succeeded {
				o.State = api.Succeeded
			}
		}

		copied := *n.ops[i]
		op = &copied

		return nil
	})

	return op, err
}

func (c *client) Operations(_ context.Context, node string) (list *api.Operations, err error) {
	err = c.call("operations", node, func(n *fakeNode) error {
		list = &api.Operations{}
		for _, o := range n.ops {
			list.Operations = append(list.Operations, *o)
		}

		return answers(n)
	})

	return list, err
}

// newTestRun saves a run that gives all nodes the layout "new".
func (w *world) newTestRun(options Options) *Run {
	w.t.Helper()

	var targets []Target
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		targets = append(targets, Target{Node: name})
	}

	options.Timeout = time.Minute

	run, err := NewRun(w.now, targets, []api.Spec{{Layout: "new"}}, options)
	if err != nil {
		w.t.Fatal(err)
	}

	w.saved, err = json.Marshal(run)
	if err != nil {
		w.t.Fatal(err)
	}

	return run
}

// load returns the saved run, for a client that takes it over.
func (w *world) load(name string) (*Run, *client) {
	w.t.Helper()

	var run Run
	if err := json.Unmarshal(w.saved, &run); err != nil {
		w.t.Fatal(err)
	}

	w.owner = name

	return &run, &client{world: w, name: name}
}

// execute goes on with the saved run as a client.
func (w *world) execute(name string, change ...func(*Run)) error {
	w.t.Helper()

	run, c := w.load(name)
	for _, f := range change {
		f(run)

		if err := c.Save(w.t.Context(), run); err != nil {
			w.t.Fatal(err)
		}
	}

	return c.engine().Execute(w.t.Context(), run)
}

func (c *client) engine() *Engine {
	return &Engine{Cluster: c, Exporter: c, Store: c, Clock: c.world}
}

// expectNode compares what became of a node.
func (w *world) expectNode(name string, phase Phase, layout, cordonedBy string) {
	w.t.Helper()

	n := w.nodes[name]
	saved := w.savedNode(name)

	if saved.Phase != phase || n.layout != layout || n.cordonedBy != cordonedBy {
		w.t.Errorf("node %s: phase %s (%s), layout %s, cordoned by %q; expected %s, %s, %q",
			name, saved.Phase, saved.Failure, n.layout, n.cordonedBy, phase, layout, cordonedBy)
	}
}

func podHold(pod string) api.Hold { return api.Hold{Kind: api.HoldPod, What: pod + " (main)"} }
