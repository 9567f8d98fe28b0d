package nodelabels_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/cluster"
	"github.com/mig-exporter/mig-exporter/internal/control/nodelabels"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/sim/clusterapi"
)

// The labels and annotations of the node.
const (
	config       = "nvidia.com/mig.config"
	state        = "nvidia.com/mig.config.state"
	reason       = "mig-exporter.io/mig-config-reason"
	pausedBefore = "mig-exporter.io/paused-clients"
	plugin       = "nvidia.com/gpu.deploy.device-plugin"
	dcgm         = "nvidia.com/gpu.deploy.dcgm"
	dcgmExporter = "nvidia.com/gpu.deploy.dcgm-exporter"
	paused       = "paused-for-mig-change"
)

// fakeEngine plans what a test sets. An operation takes the states of ends, one with each look at
// it.
type fakeEngine struct {
	mu      sync.Mutex
	problem map[string]*api.Problem // of a plan, by layout
	current string                  // the layout that stands; a plan of it has no steps
	ends    []api.OperationState
	failure *api.Problem // of an operation
	waits   bool         // a MIG mode comes into force only with a reset
	gpus    []mig.GPULayout

	plans, starts, modes int
	actors               []string
	rights               control.Rights
	left                 []api.OperationState
	layout               string
	others               []api.Operation
	recovering           bool
	onLook               func(api.OperationState)
}

func problem(t api.ProblemType, detail string) *api.Problem {
	return &api.Problem{Type: t, Title: "No", Status: 409, Detail: detail}
}

func (e *fakeEngine) Plan(_ context.Context, by control.Actor, r api.PlanRequest) (*api.Plan, error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.plans++
	e.actors = append(e.actors, by.Name)
	e.rights = by.Rights
	e.layout = r.Spec.Layout

	if p := e.problem[r.Spec.Layout]; p != nil {
		return nil, p
	}

	p := &api.Plan{ID: "plan-" + r.Spec.Layout, Hash: "h"}
	if r.Spec.Layout != e.current {
		p.Steps = []mig.Step{{GPU: "GPU-a"}}
		p.GPUs = []api.PlanGPU{{UUID: "GPU-a"}}
	}

	return p, nil
}

func (e *fakeEngine) Start(_ context.Context, by control.Actor, r api.OperationRequest) (*api.Operation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.starts++
	e.left = e.ends

	if r.Plan != "plan-"+e.layout || r.Hash != "h" {
		return nil, problem(api.StalePlan, "another plan")
	}

	return &api.Operation{ID: "op-1", By: by.Name, State: api.Pending}, nil
}

func (e *fakeEngine) SetMode(
	_ context.Context, _ control.Actor, id gpu.UUID, r api.ModeRequest,
) (*api.Operation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.modes++
	e.left = []api.OperationState{api.Succeeded}

	for i := range e.gpus {
		if g := &e.gpus[i]; g.UUID == id {
			g.Pending = gpu.Some(r.Enabled)
			if !e.waits {
				g.MIG = gpu.Some(r.Enabled)
			}
		}
	}

	if !e.waits {
		e.problem = nil
	}

	return &api.Operation{ID: "op-m", State: api.Pending}, nil
}

func (e *fakeEngine) Operation(id string) (*api.Operation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	now := e.left[0]
	if len(e.left) > 1 {
		e.left = e.left[1:]
	}

	if now == api.Succeeded && id != "op-m" {
		e.current = e.layout
	}

	if e.onLook != nil {
		e.onLook(now)
	}

	return &api.Operation{ID: id, State: now, Error: e.failure, WaitsFor: []string{"the kubelet"}}, nil
}

func (e *fakeEngine) Operations() *api.Operations {
	e.mu.Lock()
	defer e.mu.Unlock()

	return &api.Operations{Recovering: e.recovering, Operations: e.others}
}

// fixture is a follower with its API server and its engine.
type fixture struct {
	*nodelabels.Follower
	t      *testing.T
	server *clusterapi.Server
	engine *fakeEngine
	opts   nodelabels.Options
	audit  []nodelabels.AuditEntry
	status nodelabels.Status
	file   map[string][]api.LayoutRule // the operator's
	own    map[string][]api.LayoutRule // of the ConfigMap
	now    time.Time
}

