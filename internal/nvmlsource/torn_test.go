package nvmlsource_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A GPU whose layout changes between any two calls of a scan shows no mixture of both layouts:
// every instance has its place, and no two have the same.
func TestLayoutChangeInTheMiddleOfAScan(t *testing.T) {
	type moment struct {
		call string
		nth  int // from 0
	}

	moments := []moment{{"GetMigDeviceHandleByIndex", 0}, {"GetMigDeviceHandleByIndex", 1}}
	for nth := range 5 {
		moments = append(moments, moment{"GetGpuInstances", nth})
	}

	for _, m := range moments {
		for _, layout := range [][2]string{{"1g.5gb@0", "7g.40gb@0"}, {"7g.40gb@0", "1g.5gb@0"}, {"3g.20gb@4", "2g.10gb@0"}} {
			t.Run(fmt.Sprintf("%s %d, %s", m.call, m.nth, layout), func(t *testing.T) {
				n := newNode(t, "", `  - {model: A100-40GB, mig: true, layout: ["`+layout[0]+`"]}`).withoutReports()
				id := n.discover()[0]
				old := n.read(id).Instances[0]
				var in func(calls int) func()
				in = func(calls int) func() {
					if calls == 0 {
						return func() { repartitionTo(t, n, old.ID, layout[1]) }
					}

					return func() { n.spy.do(m.call, in(calls-1)) }
				}
				n.spy.do(m.call, in(m.nth))

				g := n.read(id)
				for i, a := range g.Instances {
					if !a.Placement.Present() {
						t.Errorf("%s has no place", a.Profile)
					}

					for _, b := range g.Instances[:i] {
						if a.Placement.Or(gpu.Placement{}).Overlaps(b.Placement.Or(gpu.Placement{})) {
							t.Errorf("%s and %s are at %v and %v", a.Profile, b.Profile, a.Placement, b.Placement)
						}
					}
				}

				if len(g.Errors) != 0 || !g.Up {
					t.Errorf("up %v, errors %v", g.Up, g.Errors)
				}

				if g = n.read(id); len(g.Instances) != 1 ||
					g.Instances[0].Profile+"@"+fmt.Sprint(g.Instances[0].Placement.Or(gpu.Placement{}).Start) != layout[1] {
					t.Errorf("afterwards: %+v", g.Instances)
				}
			})
		}
	}
}

// repartitionTo destroys an instance and makes the one of a layout.
func repartitionTo(t *testing.T, n *node, old gpu.InstanceID, layout string) {
	t.Helper()

	if err := errors.Join(n.DestroyComputeInstance(0, old, 0), n.DestroyGPUInstance(0, old)); err != nil {
		t.Error(err)
	}

	made := map[string]struct {
		profile       uint32
		start, slices int
	}{"1g.5gb@0": {19, 0, 1}, "2g.10gb@0": {14, 0, 2}, "7g.40gb@0": {0, 0, 7}}[layout]

	id, err := n.CreateGPUInstance(0, made.profile, gpu.Some(made.start))
	if err == nil {
		_, err = n.CreateComputeInstance(0, id, made.slices)
	}

	if err != nil {
		t.Error(err)
	}
}

// Instances that a failed scan has left without handles are not sampled: the driver may list fewer
// MIG devices by then.
func TestScanFailsInTheMiddleOfALayoutChange(t *testing.T) {
	n := profiledNode(t, "version: 1\ngpus:\n  - {model: H100-80GB, mig: true, layout: [1g.10gb@0, 1g.10gb@1]}\n").withoutReports()
	id := n.discover()[0]
	old := n.read(id).Instances
	n.advance(time.Second)
	n.spy.do("GetMigDeviceHandleByIndex", func() {
		must(t, errors.Join(n.DestroyComputeInstance(0, old[0].ID, 0), n.DestroyGPUInstance(0, old[0].ID)))
		repartitionTo(t, n, old[1].ID, "7g.40gb@0")
		n.spy.set("GetGpuInstances", nvml.ERROR_UNKNOWN)
	})

	for range 2 {
		if g := n.read(id); g.Instances[0].Up {
			t.Errorf("instances of a failed scan are up: %+v", g.Instances)
		}

		n.advance(time.Second)
	}

	n.spy.set("GetGpuInstances", nvml.SUCCESS)

	if g := n.read(id); len(g.Instances) != 1 || g.Instances[0].Profile != "7g.80gb" {
		t.Errorf("afterwards: %+v", g.Instances)
	}
}
