package sim

// Activity is how busy a device is, each 0-1 and relative to the device itself.
type Activity struct {
	Graphics  float64 // time with anything running
	SM        float64 // SMs with work, over time
	Occupancy float64 // warps resident of those possible
	Tensor    float64
	FP64      float64
	FP32      float64
	FP16      float64
	DRAM      float64
	Media     Media // of the device's own engines; a compute instance has none
}

// use is what a workload does with the SMs that it keeps busy: shares of their time, and of the memory's bandwidth.
type use struct {
	occupancy, tensor, fp64, fp32, fp16, dram float64
}

// uses is a task's use at the moment. The memory bandwidth counts as a share of its device's.
func (n *Node) uses(t *task) use {
	w := t.workload
	return use{
		occupancy: t.now(n, w.Occupancy), tensor: t.now(n, w.Tensor), dram: t.now(n, w.DRAM),
		fp64: t.now(n, w.FP64), fp32: t.now(n, w.FP32), fp16: t.now(n, w.FP16),
	}
}

// add adds a task that keeps some of the SMs of a device busy.
func (a Activity) add(sms, of float64, u use) Activity {
	share := sms / of
	a.SM += share
	a.Occupancy += share * u.occupancy
	a.Tensor += share * u.tensor
	a.FP64 += share * u.fp64
	a.FP32 += share * u.fp32
	a.FP16 += share * u.fp16
	a.DRAM += share * u.dram
	// Work on a part of the SMs leaves less of the time idle than of the SMs; never less than SM, and 1 at full load.
	a.Graphics = 1 - (1-a.SM)*(1-a.SM)
	return a
}

// useSMs shares the SMs of every device among its tasks. Where they want more than there are, each runs slower by the
// same ratio: a slice too small throttles.
func (n *Node) useSMs(b *simGPU) {
	wanted := make(map[place]float64)
	demand := func(t *task) float64 {
		if t.workload == nil {
			return 0
		}
		return t.now(n, t.workload.SM)
	}
	for _, t := range b.tasks {
		wanted[t.on] += demand(t)
	}
	b.sample.activity = Activity{}
	for _, i := range b.instances {
		i.activity = Activity{}
		for _, c := range i.computes {
			c.activity = Activity{}
		}
	}
	for _, t := range b.tasks {
		t.speed = 1
		if have := float64(t.on.sms()); wanted[t.on] > have {
			t.speed = have / wanted[t.on]
		}
		t.sms = demand(t) * t.speed
		if t.workload == nil {
			continue
		}
		u := n.uses(t)
		if i := t.on.instance; i != nil {
			t.on.compute.activity = t.on.compute.activity.add(t.sms, float64(t.on.compute.sms), u)
			i.activity = i.activity.add(t.sms, float64(i.profile.SMs), u)
			share := float64(i.placement.Size) / float64(b.mig.AxisUnits)
			u.dram *= share * float64(b.model.sms) / float64(i.profile.SMs) // an instance's bandwidth is in proportion to its memory
		}
		b.sample.activity = b.sample.activity.add(t.sms, float64(b.model.sms), u)
	}
}

// sms counts the SMs of a device.
func (p place) sms() int {
	if p.compute != nil {
		return p.compute.sms
	}
	return p.board.model.sms
}
