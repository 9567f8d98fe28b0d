package sim

// Activity is how busy a device is, each 0-1 and relative to the device itself.
type Activity struct {
	Graphics float64 // time with anything running
	SM       float64 // SMs with work, over time
	Tensor   float64
	DRAM     float64
}

// add adds a task that keeps some of the SMs of a device busy.
func (a Activity) add(sms, of, tensor, dram float64) Activity {
	a.SM += sms / of
	a.Tensor += sms / of * tensor
	a.DRAM += sms / of * dram
	// Work on a part of the SMs leaves less of the time idle than of the SMs; never less than SM, and 1 at full load.
	a.Graphics = 1 - (1-a.SM)*(1-a.SM)
	return a
}

// useSMs shares the SMs of every device among its tasks. Where they want more than there are, each runs slower by the
// same ratio: a slice too small throttles.
func (n *Node) useSMs(b *board) {
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
		tensor, dram := t.now(n, t.workload.Tensor), t.now(n, t.workload.DRAM)
		share := 1.0
		if i := t.on.instance; i != nil {
			t.on.compute.activity = t.on.compute.activity.add(t.sms, float64(t.on.compute.sms), tensor, dram)
			i.activity = i.activity.add(t.sms, float64(i.profile.SMs), tensor, dram)
			share = float64(i.placement.Size) / float64(b.mig.AxisUnits)
			share *= float64(b.model.sms) / float64(i.profile.SMs) // an instance's bandwidth is in proportion to its memory
		}
		b.sample.activity = b.sample.activity.add(t.sms, float64(b.model.sms), tensor, dram*share)
	}
}

// sms counts the SMs of a device.
func (p place) sms() int {
	if p.compute != nil {
		return p.compute.sms
	}
	return p.board.model.sms
}
