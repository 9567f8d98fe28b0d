package poll

import (
	"hash/maphash"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// cueTracker keeps what decides whether the next reading of a GPU needs the driver's lists of
// processes.
type cueTracker struct {
	lastSum uint64 // the cueSum of the last cycle
	changed bool   // the cueSum has changed since the last reading began
	mps     bool   // holders share a device, perhaps by MPS
	// divided is set if containers share a device, or hold parts of a GPU instance: then only the
	// processes show how much memory each container uses.
	divided bool
}

// nextCues returns the cues for the next reading of a GPU. Unless the kubelet has listed all
// holders, only the processes show who uses the GPU.
func (p *Poller) nextCues(t *trackedGPU) gpu.ReadCues {
	holdersKnown := p.opts.Pods != nil && p.pods.known && p.pods.last.Incomplete == ""

	return gpu.ReadCues{
		Changed:      t.cues.changed,
		MPS:          t.cues.mps,
		FollowMemory: !holdersKnown || t.cues.divided,
		SlowEvery:    p.pacer.slow.pace().Now,
		GPM:          p.opts.ReplaceProfiler && t.activityFromDriver,
		Extras:       p.opts.Extras,
	}
}

// updateCues compares the holders and the activity of every GPU with the last cycle.
func (p *Poller) updateCues(s *gpu.Snapshot) {
	for i := range s.GPUs {
		g := &s.GPUs[i]

		t := p.gpus[g.UUID]
		if t == nil {
			continue
		}

		var c cueSum
		c.hash.SetSeed(p.seed)
		c.addGPU(g)

		sum := c.hash.Sum64()
		t.cues.changed = t.cues.changed || sum != t.cues.lastSum
		t.cues.lastSum = sum
		t.cues.mps = c.mps
		t.cues.divided = hasSharedDevice(g) || slices.ContainsFunc(g.Instances, isDivided)
	}
}

// isDivided reports whether containers hold parts of a GPU instance. The driver reports the memory
// only of the whole GPU instance.
func isDivided(gi gpu.GPUInstance) bool {
	return gi.IsSplit() && hasHeldCompute(&gi)
}

// cueSum hashes who holds the devices of a GPU and which of them are active.
type cueSum struct {
	hash maphash.Hash
	mps  bool // holders share a device, perhaps by MPS
}

// addGPU adds the holders and the activity of a GPU and its instances.
func (c *cueSum) addGPU(g *gpu.GPU) {
	utilization := g.Readings.Utilization

	for d := range g.Devices() {
		c.addHolders(d.Holders)
		c.addActive(&d.Activity, utilization)

		utilization = gpu.None[float64]() // only the GPU, the first device, has it
	}
}

func (c *cueSum) addHolders(list []gpu.Holder) {
	for i := range list {
		h := &list[i]
		maphash.WriteComparable(&c.hash, h.Container)
		maphash.WriteComparable(&c.hash, h.PodUID)
		maphash.WriteComparable(&c.hash, h.Replica)
		maphash.WriteComparable(&c.hash, h.Unconfirmed != "")
		c.mps = c.mps || h.Sharing != gpu.SharingExclusive && h.Sharing != gpu.SharingClaim
	}

	c.hash.WriteByte('|')
}

// addActive adds whether anything was active on a device, or that we don't know.
func (c *cueSum) addActive(a *gpu.Activity, utilization gpu.Opt[float64]) {
	state := byte('?')

	for _, ratio := range [...]gpu.Opt[float64]{a.GraphicsEngine, a.SM, utilization} {
		value, known := ratio.Get()
		switch {
		case known && value > 0:
			state = '1'
		case known && state == '?':
			state = '0'
		}
	}

	c.hash.WriteByte(state)
}
