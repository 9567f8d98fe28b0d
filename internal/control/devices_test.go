package control

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// namer names a compute instance as an allocator does.
type namer func(g mig.GPULayout, i mig.Instance, c mig.ComputeInstance) gpu.DeviceRef

// namers are the ways in which allocators name MIG devices.
func namers() map[string]namer {
	return map[string]namer{
		"MIG UUID": func(_ mig.GPULayout, _ mig.Instance, c mig.ComputeInstance) gpu.DeviceRef {
			return gpu.DeviceRef{MIG: c.UUID}
		},
		"legacy UUID": func(g mig.GPULayout, i mig.Instance, c mig.ComputeInstance) gpu.DeviceRef {
			return gpu.DeviceRef{GPU: g.UUID, Instance: gpu.Some(i.ID), Compute: gpu.Some(c.ID)}
		},
		"GKE": func(g mig.GPULayout, i mig.Instance, _ mig.ComputeInstance) gpu.DeviceRef {
			return gpu.DeviceRef{Minor: g.Minor, Instance: gpu.Some(i.ID)}
		},
		"DRA": func(g mig.GPULayout, i mig.Instance, _ mig.ComputeInstance) gpu.DeviceRef {
			return gpu.DeviceRef{Minor: g.Minor, PlacementStart: gpu.Some(i.Placement.Start), ProfileID: gpu.Some(i.ProfileID)}
		},
		"HAMi": func(g mig.GPULayout, i mig.Instance, _ mig.ComputeInstance) gpu.DeviceRef {
			return gpu.DeviceRef{GPU: g.UUID, PlacementStart: gpu.Some(i.Placement.Start)}
		},
	}
}

func (n namer) all(gpus []mig.GPULayout) []gpu.DeviceRef {
	var list []gpu.DeviceRef

	for _, g := range gpus {
		for _, i := range g.Instances {
			for _, c := range i.ComputeInstances {
				list = append(list, n(g, i, c))
			}
		}
	}

	return list
}

// offers are devices without the names of their resources.
func offers(refs []gpu.DeviceRef) []gpu.Offer {
	var list []gpu.Offer
	for _, r := range refs {
		list = append(list, gpu.Offer{Device: r})
	}

	return list
}

// offering is a kubelet that offers the existing devices by a name of its own, and the old devices
// as well.
type offering struct {
	kubelet
	name namer
	old  []gpu.DeviceRef
	lags bool
}

func (k offering) Allocatable(context.Context) ([]gpu.Offer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()

	if k.lags {
		return offers(k.old), nil
	}

	return offers(append(slices.Clone(k.old), k.name.all(k.gpus)...)), nil
}

// TestSettlingByEveryName: whatever an allocator calls its devices, an operation ends at once when
// the new ones are offered and the old ones are not, and is unsettled for either.
func TestSettlingByEveryName(t *testing.T) {
	for name, names := range namers() {
		for kind, want := range map[string]string{"current": "", "late": "the kubelet to offer", "stale": "to stop offering"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)

					k := offering{kubelet: kubelet{w}, name: names, lags: kind == "late"}
					if kind == "stale" {
						// HAMi does not name the profile: the 7g at 0 is what is at 0, and there is
						// nothing to wait for.
						if k.old = names.all(w.gpus[1:]); name == "HAMi" {
							want = ""
						}
					}

					e := w.engine(t, func(o *Options) { o.Assignments = k })
					begun := time.Now()
					op := e.applied(t, second(two3g))
					took := time.Since(begun)
					cmptest.Equal(t, "took > 2*time.Second", took > 2*time.Second, want != "")

					if want == "" {
						cmptest.Equal(t, "state of the operation", op.State, api.Succeeded)
						cmptest.Equal(t, "op.WaitsFor", op.WaitsFor, nil)
					} else {
						cmptest.Equal(t, "state of the operation", op.State, api.Unsettled)
						wantText(t, "op.WaitsFor", strings.Join(op.WaitsFor, "\n"), want)
					}
				})
			})
		}
	}
}

