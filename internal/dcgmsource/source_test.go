package dcgmsource

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// mixed is a node of one MIG GPU, of two instances, and one whole. The compute instance of the
// first is all of it, that of the second a part.
func mixed(t *testing.T) *harness {
	e := newFake(uuidA, uuidB)
	e.add(0, 7, 1, 3, 3)
	e.add(0, 4, 2, 4, 2)
	h := harnessOf(t, e, false)
	h.partition(0, 1, 3, 3)
	h.partition(0, 2, 4, 2)

	return h
}

func TestProfile(t *testing.T) {
	h := mixed(t)

	got := h.after(5)
	if groups := h.groups(); groups != "1 ci, 2 gi, 2 gpu" {
		t.Errorf("groups: %s", groups)
	}

	a := got[uuidA]
	b := got[uuidB]
	cmptest.Equal(t, "source", a.Source, gpu.ActivityDCGM)
	cmptest.Equal(t, "layout generation", a.LayoutGeneration, 1)

	if !a.Time.Equal(h.engine.now) {
		t.Errorf("time: got %v, want %v", a.Time, h.engine.now)
	}

	for i, field := range []uint16{1001, 1002, 1003, 1004, 1006, 1007, 1008, 1005} {
		checkRatio(t, "GPU", b.GPU.All()[i], Entity{LevelGPU, 1}, field)
		gi := a.Instances[1]
		ci := a.ComputeInstances[[2]uint32{2, 0}]
		checkRatio(t, "instance", gi.All()[i], Entity{LevelInstance, 7}, field)

		whole := a.ComputeInstances[[2]uint32{1, 0}]
		if field != fieldDRAM {
			checkRatio(t, "compute instance", ci.All()[i], Entity{LevelCompute, 4}, field)
			checkRatio(t, "compute instance that is all of its GPU instance", whole.All()[i], Entity{LevelInstance, 7}, field)
		} else if ci.DRAM.Present() || whole.DRAM.Present() {
			t.Error("a compute instance has no DRAM activity of its own")
		}
	}

	checkRatio(t, "GPU with instances", &a.Rates.PCIeTransmit, Entity{LevelGPU, 0}, 1009)

	if a.GPU != (gpu.Activity{}) {
		t.Errorf("the activity of a GPU with instances was asked for: %+v", a.GPU)
	}

	rates := []gpu.Opt[float64]{b.Rates.PCIeTransmit, b.Rates.PCIeReceive, b.Rates.NVLinkTransmit, b.Rates.NVLinkReceive}
	for i, rate := range rates {
		checkRatio(t, "GPU", &rate, Entity{LevelGPU, 1}, 1009+uint16(i))
	}

	if err := h.source.Close(context.Background()); err != nil || h.engine.closed != 1 {
		t.Errorf("%v, closed %d times", err, h.engine.closed)
	}

	if _, err := h.ask(); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("after Close: %v", err)
	}
}

func checkRatio(t *testing.T, of string, got *gpu.Opt[float64], e Entity, field uint16) {
	t.Helper()

	if v, ok := got.Get(); !ok || v != worth(e, field) {
		t.Errorf("%s, field %d: %v %v, want %v", of, field, v, ok, worth(e, field))
	}
}

// TestWhichGPUs: those that the driver profiles, that are down or that have no UUID are none of
// DCGM's, unless all are.
func TestWhichGPUs(t *testing.T) {
	for _, everything := range []bool{false, true} {
		h := harnessOf(t, newFake(uuidA, uuidB, "GPU-c"), everything)
		h.node.GPUs[0].ActivitySource = gpu.ActivityGPM
		h.node.GPUs[2].Up = false

		got := h.after(2)
		if _, ok := got[uuidA]; ok != everything || len(got) != 1+map[bool]int{true: 1}[everything] {
			t.Errorf("everything %v: %v", everything, got)
		}
	}
}

