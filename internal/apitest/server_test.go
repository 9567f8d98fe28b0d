package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/server"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

const (
	gpu0 = gpu.UUID("GPU-5d2c1f3a-8a6e-4a57-9f0e-1f8b1a2c3d40")
	mig0 = gpu.MIGUUID("MIG-0f6a3f5e-3f0c-5d8a-9f86-0b7d5c1f2a34")
)

// engine answers with documents that have every field.
type engine struct{}

func steps() []mig.Step {
	place := gpu.Placement{Start: 4, Size: 4}

	return []mig.Step{
		{Op: mig.DestroyCompute, GPU: gpu0, ProfileID: 9, Profile: "3g.20gb", Placement: place, UUID: mig0,
			Compute: gpu.Some(gpu.Placement{Start: -1, Size: 3}), Instance: gpu.Some(gpu.InstanceID(2)), ComputeID: gpu.Some(gpu.ComputeID(0))},
		{Op: mig.CreateInstance, GPU: gpu0, ProfileID: 14, Profile: "2g.10gb", Placement: gpu.Placement{Start: 4, Size: 2}},
	}
}

func (engine) plan(id string, force []string) *api.Plan {
	hold := []api.Hold{{Kind: api.HoldPod, What: "ml/train-0 (main)"}, {Kind: api.HoldProcess, PID: 42, What: "python3"},
		{Kind: api.HoldUnconfirmed, What: "ml/train-1 (main): not listed"}}

	return &api.Plan{
		APIVersion: api.Version, ID: id, Hash: "h", Created: time.Unix(1, 5), Node: "node-1", Steps: steps(), Forced: force,
		Owners: []string{"mig-manager"}, TakeOver: true, Warnings: []string{"fragmented"},
		GPUs: []api.PlanGPU{{
			UUID: gpu0, Name: "NVIDIA A100-SXM4-40GB", AxisUnits: 8, Left: "3g.20gb",
			Before: []api.Instance{{
				ID: gpu.Some(gpu.InstanceID(2)), Profile: "3g.20gb", ProfileID: 9, Placement: gpu.Placement{Start: 4, Size: 4}, Fate: api.Destroy, Holders: hold,
				Compute: []api.ComputeInstance{{ID: gpu.Some(gpu.ComputeID(0)), UUID: mig0, Placement: gpu.Placement{Start: 0, Size: 3}, Fate: api.Destroy, Holders: hold}},
			}},
			After: []api.Instance{{
				Profile: "2g.10gb", ProfileID: 14, Placement: gpu.Placement{Start: 4, Size: 2}, Fate: api.Create, Need: gpu.Some(0),
				Compute: []api.ComputeInstance{{Placement: gpu.Placement{Start: 0, Size: 2}, Fate: api.Create}},
			}},
		}},
	}
}

func operation(id string) *api.Operation {
	s := steps()
	undone := api.OperationStep{Step: s[0], State: api.StepUndone, Done: &mig.Done{Instance: 2, ComputeID: gpu.Some(gpu.ComputeID(0)), UUID: mig0}}
	failed := api.OperationStep{Step: s[1], State: api.StepFailed, Error: "insufficient resources"}

	return &api.Operation{
		APIVersion: api.Version, ID: id, Verb: api.VerbApply, Plan: "plan-1", RollbackOf: "op-0", By: "uid:0", State: api.Interrupted, Started: time.Unix(1, 0), Ended: time.Unix(2, 0),
		Steps: []api.OperationStep{undone, failed}, Rollback: []api.OperationStep{failed},
		GPUs: []api.OperationGPU{
			{GPU: gpu0, State: api.Interrupted, Error: "another client has changed it", Current: engine{}.plan("", nil).GPUs[0].Before},
			{GPU: "GPU-2", State: api.RolledBack}, {GPU: "GPU-3", State: api.Unsettled},
		},
		Error: busy(), Renamed: map[gpu.MIGUUID]gpu.MIGUUID{mig0: "MIG-1"}, WaitsFor: []string{"the kubelet to offer MIG-1"}, Warnings: []string{"w"}, Cordoned: true,
		Hooks: []api.HookResult{{Argv: []string{"restart"}, Seconds: 0.5, Error: "exit status 1", ExitCode: 1}},
		Mode:  &api.ModeResult{GPU: gpu0, Wanted: true, Pending: true, Waits: "reset", Holders: []api.Hold{{Kind: api.HoldHandle, PID: 7, What: "dcgm"}}},
	}
}

