package control

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

const (
	kubeletRestarted = "the kubelet has restarted at 10:02:03 and its list has not shown pod mig-exporter/mig-exporter-x yet"
	notListed        = "the kubelet has not listed it since it restarted at 10:02:03"
)

// TestKubeletRestart: while a kubelet that has restarted has not got its pods back, their devices
// are not free, whether they were seen before or not. A confirmation ends that.
func TestKubeletRestart(t *testing.T) {
	for name, restart := range map[string]func(w *world){
		"empty list at the start of this program": func(w *world) { w.pods = gpu.Assignments{Incomplete: kubeletRestarted} },
		"holder seen before": func(w *world) {
			w.pods.Incomplete = kubeletRestarted
			w.pods.List[0].Holder.Unconfirmed = notListed
		},
		"holder seen before, complete list": func(w *world) { w.pods.List[0].Holder.Unconfirmed = notListed },
		"does not answer":                   func(w *world) { w.pods, w.podsErr = gpu.Assignments{}, gpu.ErrUnavailable },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				e := w.engine(t, nil)

				before, err := e.Plan(t.Context(), everything, second(two3g))
				if err != nil {
					t.Fatal(err)
				}

				w.give(gpu.DeviceRef{MIG: sevenG})
				restart(w)
				_, err = e.Plan(t.Context(), everything, second(two3g))

				p := isProblem(t, err, api.Infeasible)
				if len(p.Blocking) != 1 {
					t.Fatalf("p.Blocking: %+v, want 1 of them", p.Blocking)
				}

				if len(p.Blocking[0].Holders) == 0 {
					t.Error("p.Blocking[0].Holders is empty")
				}

				wantText(t, "p.Detail", p.Detail, "confirm")

				for _, h := range p.Blocking[0].Holders {
					if h.Kind != api.HoldUnconfirmed {
						t.Errorf("holder %+v", h)
					}
				}

				forced, err := e.Plan(t.Context(), everything, second(two3g, sevenG))
				if err != nil {
					t.Fatal(err)
				}

				gone := forced.GPUs[0].Before[0]
				if len(gone.Holders)+len(gone.Compute[0].Holders) == 0 {
					t.Error("a forced plan affects no workload")
				}

				_, err = e.Start(t.Context(), everything, api.OperationRequest{Plan: before.ID, Hash: before.Hash})
				isProblem(t, err, api.StalePlan)

				if _, err := e.ConfirmFree(t.Context(), everything, sevenG); err != nil {
					t.Fatal(err)
				}

				if op := e.applied(t, second(two3g)); op.State != api.Succeeded {
					t.Errorf("operation is %s: %v", op.State, op.Error)
				}
			})
		})
	}
}

// TestKubeletRestartDuringOperation: what was free for the plan is not destroyed once that is not
// known any more.
func TestKubeletRestartDuringOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		before := w.drawLayout()
		e := w.engine(t, nil)

		op, err := e.start(t, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		w.pods.Incomplete = kubeletRestarted
		e.drive(t)
		got := e.now(t, op.ID)
		cmptest.Equal(t, "state of the operation", got.State, api.Failed)

		if got.Error == nil {
			t.Fatal("the operation has no error")
		}

		cmptest.Equal(t, "problem of the operation", got.Error.Type, api.Busy)
		cmptest.Equal(t, "layout", w.drawLayout(), before)
	})
}

// TestForcedPlanOutlivesReasons: why something is unknown is no fact that a forced plan rests on,
// but who may hold it is.
func TestForcedPlanOutlivesReasons(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)
	w.pods.Incomplete = "the kubelet does not answer: timed out"
	w.miss("train-0", gpu.DeviceRef{MIG: sevenG})

	plan, err := e.Plan(t.Context(), everything, second(two3g, sevenG))
	if err != nil {
		t.Fatal(err)
	}

	request := api.OperationRequest{Plan: plan.ID, Hash: plan.Hash}
	w.pods.Incomplete = "the kubelet does not answer: connection refused"
	w.pods.List[0].Holder.Unconfirmed = "in other words"
	w.miss("train-1", gpu.DeviceRef{MIG: sevenG})
	_, err = e.Start(t.Context(), everything, request)
	isProblem(t, err, api.StalePlan)
	w.pods.List = w.pods.List[:1]

	if _, err := e.Start(t.Context(), everything, request); err != nil {
		t.Error(err)
	}
}

