package sim

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// create makes instances by profile id where the driver puts them, and returns where that is, up to
// the first error.
func create(t *testing.T, n *Node, ids ...uint32) (placements []string, err error) {
	t.Helper()

	for _, id := range ids {
		gi, err := n.CreateGPUInstance(0, id, gpu.None[int]())
		if err != nil {
			return placements, err
		}

		s := state(t, n, 0)

		i, ok := s.Instance(gi)
		if !ok {
			t.Fatalf("instance %d was made but is not there", gi)
		}

		placements = append(placements, i.Placement.String())
	}

	return placements, nil
}

func TestA100_19_19_14_9_FailsOnTheLast(t *testing.T) {
	placements, err := create(t, start(t, a100), 19, 19, 14, 9)
	if !errors.Is(err, gpu.ErrInsufficientResources) {
		t.Errorf("error %v, want insufficient resources", err)
	}

	if len(placements) != 3 {
		t.Errorf("placed %v, want all but the last", placements)
	}
}

func TestA100_9_19_14_19_Succeeds(t *testing.T) {
	placements, err := create(t, start(t, a100), 9, 19, 14, 19)
	if err != nil {
		t.Fatal(err)
	}

	if want := []string{"4:4", "0:1", "2:2", "1:1"}; !slices.Equal(placements, want) {
		t.Errorf("placed at %v, want %v", placements, want)
	}
}

func TestFirst3gStandsRightSecondLeft(t *testing.T) {
	placements, err := create(t, start(t, a100), 9, 9)
	if err != nil {
		t.Fatal(err)
	}

	if want := []string{"4:4", "0:4"}; !slices.Equal(placements, want) {
		t.Errorf("placed at %v, want %v", placements, want)
	}
}

func TestSeven1gFillInTheDriversOrder(t *testing.T) {
	for _, model := range []string{"A100-40GB", "H100-80GB"} {
		n := start(t, "version: 1\ngpus: [{model: "+model+", mig: true}]\n")

		placements, err := create(t, n, 19, 19, 19, 19, 19, 19, 19)
		if err != nil {
			t.Fatal(err)
		}

		if want := []string{"6:1", "4:1", "5:1", "0:1", "1:1", "2:1", "3:1"}; !slices.Equal(placements, want) {
			t.Errorf("%s: placed at %v, want %v", model, placements, want)
		}

		if _, err := create(t, n, 19); !errors.Is(err, gpu.ErrInsufficientResources) {
			t.Errorf("%s: an eighth gives %v", model, err)
		}
	}
}

// What NVIDIA's MIG user guide shows of `nvidia-smi mig -cgi` without placements: the ids of the
// GPU instances follow from their placements.
func TestPlacementsAsTheUserGuideShows(t *testing.T) {
	for _, tt := range []struct {
		model  string
		create []uint32
		ids    []gpu.InstanceID
		at     []string
	}{
		{"A100-40GB", []uint32{14, 19}, []gpu.InstanceID{5, 13}, []string{"4:2", "6:1"}},
		{"A100-40GB", []uint32{19, 14, 5}, []gpu.InstanceID{13, 5, 1}, []string{"6:1", "4:2", "0:4"}},
		{"A100-80GB", []uint32{14, 14, 14, 20}, []gpu.InstanceID{5, 3, 4, 13}, []string{"4:2", "0:2", "2:2", "6:1"}},
	} {
		n := start(t, "version: 1\ngpus: [{model: "+tt.model+", mig: true}]\n")
		var ids []gpu.InstanceID

		for _, profile := range tt.create {
			id, err := n.CreateGPUInstance(0, profile, gpu.None[int]())
			if err != nil {
				t.Fatal(err)
			}

			ids = append(ids, id)
		}

		s := state(t, n, 0)
		var at []string

		for _, id := range ids {
			i, _ := s.Instance(id)
			at = append(at, i.Placement.String())
		}

		if !slices.Equal(ids, tt.ids) || !slices.Equal(at, tt.at) {
			t.Errorf("%s %v: GPU instances %v at %v, want %v at %v", tt.model, tt.create, ids, at, tt.ids, tt.at)
		}
	}
}

func Test4gAnd3gFitOnlyOneWay(t *testing.T) {
	n := start(t, a100)
	if _, err := n.CreateGPUInstance(0, 9, gpu.Some(0)); err != nil {
		t.Fatal(err)
	}

	if _, err := create(t, n, 5); !errors.Is(err, gpu.ErrInsufficientResources) {
		t.Errorf("4g beside 3g@0 gives %v", err)
	}

	if placements, err := create(t, start(t, a100), 9, 5); err != nil ||
		!slices.Equal(placements, []string{"4:4", "0:4"}) {
		t.Errorf("3g, 4g: %v, %v", placements, err)
	}
}