// TestSettle: instances are watched 2 s after the hierarchy and the Snapshot agree, and never while
// they do not.
func TestSettle(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(h *harness)
	}{
		{"another layout", func(h *harness) { h.node.GPUs[0].MIG.LayoutGeneration++ }},
		{"entity ids assigned again", func(h *harness) {
			h.engine.tree[0].Entity.ID, h.engine.tree[2].Entity.ID = h.engine.tree[2].Entity.ID, h.engine.tree[0].Entity.ID
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := mixed(t)
			if got := h.after(2)[uuidA]; len(got.Instances) > 0 || !got.Rates.PCIeReceive.Present() {
				t.Errorf("before the lag is over: %+v", got)
			}

			if got := h.after(2)[uuidA]; len(got.Instances) != 2 || len(got.ComputeInstances) != 2 {
				t.Fatalf("after the lag: %+v", got)
			}

			tt.change(h)
			h.after(1)

			if groups := h.groups(); groups != "2 gpu" {
				t.Errorf("at the change: %s", groups)
			}

			if got := h.after(2)[uuidA]; len(got.Instances) > 0 {
				t.Errorf("a value from before its watch, or one taken with it: %+v", got)
			}

			want := worth(Entity{LevelInstance, h.engine.tree[0].Entity.ID}, fieldSM)
			if got := h.after(1)[uuidA].Instances[1]; got.SM != gpu.Some(want) {
				t.Errorf("%+v, want %v", got, want)
			}

			if len(h.engine.groups) != 3 {
				t.Errorf("%d groups", len(h.engine.groups))
			}
		})
	}
}

// TestDisagreement: a hierarchy that is not of the Snapshot's layout gives no instance's values,
// however long.
func TestDisagreement(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(h *harness)
		agrees bool
	}{
		{"another GPU instance", func(h *harness) { h.engine.tree[0].Instance = 5 }, false},
		{"another compute instance", func(h *harness) { h.engine.tree[1].Compute = 1 }, false},
		{"other slices", func(h *harness) { h.engine.tree[0].Slices = 2 }, false},
		{"other slices of a compute instance", func(h *harness) { h.engine.tree[1].Slices = 2 }, false},
		{"slices unknown", func(h *harness) { h.engine.tree[0].Slices = 0 }, true},
		{"one too many", func(h *harness) { h.engine.add(0, 9, 9, 1, 1) }, false},
		{"one too few", func(h *harness) { h.engine.tree = h.engine.tree[2:] }, false},
		{"twice the same", func(h *harness) { h.engine.tree[2].Instance, h.engine.tree[2].Slices = 1, 3 }, false},
		{"another GPU's", func(h *harness) { h.engine.tree[0].GPU = uuidB }, false},
		{"none at all", func(h *harness) {
			h.engine.fail = func(op string, _ []Entity) error {
				if op == "hierarchy" {
					return gpu.ErrDriver
				}

				return nil
			}
		}, false},
		{"bare instances, which this process may not see", func(h *harness) {
			h.engine.tree = append(h.engine.tree, MIGEntity{Entity: Entity{LevelInstance, 9}, GPU: uuidA, Instance: 9,
				Slices: 1})
			for i := range h.node.GPUs[0].Instances {
				h.node.GPUs[0].Instances[i].Placement = gpu.None[gpu.Placement]()
			}
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := mixed(t)
			tt.change(h)

			got := h.after(8)[uuidA]
			if (len(got.Instances) > 0) != tt.agrees || !got.Rates.PCIeReceive.Present() {
				t.Errorf("%+v", got)
			}

			h.after(60)

			stale := !tt.agrees && tt.name != "none at all"
			if n := strings.Count(h.lines.String(),
				"restart the nv-hostengine at localhost:5555"); n != map[bool]int{true: 1}[stale] {
				t.Errorf("said %d times that the hierarchy is stale:\n%s", n, h.lines.String())
			}
		})
	}
}

