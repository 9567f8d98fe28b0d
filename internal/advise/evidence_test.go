package advise

import (
	"math"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// slight is a load for which the smallest profile does.
func slight() load { return load{busy: 0.5, sm: 0.01, gib: 4} }

const longEnough = 8 * 24 * time.Hour

// TestUnknownMemoryIsNotSmall: what was not read, or not always, is not known to fit.
func TestUnknownMemoryIsNotSmall(t *testing.T) {
	g := wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a"))
	g.Readings.Memory.Used = gpu.None[uint64]()
	cmptest.Equal(t, "never read", recommendFor(fastOptions(), longEnough, g).Reason, ReasonMemoryUnread)
	i := slicedGPU(t, "H100-80GB", "3g.40gb", load{busy: 0.5, sm: 0.05, gib: 3}, pod("ml", "Deployment/a"))
	i.Instances[0].Memory.Used = gpu.None[uint64]()
	r := recommendFor(fastOptions(), longEnough, i)
	cmptest.Equal(t, "of a slice", answer{Action: r.Action, Reason: r.Reason},
		answer{Action: ActionKeep, Reason: ReasonMemoryUnread})
}

// TestSeveralGPUsWithoutPods: a batch job, or a process, on several GPUs gets no slice.
func TestSeveralGPUsWithoutPods(t *testing.T) {
	for about, change := range map[string]func(*gpu.GPU){
		"batch job": func(g *gpu.GPU) { g.Jobs = []string{"4711"} },
		"process":   func(g *gpu.GPU) { g.Readings.Processes = gpu.Some([]gpu.Process{{PID: 100}}) },
	} {
		gpus := []gpu.GPU{wholeGPU(t, "A100-40GB", 0, slight()), wholeGPU(t, "A100-40GB", 1, slight())}
		for i := range gpus {
			change(&gpus[i])
		}

		cmptest.Equal(t, about, recommendFor(fastOptions(), longEnough, gpus...).Reason, ReasonMultiGPU)
	}
}

// TestGrowKeepsTheEngines: a larger slice has the media engines that were used.
func TestGrowKeepsTheEngines(t *testing.T) {
	g := slicedGPU(t, "A100-40GB", "1g.5gb+me", load{busy: 1, sm: 0.97, gib: 2}, pod("video", "Deployment/a"))
	g.Instances[0].Media.JPEG = gpu.Some(0.3)
	r := recommendFor(fastOptions(), 15*time.Minute, g)
	cmptest.Equal(t, "action", r.Action, ActionGrow)

	for _, p := range g.Profiles {
		if p.Name == r.Recommended && p.Engines.Or(gpu.Engines{}).JPEG == 0 {
			t.Errorf("%s has no JPEG engine", p.Name)
		}
	}
}

// TestUnreadBandwidthSaturatesNothing: busy time does not stand in for bandwidth.
func TestUnreadBandwidthSaturatesNothing(t *testing.T) {
	g := slicedGPU(t, "H100-80GB", "1g.10gb", load{busy: 0.9, sm: 0.4, gib: 3}, pod("ml", "Deployment/a"))
	g.Instances[0].Activity.DRAM = gpu.None[float64]()
	cmptest.Equal(t, "action", recommendFor(fastOptions(), 30*time.Minute, g).Action, ActionKeep)
}

// TestMemoryThatFillsUp: a slice that was not full from its start has to grow.
func TestMemoryThatFillsUp(t *testing.T) {
	a := New(fastOptions())
	show := func(from time.Time, gib float64) *gpu.Snapshot {
		return observeFor(a, from, 15*time.Minute, slicedGPU(t, "H100-80GB", "1g.10gb", load{busy: 0.2, sm: 0.1, gib: gib},
			pod("ml", "Deployment/a")))
	}
	s := show(start(), 4)
	s = show(s.Time.Add(time.Minute), 9.5)
	r := recommend(a, s).Devices[0]
	cmptest.Equal(t, "answer", answer{r.Action, r.Reason, r.Recommended}, answer{ActionGrow, ReasonMemoryFull, "1g.20gb"})
}

// TestProvisionalAnswersMoveNothing: commands are printed for what is in the packing.
func TestProvisionalAnswersMoveNothing(t *testing.T) {
	a := New(fastOptions())
	report := recommend(a,
		observeFor(a, start(), 30*time.Hour, wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a"))))
	cmptest.Equal(t, "provisional", report.Devices[0].Provisional, true)
	cmptest.Equal(t, "packing", report.Packing, nil)
}

// TestClockOf1970: a clock that has not been set yet ends nothing.
func TestClockOf1970(t *testing.T) {
	for _, at := range []time.Time{time.Unix(0, 0), time.Unix(-3*24*60*60, 0)} {
		a := New(fastOptions())
		recommend(a, observeFor(a, at.UTC(), 3*time.Hour, wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a"))))
	}
}

// TestOneWrongTimeLosesNothing: a time far ahead, once, forgets no workload and ages no evidence.
func TestOneWrongTimeLosesNothing(t *testing.T) {
	g := wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a"))
	idle := wholeGPU(t, "H100-80GB", 0, load{})
	a := New(fastOptions())
	s := observeFor(a, start(), longEnough, g)
	s = observeFor(a, s.Time.Add(time.Minute), 10*time.Minute, idle) // it holds nothing now
	a.Observe(&gpu.Snapshot{Time: s.Time.Add(1000 * 24 * time.Hour).Truncate(time.Hour), Hostname: "node-a",
		GPUs: []gpu.GPU{idle}})
	s = observeFor(a, s.Time.Add(time.Minute), 10*time.Minute, g)
	cmptest.Equal(t, "recommended", recommend(a, s).Devices[0].Recommended, "1g.10gb")
}

// TestShrinkDoesNotFlap: a smaller slice is recommended only after as much evidence as the answer
// before.
func TestShrinkDoesNotFlap(t *testing.T) {
	a := New(fastOptions())
	at := start()
	show := func(l load, d time.Duration) Action {
		s := observeFor(a, at, d, slicedGPU(t, "H100-80GB", "2g.20gb", l, pod("ml", "Deployment/a")))
		at = s.Time.Add(time.Minute)

		return recommend(a, s).Devices[0].Action
	}
	fits := load{busy: 0.5, sm: 0.1, gib: 15}
	small := load{busy: 0.5, sm: 0.1, gib: 3}
	cmptest.Equal(t, "with the memory of 2g", show(fits, 26*time.Hour), ActionKeep)
	cmptest.Equal(t, "before that is forgotten", show(small, 7*24*time.Hour), ActionKeep)
	cmptest.Equal(t, "when it has just been forgotten", show(small, 26*time.Hour), ActionKeep)
	cmptest.Equal(t, "a day later", show(small, 26*time.Hour), ActionShrink)
}

// TestUnreadMediaFades: what could not be read long ago does not count any more once the days that are
// kept were read.
func TestUnreadMediaFades(t *testing.T) {
	read := wholeGPU(t, "A100-40GB", 0, load{busy: 0.4, sm: 0.02, gib: 2}, pod("ml", "Deployment/a"))
	unread := read
	unread.Readings.Media = gpu.Media{}
	a := New(fastOptions())
	s := observeFor(a, start(), 10*24*time.Hour, unread)
	cmptest.Equal(t, "not checked", recommend(a, s).Devices[0].NotChecked, true)
	s = observeFor(a, s.Time.Add(time.Minute), 9*24*time.Hour, read)
	cmptest.Equal(t, "not checked, after nine days", recommend(a, s).Devices[0].NotChecked, false)
}

// TestReplicasAreOneEvidence: eight pods of one owner are observed for no longer than the clock.
func TestReplicasAreOneEvidence(t *testing.T) {
	var gpus []gpu.GPU
	for i := range 8 {
		gpus = append(gpus, wholeGPU(t, "H100-80GB", i, slight(), pod("ml", "Deployment/a")))
	}

	r := recommendFor(fastOptions(), 4*time.Hour, gpus[:1]...)
	for i := range gpus {
		gpus[i].Holders[0].Pod += string(rune('a' + i))
	}

	all := recommendFor(fastOptions(), 4*time.Hour, gpus...)
	if got, want := all.Evidence.ObservedHours, r.Evidence.ObservedHours; got > want+0.1 {
		t.Errorf("eight pods: observed for %.1f h, one pod: %.1f", got, want)
	}

	cmptest.Equal(t, "reason", all.Reason, ReasonLittleEvidence)
}

// TestLayoutChangesLeaveNothing: the devices of layouts that are gone are dropped at once.
func TestLayoutChangesLeaveNothing(t *testing.T) {
	a := New(fastOptions())

	g := slicedGPU(t, "H100-80GB", "1g.10gb", load{busy: 0.5, sm: 0.1, gib: 3}, pod("ml", "Deployment/a"))
	for i := range 100 {
		g.Instances[0].Generation = uint64(i)
		a.Observe(&gpu.Snapshot{Time: start().Add(time.Duration(i) * time.Second), GPUs: []gpu.GPU{g}})
	}

	cmptest.Equal(t, "devices", len(a.devices), 2) // its own, and the GPU of all tenants
	cmptest.Equal(t, "devices in order", len(a.order), 2)
}

// TestFirstMemoryIsOfTenMinutes: however many replicas a workload has, its first ten minutes show
// whether it takes its memory in advance.
func TestFirstMemoryIsOfTenMinutes(t *testing.T) {
	var gpus []gpu.GPU

	for i := range 10 {
		holder := pod("ml", "Deployment/a")
		holder.Pod += string(rune('a' + i))
		gpus = append(gpus, wholeGPU(t, "H100-80GB", i, slight(), holder))
	}

	a := New(fastOptions())
	observeFor(a, start(), 3*time.Minute, gpus...)

	for i := range gpus {
		gpus[i].Readings.Memory.Used = gpu.Some[uint64](72 << 30) // once the model is loaded
	}

	s := observeFor(a, start().Add(4*time.Minute), longEnough, gpus...)
	cmptest.Equal(t, "reason", recommend(a, s).Devices[0].Reason, ReasonPreallocated)
}

// TestOldWorkloadsFade: also if no poll falls on the first minute of an hour.
func TestOldWorkloadsFade(t *testing.T) {
	a := New(fastOptions())
	from := start().Add(time.Minute)
	observeFor(a, from, 10*time.Minute, wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a")))

	idle := []gpu.GPU{wholeGPU(t, "H100-80GB", 0, load{})}
	for at := from.Add(12 * time.Minute); at.Before(from.Add(9 * 24 * time.Hour)); at = at.Add(2 * time.Minute) {
		a.Observe(&gpu.Snapshot{Time: at, Hostname: "node-a", GPUs: idle})
	}

	if len(a.workloads) != 0 {
		t.Errorf("%d workloads are kept after nine days, want none", len(a.workloads))
	}
}

// TestWorkloadThatComesBackInTime: one that holds a device again is not forgotten, however long it
// was away.
func TestWorkloadThatComesBackInTime(t *testing.T) {
	a := New(fastOptions())
	g := wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a"))
	idle := wholeGPU(t, "H100-80GB", 0, load{})
	s := observeFor(a, start(), 30*time.Minute, g)
	s = observeFor(a, s.Time.Add(time.Minute), forgetAfter+28*time.Minute, idle)
	s = observeFor(a, s.Time.Add(time.Minute), 31*time.Minute, g) // on the hour at which it would be forgotten
	cmptest.Equal(t, "minute", s.Time.Sub(start()), forgetAfter+91*time.Minute)
	after := restarted(t, a, s)
	cmptest.Equal(t, "workloads", len(after.workloads), 1)

	if h := a.Recommend(s).Devices[0].Evidence.ObservedHours; h < 0.9 {
		t.Errorf("observed for %v h, want an hour", h)
	}
}

// TestDevicesOfRarePolls: a device is the same one however long two polls are apart.
func TestDevicesOfRarePolls(t *testing.T) {
	o := DefaultOptions()
	o.MaxGap = 6 * time.Hour
	a := New(o)
	g := wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a"))

	var s *gpu.Snapshot
	for i := range 40 {
		s = &gpu.Snapshot{Time: start().Add(time.Duration(i) * 2 * time.Hour), Hostname: "node-a", GPUs: []gpu.GPU{g}}
		a.Observe(s)
	}

	if h := a.Recommend(s).Devices[0].Evidence.ObservedHours; h < 38 { // an hour counts of each two
		t.Errorf("observed for %v h, want 39", h)
	}
}

// TestKeysAreOrdered: keys that differ in any field have an order, which checkpoints and forgetting
// follow.
func TestKeysAreOrdered(t *testing.T) {
	key := Key{Namespace: "ml", Owner: "Deployment/a", Container: "main", Model: "H100", Profile: "1g.10gb"}
	shared := key
	shared.Shared = true
	cmptest.Equal(t, "a key and one of a shared device, the other way round, and a key and itself",
		[3]int{key.compare(shared), shared.compare(key), key.compare(key)}, [3]int{-1, 1, 0})
}

// TestExplainedWidth: the sentence has the width that the stretch follows from, not that at p95.
func TestExplainedWidth(t *testing.T) {
	e := Evidence{BusyP99: 0.1, P95: Kernels{Width: 0.3}, decisive: Kernels{Width: 0.9}, BusyMean: 0.1}
	share := Recommendation{Action: ActionShare, Reason: ReasonStretch, Evidence: &e}

	slice := Recommendation{Action: ActionSlice, Recommended: "1g.10gb", Evidence: &e, Predicted: &Predicted{}}
	for _, r := range []Recommendation{share, slice} {
		cmptest.HasTexts(t, r.explain(DefaultOptions()), "kernels on 90 % of the SMs")
	}
}

// TestBusiestTenMinutesOfRarePolls: ten minutes are as long if polls are five minutes apart.
func TestBusiestTenMinutesOfRarePolls(t *testing.T) {
	o := DefaultOptions()
	o.MaxGap = 15 * time.Minute
	a := New(o)
	g := wholeGPU(t, "H100-80GB", 0, load{gib: 4}, pod("ml", "Deployment/a"))
	var s *gpu.Snapshot

	for i := range 300 {
		setActivity(&g, 0.1, 0.01, 0)

		if i == 150 || i == 151 {
			setActivity(&g, 0.9, 0.09, 0)
		}

		s = &gpu.Snapshot{Time: start().Add(time.Duration(i) * 5 * time.Minute), Hostname: "node-a", GPUs: []gpu.GPU{g}}
		a.Observe(s)
	}

	if busiest := a.Recommend(s).Devices[0].Evidence.Busy10Minutes; math.Abs(busiest-0.9) > 1e-6 {
		t.Errorf("the busiest ten minutes were busy for %v of the time, want 0.9", busiest)
	}
}
