package control

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// namer names a compute instance as an allocator does.
type namer func(g mig.NodeGPU, i mig.NodeInstance, c mig.NodeCompute) gpu.DeviceRef

// namers are the ways in which allocators name MIG devices.
func namers() map[string]namer {
	return map[string]namer{
		"MIG UUID": func(_ mig.NodeGPU, _ mig.NodeInstance, c mig.NodeCompute) gpu.DeviceRef {
			return gpu.DeviceRef{MIG: c.UUID}
		},
		"legacy UUID": func(g mig.NodeGPU, i mig.NodeInstance, c mig.NodeCompute) gpu.DeviceRef {
			return gpu.DeviceRef{GPU: g.UUID, Instance: gpu.Some(i.ID), Compute: gpu.Some(c.ID)}
		},
		"GKE": func(g mig.NodeGPU, i mig.NodeInstance, _ mig.NodeCompute) gpu.DeviceRef {
			return gpu.DeviceRef{Minor: g.Minor, Instance: gpu.Some(i.ID)}
		},
		"DRA": func(g mig.NodeGPU, i mig.NodeInstance, _ mig.NodeCompute) gpu.DeviceRef {
			return gpu.DeviceRef{Minor: g.Minor, PlacementStart: gpu.Some(i.Placement.Start), ProfileID: gpu.Some(i.ProfileID)}
		},
		"HAMi": func(g mig.NodeGPU, i mig.NodeInstance, _ mig.NodeCompute) gpu.DeviceRef {
			return gpu.DeviceRef{GPU: g.UUID, PlacementStart: gpu.Some(i.Placement.Start)}
		},
	}
}

func (n namer) all(gpus []mig.NodeGPU) []gpu.DeviceRef {
	var list []gpu.DeviceRef
	for _, g := range gpus {
		for _, i := range g.Instances {
			for _, c := range i.Computes {
				list = append(list, n(g, i, c))
			}
		}
	}
	return list
}

// offering is a kubelet that offers what stands by a name of its own, and the old devices as well.
type offering struct {
	kubelet
	name namer
	old  []gpu.DeviceRef
	lags bool
}

func (k offering) Allocatable(context.Context) ([]gpu.DeviceRef, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lags {
		return k.old, nil
	}
	return append(slices.Clone(k.old), k.name.all(k.gpus)...), nil
}

// TestSettlingByEveryName: whatever an allocator calls its devices, an operation ends at once when the new ones are offered and
// the old ones are not, and warns of either.
func TestSettlingByEveryName(t *testing.T) {
	for name, names := range namers() {
		for kind, want := range map[string]string{"current": "", "late": "does not offer", "stale": "may still offer"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					k := offering{kubelet: kubelet{w}, name: names, lags: kind == "late"}
					if kind == "stale" {
						// HAMi does not name the profile: the 7g at 0 is what stands at 0, and there is nothing to warn of.
						if k.old = names.all(w.gpus[1:]); name == "HAMi" {
							want = ""
						}
					}
					e := w.engine(t, func(o *Options) { o.Assignments = k })
					begun := time.Now()
					op := e.applied(t, second(two3g))
					warned := slices.ContainsFunc(op.Warnings, func(s string) bool { return strings.Contains(s, want) })
					if took := time.Since(begun); op.State != api.Succeeded || (took > 2*time.Second) != (want != "") ||
						want == "" && len(op.Warnings) > 0 || want != "" && !warned {
						t.Errorf("operation is %s after %s: %q", op.State, took, op.Warnings)
					}
				})
			})
		}
	}
}

// TestHolds has each form of reference hold what it means on the second GPU, whose minor number is 1, with GPU instance 3 at 0;
// and all of the GPU if it names it and no instance that stands.
func TestHolds(t *testing.T) {
	third, first := gpu.Some(gpu.InstanceID(3)), gpu.Some(1)
	whole, instance, compute, nothing := "GPU", "instance", "compute", ""
	for name, tt := range map[string]struct {
		ref  gpu.DeviceRef
		want string
	}{
		"GPU":                           {gpu.DeviceRef{GPU: gpu1}, whole},
		"minor number":                  {gpu.DeviceRef{Minor: first}, whole},
		"another GPU":                   {gpu.DeviceRef{GPU: gpu0}, nothing},
		"another minor number":          {gpu.DeviceRef{Minor: gpu.Some(0), Instance: third}, nothing},
		"unknown MIG UUID":              {gpu.DeviceRef{MIG: "MIG-gone"}, nothing},
		"MIG UUID":                      {gpu.DeviceRef{MIG: sevenG}, compute},
		"legacy UUID":                   {gpu.DeviceRef{GPU: gpu1, Instance: third, Compute: gpu.Some(gpu.ComputeID(0))}, compute},
		"compute instance not standing": {gpu.DeviceRef{GPU: gpu1, Instance: third, Compute: gpu.Some(gpu.ComputeID(6))}, instance},
		"GPU instance not standing":     {gpu.DeviceRef{GPU: gpu1, Instance: gpu.Some(gpu.InstanceID(9))}, whole},
		"GKE":                           {gpu.DeviceRef{Minor: first, Instance: third}, instance},
		"GKE, not standing":             {gpu.DeviceRef{Minor: first, Instance: gpu.Some(gpu.InstanceID(9))}, whole},
		"HAMi":                          {gpu.DeviceRef{GPU: gpu1, PlacementStart: gpu.Some(0)}, instance},
		"HAMi, reserved":                {gpu.DeviceRef{GPU: gpu1, PlacementStart: gpu.Some(6)}, whole},
		"DRA":                           {gpu.DeviceRef{Minor: first, PlacementStart: gpu.Some(0), ProfileID: gpu.Some(uint32(0))}, instance},
		"DRA, another profile":          {gpu.DeviceRef{Minor: first, PlacementStart: gpu.Some(0), ProfileID: gpu.Some(uint32(9))}, whole},
	} {
		for _, minor := range []gpu.Opt[int]{first, {}} {
			g := *newWorld(t).gpu(gpu1)
			g.Minor = minor
			want := tt.want
			if !minor.Present() && tt.ref.Minor == gpu.Some(0) {
				want = instance // it may be this GPU's number
			}
			c := &census{holds: map[unit][]api.Hold{}, whole: map[gpu.UUID][]api.Hold{}}
			c.hold(g, tt.ref, api.Hold{Kind: api.HoldPod})
			got := nothing
			switch {
			case len(c.whole[gpu1]) > 0 && len(c.holds[unit{gpu: gpu1, instance: 3}]) > 0:
				got = whole
			case len(c.holds[unit{gpu: gpu1, instance: 3}]) > 0:
				got = instance
			case len(c.holds[unit{gpu1, 3, gpu.Some(gpu.ComputeID(0))}]) > 0:
				got = compute
			}
			if got != want {
				t.Errorf("%s, minor number %v: holds %q, want %q", name, minor, got, want)
			}
		}
	}
}