// recovery is the operation that stands for a document that cannot be read.
func recovery() *api.Operation {
	return &api.Operation{
		APIVersion: api.Version, ID: "op-0", Verb: api.VerbRecovery, By: "mig-exporter", State: api.Degraded, Started: time.Unix(1, 0),
		Steps: []api.OperationStep{}, GPUs: []api.OperationGPU{{GPU: gpu0, State: api.Degraded}},
		Error: &api.Problem{Type: api.LayoutChanged, Title: "The layout was changed", Status: 409},
	}
}

func busy() *api.Problem {
	return &api.Problem{
		Type: api.Busy, Title: "In use", Status: 409, Detail: "Stop it.", Operation: "op-0", Profiles: []string{"1g.5gb"},
		Blocking: []api.Blocker{{GPU: gpu0, Instance: string(mig0), Profile: "3g.20gb", Placement: gpu.Placement{Start: 4, Size: 4}, Holders: []api.Hold{}}},
	}
}

func (e engine) Plan(_ context.Context, _ control.Actor, r api.PlanRequest) (*api.Plan, error) {
	return e.plan("plan-1", r.Force), nil
}

func (e engine) PlanByID(id string) (*api.Plan, error) {
	if id != "plan-1" {
		return nil, &api.Problem{Type: api.NotFound, Title: "No such plan", Status: 404}
	}

	return e.plan(id, nil), nil
}

func (engine) Layouts(context.Context) (*api.NamedLayouts, error) {
	return &api.NamedLayouts{APIVersion: api.Version, Layouts: []api.NamedLayout{{
		Name: "half", Applies: []gpu.UUID{gpu0}, Rules: []api.LayoutRule{
			{Devices: api.DeviceList{All: true}, DeviceFilter: api.Strings{"0x20B210DE"}, MIGEnabled: true, MIGDevices: map[string]int{"1g.5gb": 2}},
			{Devices: api.DeviceList{Indexes: []int{0}}, DeviceFilter: api.Strings{"a", "b"}},
		},
	}}}, nil
}

func (engine) Start(_ context.Context, _ control.Actor, r api.OperationRequest) (*api.Operation, error) {
	if r.Hash != "h" {
		return nil, &api.Problem{Type: api.StalePlan, Title: "The node has changed", Status: 409}
	}

	return operation("op-1"), nil
}

func (e engine) Accept(ctx context.Context, by control.Actor, id string) (*api.Operation, error) {
	return e.Rollback(ctx, by, id)
}

func (e engine) Restore(ctx context.Context, by control.Actor, id gpu.UUID, _ api.RestoreRequest) (*api.Operation, error) {
	if id == "GPU-lost" {
		return nil, busy()
	}

	return e.Rollback(ctx, by, "op-1")
}

func (e engine) ForgetLayout(_ context.Context, _ control.Actor, id gpu.UUID) (*api.ForgottenLayout, error) {
	return &api.ForgottenLayout{APIVersion: api.Version, GPU: id, Forgotten: e.plan("", nil).GPUs[0].After}, nil
}

func (engine) Release(_ context.Context, id gpu.UUID) (*api.Release, error) {
	return &api.Release{APIVersion: api.Version, GPU: id, Released: true, Seconds: 0.2, Closed: "a lookup opens it"}, nil
}

func (engine) Reacquire(_ context.Context, id gpu.UUID) (*api.Release, error) {
	return &api.Release{APIVersion: api.Version, GPU: id, Seconds: 0.2}, nil
}

func (e engine) EndSettling(ctx context.Context, by control.Actor, id string) (*api.Operation, error) {
	return e.Rollback(ctx, by, id)
}

func (engine) Rollback(_ context.Context, _ control.Actor, id string) (*api.Operation, error) {
	if id == "busy" {
		return nil, busy()
	}

	return operation("op-2"), nil
}

func (engine) ConfirmFree(_ context.Context, _ control.Actor, device string) (*api.Confirmation, error) {
	if device == "busy" {
		return nil, busy()
	}

	return &api.Confirmation{APIVersion: api.Version, Device: device, Note: "until the kubelet restarts",
		Confirmed: []api.UnconfirmedHolder{{Namespace: "ml", Pod: "train-0", Container: "main", Reason: "not listed"}}}, nil
}