// TestHolds has each form of reference hold what it means on the second GPU, whose minor number is
// 1, with GPU instance 3 at 0; and all of the GPU if it names it and no existing instance.
func TestHolds(t *testing.T) {
	third := gpu.Some(gpu.InstanceID(3))
	first := gpu.Some(1)

	whole := "GPU"
	instance := "instance"
	compute := "compute"

	nothing := ""
	for name, tt := range map[string]struct {
		ref  gpu.DeviceRef
		want string
	}{
		"GPU":                  {gpu.DeviceRef{GPU: gpu1}, whole},
		"minor number":         {gpu.DeviceRef{Minor: first}, whole},
		"another GPU":          {gpu.DeviceRef{GPU: gpu0}, nothing},
		"another minor number": {gpu.DeviceRef{Minor: gpu.Some(0), Instance: third}, nothing},
		"unknown MIG UUID":     {gpu.DeviceRef{MIG: "MIG-gone"}, nothing},
		"MIG UUID":             {gpu.DeviceRef{MIG: sevenG}, compute},
		"legacy UUID": {gpu.DeviceRef{GPU: gpu1, Instance: third, Compute: gpu.Some(gpu.ComputeID(0))},
			compute},
		"compute instance that does not exist": {gpu.DeviceRef{GPU: gpu1, Instance: third, Compute: gpu.Some(gpu.ComputeID(6))},
			instance},
		"GPU instance that does not exist": {gpu.DeviceRef{GPU: gpu1, Instance: gpu.Some(gpu.InstanceID(9))}, whole},
		"GKE":                              {gpu.DeviceRef{Minor: first, Instance: third}, instance},
		"GKE, does not exist":              {gpu.DeviceRef{Minor: first, Instance: gpu.Some(gpu.InstanceID(9))}, whole},
		"HAMi":                             {gpu.DeviceRef{GPU: gpu1, PlacementStart: gpu.Some(0)}, instance},
		"HAMi, reserved":                   {gpu.DeviceRef{GPU: gpu1, PlacementStart: gpu.Some(6)}, whole},
		"DRA": {gpu.DeviceRef{Minor: first, PlacementStart: gpu.Some(0),
			ProfileID: gpu.Some(uint32(0))}, instance},
		"DRA, another profile": {gpu.DeviceRef{Minor: first, PlacementStart: gpu.Some(0),
			ProfileID: gpu.Some(uint32(9))}, whole},
	} {
		for _, minor := range []gpu.Opt[int]{first, {}} {
			g := *newWorld(t).gpu(gpu1)
			g.Minor = minor

			want := tt.want
			if !minor.Present() && tt.ref.Minor == gpu.Some(0) {
				want = instance // it may be this GPU's number
			}

			c := &usage{holds: map[holdKey][]api.Hold{}, whole: map[gpu.UUID][]api.Hold{}}
			c.addToDevice(g, tt.ref, api.Hold{Kind: api.HoldPod})
			got := nothing

			switch {
			case len(c.whole[gpu1]) > 0 && len(c.holds[holdKey{gpu: gpu1, instance: 3}]) > 0:
				got = whole
			case len(c.holds[holdKey{gpu: gpu1, instance: 3}]) > 0:
				got = instance
			case len(c.holds[holdKey{gpu1, 3, gpu.Some(gpu.ComputeID(0))}]) > 0:
				got = compute
			}

			if got != want {
				t.Errorf("%s, minor number %v: holds %q, want %q", name, minor, got, want)
			}
		}
	}
}

// slowKubelet answers once some seconds have passed, and notes whether the node is cordoned when it
// is asked.
type slowKubelet struct {
	kubelet
	begun    time.Time
	err      error         // until failing has passed
	failing  time.Duration //
	stale    []gpu.DeviceRef
	lags     time.Duration // the destroyed devices are offered until then
	asked    int
	exposed  bool // it was asked while new pods could come
	silently bool // it does not even fail
}

func (k *slowKubelet) Allocatable(ctx context.Context) ([]gpu.Offer, error) {
	k.asked++
	k.mu.Lock()
	k.exposed = k.exposed || k.cordonedBy != "me"
	k.mu.Unlock()

	if time.Since(k.begun) < k.failing {
		if k.silently {
			<-ctx.Done()
			return nil, ctx.Err()
		}

		return nil, k.err
	}

	list, err := k.kubelet.Allocatable(ctx)
	if time.Since(k.begun) < k.lags {
		list = append(list, offers(k.stale)...)
	}

	return list, err
}