func TestOneMediaExtensionPerGPU(t *testing.T) {
	if _, err := create(t, start(t, a100), 20, 20); !errors.Is(err, gpu.ErrInsufficientResources) {
		t.Errorf("a second 1g.5gb+me gives %v", err)
	}

	rtx := start(t, "version: 1\ngpus: [{model: RTX-PRO-6000, mig: true}]\n")
	if _, err := create(t, rtx, 21, 65); !errors.Is(err, gpu.ErrInsufficientResources) {
		t.Errorf("1g.24gb+me.all beside 1g.24gb+me gives %v", err)
	}
}

func TestEnginesRunOut(t *testing.T) {
	for _, tt := range []struct {
		create []uint32
		fits   bool
	}{
		{[]uint32{64, 66}, true},          // 2g.48gb+me.all, 2g.48gb-me
		{[]uint32{64, 5}, false},          // 2g.48gb+me.all takes all decoders: none for 2g.48gb
		{[]uint32{65, 67, 67, 67}, true},  // 1g.24gb+me.all, 1g.24gb-me
		{[]uint32{67, 67, 14, 65}, false}, // whichever comes first
		{[]uint32{21, 14, 14, 14}, true},  // 1g.24gb+me, 1g.24gb
	} {
		n := start(t, "version: 1\ngpus: [{model: RTX-PRO-6000, mig: true}]\n")
		placements, err := create(t, n, tt.create...)
		var want error

		created := len(tt.create)
		if !tt.fits {
			want = gpu.ErrInsufficientResources
			created = created - 1
		}

		cmptest.Equal(t, fmt.Sprint("error of ", tt.create), err, want)
		cmptest.Equal(t, fmt.Sprint("instances of ", tt.create), len(placements), created)

		if n, err := n.Remaining(0, 5); err != nil || n != 0 {
			t.Errorf("%v: %d more 2g.48gb, %v", tt.create, n, err)
		}
	}
}

// The table that nvidia-smi mig -lgip prints for an empty A100-PCIE-40GB (driver 460.91.03), from a
// published write-up.
func TestA100ProfilesAreAsPublished(t *testing.T) {
	n := start(t, "version: 1\nnode: {driver: \"460.91.03\"}\ngpus: [{model: A100-PCIE-40GB, mig: true}]\n")

	s := state(t, n, 0)
	for _, want := range []struct {
		name                   string
		id                     uint32
		free, total            int
		gib                    string
		sms                    int
		dec, enc, ce, jpeg, of int
	}{
		{"1g.5gb", 19, 7, 7, "4.75", 14, 0, 0, 1, 0, 0},
		{"2g.10gb", 14, 3, 3, "9.75", 28, 1, 0, 2, 0, 0},
		{"3g.20gb", 9, 2, 2, "19.62", 42, 2, 0, 3, 0, 0},
		{"4g.20gb", 5, 1, 1, "19.62", 56, 2, 0, 4, 0, 0},
		{"7g.40gb", 0, 1, 1, "39.50", 98, 5, 0, 7, 1, 1},
	} {
		at := slices.IndexFunc(s.Profiles, func(f gpu.Profile) bool { return f.Name == want.name })
		if at < 0 {
			t.Errorf("%s is missing", want.name)
			continue
		}

		f := s.Profiles[at]

		free, err := n.Remaining(0, f.ID)
		if err != nil {
			t.Fatal(err)
		}

		gib := truncated(f.MemoryBytes)
		cmptest.Equal(t, "id of "+f.Name, f.ID, want.id)
		cmptest.Equal(t, "free, most and SMs of "+f.Name, [3]int{free, f.MaxInstances, f.SMs},
			[3]int{want.free, want.total, want.sms})
		cmptest.Equal(t, "GiB of "+f.Name, gib, want.gib)

		engines := gpu.Engines{Copy: want.ce, Decoder: want.dec, Encoder: want.enc, JPEG: want.jpeg, OFA: want.of}
		if got, ok := f.Engines.Get(); !ok || got != engines {
			t.Errorf("%s: engines %+v, want %+v", f.Name, got, engines)
		}
	}
}

// truncated is a size in GiB with two digits, cut off as nvidia-smi does (20096 MiB are 19.625,
// printed 19.62).
func truncated(bytes uint64) string {
	hundredths := bytes * 100 >> 30
	return fmt.Sprintf("%d.%02d", hundredths/100, hundredths%100)
}