func TestValues(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  func(v *Value)
		want    gpu.Opt[float64]
		invalid int
	}{
		{"blank", func(v *Value) { v.Double = 140737488355328 }, gpu.None[float64](), 0},
		{"not found", func(v *Value) { v.Double = 140737488355329 }, gpu.None[float64](), 0},
		{"not supported", func(v *Value) { v.Double = 140737488355330 }, gpu.None[float64](), 0},
		{"not permissioned", func(v *Value) { v.Double = 140737488355331 }, gpu.None[float64](), 0},
		{"more than any blank", func(v *Value) { v.Double = 140737488355332 }, gpu.Some(140737488355332.0), 0},
		{"int64 blank", func(v *Value) { v.Type, v.Int64 = TypeInt64, 0x7ffffffffffffff2 }, gpu.None[float64](), 0},
		{"int32 blank", func(v *Value) { v.Type, v.Int64 = TypeInt64, 0x7ffffff0 }, gpu.None[float64](), 0},
		{"int64", func(v *Value) { v.Type, v.Int64 = TypeInt64, 0x7ffffff4 }, gpu.Some(2147483636.0), 0},
		{"string", func(v *Value) { v.Type = 's' }, gpu.None[float64](), 0},
		{"NaN", func(v *Value) { v.Double = math.NaN() }, gpu.None[float64](), 1},
		{"infinite", func(v *Value) { v.Double = math.Inf(-1) }, gpu.None[float64](), 1},
		{"above 1", func(v *Value) { v.Double = 1.25 }, gpu.Some(1.25), 0},
		{"a status", func(v *Value) { v.Status = -14 }, gpu.None[float64](), 0},
		{"3 s old", func(v *Value) { v.Micros -= 4e6 }, gpu.Some(worth(Entity{LevelGPU, 1}, fieldSM)), 0},
		{"stopped", func(v *Value) { v.Micros -= 4e6 + 1 }, gpu.None[float64](), 0},
		{"of another", func(v *Value) { v.Entity.ID = 77 }, gpu.None[float64](), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := mixed(t)
			h.engine.value = func(v *Value) {
				if v.Field == fieldSM && v.Entity == (Entity{LevelGPU, 1}) {
					tt.change(v)
				}
			}
			got := h.after(8)[uuidB]
			cmptest.Equal(t, "SM activity", got.GPU.SM, tt.want)
			cmptest.Equal(t, "invalid values", got.Invalid, tt.invalid)
			cmptest.Equal(t, "another ratio is present", got.GPU.GraphicsEngine.Present(), true)
		})
	}
}

// TestChunks: more instances than one call may read.
func TestChunks(t *testing.T) {
	e := newFake(uuidA)

	h := harnessOf(t, e, false)
	for i := range 40 {
		e.add(0, uint32(100+i), gpu.InstanceID(i), 2, 1)
		h.partition(0, gpu.InstanceID(i), 2, 1)
	}

	got := h.after(4)[uuidA]
	cmptest.Equal(t, "GPU instances", len(got.Instances), 40)
	cmptest.Equal(t, "compute instances", len(got.ComputeInstances), 40)
	cmptest.Equal(t, "most values read at once", e.biggest, 256)
}

// TestOneGPUFails: what the engine refuses of one GPU costs no other's values, is said once, and is
// tried again.
func TestOneGPUFails(t *testing.T) {
	for _, tt := range []struct {
		name string
		op   string
		of   Entity
		whole,
		instances bool // of GPU A
	}{
		{"its GPU", "watch", Entity{LevelGPU, 0}, false, true},
		{"its instances", "watch", Entity{LevelInstance, 7}, true, false},
		{"reading it", "latest", Entity{LevelInstance, 7}, true, false},
		{"adding it", "add", Entity{LevelInstance, 7}, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := mixed(t)
			bad := Translate(tt.op, -36, "Profiling is not supported for this group of GPUs or GPU")
			h.engine.fail = func(op string, entities []Entity) error {
				if op == tt.op && slices.Contains(entities, tt.of) {
					return bad
				}

				return nil
			}
			got := h.after(10)
			a := got[uuidA]
			cmptest.Equal(t, "its rates are present", a.Rates.PCIeReceive.Present(), tt.whole)
			cmptest.Equal(t, "its instances are present", len(a.Instances) > 0, tt.instances)
			cmptest.Equal(t, "its compute instance is present", a.ComputeInstances[[2]uint32{2, 0}].SM.Present(), true)

			if !got[uuidB].GPU.SM.Present() {
				t.Errorf("the other's: %+v", got[uuidB])
			}

			if n := strings.Count(h.lines.String(), "does not profile a GPU"); n != 1 {
				t.Errorf("said %d times:\n%s", n, h.lines.String())
			}

			h.engine.fail = nil
			if a := h.after(20)[uuidA]; !a.Rates.PCIeReceive.Present() || len(a.Instances) != 2 {
				t.Errorf("when it is over: %+v", a)
			}

			if len(h.engine.groups) > 4 {
				t.Errorf("%d groups", len(h.engine.groups))
			}
		})
	}
}