func (engine) SetMode(context.Context, control.Actor, gpu.UUID, api.ModeRequest) (*api.Operation, error) {
	return operation("op-3"), nil
}

func (engine) Operation(id string) (*api.Operation, error) { return operation(id), nil }

func (engine) Operations() *api.Operations {
	return &api.Operations{APIVersion: api.Version, State: "read-only", Reason: "no room", Blocked: map[gpu.UUID]string{gpu0: "op-0"},
		Unrestored: []api.Unrestored{{GPU: "GPU-lost", Reason: api.NotReadable, Detail: "it is lost", Operation: "op-1", Next: time.Unix(1, 0),
			Wanted: engine{}.plan("", nil).GPUs[0].After}, {GPU: gpu0, Reason: api.NotEmpty, Detail: "it has others"}},
		Operations: []api.Operation{*operation("op-1"), *recovery()}}
}

func (engine) Events(context.Context, string, int) (<-chan api.Event, error) {
	op := operation("op-1")
	all := []api.Event{
		{Kind: api.EventState, State: api.Running, Text: "running"},
		{Kind: api.EventStep, State: api.Running, Step: &op.Steps[0], Index: gpu.Some(0)},
		{Kind: api.EventStep, State: api.RollingBack, Step: &op.Rollback[0], Index: gpu.Some(0), Rollback: true},
		{Kind: api.EventHook, State: api.Settling, Hook: &op.Hooks[0]},
		{Kind: api.EventNote, State: api.Settling, Text: "waits for the kubelet to offer MIG-1"},
		{Kind: api.EventState, State: api.Interrupted},
	}

	events := make(chan api.Event, len(all))
	for i, e := range all {
		e.Seq, e.Time = i+1, time.Unix(1, 0)
		events <- e
	}

	close(events)

	return events, nil
}

// serveHistory answers with the history of a GPU whose instance has had an XID and was destroyed.
func serveHistory(w http.ResponseWriter, _ *http.Request) {
	past := history.New(time.Minute)
	at := time.Unix(1000, 0)
	node := func(after time.Duration, changes float64, instances ...gpu.GPUInstance) *gpu.Snapshot {
		g := gpu.GPU{Facts: gpu.Facts{UUID: gpu0}, Instances: instances}
		g.Readings.PowerWatts = gpu.Some(100.5)
		g.Totals.LayoutChanges.Value = changes

		return &gpu.Snapshot{Time: at.Add(after), GPUs: []gpu.GPU{g}}
	}
	instance := gpu.GPUInstance{ID: 1, Generation: 1, Profile: "3g.20gb", Placement: gpu.Some(gpu.Placement{Start: 4, Size: 4}),
		Memory: gpu.Memory{Used: gpu.Some(uint64(1 << 30))}}

	past.Observe(node(0, 0, instance))

	instance.XIDErrors = []gpu.XIDCount{{XID: 94, Counter: gpu.Counter{Value: 1}, Last: at}}
	past.Observe(node(10*time.Second, 0, instance))
	past.Observe(node(20*time.Second, 1))

	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(past.Document())
}

// serveHealth answers with the health of a GPU whose instance has had an XID.
func serveHealth(w http.ResponseWriter, _ *http.Request) {
	at := time.Unix(1000, 0)
	g := gpu.GPU{Facts: gpu.Facts{UUID: gpu0, Name: "NVIDIA A100", PCIBusID: "00000000:07:00.0"}, Device: gpu.Device{Up: true}}
	g.Totals.XIDs.Since = at
	g.Totals.XIDErrors = []gpu.XIDCount{{XID: 94, Counter: gpu.Counter{Value: 1}, Last: at}}
	g.Instances = []gpu.GPUInstance{{
		ID: 1, Generation: 1, Profile: "3g.20gb", Placement: gpu.Some(gpu.Placement{Start: 4, Size: 4}),
		XIDErrors: g.Totals.XIDErrors, ComputeInstances: []gpu.ComputeInstance{{UUID: "MIG-1"}},
	}}

	tracker := health.New(time.Minute, at)
	tracker.Observe(&gpu.Snapshot{Generation: 1, Time: at, Hostname: "node", GPUs: []gpu.GPU{g}})

	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(tracker.Report(at.Add(time.Hour)))
}

