package contract

import (
	"fmt"
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

// Habits of DCGM with MIG.

// hierarchyOf lists the instances that the engine shows.
func hierarchyOf(t *testing.T) []dcgm.MigHierarchyInfo_v2 {
	t.Helper()

	h, err := dcgm.GetGPUInstanceHierarchy()
	if err != nil {
		t.Fatal(err)
	}

	return h.EntityList[:h.Count]
}

// entity finds the first instance of a level.
func entity(t *testing.T, level dcgm.Field_Entity_Group) dcgm.GroupEntityPair {
	t.Helper()

	for _, e := range hierarchyOf(t) {
		if e.Entity.EntityGroupId == level {
			return e.Entity
		}
	}

	t.Fatalf("no instance of level %d", level)

	return dcgm.GroupEntityPair{}
}

func step(t *testing.T, n *sim.Node, by time.Duration) {
	t.Helper()

	if err := n.Advance(by); err != nil {
		t.Fatal(err)
	}
}

// DCGM's ids of instances are its own and not NVML's, they are assigned again after a layout
// change, and the hierarchy shows one within 1 s. (DCGM 4.5.3, embedded and remote)
func TestEntityIDsAfterALayoutChange(t *testing.T) {
	path := scenario(t, "gpus: [{model: A100-40GB, mig: true, layout: [\"3g.20gb@4\", \"1g.5gb@0\"]}]\n")
	for name, start := range map[string]func(t *testing.T) func(){"embedded": embedded, "remote": remote} {
		t.Run(name, func(t *testing.T) {
			if !inChild(t, environment(t, path)...) {
				return
			}

			n := node(t)
			defer start(t)()
			before := map[uint]uint{} // NVML's ids by DCGM's
			own := false

			for _, e := range hierarchyOf(t) {
				if e.Entity.EntityGroupId == dcgm.FE_GPU_I {
					before[e.Entity.EntityId] = e.Info.NvmlInstanceId
					own = own || e.Entity.EntityId != e.Info.NvmlInstanceId
				}
			}

			if len(before) != 2 || !own {
				t.Fatalf("ids %v", before)
			}

			if _, err := n.CreateGPUInstance(0, 19, gpu.Some(1)); err != nil {
				t.Fatal(err)
			}

			step(t, n, time.Second)
			after := 0
			moved := false

			for _, e := range hierarchyOf(t) {
				if e.Entity.EntityGroupId == dcgm.FE_GPU_I {
					after++
					old, used := before[e.Entity.EntityId]
					moved = moved || used && old != e.Info.NvmlInstanceId
				}
			}

			if after != 3 || !moved {
				t.Errorf("%d GPU instances, an id of another one: %v", after, moved)
			}
		})
	}
}

// A remote engine follows a change of the MIG mode (DCGM 4.5.3). An embedded one does not before it
// is started again (the guide; it was not seen).
func TestChangeOfTheMIGMode(t *testing.T) {
	path := scenario(t, "gpus: [{model: H100-80GB}]\n")
	for name, start := range map[string]func(t *testing.T) func(){"embedded": embedded, "remote": remote} {
		t.Run(name, func(t *testing.T) {
			if !inChild(t, environment(t, path)...) {
				return
			}

			n := node(t)

			stop := start(t)
			if list := hierarchyOf(t); len(list) != 0 {
				t.Fatalf("%+v", list)
			}

			if err := n.SetMIGMode(0, true); err != nil {
				t.Fatal(err)
			}

			if _, err := n.CreateGPUInstance(0, 9, gpu.Some(4)); err != nil {
				t.Fatal(err)
			}

			step(t, n, 2*time.Second)

			if list := hierarchyOf(t); (len(list) == 1) != (name == "remote") {
				t.Errorf("without a restart: %+v", list)
			}

			stop()
			defer start(t)()

			if list := hierarchyOf(t); len(list) != 1 {
				t.Errorf("after a restart: %+v", list)
			}
		})
	}
}

// What a GPU instance or a compute instance does not have is a blank whose status is good: the DRAM
// activity of a compute instance, PCIe and NVLink traffic of both. (DCGM 4.5.3)
func TestBlanksOfInstances(t *testing.T) {
	path := scenario(t, `gpus: [{model: H100-80GB, mig: true, layout: ["3g.40gb@4"]}]
workloads: [{name: w, memory: 1GiB, sm: 30, dram: 0.5}]
processes: [{device: 0/3g.40gb@4, workload: w}]
`)
	if !inChild(t, environment(t, path)...) {
		return
	}

	n := node(t)
	defer embedded(t)()
	fields := []dcgm.Short{1001, 1002, 1005, 1009, 1010, 1011, 1012}

	for level, blank := range map[dcgm.Field_Entity_Group]map[dcgm.Short]bool{
		dcgm.FE_GPU_I:  {1009: true, 1010: true, 1011: true, 1012: true},
		dcgm.FE_GPU_CI: {1005: true, 1009: true, 1010: true, 1011: true, 1012: true},
	} {
		of := entity(t, level)
		if err := watchOne(t, level, of.EntityId, fields...); err != nil {
			t.Fatal(err)
		}

		step(t, n, 2*time.Second) // the first two samples are blanks

		values, err := dcgm.EntityGetLatestValues(level, of.EntityId, fields)
		if err != nil {
			t.Fatal(err)
		}

		for _, v := range values {
			if _, known := textOf(v); v.Status != 0 || known == blank[v.FieldID] {
				t.Errorf("field %d of level %d: status %d, a value: %v", v.FieldID, level, v.Status, known)
			}
		}
	}
}

// An XID of a GPU instance is reported for that instance, and not on its GPU (DCGM 4.5.3). Before
// the first there is no data (NVIDIA/DCGM#141, NVIDIA/dcgm-exporter#646, #700). Clients that ask
// for values since a time get each of them.
func TestXIDs(t *testing.T) {
	path := scenario(t, `gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@4"]}]
faults:
- {kind: xid, gpu: 0, xid: 31, gi: 2, ci: 0, at: 2s}
- {kind: xid, gpu: 0, xid: 43, gi: 2, ci: 0, at: 10s}
- {kind: xid, gpu: 0, xid: 45, gi: 2, ci: 0, at: 12s}
- {kind: xid, gpu: 0, xid: 74, at: 20s}
`)
	if !inChild(t, environment(t, path)...) {
		return
	}

	n := node(t)
	defer remote(t)()
	step(t, n, 5*time.Second)
	gi := entity(t, dcgm.FE_GPU_I)
	device := dcgm.GroupEntityPair{EntityGroupId: dcgm.FE_GPU}
	group, fields := watchXIDs(t, gi, device)
	var next time.Time

	for _, tt := range []struct {
		at         time.Duration
		gi, device int64
		since      []int64 // on the GPU instance, then on the GPU
		whatItIsOf string
	}{
		{0, 0, 0, nil, "those before the watch are lost"},
		{8 * time.Second, 45, 0, []int64{43, 45}, "two of the GPU instance"},
		{1 * time.Second, 45, 0, nil, "none"},
		{8 * time.Second, 45, 74, []int64{74}, "one of the GPU"},
	} {
		step(t, n, tt.at)

		for of, want := range map[dcgm.GroupEntityPair]int64{gi: tt.gi, device: tt.device} {
			v, err := dcgm.EntityGetLatestValues(of.EntityGroupId, of.EntityId, []dcgm.Short{dcgm.DCGM_FI_DEV_XID_ERRORS})
			if err != nil {
				t.Fatalf("%s: %+v: %v", tt.whatItIsOf, of, err)
			}

			if want == 0 {
				cmptest.Equal(t, fmt.Sprintf("%s: status of %+v", tt.whatItIsOf, of), v[0].Status, int(hostengine.NoData))
				continue
			}

			cmptest.Equal(t, fmt.Sprintf("%s: status of %+v", tt.whatItIsOf, of), v[0].Status, 0)
			cmptest.Equal(t, fmt.Sprintf("%s: value of %+v", tt.whatItIsOf, of), v[0].Int64(), want)
		}

		values, until, err := dcgm.GetValuesSince(group, fields, next)
		if err != nil || len(values) != len(tt.since) {
			t.Fatalf("%s: %d values since %v, %v; want %v", tt.whatItIsOf, len(values), next, err, tt.since)
		}

		for i, want := range tt.since {
			if values[i].Int64() != want {
				t.Errorf("%s: value %d since %v is %d, want %d", tt.whatItIsOf, i, next, values[i].Int64(), want)
			}
		}

		next = until
	}
}

func watchXIDs(t *testing.T, entities ...dcgm.GroupEntityPair) (dcgm.GroupHandle, dcgm.FieldHandle) {
	t.Helper()

	group, err := dcgm.CreateGroup("all")
	if err != nil {
		t.Fatal(err)
	}

	fields, err := dcgm.FieldGroupCreate("xid", []dcgm.Short{dcgm.DCGM_FI_DEV_XID_ERRORS})
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range entities {
		if err := dcgm.AddEntityToGroup(group, e.EntityGroupId, e.EntityId); err != nil {
			t.Fatal(err)
		}
	}

	if err := dcgm.WatchFieldsWithGroupEx(fields, group, 1_000_000, 0, 1); err != nil {
		t.Fatal(err)
	}

	return group, fields
}

// Another client can take all groups, 62 of 64: none can be created until it releases them. (DCGM
// 4.5.3)
func TestGroupsTaken(t *testing.T) {
	path := scenario(t, "gpus: [{model: A100-40GB}]\nfaults: [{kind: dcgm-groups-taken, for: 10s}]\n")
	if !inChild(t, environment(t, path)...) {
		return
	}

	n := node(t)
	defer remote(t)()
	_, err := dcgm.CreateGroup("g")
	says(t, "taken", err, "Max limit reached for the object")
	step(t, n, 11*time.Second)

	if _, err := dcgm.CreateGroup("g"); err != nil {
		t.Errorf("released: %v", err)
	}
}

// Without its closed module an engine profiles GPUs with GPM alone; a group with another GPU is
// refused, as is the question what can be profiled there, and the rest goes on. (DCGM 4.5.3, which
// came without the module)
func TestNoProfilingModule(t *testing.T) {
	path := scenario(t, "gpus: [{model: H100-80GB}, {model: A100-40GB}]\nfaults: [{kind: dcgm-no-profiling-module}]\n")
	if !inChild(t, environment(t, path)...) {
		return
	}

	n := node(t)
	defer embedded(t)()
	const text = "This request is serviced by a module of DCGM that is not currently loaded"
	_, err := dcgm.GetSupportedMetricGroups(1)
	says(t, "metric groups", err, text)
	says(t, "watch", watchOne(t, dcgm.FE_GPU, 1, 1002), text)

	if groups, err := dcgm.GetSupportedMetricGroups(0); err != nil || len(groups) != 1 {
		t.Errorf("metric groups with GPM: %v, %v", groups, err)
	}

	group, err := dcgm.NewDefaultGroup("both")
	if err != nil {
		t.Fatal(err)
	}

	fields, err := dcgm.FieldGroupCreate("sm", []dcgm.Short{1002})
	if err != nil {
		t.Fatal(err)
	}

	says(t, "watch of both", dcgm.WatchFieldsWithGroupEx(fields, group, 1_000_000, 0, 1), text)

	for id, field := range map[uint]dcgm.Short{0: 1002, 1: 150} {
		t.Run("", func(t *testing.T) {
			if err := watchOne(t, dcgm.FE_GPU, id, field); err != nil {
				t.Fatal(err)
			}

			step(t, n, time.Second)

			v, err := dcgm.EntityGetLatestValues(dcgm.FE_GPU, id, []dcgm.Short{field})
			if err != nil || v[0].Status != 0 {
				t.Errorf("field %d of GPU %d: %+v, %v", field, id, v[0].Status, err)
			}
		})
	}
}