func TestUnknownGPU(t *testing.T) {
	h := mixed(t)

	h.engine.devices = h.engine.devices[1:]
	if got := h.after(3); len(got) != 1 || !strings.Contains(h.lines.String(), "find GPU: not found") {
		t.Errorf("%v\n%s", got, h.lines.String())
	}

	h.engine.devices = append(h.engine.devices, GPUEntity{0, uuidA})
	if got := h.after(8); len(got) != 2 {
		t.Errorf("when it is found: %v", got)
	}
}

// TestFailedSearchCostsNoOther: a GPU that the engine cannot find, since its list fails, takes nothing
// from those that it has found.
func TestFailedSearchCostsNoOther(t *testing.T) {
	h := harnessOf(t, newFake("GPU-a"), false)
	cmptest.Equal(t, "answers", len(h.after(2)), 1)

	h.node.GPUs = append(h.node.GPUs, gpu.GPU{
		Facts: gpu.Facts{UUID: "GPU-b", Index: 1}, Device: gpu.Device{Up: true}, MIG: gpu.MIGState{LayoutGeneration: 1},
	})
	h.engine.fail = func(op string, _ []Entity) error {
		if op == "devices" {
			return gpu.ErrDriver
		}

		return nil
	}

	_, found := h.after(2)["GPU-a"]
	cmptest.Equal(t, "the GPU that was found before is answered", found, true)
	cmptest.HasTexts(t, h.lines.String(), "GPU-b")
	cmptest.LacksTexts(t, h.lines.String(), "GPU-a")
}

func TestRequiresRoot(t *testing.T) {
	h := mixed(t)

	h.engine.fail = func(op string, _ []Entity) error {
		if op == "watch" {
			return Translate("watch", 0, "error watching fields: Host engine is running as non-root")
		}

		return nil
	}
	if got := h.after(10); len(got) != 0 {
		t.Errorf("%v", got)
	}

	if n := strings.Count(h.lines.String(), "run the nv-hostengine at localhost:5555 as root"); n != 1 ||
		len(h.engine.groups) != 0 {
		t.Errorf("said %d times, %d groups:\n%s", n, len(h.engine.groups), h.lines.String())
	}
}

// TestSearchForNewGPU: a GPU that the engine never knows does not keep another one, which comes later,
// waiting.
func TestSearchForNewGPU(t *testing.T) {
	h := harnessOf(t, newFake(uuidA, uuidB), true)
	second := h.node.GPUs[1]
	h.engine.devices = nil
	h.node.GPUs = h.node.GPUs[:1]

	calls := 0
	h.engine.fail = func(op string, _ []Entity) error {
		if op == "devices" {
			calls++
		}

		return nil
	}

	h.after(250)
	cmptest.Equal(t, "searches for a GPU that the engine does not know", calls, 10)

	h.engine.devices = []GPUEntity{{ID: 1, UUID: uuidB}}
	h.node.GPUs = append(h.node.GPUs, second)

	if _, ok := h.after(1)[uuidB]; !ok {
		t.Error("the GPU that came is not profiled")
	}
}

// TestSearchForAnotherGPU: a list that is read for another GPU does not lengthen the wait of one that
// the engine does not know yet.
func TestSearchForAnotherGPU(t *testing.T) {
	h := harnessOf(t, newFake(uuidA, uuidB), true)
	both := h.node.GPUs
	devices := h.engine.devices
	h.engine.devices = nil
	h.node.GPUs = both[:1]
	h.after(19) // searches after 1, 2, 4, 8 and 16 s; the next one is due after 32 s

	lists := 0
	h.engine.fail = func(op string, _ []Entity) error {
		if op == "devices" {
			lists++
		}

		return nil
	}

	h.node.GPUs = both
	h.after(1)
	cmptest.Equal(t, "lists for the other GPU", lists, 1)

	h.node.GPUs = both[:1]
	h.engine.devices = devices
	h.after(11)
	cmptest.Equal(t, "lists before the search is due", lists, 1)

	if _, found := h.after(1)[uuidA]; !found {
		t.Errorf("not found when its search was due, after %d lists", lists)
	}
}

