package simdcgm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// slots are the places that instances of an A100 can have, by profile and start.
func slots() []string {
	return []string{
		"1g.5gb@0", "1g.5gb@1", "1g.5gb@2", "1g.5gb@3", "1g.5gb@4", "1g.5gb@5", "1g.5gb@6",
		"2g.10gb@0", "2g.10gb@2", "2g.10gb@4", "3g.20gb@0", "3g.20gb@4", "4g.20gb@0", "7g.40gb@0",
	}
}

// loads is a scenario in which whatever instance is there gets a load of its own, that no other has
// at the time, and is idle for a few seconds in between, so that it can be destroyed.
func loads(gpus, seconds int) string {
	var b, processes strings.Builder
	fmt.Fprintf(&b, "version: 1\nnode: {kubernetes: false}\nseed: 3\ngpus: [{model: A100-40GB, count: %d, mig: "+
		"true}]\nworkloads:\n", gpus)

	for g := range gpus {
		for i, slot := range slots() {
			n := g*len(slots()) + i
			fmt.Fprintf(&b, "  - {name: w%d, memory: 1GiB, sm: {sine: {min: %d, max: %d, period: %ds}}, dram: 0.%d}\n", n, 2+i,
				4+i, 7+n, 11+n)

			for at := 1 + (5*n)%15; at < seconds; at += 15 {
				fmt.Fprintf(&processes, "  - {device: %d/%s, workload: w%d, at: %ds, for: 12s}\n", g, slot, n, at)
			}
		}
	}

	return b.String() + "processes:\n" + processes.String()
}

// rig is a node, its engine and a Source, driven as the poll loop does.
type rig struct {
	*testing.T
	random        *rand.Rand
	node          *sim.Node
	engine        *Connector
	source        *dcgmsource.Source
	snapshot      *gpu.Snapshot
	prints        []string // of the layouts, by GPU
	number        map[string]int
	made          int
	layoutChanges int
	gone          map[string]bool // what was destroyed since the last Snapshot
	history       map[string]sim.Activity
	before        map[string]sim.Activity
	checked       int
}

func newRig(t *testing.T, scenario string, inject bool) *rig {
	s, err := sim.Parse("repartition.yaml", []byte(scenario))
	if err != nil {
		t.Fatal(err)
	}

	node, err := sim.New(s, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = node.Close() })
	r := &rig{T: t, random: rand.New(rand.NewPCG(1, 2)), node: node, engine: New(node), number: map[string]int{},
		gone: map[string]bool{}}
	r.prints = make([]string, node.Count())

	var engine dcgmsource.Connector = r.engine
	if inject {
		engine = meddled{r}
	}

	r.source = dcgmsource.New(engine, dcgmsource.Options{Now: node.Now})
	r.look()

	return r
}

// meddled changes the layout between the calls of an engine.
type meddled struct{ *rig }

func (m meddled) Connect() (dcgmsource.Session, error) {
	s, err := m.engine.Connect()
	return meddledSession{s, m.rig}, err
}

type meddledSession struct {
	dcgmsource.Session
	*rig
}

func (m meddledSession) Latest(to []dcgmsource.Value, e []dcgmsource.Entity, f []uint16) ([]dcgmsource.Value, error) {
	m.meddle()
	defer m.meddle()

	return m.Session.Latest(to, e, f)
}

func (m meddledSession) AddToGroup(g dcgmsource.Group, e dcgmsource.Entity) error {
	m.meddle()
	return m.Session.AddToGroup(g, e)
}

func (m meddledSession) Watch(g dcgmsource.Group, f dcgmsource.FieldGroup, every time.Duration) error {
	m.meddle()
	defer m.meddle()

	return m.Session.Watch(g, f, every)
}

func (r *rig) meddle() {
	if r.random.IntN(40) == 0 {
		r.repartition(r.random.IntN(r.node.Count()))
	}
}