// newFixture returns a node whose label asks for a layout, with the operator's clients.
func newFixture(t *testing.T, layout string, change ...func(*nodelabels.Options)) *fixture {
	t.Helper()

	dir := t.TempDir()

	server, err := clusterapi.Start(dir)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(server.Close)

	client, err := kubeapi.New(kubeapi.Options{Server: server.URL, CredentialsDir: dir})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(client.Close)

	api, err := cluster.New(cluster.Options{
		API: client, Node: clusterapi.NodeName, FollowsLabels: true, OwnPod: "monitoring/mig-exporter-x1",
	})
	if err != nil {
		t.Fatal(err)
	}

	f := &fixture{t: t, server: server, now: time.Unix(1e9, 0), engine: newFakeEngine()}
	f.opts = nodelabels.Options{
		Cluster: api, Engine: f.engine, Apply: true, Boot: "boot-1",
		Namespace: "gpu-operator", ConfigMap: "default-mig-parted-config",
		Layout:     f.layout,
		SetLayouts: f.setLayouts,
		ReadGPUs:   func(context.Context) ([]mig.GPULayout, error) { return f.engine.gpus, nil },
		Current:    func() *gpu.Snapshot { return nil },
		Audit: func(e nodelabels.AuditEntry) error {
			f.audit = append(f.audit, e)
			return nil
		},
		Report: func(s nodelabels.Status) { f.status = s },
		Now:    func() time.Time { return f.now },
	}

	for _, c := range change {
		c(&f.opts)
	}

	for _, client := range []string{plugin, dcgm, dcgmExporter} {
		name := client[strings.LastIndexByte(client, '.')+1:]
		f.server.SetLabel(client, "true", "gpu-operator")
		f.server.AddDaemonSet(clusterapi.DaemonSet{
			Namespace: "gpu-operator", Name: name, NodeSelector: map[string]string{client: "true"}, Slow: 1,
		})
	}

	f.server.SetLabel(config, layout, "kubectl-label")
	f.restart()

	return f
}

func newFakeEngine() *fakeEngine {
	e := &fakeEngine{ends: []api.OperationState{api.Running, api.Settling, api.Succeeded}}

	for _, m := range mig.Models() {
		if strings.Contains(m.Name, "A100") && e.gpus == nil {
			e.gpus = []mig.GPULayout{{
				Facts: gpu.Facts{UUID: "GPU-a", Profiles: m.Profiles},
				MIG:   gpu.Some(true), Pending: gpu.Some(true),
			}}
		}
	}

	return e
}

func (f *fixture) layout(name string) (rules []api.LayoutRule, fromFile bool) {
	if rules, ok := f.file[name]; ok {
		return rules, true
	}

	list := spec.BuiltIn()
	maps.Copy(list, f.own)

	return list[name], false
}

func (f *fixture) setLayouts(own map[string][]api.LayoutRule) { f.own = own }

// restart begins with another process.
func (f *fixture) restart() {
	f.Follower = nodelabels.New(f.opts)
	f.Hurry()
}

// follow reads the node once.
func (f *fixture) follow() {
	f.t.Helper()

	if err := f.Follow(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) expectState(want string, reasons ...string) {
	f.t.Helper()

	if got := f.server.Label(state); got != want {
		f.t.Errorf("state %q, want %q; reason %q", got, want, f.server.Annotation(reason))
	}

	got := f.server.Annotation(reason)
	for _, r := range reasons {
		if !strings.Contains(got, r) {
			f.t.Errorf("reason %q, want %q in it", got, r)
		}
	}

	if len(reasons) == 0 && got != "" {
		f.t.Errorf("reason %q", got)
	}
}

// expectClients wants all clients to be deployed, as before, and nothing left to restore.
func (f *fixture) expectClients() {
	f.t.Helper()

	for _, key := range []string{plugin, dcgm, dcgmExporter} {
		if v := f.server.Label(key); v != "true" {
			f.t.Errorf("%s=%s", key, v)
		}
	}

	if text := f.server.Annotation(pausedBefore); text != "" {
		f.t.Errorf("%s: %s", pausedBefore, text)
	}
}

// patches counts the changes of the node.
func (f *fixture) patches() int {
	n := 0

	for _, r := range f.server.Requests() {
		if strings.HasPrefix(r, "PATCH ") {
			n++
		}
	}

	return n
}

// errWriting is an audit log that cannot be written.
var errWriting = fmt.Errorf("the disk is full")
