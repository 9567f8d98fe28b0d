package poll

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// useOf returns the use of a device by a pod; nil if there is none.
func useOf(g *gpu.GPU, pod string, instance gpu.Opt[gpu.InstanceID], compute gpu.Opt[gpu.ComputeID]) *gpu.ContainerUse {
	for i := range g.Containers {
		if u := &g.Containers[i]; u.Pod == pod && u.Instance == instance && u.Compute == compute {
			return u
		}
	}

	return nil
}

// TestUses: what is held exclusively has what its device has, a part of a split GPU instance has
// its processes' memory, and of a shared device each container has its own processes'.
func TestUses(t *testing.T) {
	mib := func(n uint64) gpu.Opt[uint64] { return gpu.Some(n << 20) }
	g := migGPU()
	g.Instances[0].Memory.Used = mib(500)
	g.Instances[1].Memory.Used = mib(300)
	g.Instances[0].ComputeInstances[0].PowerWatts = gpu.Some(20.0)
	g.Instances[0].PowerWatts = gpu.Some(60.0)
	g.Instances[1].PowerWatts = gpu.Some(30.0)
	pids := fakeContainers{11: {Namespace: "ns", Pod: "p", Name: "main"}, 12: {Namespace: "ns", Pod: "q", Name: "main"}}
	split := gpu.Some(gpu.InstanceID(2))
	other := gpu.Some(gpu.InstanceID(1))
	first := gpu.Some(gpu.ComputeID(0))

	for _, tt := range []struct {
		name string
		list []gpu.Assignment
		want []gpu.ContainerUse
	}{
		{"a part of a split GPU instance", []gpu.Assignment{newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "p", 1)}, []gpu.ContainerUse{
			{Instance: split, Compute: first, MemoryUsed: gpu.Some(uint64(150)), PowerWatts: gpu.Some(20.0), Sharing: gpu.SharingExclusive},
		}},
		{"a part without a process", []gpu.Assignment{newAssignment(gpu.DeviceRef{MIG: "MIG-2"}, "p", 1)}, []gpu.ContainerUse{
			{Instance: split, Compute: gpu.Some(gpu.ComputeID(1)), MemoryUsed: gpu.Some(uint64(0)), Sharing: gpu.SharingExclusive},
		}},
		{"a GPU instance", []gpu.Assignment{newAssignment(gpu.DeviceRef{MIG: "MIG-3"}, "p", 1)}, []gpu.ContainerUse{
			{Instance: other, Compute: first, MemoryUsed: mib(300), PowerWatts: gpu.Some(30.0), Sharing: gpu.SharingExclusive},
		}},
		{"a GPU", []gpu.Assignment{newAssignment(gpu.DeviceRef{GPU: uuidA}, "p", 1)}, []gpu.ContainerUse{
			{PowerWatts: gpu.Some(200.0), Sharing: gpu.SharingExclusive},
		}},
		{"a shared part", []gpu.Assignment{replicaAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "p", "0"), replicaAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "q", "1")}, []gpu.ContainerUse{
			{Instance: split, Compute: first, MemoryUsed: gpu.Some(uint64(100)), Sharing: gpu.SharingTimeSlicing},
		}},
		{"nothing", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			gpus := []gpu.GPU{g}
			gpus[0].Instances = cloneInstances(g.Instances)
			attachHolders(gpus, gpu.Assignments{List: tt.list}, time.Time{}, pids)
			var h exclusiveUses
			h.update(&gpus[0], true, time.Unix(1, 0))
			gpus[0].Containers = h.collectUses(&gpus[0], pids, false)
			uses := 0

			for i := range gpus[0].Containers {
				if gpus[0].Containers[i].Pod == "p" {
					uses++
				}
			}

			if uses != len(tt.want) {
				t.Errorf("%+v, want %d uses of p", gpus[0].Containers, len(tt.want))
			}

			for _, want := range tt.want {
				got := useOf(&gpus[0], "p", want.Instance, want.Compute)
				if got == nil {
					t.Fatalf("%+v, want %+v", gpus[0].Containers, want)
				}

				want.Container = got.Container
				want.EnergyJoules = got.EnergyJoules
				cmptest.Equal(t, "use", *got, want)
			}
		})
	}
}