// TestSettlingOfDestruction: an operation that only destroys ends, and the node takes pods again,
// once the kubelet does not offer what is gone any more. A kubelet that fails for a while is asked
// again; one that does not answer is not waited for by a single call.
func TestSettlingOfDestruction(t *testing.T) {
	gone := []gpu.DeviceRef{{MIG: sevenG}}
	for name, tt := range map[string]struct {
		k     slowKubelet
		took  time.Duration
		waits []string // of an operation that is unsettled
	}{
		"at once":             {took: 0},
		"offered for a while": {k: slowKubelet{stale: gone, lags: 5 * time.Second}, took: 5 * time.Second},
		"offered for good": {k: slowKubelet{stale: gone, lags: time.Hour}, took: 20 * time.Second,
			waits: []string{"to stop offering " + sevenG + ", which was destroyed"}},
		"fails for a while":     {k: slowKubelet{err: gpu.ErrUnavailable, failing: 8 * time.Second}, took: 8 * time.Second},
		"is silent for a while": {k: slowKubelet{silently: true, failing: 8 * time.Second}, took: 11 * time.Second},
		"fails for good": {k: slowKubelet{err: gpu.ErrUnavailable, failing: time.Hour}, took: 20 * time.Second,
			waits: []string{"to say which devices it offers (unavailable)"}},
		"is silent for good": {k: slowKubelet{silently: true, failing: time.Hour}, took: 20 * time.Second,
			waits: []string{"to say which devices it offers (timed out)"}},
		"is not there any more": {k: slowKubelet{err: gpu.ErrNoKubelet, failing: time.Hour}, took: 0},
		"offers other ones, too": {k: slowKubelet{stale: []gpu.DeviceRef{{MIG: "MIG-0-0:4-0:3-e0"}, {GPU: gpu1}},
			lags: time.Hour}, took: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				k := &tt.k
				k.kubelet, k.begun = kubelet{w}, time.Now()
				e := w.engine(t, func(o *Options) { o.Assignments = k })
				op := e.applied(t, second(map[string]api.DeviceRequest{}))
				took := time.Since(k.begun)

				state := api.Succeeded
				cordonedBy := ""

				if tt.waits != nil {
					state = api.Unsettled
					cordonedBy = "me"
				}

				cmptest.Equal(t, "state of the operation", op.State, state)
				cmptest.Equal(t, "time taken", took, tt.took)

				if k.asked == 0 {
					t.Errorf("k.asked is %v, want another", k.asked)
				}

				cmptest.Equal(t, "k.exposed", k.exposed, false)
				cmptest.Equal(t, "cordoned by", w.cordonedBy, cordonedBy)
				cmptest.Equal(t, "the operation is cordoned", op.Cordoned, cordonedBy == "me")
				cmptest.Equal(t, "number of warnings", len(op.Warnings), 0)

				if len(op.WaitsFor) != len(tt.waits) {
					t.Fatalf("op.WaitsFor: %q, want %q", op.WaitsFor, tt.waits)
				}

				for n, want := range tt.waits {
					wantText(t, "op.WaitsFor", op.WaitsFor[n], want)
				}
			})
		})
	}
}

// bareKubelet offers no devices.
type bareKubelet struct{ kubelet }

func (k bareKubelet) Allocatable(context.Context) ([]gpu.Offer, error) { return nil, nil }

// TestSettlingByClaims: where devices are given by DRA claims alone, the kubelet offers none.
// Nothing is waited for there.
func TestSettlingByClaims(t *testing.T) {
	for name, tt := range map[string]struct {
		resources []string // of pods on another GPU
		took      time.Duration
	}{
		"claims only":         {[]string{"claim/ml/a", "claim/ml/b"}, 0},
		"a device plugin too": {[]string{"claim/ml/a", "nvidia.com/mig-1g.5gb"}, 20 * time.Second},
		"nothing is given":    {nil, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				for _, r := range tt.resources {
					w.give(gpu.DeviceRef{GPU: gpu0})
					w.pods.List[len(w.pods.List)-1].Holder.Resource = r
				}

				e := w.engine(t, func(o *Options) { o.Assignments = bareKubelet{kubelet{w}} })
				begun := time.Now()
				op := e.applied(t, second(two3g))
				took := time.Since(begun)

				state := api.Succeeded
				if tt.took > 0 {
					state = api.Unsettled
				}

				cmptest.Equal(t, "state of the operation", op.State, state)
				cmptest.Equal(t, "time taken", took, tt.took)
			})
		})
	}
}

