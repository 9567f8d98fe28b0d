package advise

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// sharedNode returns a whole GPU whose pod does with a slice, a free GPU, and a GPU of which a
// slice is held.
func sharedNode(t *testing.T) []gpu.GPU {
	gpus := []gpu.GPU{
		wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a")), wholeGPU(t, "H100-80GB", 1, load{}),
		slicedGPU(t, "H100-80GB", "3g.40gb", load{busy: 0.5, sm: 0.4, gib: 30}, pod("ml", "Deployment/tenant")),
	}
	gpus[2].UUID, gpus[2].Index = "GPU-2", 2
	gpus[2].Readings.PCIe = gpu.PCIe{LinkWidth: gpu.Some(16), LinkGeneration: gpu.Some(4)}

	return gpus
}

// targetOf returns the GPU that gets the slice of GPU 0, by what change makes of the node before
// each minute of eight days; the Advisor is restarted with its evidence before it is asked.
func targetOf(t *testing.T, gpus []gpu.GPU, change func(minute int)) *Packing {
	t.Helper()
	const minutes = 8 * 24 * 60
	a := New(fastOptions())
	s := &gpu.Snapshot{Hostname: "node-a", GPUs: gpus}
	a.Observe(&gpu.Snapshot{Hostname: "node-a", Time: start().Add(-time.Minute), GPUs: unheld(gpus)})

	for minute := range minutes {
		change(minute)
		s.Time = start().Add(time.Duration(minute) * time.Minute)
		a.Observe(s)
	}

	again := restarted(t, a, s)
	again.Observe(s)

	packing := packCandidates(again.Recommend(s), gpus) // it gains nothing if a GPU is free
	if packing == nil || len(packing.GPUs) != 1 || len(packing.GPUs[0].Slices) != 1 {
		t.Fatalf("packing is %+v, want one GPU with one slice", packing)
	}

	return packing
}

// TestPackingCountsWhatTenantsDraw: what those of a GPU in MIG mode drew, not what they draw at the
// moment, decides whether another slice is put beside them.
func TestPackingCountsWhatTenantsDraw(t *testing.T) {
	last := 8*24*60 - 1

	for _, c := range []struct {
		about  string
		change func(g *gpu.GPU, minute int)
		want   int
	}{
		{"little power, little traffic", func(*gpu.GPU, int) {}, 2},
		{"much power, little at the moment", func(g *gpu.GPU, minute int) {
			g.Readings.PowerWatts = gpu.Some(690.)
			if minute > last-30 {
				g.Readings.PowerWatts = gpu.Some(120.)
			}
		}, 1},
		{"much power at the moment alone", func(g *gpu.GPU, minute int) {
			g.Readings.PowerWatts = gpu.Some(120.)
			if minute > last-30 {
				g.Readings.PowerWatts = gpu.Some(690.)
			}
		}, 2},
		{"much power, when nothing held it", func(g *gpu.GPU, minute int) {
			g.Readings.PowerWatts = gpu.Some(690.)

			i := &g.Instances[0]
			if i.Holders, i.Allocated = nil, gpu.Some(false); minute > last-24*60 {
				i.Holders, i.Allocated = []gpu.Holder{pod("ml", "Deployment/tenant")}, gpu.Some(true)
				g.Readings.PowerWatts = gpu.Some(120.)
			}
		}, 2},
		{"an hour of much traffic, two days ago", func(g *gpu.GPU, minute int) {
			moved := 1e9 * float64(minute) // in a minute: 0.05 % of what the link moves
			if from := last - 2*24*60; minute > from {
				moved += 1.5e12 * float64(min(minute-from, 60))
			}

			g.Totals.PCIeReceive = gpu.Some(gpu.Counter{Value: moved})
			g.Totals.PCIeTransmit = gpu.Some(gpu.Counter{})
		}, 1},
	} {
		gpus := sharedNode(t)
		packing := targetOf(t, gpus, func(minute int) { c.change(&gpus[2], minute) })
		cmptest.Equal(t, c.about+": GPU that gets the slice", packing.GPUs[0].Index, c.want)
		cmptest.Equal(t, c.about+": freed", packing.FreedGPUs, []int{0})
	}
}

// TestPackingCountsReplicasThatStay: a replica that moves joins those on slices only if another one
// is elsewhere.
func TestPackingCountsReplicasThatStay(t *testing.T) {
	for _, c := range []struct {
		about  string
		change func(gpus []gpu.GPU)
		want   int
	}{
		{"another owner on the slice", func([]gpu.GPU) {}, 2},
		{"the other replica on the slice", func(gpus []gpu.GPU) {
			gpus[2].Instances[0].Holders[0].Workload = "Deployment/a"
		}, 1},
		{"a third on a whole GPU", func(gpus []gpu.GPU) {
			gpus[2].Instances[0].Holders[0].Workload = "Deployment/a"
			third := pod("ml", "Deployment/a")
			third.Pod = "a-2"
			third.PodUID = "uid-a-2"
			third.Rightsizing.OptOut = true
			gpus[1].Holders, gpus[1].Allocated = []gpu.Holder{third}, gpu.Some(true)
		}, 2},
		{"an owner of that name in another namespace", func(gpus []gpu.GPU) {
			gpus[2].Instances[0].Holders[0] = pod("other", "Deployment/a")
		}, 2},
	} {
		gpus := sharedNode(t)
		c.change(gpus)
		packing := targetOf(t, gpus, func(int) {})
		cmptest.Equal(t, c.about+": GPU that gets the slice", packing.GPUs[0].Index, c.want)
	}
}

// TestTenantsThatComeBack: what is observed after a time without any, in which the evidence was
// forgotten, counts.
func TestTenantsThatComeBack(t *testing.T) {
	a := New(fastOptions())
	at := start()
	show := func(days int, change func(*gpu.GPU)) *Report {
		g := sharedNode(t)[2]
		change(&g)
		s := observeFor(a, at, time.Duration(days)*24*time.Hour, g)
		at = s.Time.Add(time.Minute)

		return a.Recommend(s)
	}
	show(1, func(*gpu.GPU) {})
	free := show(10, func(g *gpu.GPU) { g.Instances[0].Holders, g.Instances[0].Allocated = nil, gpu.Some(false) })
	cmptest.Equal(t, "without tenants", len(free.tenants), 0)

	again := show(1, func(g *gpu.GPU) { g.Readings.PowerWatts = gpu.Some(690.) })
	if got := again.tenants["GPU-2"].power; got < 0.8 {
		t.Errorf("they draw %v of the power limit, want 0.87", got)
	}
}