// repartition destroys an instance that is idle, or makes one. What has just been destroyed is not
// made again before a Snapshot shows that it is gone: not even NVML could tell the one from the
// other.
func (r *rig) repartition(index int) {
	state, err := r.node.Read(index, gpu.ReadingMIG)
	if err != nil {
		r.Fatal(err)
	}

	if len(state.Instances) > 0 && r.random.IntN(2) == 0 {
		gi := &state.Instances[r.random.IntN(len(state.Instances))]
		for _, c := range gi.ComputeInstances {
			if r.node.DestroyComputeInstance(index, gi.ID, c.ID) != nil {
				return // in use
			}
		}

		if err := r.node.DestroyGPUInstance(index, gi.ID); err != nil {
			r.Fatal(err)
		}

		r.gone[fmt.Sprint(index, " ", gi.Profile.ID, " ", gi.Placement.Start)] = true
		r.layoutChanges++

		return
	}

	slot := slots()[r.random.IntN(len(slots()))]
	name := slot[:len(slot)-2]
	start := int(slot[len(slot)-1] - '0')

	at := slices.IndexFunc(state.Profiles, func(p gpu.Profile) bool { return p.Name == name })
	if r.gone[fmt.Sprint(index, " ", state.Profiles[at].ID, " ", start)] {
		return
	}

	id, err := r.node.CreateGPUInstance(index, state.Profiles[at].ID, gpu.Some(start))
	if err != nil {
		return // no room
	}

	if _, err := r.node.CreateComputeInstance(index, id, state.Profiles[at].ComputeSlices); err != nil {
		r.Fatal(err)
	}

	r.made++
	r.number[fmt.Sprint(index, " ", id)] = r.made
	r.layoutChanges++
}

// look makes a Snapshot, with the generations of layouts that the poll loop would give.
func (r *rig) look() {
	next := &gpu.Snapshot{Time: r.node.Now()}
	for i := range r.node.Count() {
		state, err := r.node.Read(i, gpu.ReadingMIG)
		if err != nil {
			r.Fatal(err)
		}

		g := gpu.GPU{Facts: gpu.Facts{UUID: state.UUID, Index: i}, Device: gpu.Device{Up: true}}
		g.MIG.Enabled = gpu.Some(true)
		shape := ""

		for _, from := range state.Instances {
			gi := gpu.GPUInstance{
				ID: from.ID, Profile: from.Profile.Name, Placement: gpu.Some(from.Placement),
				ComputeSlices: gpu.Some(from.Profile.ComputeSlices),
			}
			for _, c := range from.ComputeInstances {
				gi.ComputeInstances = append(gi.ComputeInstances,
					gpu.ComputeInstance{ID: c.ID, UUID: c.UUID, ComputeSlices: gpu.Some(c.Placement.Size)})
			}

			shape += fmt.Sprintf("%d %s %v %d;", gi.ID, gi.Profile, from.Placement, len(gi.ComputeInstances))
			g.Instances = append(g.Instances, gi)
		}

		g.MIG.LayoutGeneration = 1
		if r.snapshot != nil {
			g.MIG.LayoutGeneration = r.snapshot.GPUs[i].MIG.LayoutGeneration
		}

		if shape != r.prints[i] {
			g.MIG.LayoutGeneration++
			r.prints[i] = shape
		}

		next.GPUs = append(next.GPUs, g)
	}

	r.snapshot = next
	clear(r.gone)
}

// cycle asks for the layout of the last Snapshot, looks, and checks what the new Snapshot would
// show of it.
func (r *rig) cycle() {
	answer, err := r.source.Profile(r.snapshot)
	if err != nil {
		r.Fatal(err)
	}

	r.look()
	r.remember()

	for i := range r.snapshot.GPUs {
		g := &r.snapshot.GPUs[i]

		p := answer[g.UUID]
		if p.LayoutGeneration != g.MIG.LayoutGeneration {
			continue
		}

		for id, a := range p.Instances {
			r.check(fmt.Sprint(i, " ", id), a, p.Time)
		}

		for ids, a := range p.ComputeInstances {
			r.check(fmt.Sprint(i, " ", ids[0]), a, p.Time)
		}
	}
}

// remember keeps the counters of every instance at this second and the last.
func (r *rig) remember() {
	r.before = r.history

	r.history = map[string]sim.Activity{}
	for i := range r.snapshot.GPUs {
		for _, gi := range r.snapshot.GPUs[i].Instances {
			if c, err := r.node.InstanceCounters(i, gi.ID); err == nil {
				key := fmt.Sprint(i, " ", gi.ID)
				r.history[fmt.Sprint(key, " ", r.number[key])] = c.Activity
			}
		}
	}
}