// TestMemoryOfSharedDevices: a container that shares a device uses 0 bytes of it if it has no
// process there, not if the memory of its processes, or where they run, is unknown.
func TestMemoryOfSharedDevices(t *testing.T) {
	containers := fakeContainers{11: {Namespace: "ns", Pod: "p", Name: "main"}, 12: {Namespace: "ns", Pod: "q", Name: "main"}}
	memory := gpu.Some(uint64(100))
	at := func(pid uint32, used gpu.Opt[uint64]) gpu.Process {
		return gpu.Process{PID: pid, MemoryBytes: used, Instance: gpu.Some[gpu.InstanceID](2), Compute: gpu.Some[gpu.ComputeID](0)}
	}
	beside := at(12, memory)
	anywhere := at(11, memory)
	inInstance := at(11, memory)
	anywhere.Instance, anywhere.Compute = gpu.None[gpu.InstanceID](), gpu.None[gpu.ComputeID]()
	inInstance.Compute = gpu.None[gpu.ComputeID]()

	for what, c := range map[string]struct {
		list []gpu.Process
		want gpu.Opt[uint64]
	}{
		"no process of its own":     {[]gpu.Process{beside}, gpu.Some(uint64(0))},
		"two":                       {[]gpu.Process{beside, at(11, memory), at(11, memory)}, gpu.Some(uint64(200))},
		"its memory is unknown":     {[]gpu.Process{beside, at(11, gpu.None[uint64]())}, gpu.None[uint64]()},
		"that of one is unknown":    {[]gpu.Process{beside, at(11, gpu.None[uint64]()), at(11, memory)}, gpu.None[uint64]()},
		"it may be on any instance": {[]gpu.Process{beside, anywhere}, gpu.None[uint64]()},
		"it may be on any part":     {[]gpu.Process{beside, inInstance}, gpu.None[uint64]()},
	} {
		gpus := []gpu.GPU{migGPU()}
		gpus[0].Readings.Processes = gpu.Some(c.list)
		device := gpu.DeviceRef{MIG: "MIG-1"}
		attachHolders(gpus, gpu.Assignments{List: []gpu.Assignment{
			replicaAssignment(device, "p", "0"), replicaAssignment(device, "q", "1"),
		}}, time.Time{}, containers)
		var h exclusiveUses
		gpus[0].Containers = h.collectUses(&gpus[0], containers, false)

		use := useOf(&gpus[0], "p", gpu.Some[gpu.InstanceID](2), gpu.Some[gpu.ComputeID](0))
		if use == nil {
			t.Fatalf("%s: no use of p: %+v", what, gpus[0].Containers)
		}

		cmptest.Equal(t, what, use.MemoryUsed, c.want)
	}
}

// TestMemoryOfAPart: a part of a split GPU instance uses what its processes do, if it is known
// which these are.
func TestMemoryOfAPart(t *testing.T) {
	here := gpu.Process{
		MemoryBytes: gpu.Some(uint64(100)), Instance: gpu.Some[gpu.InstanceID](2), Compute: gpu.Some[gpu.ComputeID](1),
	}
	elsewhere := here
	anywhere := here
	inInstance := here
	elsewhere.Instance = gpu.Some[gpu.InstanceID](1)
	anywhere.Instance, anywhere.Compute = gpu.None[gpu.InstanceID](), gpu.None[gpu.ComputeID]()
	inInstance.Compute = gpu.None[gpu.ComputeID]()

	for what, c := range map[string]struct {
		list gpu.Opt[[]gpu.Process]
		want gpu.Opt[uint64]
	}{
		"an unknown list": {gpu.None[[]gpu.Process](), gpu.None[uint64]()},
		"none":            {gpu.Some([]gpu.Process{elsewhere}), gpu.Some(uint64(0))},
		"one":             {gpu.Some([]gpu.Process{here, elsewhere}), gpu.Some(uint64(100))},
		"one anywhere":    {gpu.Some([]gpu.Process{here, anywhere}), gpu.None[uint64]()},
		"one on any part": {gpu.Some([]gpu.Process{here, inInstance}), gpu.None[uint64]()},
	} {
		cmptest.Equal(t, what, memoryOfProcesses(&gpu.GPU{Readings: gpu.Readings{Processes: c.list}}, 2, 1), c.want)
	}
}

