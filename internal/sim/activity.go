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
	// PCIe is the traffic of a GPU instance in each direction, in bytes per second.
	PCIe float64
}

// use is what a workload does with the SMs that it keeps busy: shares of their time.
type use struct {
	occupancy, tensor, fp64, fp32, fp16 float64
}

// uses is a task's use at the moment.
func (n *Node) uses(t *task) use {
	w := t.workload

	return use{
		occupancy: t.now(n, w.Occupancy.Signal), tensor: t.now(n, w.Tensor.Signal),
		fp64: t.now(n, w.FP64.Signal), fp32: t.now(n, w.FP32.Signal), fp16: t.now(n, w.FP16.Signal),
	}
}

// add adds a task that keeps some of the SMs of a device busy, and draws a share of its memory
// bandwidth.
func (a *Activity) add(sms, of float64, u use, dram float64) {
	share := sms / of
	a.SM += share
	a.Occupancy += share * u.occupancy
	a.Tensor += share * u.tensor
	a.FP64 += share * u.fp64
	a.FP32 += share * u.fp32
	a.FP16 += share * u.fp16
	a.DRAM += dram
}

// useSMs derives the activity of a GPU and of its instances from what the kernels of its tasks do.
func (n *Node) useSMs(g *simGPU) {
	g.sample.activity = Activity{}
	for _, i := range g.instances {
		i.Activity = Activity{}
		for _, c := range i.ComputeInstances {
			c.Activity = Activity{}
		}
	}

	n.runKernels(g)

	for _, t := range g.tasks {
		if t.workload == nil {
			continue
		}

		u := n.uses(t)
		dram := n.drawn(t)

		if i := t.on.instance; i != nil {
			t.on.compute.Activity.add(t.sms, float64(t.on.compute.SMs), u, dram)
			i.Activity.add(t.sms, float64(i.Profile.SMs), u, dram)
			dram *= i.bandwidth(g)
		}

		g.sample.activity.add(t.sms, float64(g.model.sms), u, dram)
	}

	g.useEngine()
}

// drawn returns the share of the memory bandwidth of its GPU instance, or of its whole GPU, that a
// task draws.
func (n *Node) drawn(t *task) float64 {
	sms := float64(t.on.gpu.model.sms)
	bandwidth := 1.0

	if i := t.on.instance; i != nil {
		sms = float64(i.Profile.SMs)
		bandwidth = i.bandwidth(t.on.gpu)
	}

	if t.workload.Demand.ofDevice {
		return t.sms / sms * t.now(n, t.workload.DRAM.Signal)
	}

	return t.does.Bandwidth / bandwidth
}

// useEngine derives for how much of the time the graphics or compute engine is active, on a device
// whenever any of its kernels runs. That of a GPU with MIG is the mean over its compute slices, as
// DCGM's is: two 3g.20gb at 0.534 are 0.457. It is never below SM activity.
func (g *simGPU) useEngine() {
	var slices float64

	for on, tasks := range tasksBy(g.tasks, func(t *task) place { return t.on }) {
		busy := 0.0

		for _, t := range tasks {
			if g.sharesByMPS() {
				busy = either(busy, t.does.Busy)
			} else {
				busy = min(1, busy+t.does.Busy)
			}
		}

		if on.compute == nil {
			g.sample.activity.Graphics = busy
			continue
		}

		on.compute.Activity.Graphics = busy
		on.instance.Activity.Graphics = either(on.instance.Activity.Graphics, busy)
	}

	for _, i := range g.instances {
		slices += i.Activity.Graphics * float64(i.Profile.ComputeSlices)
	}

	if g.migOn {
		g.sample.activity.Graphics = max(g.sample.activity.SM, slices/float64(g.mig.ComputeSlices))
	}
}

// either returns for how much of the time at least one of two runs that do not depend on each
// other.
func either(a, b float64) float64 { return a + b - a*b }

// sms counts the SMs of a device.
func (p place) sms() int {
	if p.compute != nil {
		return p.compute.SMs
	}

	return p.gpu.model.sms
}