// check compares a value with what this very instance did in the last second. Its one compute
// instance does the same.
func (r *rig) check(key string, got gpu.Activity, at time.Time) {
	key = fmt.Sprint(key, " ", r.number[key])
	now, ok := r.history[key]
	was, before := r.before[key]

	sm, known := got.SM.Get()
	if !known {
		return
	}

	want := now.SM - was.SM
	if !ok || !before || !at.Equal(r.node.Now()) || math.Abs(sm-want) > 1e-6 {
		r.Errorf("%v: %s: %v, want %v (there now %v, a second ago %v), at %v", r.node.Now(), key, sm, want, ok, before, at)
	}

	if sm > 0 {
		r.checked++
	}
}

// TestLayoutChangeUnderLoad: whatever is repartitioned when, also between two calls of the engine:
// each value is of the instance that it is shown for.
func TestLayoutChangeUnderLoad(t *testing.T) {
	const seconds = 4000

	r := newRig(t, loads(2, seconds), true)
	for range seconds {
		for range r.random.IntN(3) {
			if r.random.IntN(3) == 0 {
				r.repartition(r.random.IntN(2))
			}
		}

		r.cycle()

		if err := r.node.Advance(time.Second); err != nil {
			t.Fatal(err)
		}

		if t.Failed() {
			return
		}
	}

	if r.layoutChanges < seconds/20 || r.checked < seconds/2 {
		t.Errorf("%d layout changes, %d values of loads: the test shows little", r.layoutChanges, r.checked)
	}

	t.Logf("%d layout changes, %d values of loads", r.layoutChanges, r.checked)
}

// swapInstance makes the one instance of GPU 0 another one: a 3g.20gb and a 2g.10gb by turns.
func (r *rig) swapInstance(n int) {
	state, err := r.node.Read(0, gpu.ReadingMIG)
	if err != nil {
		r.Fatal(err)
	}

	for _, gi := range state.Instances {
		for _, c := range gi.ComputeInstances {
			if err := r.node.DestroyComputeInstance(0, gi.ID, c.ID); err != nil {
				r.Fatal(err)
			}
		}

		if err := r.node.DestroyGPUInstance(0, gi.ID); err != nil {
			r.Fatal(err)
		}
	}

	profile := uint32(14)
	slices := 2

	if n%2 == 0 {
		profile = 9
		slices = 3
	}

	id, err := r.node.CreateGPUInstance(0, profile, gpu.None[int]())
	if err != nil {
		r.Fatal(err)
	}

	if _, err := r.node.CreateComputeInstance(0, id, slices-1); err != nil {
		r.Fatal(err)
	}
}

// TestLayoutChangesLeakNothing: groups, watches, goroutines and memory stay as they were.
func TestLayoutChangesLeakNothing(t *testing.T) {
	const layoutChanges = 10000
	r := newRig(t, loads(1, 2), false)
	var first uint64
	goroutines := runtime.NumGoroutine()

	for n := range layoutChanges {
		r.swapInstance(n)
		r.look()

		for range 5 { // until it has settled and is watched again
			if _, err := r.source.Profile(r.snapshot); err != nil {
				t.Fatal(err)
			}

			if err := r.node.Advance(time.Second); err != nil {
				t.Fatal(err)
			}
		}

		if got := r.engine.Counts(); got != "3 groups, 3 field groups, 3 watches" {
			t.Fatalf("after %d layout changes: %s", n+1, got)
		}

		if n == layoutChanges/10 {
			first = heap()
		}
	}

	if grown := int64(heap()) - int64(first); grown > 4<<20 || runtime.NumGoroutine() > goroutines {
		t.Errorf("%d bytes more, %d goroutines of %d", grown, runtime.NumGoroutine(), goroutines)
	} else {
		t.Logf("%d layout changes: %d bytes more", layoutChanges, grown)
	}

	if err := r.source.Close(t.Context()); err != nil {
		t.Error(err)
	}

	if got := r.engine.Counts(); got != "0 groups, 0 field groups, 0 watches" {
		t.Errorf("after Close: %s", got)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	return m.HeapAlloc
}