// TestUsesOfJobs: a batch job has all of the GPU or GPU instance that it was given.
func TestUsesOfJobs(t *testing.T) {
	g := migGPU()
	g.Jobs, g.Instances[0].Jobs, g.Instances[1].Jobs = []string{"1", "2"}, []string{"41"}, []string{"42"}
	g.Instances[0].Memory.Used = gpu.Some(uint64(7))
	g.Instances[1].ComputeInstances[0].Holders = []gpu.Holder{{Container: gpu.Container{Pod: "p"}, Sharing: gpu.SharingExclusive}}
	var h exclusiveUses
	h.update(&g, true, time.Unix(1, 0))
	uses := h.collectUses(&g, nil, false)
	p := gpu.Container{Pod: "p"}
	cmptest.Equal(t, "uses", uses, []gpu.ContainerUse{
		{Job: "41", Instance: gpu.Some(gpu.InstanceID(2)), Sharing: gpu.SharingExclusive, MemoryUsed: gpu.Some(uint64(7))},
		{Container: p, Job: "42", Instance: gpu.Some(gpu.InstanceID(1)), Compute: gpu.Some(gpu.ComputeID(0)), Sharing: gpu.SharingExclusive},
	})
}

// TestPowerOfASplitInstance: its compute instances share it by the rule by which it has its own,
// and never get more.
func TestPowerOfASplitInstance(t *testing.T) {
	tr := newTestGPU()
	readEverySecond(tr, idleSlices(98), idleSlices(98))
	g := migGPU() // 200 W
	split := &g.Instances[0]
	split.Activity.GraphicsEngine, g.Instances[1].Activity.GraphicsEngine = gpu.Some(0.8), gpu.Some(0.0)
	split.ComputeInstances[0].SMs, split.ComputeInstances[1].SMs = gpu.Some(14), gpu.Some(28)
	split.ComputeInstances[0].Activity.GraphicsEngine, split.ComputeInstances[1].Activity.GraphicsEngine = gpu.Some(1.0), gpu.Some(0.5)
	readEverySecond(tr, g)
	// 42 of 98 W idle by SMs, and all 102 W of work, of which each compute instance did a half.
	for c, want := range []float64{14 + 51, 28 + 51} {
		if got := tr.last.Instances[0].ComputeInstances[c].PowerWatts.Or(-1); math.Abs(got-want) > 1e-9 {
			t.Errorf("compute instance %d draws %v W, want %v", c, got, want)
		}
	}

	if tr.last.Instances[1].ComputeInstances[0].PowerWatts.Present() {
		t.Error("the compute instance of a GPU instance that is not split has power of its own")
	}

	g.Instances[0].ComputeInstances[1].Activity = gpu.Activity{}
	tr.recordReading(g, time.Unix(3, 0))

	for c, want := range []float64{14, 28} {
		if got := tr.last.Instances[0].ComputeInstances[c].PowerWatts.Or(-1); math.Abs(got-want) > 1e-9 {
			t.Errorf("activity unknown: compute instance %d draws %v W, want its %v W idle", c, got, want)
		}
	}
}