// `nvidia-smi mig -cgi 9,3g.20gb -C` and what nvidia-smi shows then, from the same write-up.
func TestA100TwoHalvesAsPublished(t *testing.T) {
	n := start(t,
		"version: 1\nnode: {driver: \"460.91.03\", migUUIDs: legacy}\ngpus: [{model: A100-PCIE-40GB, mig: true}]\n")
	for _, want := range []struct {
		id        gpu.InstanceID
		placement gpu.Placement
	}{{2, gpu.Placement{Start: 4, Size: 4}}, {1, gpu.Placement{Start: 0, Size: 4}}} {
		id, err := n.CreateGPUInstance(0, 9, gpu.None[int]())
		if err != nil {
			t.Fatal(err)
		}

		ci, err := n.CreateComputeInstance(0, id, 3)
		if err != nil {
			t.Fatal(err)
		}

		s := state(t, n, 0)
		i, _ := s.Instance(id)
		cmptest.Equal(t, "id of the GPU instance", id, want.id)
		cmptest.Equal(t, "its placement", i.Placement, want.placement)
		cmptest.Equal(t, "id of its compute instance", ci, 0)
	}

	s := state(t, n, 0)
	if id, ok := ComputeProfileID(3); !ok || id != 2 {
		t.Errorf("compute profile id of 3 slices is %d", id)
	}

	var order []gpu.InstanceID
	for _, d := range s.Devices {
		order = append(order, d.Instance.ID)
	}

	cmptest.Equal(t, "GPU instances of the MIG devices", order, []gpu.InstanceID{1, 2})

	for _, d := range s.Devices {
		used := d.Instance.MemoryUsed >> 20
		total := d.Instance.Profile.MemoryBytes >> 20
		cmptest.Equal(t, fmt.Sprintf("MiB of GPU instance %d in use and in all", d.Instance.ID), [2]uint64{used, total},
			[2]uint64{5, 20096})
		cmptest.Equal(t, fmt.Sprintf("SMs of GPU instance %d", d.Instance.ID), d.Compute.SMs, 42)

		if want := gpu.MIGUUID(fmt.Sprintf("MIG-%s/%d/0", s.UUID, d.Instance.ID)); d.Compute.UUID != want {
			t.Errorf("UUID %s, want %s", d.Compute.UUID, want)
		}
	}

	if used, total := s.MemoryUsed>>20, (s.MemoryTotal-s.MemoryReserved)>>20; used != 11 || total != 40536 {
		t.Errorf("parent: %d of %d MiB, want 11 of 40536", used, total)
	}

	cmptest.Equal(t, "whether the parent has a utilization", s.Utilization.Present(), false)
	cmptest.Equal(t, "power of the parent and its limit", [2]float64{s.Watts, s.LimitWatts}, [2]float64{34, 250})
}

func TestInstanceIDsByCreation(t *testing.T) {
	n := start(t, "version: 1\nnode: {giIDs: creation}\ngpus: [{model: A100-40GB, mig: true}]\n")
	if _, err := create(t, n, 9, 9); err != nil {
		t.Fatal(err)
	}

	s := state(t, n, 0)
	if s.Instances[1].ID != 1 || s.Instances[0].ID != 2 {
		t.Errorf("ids %d at 4:4 and %d at 0:4, want 1 and 2", s.Instances[1].ID, s.Instances[0].ID)
	}
}

func TestDestroyRules(t *testing.T) {
	n := start(t, `
version: 1
node: {kubernetes: false}
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@4", {gi: "3g.20gb@0", ci: ["1c", "2c"]}]}]
workloads: [{name: w, memory: 1GiB, sm: 4}]
processes: [{device: 0/3g.20gb@4, workload: w, for: 1m}]
`)
	if err := n.DestroyComputeInstance(0, 2, 0); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("a compute instance with a process: %v, want in use", err)
	}

	if err := n.DestroyGPUInstance(0, 2); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("a GPU instance with a compute instance: %v, want in use", err)
	}

	if err := n.DestroyGPUInstance(0, 5); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("a GPU instance that is not there: %v, want not found", err)
	}

	if err := n.DestroyComputeInstance(0, 1, 0); err != nil {
		t.Fatal(err)
	}

	if s := state(t, n, 0); s.Devices[0] != nil || s.Devices[1] == nil {
		t.Errorf("devices %v: the first index must stay empty, the others in place", s.Devices)
	}

	advance(t, n, 61*time.Second)

	if err := n.DestroyComputeInstance(0, 2, 0); err != nil {
		t.Errorf("after its process has ended: %v", err)
	}
}

func TestComputeInstancesShareTheirGPUInstance(t *testing.T) {
	n := start(t, a100)
	if _, err := create(t, n, 9); err != nil {
		t.Fatal(err)
	}

	for i, slices := range []int{1, 2} {
		id, err := n.CreateComputeInstance(0, 2, slices)
		if err != nil || int(id) != i {
			t.Fatalf("compute instance %d of %d slices: id %d, %v", i, slices, id, err)
		}
	}

	if _, err := n.CreateComputeInstance(0, 2, 1); !errors.Is(err, gpu.ErrInsufficientResources) {
		t.Errorf("a fourth slice of three: %v", err)
	}

	if _, err := n.CreateComputeInstance(0, 2, 4); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("four slices of three: %v", err)
	}

	c := state(t, n, 0).Instances[0].ComputeInstances
	cmptest.Equal(t, "profiles of the compute instances", [2]string{c[0].Profile, c[1].Profile},
		[2]string{"1c.3g.20gb", "2c.3g.20gb"})
	cmptest.Equal(t, "their SMs", [2]int{c[0].SMs, c[1].SMs}, [2]int{14, 28})
}