// serve starts the server on a socket and returns a client of it.
func serve(t *testing.T) *http.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "control.sock")
	ready := make(chan []net.Addr, 1)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		ended <- server.Serve(ctx, server.Options{
			Socket: path, AllowGID: -1, Audit: io.Discard, ShutdownTimeout: 5 * time.Second, Ready: func(a []net.Addr) { ready <- a },
			Node: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"apiVersion":"mig-exporter/v1","gpus":[]}`)
			}),
			NodeStream: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "id: 1\nevent: node\ndata: \"{}\"\n\n")
			}),
			NodeHistory:     http.HandlerFunc(serveHistory),
			Health:          http.HandlerFunc(serveHealth),
			Recommendations: recommendations,
			Releaser:        engine{},
			Current:         func() *gpu.Snapshot { return &gpu.Snapshot{GPUs: []gpu.GPU{{Facts: gpu.Facts{UUID: gpu0}}}} },
		}, engine{}, log.NewNopLogger())
	}()

	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatal(err)
	}

	t.Cleanup(func() {
		cancel()

		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(transport.CloseIdleConnections)

	return &http.Client{Transport: transport}
}

type exchange struct {
	method, path, body string
	status             int
}

func exchanges() []exchange {
	plan := func(spec string) string { return `{"spec":` + spec + `}` }

	return []exchange{
		{"GET", "/node", "", 200},
		{"GET", "/node/stream", "", 200},
		{"GET", "/node/history", "", 200},
		{"GET", "/health", "", 200},
		{"GET", "/layouts", "", 200},
		{"GET", "/recommendations", "", 200},
		{"GET", "/recommendations?gpu=0", "", 503}, // as before the first reading
		{"GET", "/openapi.yaml", "", 200},
		{"GET", "/plans/plan-1", "", 200},
		{"GET", "/plans/other", "", 404},
		{"GET", "/operations", "", 200},
		{"GET", "/operations/op-1", "", 200},
		{"GET", "/operations/op-1/events", "", 200},
		{"POST", "/operations", `{"plan":"plan-1","hash":"h"}`, 202},
		{"POST", "/operations", `{"plan":"plan-1","hash":"stale"}`, 409},
		{"POST", "/operations/op-1/rollback", "", 202},
		{"POST", "/operations/op-1/rollback", "{}", 202},
		{"POST", "/operations/busy/rollback", "", 409},
		{"POST", "/operations/op-1/accept", "", 202},
		{"POST", "/operations/busy/accept", "", 409},
		{"POST", "/operations/op-1/settled", "", 202},
		{"POST", "/operations/busy/settled", "", 409},
		{"POST", "/devices/" + string(mig0) + "/confirm-free", "", 200},
		{"POST", "/devices/" + string(mig0) + "/confirm-free", "{}", 200},
		{"POST", "/devices/busy/confirm-free", "", 409},
		{"PUT", "/gpus/0/mig-mode", `{"enabled":false,"takeOver":true}`, 202},
		{"PUT", "/gpus/9/mig-mode", `{"enabled":false}`, 404},
		{"POST", "/plans", plan(`{"gpus":[0,"all"],"devices":{"1g.5gb":2,"3g.20gb":{"count":1,"compute":["1c","2c"]}}}`), 201},
		{"POST", "/plans", plan(`{"gpus":[0],"devices":{"3g.20gb":[{"compute":["1c","2c"]},1]}}`), 201},
		{"POST", "/plans", plan(`{"gpus":[0],"devices":{}}`), 201},
		{"POST", "/plans", plan(`{"demand":[{"memory":"12GiB","sms":20,"count":3},{"memory":1024,"count":1}]}`), 201},
		{"POST", "/plans", plan(`{"layout":"half"}`), 201},
		{"POST", "/plans", plan(`{"layout":"x","version":"v1","mig-configs":{"x":[{"devices":[0],"mig-enabled":true,"mig-devices":{"1g.5gb":1}}]}}`), 201},
		{"POST", "/plans", `{"spec":{"layout":"half"},"force":["` + string(mig0) + `"],"takeOver":false}`, 201},

		// What the document forbids, the server refuses.
		{"POST", "/operations", "", 415},
		{"POST", "/operations", `{"plan":"plan-1"}`, 400},
		{"POST", "/operations", `{"plan":"plan-1","hash":"h","x":1}`, 400},
		{"POST", "/operations", `{"plan":1,"hash":"h"}`, 400},
		{"POST", "/operations", `[]`, 400},
		{"POST", "/operations/op-1/rollback", `{"x":1}`, 400},
		{"POST", "/operations/op-1/accept", `{"x":1}`, 400},
		{"POST", "/operations/op-1/settled", `{"x":1}`, 400},
		{"POST", "/devices/busy/confirm-free", `{"x":1}`, 400},
		{"GET", "/devices/busy/confirm-free", "", 405},
		{"PUT", "/gpus/0/mig-mode", `{}`, 400},
		{"PUT", "/gpus/0/mig-mode", `{"enabled":"yes"}`, 400},
		{"POST", "/plans", `{}`, 400},
		{"POST", "/plans", `{"spec":{"layout":"half"},"force":"all"}`, 400},
		{"POST", "/plans", plan(`{}`), 422},
		{"POST", "/plans", plan(`{"layout":"half","demand":[{"count":1}]}`), 422},
		{"POST", "/plans", plan(`{"gpus":[0],"devices":{"1g.5gb":-1}}`), 422},
		{"POST", "/plans", plan(`{"demand":[{"count":1,"memory":"much"}]}`), 422},
		{"POST", "/plans", plan(`{"demand":[{"count":1,"cores":1}]}`), 422},
		{"POST", "/plans", plan(`{"demand":[]}`), 422},
		{"DELETE", "/operations", "", 405},
		{"GET", "/nothing", "", 404},
	}
}

// restores are exchanges about the layouts of GPUs.
func restores() []exchange {
	return []exchange{
		{"POST", "/gpus/0/restore", "", 202},
		{"POST", "/gpus/0/restore", `{"takeOver":true}`, 202},
		{"POST", "/gpus/GPU-lost/restore", "", 409},
		{"POST", "/gpus/9/restore", "", 404},
		{"POST", "/gpus/GPU-lost/forget-layout", "{}", 200},
		{"POST", "/gpus/9/forget-layout", "", 404},
		{"POST", "/gpus/0/restore", `{"force":true}`, 400},
		{"POST", "/gpus/0/forget-layout", `{"x":1}`, 400},
		{"POST", "/gpus/0/release", "{}", 200},
		{"POST", "/gpus/0/reacquire", "", 200},
		{"POST", "/gpus/9/release", "", 404},
		{"POST", "/gpus/0/reacquire", `{"x":1}`, 400},
	}
}

// TestExchanges holds requests and responses against the document. A request that the server takes
// is valid in it, and one that is not valid there the server refuses.
func TestExchanges(t *testing.T) {
	d := load(t)
	main := serve(t)
	releasing := serve(t) // two servers: one takes only so many calls a second

	for _, e := range slices.Concat(exchanges(), restores()) {
		client := main
		if strings.HasPrefix(e.path, "/gpus/") {
			client = releasing
		}

		request, err := http.NewRequestWithContext(t.Context(), e.method, "http://control/api/v1"+e.path, strings.NewReader(e.body))
		if err != nil {
			t.Fatal(err)
		}

		if e.body != "" {
			request.Header.Set("Content-Type", "application/json")
		}

		valid := d.checkRequest(request, []byte(e.body))

		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}

		body := readAll(t, response.Body)
		if response.StatusCode != e.status {
			t.Errorf("%s %s %s: %d %s, want %d", e.method, e.path, e.body, response.StatusCode, body, e.status)
		}

		refused := bytes.Contains([]byte(" 400 405 415 422 "), []byte(" "+response.Status[:3]+" "))
		if e.path != "/nothing" && refused != (valid != nil) {
			t.Errorf("%s %s %s: %d %s, in the document: %v", e.method, e.path, e.body, response.StatusCode, body, valid)
		}

		if err := d.checkResponse(response, body); err != nil {
			t.Errorf("%s %s %s: %d %s: %v", e.method, e.path, e.body, response.StatusCode, body, err)
		}
	}

	for path, item := range d.root["paths"].(map[string]any) {
		for method, operation := range item.(map[string]any) {
			if method == "parameters" {
				continue
			}

			for status := range operation.(map[string]any)["responses"].(map[string]any) {
				if name := strings.ToUpper(method) + " " + path + " " + status; status != "default" && status != "304" && !d.seen[name] { // 304 is the exporter's own
					t.Errorf("%s is in the document and never was an answer", name)
				}
			}
		}
	}
}