// TestEnergyOfHoldings: over any churn each holding begins at 0 and grows by what its device uses,
// its last increase included, so that the energy of all holdings is that of the devices while they
// were held. No pod pays for its predecessor: not if a reading failed as one came, wholly or in
// part, nor if it has the predecessor's name.
func TestEnergyOfHoldings(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))

		c := &holdingsModel{
			tr: newTestGPU(), at: time.Unix(1000, 0), pods: map[gpu.MIGUUID]gpu.Holder{}, used: map[gpu.MIGUUID]float64{}, reported: map[holdingKey]reportedUse{},
		}
		for step := range 80 {
			if err := c.step(r, step); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}

			c.at = c.at.Add(time.Second)
		}

		if min(c.ended, c.handovers, c.compared) == 0 {
			t.Errorf("seed %d: %d hand-overs, %d last increases, %d compared: want some of each", seed, c.handovers, c.ended, c.compared)
		}
	}
}

// holdingsModel is a GPU whose compute instances change hands at random.
type holdingsModel struct {
	tr       *trackedGPU
	at       time.Time
	joules   float64 // the GPU's counter
	read     float64 // its value when it was last shared
	since    time.Time
	pods     map[gpu.MIGUUID]gpu.Holder
	used     map[gpu.MIGUUID]float64    // energy of each device
	reported map[holdingKey]reportedUse // of each holding in the last Snapshot

	handovers, ended, compared int
}

// holdingKey names a holding: a pod has a device once at a time.
type holdingKey struct {
	device      gpu.MIGUUID
	pod, podUID string
}

// reportedUse is the energy of a holding, that of its device at the last reading, and when that and
// the holding were begun.
type reportedUse struct {
	value, device float64
	read, begun   time.Time
}

// step reads the GPU, or fails to, lets a pod come or go, and checks the uses of a Snapshot.
func (c *holdingsModel) step(r *rand.Rand, step int) error {
	c.joules += r.Float64() * 400
	if c.read == 0 || r.IntN(10) > 0 {
		c.readGPU(r)
	}

	c.changePods(r, step)
	var list []gpu.Assignment

	for uuid, h := range c.pods {
		a := newAssignment(gpu.DeviceRef{MIG: uuid}, h.Pod, 1)
		a.Holder.PodUID = h.PodUID
		a.LastListed = c.at
		list = append(list, a)
	}

	gpus := []gpu.GPU{c.tr.snapshotGPU(c.at, time.Hour)}
	attachHolders(gpus, gpu.Assignments{List: list}, time.Time{}, nil)
	c.tr.exclusive.update(&gpus[0], true, c.at)

	now := map[holdingKey]reportedUse{}
	for _, u := range c.tr.exclusive.collectUses(&gpus[0], nil, false) {
		if err := c.compareUse(&u, now); err != nil {
			return err
		}
	}

	if len(now) != len(c.pods) {
		return fmt.Errorf("%d holdings reported, %d pods", len(now), len(c.pods))
	}

	c.reported = now

	return nil
}

// compareUse compares one use with what its device has used since the last Snapshot.
func (c *holdingsModel) compareUse(u *gpu.ContainerUse, now map[holdingKey]reportedUse) error {
	uuid := map[[2]uint32]gpu.MIGUUID{{2, 0}: "MIG-1", {2, 1}: "MIG-2", {1, 0}: "MIG-3"}[[2]uint32{uint32(u.Instance.Or(0)), uint32(u.Compute.Or(9))}]

	joules, ok := u.EnergyJoules.Get()
	if !ok || uuid == "" {
		return fmt.Errorf("no energy, or no device: %+v", u)
	}

	key := holdingKey{uuid, u.Pod, c.pods[uuid].PodUID}

	isOpen := c.pods[uuid].Pod == u.Pod
	if !isOpen { // its last use
		for k := range c.reported {
			if k.device == uuid && k.pod == u.Pod {
				key = k
			}
		}

		c.ended++
	}

	before, held := c.reported[key]
	device := c.used[uuid]

	if !held {
		if !isOpen {
			return fmt.Errorf("the holding of %s ends before it began", u.Pod)
		}

		if joules.Value != 0 || !joules.Since.Equal(c.at) {
			return fmt.Errorf("the holding of %s begins with %+v, want 0 J since %v", u.Pod, joules, c.at)
		}

		now[key] = reportedUse{device: device, read: c.since, begun: c.at}

		return nil
	}

	want := device - before.device
	if before.begun.After(before.read) && c.since.After(before.begun) { // it came between two readings
		want *= float64(c.since.Sub(before.begun)) / float64(c.since.Sub(before.read))
	}

	if grew := joules.Value - before.value; math.Abs(grew-want) > 1e-6 {
		return fmt.Errorf("energy of %s grew by %v, want %v", u.Pod, grew, want)
	}

	c.compared++
	if isOpen {
		now[key] = reportedUse{joules.Value, device, c.since, before.begun}
	}

	return nil
}

