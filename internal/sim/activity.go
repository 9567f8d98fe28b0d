package sim

// Activity is how busy a device is: ratios from 0 to 1, of what the device itself has.
type Activity struct {
	Graphics  float64 // the share of the time in which anything runs
	SM        float64 // the share of the SMs that have work
	Occupancy float64 // the share of the possible warps that are resident
	Tensor    float64
	FP64      float64
	FP32      float64
	FP16      float64
	DRAM      float64
	Media     Media // of the device's own engines; a compute instance has none
	// PCIe is the traffic of a GPU instance in each direction, in bytes per second.
	PCIe float64
}

// smUse is how a workload uses the SMs that it keeps busy: shares of their time, and of their warps.
type smUse struct {
	occupancy, tensor, fp64, fp32, fp16 float64
}

// smUseOf returns how a task uses its SMs now.
func (n *Node) smUseOf(t *task) smUse {
	w := t.workload

	return smUse{
		occupancy: t.now(n, w.Occupancy.Signal), tensor: t.now(n, w.Tensor.Signal),
		fp64: t.now(n, w.FP64.Signal), fp32: t.now(n, w.FP32.Signal), fp16: t.now(n, w.FP16.Signal),
	}
}

// add adds a task that keeps busySMs of the device's SMs busy, and draws a share of its memory
// bandwidth.
func (a *Activity) add(busySMs, deviceSMs float64, u smUse, dram float64) {
	share := busySMs / deviceSMs
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

		u := n.smUseOf(t)
		dram := n.drawnBandwidth(t)

		if i := t.on.instance; i != nil {
			t.on.compute.Activity.add(t.sms, float64(t.on.compute.SMs), u, dram)
			i.Activity.add(t.sms, float64(i.Profile.SMs), u, dram)
			dram *= i.bandwidth(g)
		}

		g.sample.activity.add(t.sms, float64(g.model.sms), u, dram)
	}

	g.useEngine()
}

// drawnBandwidth returns the share of the memory bandwidth that a task draws, of its GPU instance or
// of its GPU without MIG.
func (n *Node) drawnBandwidth(t *task) float64 {
	sms := float64(t.on.gpu.model.sms)
	bandwidth := 1.0

	if i := t.on.instance; i != nil {
		sms = float64(i.Profile.SMs)
		bandwidth = i.bandwidth(t.on.gpu)
	}

	if t.workload.Demand.ofDevice {
		return t.sms / sms * t.now(n, t.workload.DRAM.Signal)
	}

	return t.result.Bandwidth / bandwidth
}

// useEngine sets Graphics of each device: the share of the time in which any of its kernels runs.
// For a GPU with MIG it is the mean over the GPU's compute slices, as DCGM reports it: two 3g.20gb
// at 0.534 take 6 of 7 slices, which makes 0.457. It is never below SM activity.
func (g *simGPU) useEngine() {
	var busySlices float64

	for on, tasks := range tasksBy(g.tasks, func(t *task) simDevice { return t.on }) {
		busy := 0.0

		for _, t := range tasks {
			if g.sharesByMPS() {
				busy = either(busy, t.result.Busy)
			} else {
				busy = min(1, busy+t.result.Busy)
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
		busySlices += i.Activity.Graphics * float64(i.Profile.ComputeSlices)
	}

	if g.migOn {
		g.sample.activity.Graphics = max(g.sample.activity.SM, busySlices/float64(g.mig.ComputeSlices))
	}
}

// either returns the share of the time in which at least one of two devices or tasks is busy, if
// they are busy for the shares a and b of it, independently of each other.
func either(a, b float64) float64 { return a + b - a*b }

// sms counts the SMs of a device.
func (d simDevice) sms() int {
	if d.compute != nil {
		return d.compute.SMs
	}

	return d.gpu.model.sms
}