func TestLayoutChangeDeviceHasTheSameUUID(t *testing.T) {
	n := start(t, a100)
	var uuids []gpu.MIGUUID

	for range 2 {
		id, err := n.CreateGPUInstance(0, 9, gpu.Some(4))
		if err != nil {
			t.Fatal(err)
		}

		ci, err := n.CreateComputeInstance(0, id, 3)
		if err != nil {
			t.Fatal(err)
		}

		s := state(t, n, 0)
		uuids = append(uuids, s.Devices[0].Compute.UUID)

		if err := errors.Join(n.DestroyComputeInstance(0, id, ci), n.DestroyGPUInstance(0, id)); err != nil {
			t.Fatal(err)
		}
	}

	if uuids[0] != uuids[1] {
		t.Errorf("UUIDs %v of the same place differ", uuids)
	}
}

// The UUID of a compute instance says where it begins, not how large it is.
func TestUUIDDoesNotTellTheSize(t *testing.T) {
	n := start(t, a100)

	id, err := n.CreateGPUInstance(0, 9, gpu.Some(4))
	if err != nil {
		t.Fatal(err)
	}

	uuidOf := func(slices, at int) gpu.MIGUUID {
		t.Helper()

		ci, err := n.CreateComputeInstanceAt(0, id, slices, gpu.Some(at))
		if err != nil {
			t.Fatal(err)
		}

		uuid := state(t, n, 0).Devices[0].Compute.UUID
		if err := n.DestroyComputeInstance(0, id, ci); err != nil {
			t.Fatal(err)
		}

		return uuid
	}

	one := uuidOf(1, 0)
	two := uuidOf(2, 0)

	later := uuidOf(1, 2)
	if one != two || one == later {
		t.Errorf("UUIDs: 1c at 0 %s, 2c at 0 %s, 1c at 2 %s; want that of 1c at 0 for 2c at 0 alone", one, two, later)
	}
}

// The driver resets an Ampere GPU for its MIG mode, unless the node is a machine that the GPU is
// passed through to; later GPUs need no reset (nvml.h on nvmlDeviceSetMigMode, MIG user guide).
func TestMIGMode(t *testing.T) {
	for _, tc := range []struct {
		model, node string
		atOnce      bool
	}{{"A100-40GB", "{}", true}, {"A100-40GB", "{passThrough: true}", false}, {"H100-80GB", "{passThrough: true}", true}} {
		n := start(t, "version: 1\nnode: "+tc.node+"\ngpus: [{model: "+tc.model+"}]\n")
		if err := n.SetMIGMode(0, true); err != nil {
			t.Fatal(err)
		}

		if s := state(t, n, 0); s.MIGEnabled != tc.atOnce || !s.MIGPending {
			t.Errorf("%s %s: enabled %v, pending %v", tc.model, tc.node, s.MIGEnabled, s.MIGPending)
		}

		if err := n.Reset(0); err != nil {
			t.Fatal(err)
		}

		if s := state(t, n, 0); !s.MIGEnabled {
			t.Errorf("%s: not on after a reset", tc.model)
		}

		if _, err := create(t, n, 9); err != nil {
			t.Fatal(err)
		}

		if err := n.SetMIGMode(0, false); !errors.Is(err, gpu.ErrInUse) {
			t.Errorf("%s: off with an instance: %v, want in use", tc.model, err)
		}

		if err := n.Reset(0); err != nil {
			t.Fatal(err)
		}

		if s := state(t, n, 0); len(s.Instances) != 0 {
			t.Errorf("%s: instances survive a reset", tc.model)
		}
	}
}

func TestPartitioningNeedsMIGAndRights(t *testing.T) {
	if _, err := create(t, start(t, "version: 1\ngpus: [{model: A100-40GB}]\n"), 9); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("with MIG off: %v", err)
	}

	n := start(t, "version: 1\nnode: {privileged: false}\ngpus: [{model: A100-40GB, mig: true}]\n")
	if _, err := create(t, n, 9); !errors.Is(err, gpu.ErrNoPermission) {
		t.Errorf("without rights: %v", err)
	}

	n = start(t, a100)
	if _, err := create(t, n, 99); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("with an unknown profile: %v", err)
	}

	if _, err := n.CreateGPUInstance(0, 9, gpu.Some(2)); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("with a start that is none: %v", err)
	}
}