// readGPU records a reading, perhaps an incomplete one, and adds up what each device has used, by
// its estimated power.
func (c *holdingsModel) readGPU(r *rand.Rand) {
	g := energyReading(r, c.joules)

	first := c.read == 0
	if lacks := r.IntN(12); !first {
		switch lacks {
		case 0:
			g.MIG = gpu.MIGState{}
			g.Instances = nil
			g.Errors = []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrUnavailable}}
		case 1:
			g.Readings.EnergyJoules = gpu.None[float64]()
		case 2:
			g.Readings.PowerWatts = gpu.None[float64]()
		}
	}

	spent := c.joules - c.read
	c.tr.recordReading(g, c.at)

	if !g.MIG.Enabled.Present() || !g.Readings.EnergyJoules.Present() {
		return
	}

	c.read = c.joules
	c.since = c.at

	gpuWatts, known := c.tr.last.Readings.PowerWatts.Get() // also if it is derived from energy
	for i := range c.tr.last.Instances {
		gi := &c.tr.last.Instances[i]
		for k := range gi.ComputeInstances {
			watts := gi.PowerWatts
			if gi.IsSplit() {
				watts = gi.ComputeInstances[k].PowerWatts
			}

			if known && !first {
				c.used[gi.ComputeInstances[k].UUID] += spent * watts.Or(math.NaN()) / gpuWatts
			}
		}
	}
}

// energyReading is a reading with random activity.
func energyReading(r *rand.Rand, joules float64) gpu.GPU {
	g := migGPU()

	g.Readings.EnergyJoules, g.Readings.PowerWatts = gpu.Some(joules), gpu.Some(150+r.Float64()*200)
	for i := range g.Instances {
		gi := &g.Instances[i]

		gi.Activity.GraphicsEngine = gpu.Some(r.Float64())
		for c := range gi.ComputeInstances {
			gi.ComputeInstances[c].SMs, gi.ComputeInstances[c].Activity.GraphicsEngine = gpu.Some(42/len(gi.ComputeInstances)), gpu.Some(r.Float64())
		}
	}

	return g
}

// changePods lets a pod end, and another have its device at once or later, perhaps under the same
// name.
func (c *holdingsModel) changePods(r *rand.Rand, step int) {
	device := []gpu.MIGUUID{"MIG-1", "MIG-2", "MIG-3"}[r.IntN(3)]
	if _, held := c.pods[device]; held {
		delete(c.pods, device)

		if c.handovers++; r.IntN(2) == 0 {
			return
		}
	}

	if r.IntN(2) == 0 {
		c.pods[device] = gpu.Holder{Container: gpu.Container{Pod: fmt.Sprint(device, "-", r.IntN(2))}, PodUID: fmt.Sprint(step)}
	}
}