// TestReconnect: attempts after 1, 2, 4 ... 60 s; then everything is created again.
func TestReconnect(t *testing.T) {
	h := mixed(t)
	h.after(5)
	attempts := []time.Duration{}
	down := h.engine.now

	h.engine.fail = func(op string, _ []Entity) error {
		if op == "connect" {
			attempts = append(attempts, h.engine.now.Sub(down))
		}

		return Translate(op, 0, "Host engine connection invalid/disconnected")
	}
	for range 200 {
		if _, err := h.ask(); !errors.Is(err, gpu.ErrUnavailable) || !errors.Is(err, ErrConnection) {
			t.Fatal(err)
		}

		h.engine.now = h.engine.now.Add(time.Second)
	}

	want := []time.Duration{1, 3, 7, 15, 31, 63, 123, 183}
	for i := range want {
		want[i] *= time.Second
	}

	if !slices.Equal(attempts, want) {
		t.Errorf("attempts at %v, want %v", attempts, want)
	}

	h.engine.fail = nil

	h.engine.now = h.engine.now.Add(time.Minute)
	if got := h.after(4)[uuidA]; len(got.Instances) != 2 || h.groups() != "1 ci, 2 gi, 2 gpu" {
		t.Errorf("%+v, %s", got, h.groups())
	}
}

// TestForgottenWatches: an engine that was restarted behind the connection watches nothing.
func TestForgottenWatches(t *testing.T) {
	h := mixed(t)
	h.after(5)
	clear(h.engine.watches)
	got := h.after(3)
	cmptest.Equal(t, "GPU instances", len(got[uuidA].Instances), 2)
	cmptest.Equal(t, "the other GPU is present", got[uuidB].GPU.SM.Present(), true)
	cmptest.Equal(t, "groups", len(h.engine.groups), 3)
}

// TestGroupLimit: what one more group would have brought is absent; groups that can't be destroyed
// are tried again.
func TestGroupLimit(t *testing.T) {
	h := mixed(t)
	limit := 2
	h.engine.fail = func(op string, _ []Entity) error {
		if op == "create" && len(h.engine.groups) >= limit {
			return Translate("create group", 0, "error creating group: Max limit reached for the object")
		}

		return nil
	}
	got := h.after(9)
	cmptest.Equal(t, "GPU instances", len(got[uuidA].Instances), 2)
	cmptest.Equal(t, "a compute instance is present", got[uuidA].ComputeInstances[[2]uint32{2, 0}].SM.Present(), false)
	cmptest.Equal(t, "the other GPU is present", got[uuidB].GPU.SM.Present(), true)
	limit = 64

	if got := h.after(9)[uuidA]; !got.ComputeInstances[[2]uint32{2, 0}].SM.Present() {
		t.Errorf("%+v", got)
	}

	h.engine.fail = func(op string, _ []Entity) error {
		if op == "destroy" {
			return gpu.ErrDriver
		}

		return nil
	}
	h.node.GPUs[0].MIG.LayoutGeneration++
	h.after(1)

	h.engine.fail = nil
	if h.after(5); len(h.engine.groups) != 3 {
		t.Errorf("%d groups", len(h.engine.groups))
	}
}

// TestCloseDoesNotHang: a call that does not return is abandoned.
func TestCloseDoesNotHang(t *testing.T) {
	h := mixed(t)
	h.after(5)
	inside := make(chan struct{})
	release := make(chan struct{})
	over := make(chan struct{})
	h.engine.fail = func(op string, _ []Entity) error {
		if op == "hierarchy" {
			close(inside)
			<-release
		}

		return nil
	}
	go func() {
		defer close(over)
		_, _ = h.ask()
	}()
	<-inside
	ctx, cancel := context.WithCancel(context.Background())
	cancel()

	if err := h.source.Close(ctx); !errors.Is(err, gpu.ErrTimeout) {
		t.Error(err)
	}

	close(release)
	<-over
}

func TestConnectWithoutLibraryOrEngine(t *testing.T) {
	if _, err := Open(ModeRemote, "unix:///nonexistent/socket").Connect(); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

// TestAGPUThatIsDownCostsNoOther: one that does not answer for a while leaves the others' values
// alone.
func TestAGPUThatIsDownCostsNoOther(t *testing.T) {
	h := mixed(t)
	h.after(10)

	for _, up := range []bool{false, true} {
		h.node.GPUs[0].Up = up

		answer := h.after(1)
		for i := 1; i < len(h.node.GPUs); i++ {
			id := h.node.GPUs[i].UUID
			if p, ok := answer[id]; ok && !p.GPU.SM.Present() {
				t.Errorf("with the first GPU up %v, GPU %d has no value", up, i)
			}
		}

		if len(answer) == 0 {
			t.Error("nothing is profiled")
		}
	}
}