// TestNoKubeletHoldsNothing: a node without a kubelet has no holders by it, whatever else was
// returned.
func TestNoKubeletHoldsNothing(t *testing.T) {
	w := newWorld(t)

	w.podsErr = gpu.ErrNoKubelet
	if _, err := w.engine(t, nil).Plan(t.Context(), everything, second(two3g)); err != nil {
		t.Error(err)
	}
}

// TestNotConfiguredKubeletIsBusy: a container that sees no kubelet does not know who holds the
// GPUs.
func TestNotConfiguredKubeletIsBusy(t *testing.T) {
	w := bare(t)
	w.podsErr = gpu.ErrNotConfigured
	w.pods.Incomplete = "set --kubernetes.socket="

	_, err := w.engine(t, nil).SetMode(t.Context(), everything, gpu1, api.ModeRequest{})
	if p := isProblem(t, err, api.Busy); !strings.Contains(p.Detail, "--kubernetes.socket=") {
		t.Errorf("detail %q", p.Detail)
	}
}

// TestModeOfUnconfirmedGPU: the MIG mode of a GPU that may be held does not change either.
func TestModeOfUnconfirmedGPU(t *testing.T) {
	w := bare(t)
	e := w.engine(t, nil)
	w.pods.Incomplete = kubeletRestarted

	_, err := e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{})
	if p := isProblem(t, err, api.Busy); !strings.Contains(p.Detail, kubeletRestarted) ||
		!strings.Contains(p.Detail, "confirm") {
		t.Errorf("detail %q", p.Detail)
	}

	if _, err := e.ConfirmFree(t.Context(), everything, string(gpu1)); err != nil {
		t.Fatal(err)
	}

	if _, err := e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{}); err != nil {
		t.Error(err)
	}
}

// TestFreeCovers has words on devices of a GPU with one GPU instance that is split in two lift what
// they cover.
func TestFreeCovers(t *testing.T) {
	instance, whole := gpu.Some(gpu.InstanceID(3)), holdKey{gpu: gpu1, instance: 3}

	first := holdKey{gpu1, 3, gpu.Some(gpu.ComputeID(0))}

	other := holdKey{gpu1, 3, gpu.Some(gpu.ComputeID(1))}
	for name, tt := range map[string]struct {
		free []gpu.DeviceRef
		held []holdKey
		gpu  bool
	}{
		"nothing":                {nil, []holdKey{whole}, true},
		"GPU":                    {[]gpu.DeviceRef{{GPU: gpu1}}, nil, false},
		"another GPU":            {[]gpu.DeviceRef{{GPU: gpu0}}, []holdKey{whole}, true},
		"GPU instance":           {[]gpu.DeviceRef{{GPU: gpu1, Instance: instance}}, nil, true},
		"GPU instance, gone":     {[]gpu.DeviceRef{{GPU: gpu1, Instance: gpu.Some(gpu.InstanceID(9))}}, []holdKey{whole}, true},
		"one compute instance":   {[]gpu.DeviceRef{{MIG: "MIG-first"}}, []holdKey{other}, true},
		"both compute instances": {[]gpu.DeviceRef{{MIG: "MIG-first"}, {MIG: "MIG-other"}}, nil, true},
		"device that is gone":    {[]gpu.DeviceRef{{MIG: "MIG-gone"}}, []holdKey{whole}, true},
	} {
		w := newWorld(t)
		w.split()
		w.pods = gpu.Assignments{Incomplete: kubeletRestarted, Free: tt.free}
		c := &usage{holds: map[holdKey][]api.Hold{}, whole: map[gpu.UUID][]api.Hold{}}
		w.engine(t, nil).addPods(t.Context(), c, []mig.GPULayout{*w.gpu(gpu1)})

		for _, u := range []holdKey{whole, first, other} {
			if held := len(c.holds[u]) > 0; held != slices.Contains(tt.held, u) {
				t.Errorf("%s: %+v is held: %t", name, u, held)
			}
		}

		if held := len(c.whole[gpu1]) > 0; held != tt.gpu {
			t.Errorf("%s: the GPU is held: %t", name, held)
		}
	}
}

// split makes two compute instances, MIG-first and MIG-other, of the 7g on the second GPU.
func (w *world) split() {
	i := &w.gpu(gpu1).Instances[0]
	first := i.ComputeInstances[0]
	first.Slices, first.Placement, first.UUID = 3, gpu.Some(gpu.Placement{Size: 3}), "MIG-first"
	other := first
	other.ID, other.Placement, other.UUID = 1, gpu.Some(gpu.Placement{Start: 3, Size: 3}), "MIG-other"
	i.ComputeInstances = []mig.ComputeInstance{first, other}
}