// TestUsesOfContradictions: a device whose holders contradict each other, or are not all confirmed,
// has no more uses than are certain.
func TestUsesOfContradictions(t *testing.T) {
	pids := fakeContainers{11: {Namespace: "ns", Pod: "a", Name: "main"}, 12: {Namespace: "ns", Pod: "b", Name: "main"}}
	ref := gpu.DeviceRef{MIG: "MIG-1"}
	gpuRef := gpu.DeviceRef{GPU: uuidA}
	doubtful := func(a gpu.Assignment) gpu.Assignment { a.Holder.Unconfirmed = "for a test"; return a }
	undescribed := func(a gpu.Assignment) gpu.Assignment { a.Holder.Undescribed = true; return a }

	for name, tt := range map[string]struct {
		list []gpu.Assignment
		want string
	}{
		"exclusive beside an unconfirmed claim":  {[]gpu.Assignment{newAssignment(ref, "a", 1), doubtful(replicaAssignment(ref, "b", "0"))}, "a exclusive 150"},
		"a replica beside an unconfirmed holder": {[]gpu.Assignment{replicaAssignment(ref, "b", "0"), unconfirmedAssignment(ref, "a")}, "b time-slicing 50"},
		"unconfirmed replicas":                   {[]gpu.Assignment{doubtful(replicaAssignment(ref, "a", "0")), doubtful(replicaAssignment(ref, "b", "1"))}, "a time-slicing 100, b time-slicing 50"},
		"two replicas of one container":          {[]gpu.Assignment{replicaAssignment(ref, "a", "0"), replicaAssignment(ref, "a", "1")}, "a time-slicing 100"},
		"a replica without a process":            {[]gpu.Assignment{replicaAssignment(ref, "a", "0"), replicaAssignment(ref, "c", "1")}, "a time-slicing 100, c time-slicing 0"},
		"a replica that is not described yet":    {[]gpu.Assignment{undescribed(replicaAssignment(ref, "a", "0")), replicaAssignment(ref, "b", "1")}, "b time-slicing 50"},
		"several unconfirmed ones":               {[]gpu.Assignment{unconfirmedAssignment(ref, "a"), unconfirmedAssignment(ref, "b")}, ""},
		"the GPU and a part of it":               {[]gpu.Assignment{newAssignment(gpuRef, "whole", 1), newAssignment(ref, "a", 1)}, "a exclusive 150"},
		"the GPU, and processes of no holder":    {[]gpu.Assignment{replicaAssignment(gpuRef, "c", "0"), replicaAssignment(gpuRef, "d", "1")}, "c time-slicing 0, d time-slicing 0"},
	} {
		t.Run(name, func(t *testing.T) {
			g := migGPU()
			gpus := []gpu.GPU{g}
			list := g.Readings.Processes.Or(nil)
			list[1].MemoryBytes = gpu.Some(uint64(50))
			attachHolders(gpus, gpu.Assignments{List: tt.list}, time.Time{}, pids)
			var h exclusiveUses
			h.update(&gpus[0], true, time.Unix(1, 0))

			var got []string
			for _, u := range h.collectUses(&gpus[0], pids, false) {
				got = append(got, fmt.Sprint(u.Pod, " ", u.Sharing, " ", u.MemoryUsed.Or(999)))
			}

			if text := strings.Join(got, ", "); text != tt.want {
				t.Errorf("%q, want %q", text, tt.want)
			}
		})
	}
}

// TestHoldingsOfPods: a pod is its UID, which may be known late.
func TestHoldingsOfPods(t *testing.T) {
	of := func(pod, uid string) *user { return &user{container: gpu.Container{Pod: pod}, podUID: uid} }
	for _, tt := range []struct {
		a, b *user
		want bool
	}{
		{of("web-0", "1"), of("web-0", "1"), true},
		{of("web-0", "1"), of("web-0", "2"), false},
		{of("web-0", ""), of("web-0", "2"), true},
		{of("web-0", "1"), of("web-1", "1"), false},
		{of("", "1"), of("", "2"), false},
		{of("", ""), of("", "2"), false},
		{of("", "1"), of("", "1"), true},
	} {
		if got := tt.a.isSame(tt.b); got != tt.want {
			t.Errorf("%+v and %+v are one: %v", tt.a, tt.b, got)
		}
	}
}