// TestSettlingSaysWhatItWaitsFor: an operation that settles has what is waited for, adds an event
// when that changes, and logs what it still waits for at its end.
func TestSettlingSaysWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var out bytes.Buffer
		k := &slowKubelet{kubelet: kubelet{w}, begun: time.Now(), stale: []gpu.DeviceRef{{MIG: sevenG}}, lags: time.Hour,
			err: gpu.ErrUnavailable, failing: 3 * time.Second}
		e := w.engine(t, func(o *Options) { o.Assignments, o.Logger = k, log.NewLogfmtLogger(&out) })

		started, err := e.start(t, second(map[string]api.DeviceRequest{}))
		if err != nil {
			t.Fatal(err)
		}

		e.executeOperation(t.Context(), <-e.queue)

		for _, want := range []string{"the kubelet to say which devices it offers (unavailable)",
			"the kubelet to stop offering " + sevenG + ", which was destroyed"} {
			synctest.Wait()

			if op := e.now(t, started.ID); op.State != api.Settling || !slices.Equal(op.WaitsFor, []string{want}) {
				t.Errorf("operation is %s and waits for %q, want %q", op.State, op.WaitsFor, want)
			}

			time.Sleep(5 * time.Second)
		}

		e.await()

		if op := e.now(t, started.ID); op.State != api.Unsettled || len(op.WaitsFor) != 1 {
			t.Errorf("operation is %s and waits for %q", op.State, op.WaitsFor)
		}

		events, err := e.Events(t.Context(), started.ID, 0)
		if err != nil {
			t.Fatal(err)
		}

		var notes []string

		for ev := range events {
			if ev.Kind == api.EventNote && strings.HasPrefix(ev.Text, "waits for ") {
				notes = append(notes, ev.Text)
			}
		}

		if len(notes) != 2 || !strings.Contains(notes[1], sevenG) {
			t.Errorf("events %q", notes)
		}

		if log := out.String(); !strings.Contains(log, `level=warn msg="operation ended" operation=`+started.ID) ||
			!strings.Contains(log, `waits_for="the kubelet to stop offering `+sevenG) {
			t.Error(log)
		}
	})
}

// TestSettlingByProfile: a device that is created where one of another profile was can have its ids
// and UUID. The resource by which a device plugin offers it shows whether the plugin knows.
func TestSettlingByProfile(t *testing.T) {
	const uuid = gpu.MIGUUID("MIG-same")
	instance := func(profile string, slices int) []mig.Instance {
		return []mig.Instance{{ID: 7, Placed: mig.Placed{Profile: profile, Placement: gpu.Placement{Start: 6, Size: 1}},
			ComputeInstances: []mig.ComputeInstance{{UUID: uuid, Slices: slices}}}}
	}

	single := instance("1g.5gb", 1)

	media := instance("1g.5gb+me", 1)
	for name, tt := range map[string]struct {
		before, after []mig.Instance
		resources     []string // by which the device is offered
		missing       []string
		stale         []string
	}{
		"offered as it is": {single, media, []string{"nvidia.com/mig-1g.5gb.me"}, nil, nil},
		"offered as it was": {single, media, []string{"nvidia.com/mig-1g.5gb"}, []string{"MIG-same"},
			[]string{"MIG-same as nvidia.com/mig-1g.5gb"}},
		"offered as both": {single, media, []string{"nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.me"}, nil,
			[]string{"MIG-same as nvidia.com/mig-1g.5gb"}},
		"shared, as it was": {media, single, []string{"nvidia.com/mig-1g.5gb.me.shared"}, []string{"MIG-same"},
			[]string{"MIG-same as nvidia.com/mig-1g.5gb.me.shared"}},
		"shared, as it is":             {media, single, []string{"nvidia.com/mig-1g.5gb.shared"}, nil, nil},
		"a resource that says nothing": {single, media, []string{"nvidia.com/gpu"}, nil, nil},
		"a resource of an operator":    {single, media, []string{"example.com/mig-small"}, nil, nil},
		"not offered":                  {single, media, nil, []string{"MIG-same"}, nil},
		"compute instance, as it was": {instance("3g.20gb", 1), instance("3g.20gb", 2),
			[]string{"nvidia.com/mig-1c.3g.20gb"}, []string{"MIG-same"}, []string{"MIG-same as nvidia.com/mig-1c.3g.20gb"}},
		"compute instance, as it is": {instance("3g.20gb", 1), instance("3g.20gb", 2),
			[]string{"nvidia.com/mig-2c.3g.20gb"}, nil, nil},
		"the same device, not yet there": {single, single, nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			op := record{Changes: []gpuChange{{GPU: gpu1, Before: tt.before, Expected: tt.after}}}
			now := *w.gpu(gpu1)
			now.Instances = tt.after
			changed := op.compareDevices([]mig.GPULayout{now})

			var offers []gpu.Offer
			for _, r := range tt.resources {
				offers = append(offers, gpu.Offer{Device: gpu.DeviceRef{MIG: uuid}, Resource: r})
			}

			missing, stale := changed.compareOffers(offers, nil)
			if !slices.Equal(missing, tt.missing) || !slices.Equal(stale, tt.stale) {
				t.Errorf("missing %q, stale %q; want %q, %q", missing, stale, tt.missing, tt.stale)
			}
		})
	}
}
