package advise

import (
	"cmp"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	windowLength = time.Minute
	// maxCountedGap is how much of a gap lowers the coverage: if it is longer, the clock was rather
	// set.
	maxCountedGap = time.Hour
	// maxWorkloads bounds the memory. If there are more, we forget those that we have not seen for
	// the longest time.
	maxWorkloads = 10_000
	// forgetAfter is the age at which we forget a workload that we have not seen again.
	forgetAfter = keptDays * 24 * time.Hour
)

// Advisor collects evidence from Snapshots. It is not safe for concurrent use.
type Advisor struct {
	options Options

	// now is the wall clock's time of the last Snapshot, or of the evidence that was restored.
	now      time.Time
	restored bool // the evidence was restored, and nothing was observed since

	// ahead is the first time of Snapshots that are too far ahead of now to be believed; zero if the
	// last one was not.
	ahead time.Time
	// unshifted is the part of all clock changes that the days of the evidence, which shift by
	// whole days, have not followed: at most half a day either way.
	unshifted time.Duration

	devices map[gpu.DeviceID]*device
	order   []*device // devices as they came: sums must not depend on the order of a map

	workloads map[Key]*workload
	down      []downSeen // of the evidence that was restored, until its devices are seen

	node string
	gpus []gpu.UUID // of the last Snapshot that had any
}

// device is a GPU or a GPU instance, which can be given to a pod.
type device struct {
	id   gpu.DeviceID
	seen time.Time

	holder   holderID
	since    time.Time // when the holder was first seen
	came     time.Time // when it came; zero if it was there before the device was watched
	workload *workload // nil if nothing holds the device
	template uint32    // hashOf the pod's template

	// What was seen of the holder.
	open   window
	last10 [10]minute // the last ten minutes; minute number n is at n modulo 10
	count  int        // minutes of closed windows
	memory float64    // largest of the last window, in MiB
	hour   hour
	idle   time.Time // since when we know that neither kernels run nor the media engines that are read

	engines gpu.Opt[gpu.Engines]

	// Totals of links at the last Snapshot, in bytes.
	nvlink, pcie gpu.Opt[float64]
	hasNVLink    bool // its traffic was read: once it is not, it is unknown

	used       gpu.Opt[float64] // memory of the last reading, in MiB; absent if another holder had it
	memoryRead time.Time        // when it was read
	wasFree    bool             // it is known that nothing held it once, and it has been watched since
	// awaited is the last holder that was not described at first; arrived says that it came while the device
	// was watched.
	awaited holderID
	arrived bool
	// awaitsHolder says that such a holder has it now, so that what is read is not of the last one.
	awaitsHolder bool
	start        starting
	processes    processes
	ended        endings
	// Since when its container has held memory, or held none; zero if it has not, or was not watched.
	up, empty time.Time
	ends      ends // of its container

	traffic   traffic
	exchanges []exchange // with the other whole GPUs, since its holder came
	// inStepWith is the GPU with which its traffic was in step last; empty if unknown.
	inStepWith gpu.UUID

	server serverSample
}

// holderID distinguishes the holders of a device over time.
type holderID struct {
	gpu.Container
	UID, Workload, Job string
	Template           string // of the pod
	Model              string
	Holders            int
	Processes          bool
	Tenants            bool // stands for the holders of all GPU instances together
}

// New returns an Advisor without evidence. The options are valid.
func New(options Options) *Advisor {
	return &Advisor{
		options:   options,
		devices:   map[gpu.DeviceID]*device{},
		workloads: map[Key]*workload{},
	}
}

// Observe adds a Snapshot. It returns false, and adds nothing, while the Snapshot's time is too far
// ahead to be believed. In the steady state it allocates nothing.
func (a *Advisor) Observe(s *gpu.Snapshot) bool {
	// We use the wall clock alone: the monotonic clock would hide that the clock was set.
	now := s.Time.Round(0)
	if a.doubtsClock(now) {
		return false
	}

	a.followClock(now)

	// After a restart we do not forget yet: a pod that ran on must be described first.
	hourPassed := false
	passed := passedTime{}

	if !a.now.IsZero() && !a.restored {
		passed = a.passedUntil(now)
		if passed.isGap() {
			for _, d := range a.order {
				d.idle = time.Time{} // it may have worked
			}
		}

		if now.Truncate(windowLength).After(a.now.Truncate(windowLength)) {
			a.closeWindows(now.Truncate(windowLength))
		}

		hourPassed = now.Truncate(time.Hour).After(a.now.Truncate(time.Hour))
	}

	a.now = now
	a.restored = false
	a.node = s.Hostname

	if len(s.GPUs) > 0 {
		a.gpus = a.gpus[:0]
	}

	for i := range s.GPUs {
		a.gpus = append(a.gpus, s.GPUs[i].UUID)
		a.observeGPU(&s.GPUs[i], passed)
	}

	a.compareTraffic()
	a.observeServers(s, passed)

	if hourPassed {
		a.forget()
	}

	return true
}

// passedTime is the time since the last Snapshot in seconds: how long a device was held, and how
// much of that we know from readings. In a gap the two differ.
type passedTime struct {
	held, observed float64
}

// isGap reports whether the time was held and not observed.
func (p passedTime) isGap() bool { return p.held > 0 && p.observed == 0 }

// passedUntil returns the time from the last Snapshot to now. A gap counts as held, up to
// maxCountedGap.
func (a *Advisor) passedUntil(now time.Time) passedTime {
	since := min(now.Sub(a.now), maxCountedGap)
	if since > a.options.MaxGap {
		return passedTime{held: since.Seconds()}
	}

	return passedTime{held: since.Seconds(), observed: since.Seconds()}
}

// observeGPU adds a GPU of a Snapshot: as a whole, or its GPU instances.
func (a *Advisor) observeGPU(g *gpu.GPU, passed passedTime) {
	if g.UUID == "" {
		return
	}

	// A GPU whose driver calls are slow has an old reading, which says nothing about now.
	isOld := !g.LastRead.IsZero() && a.now.Sub(g.LastRead) > a.options.MaxGap
	isLayoutUnknown := !g.MIG.Enabled.Present() && isFailed(g, gpu.ReadingMIG)

	if !g.Up || isOld || isLayoutUnknown {
		a.observeGap(g.UUID, passed.held)
		return
	}

	defer a.dropGone(g.UUID)

	if !g.MIG.Enabled.Or(false) {
		a.observeWholeGPU(g, passed)
		return
	}

	held := false
	complete := !isFailed(g, gpu.ReadingMIG)

	for i := range g.Instances {
		complete = complete && g.Instances[i].Up
		if a.observeInstance(g, &g.Instances[i], passed) {
			held = true
		}
	}

	d := a.observeTenants(g, held, passed.observed)

	d.memoryRead = time.Time{} // see deviceOf
	if complete {
		d.memoryRead = a.now
	}
}

// observeWholeGPU adds a GPU without MIG mode.
func (a *Advisor) observeWholeGPU(g *gpu.GPU, passed passedTime) {
	d := a.deviceOf(gpu.IDOfGPU(g.UUID))

	list, known := g.Readings.Processes.Get()
	if g.JobsUnknown && len(g.Holders) == 0 || !known && d.isHeldByProcesses(g.Holders, g.Jobs) {
		d.observeGap(a.now, passed.held)
		return
	}

	a.setHolder(d, g, "", g.Holders, g.Jobs, len(list), passed.held)
	a.followMemory(d, g, g.Readings.Memory.Used, gpu.None[gpu.InstanceID](), !g.Allocated.Or(true))

	if !d.awaitsHolder {
		d.observeWhole(g, passed.observed)
	}
}

// observeInstance adds a GPU instance, and reports whether it was read and a workload holds it.
func (a *Advisor) observeInstance(g *gpu.GPU, i *gpu.GPUInstance, passed passedTime) bool {
	if !i.Up {
		if d := a.devices[gpu.IDOfInstance(g.UUID, i)]; d != nil {
			d.observeGap(a.now, passed.held)
		}

		return false
	}

	d := a.deviceOf(gpu.IDOfInstance(g.UUID, i))
	holders := holdersOf(i)

	// A job of the whole GPU may have any of its instances for as long as it runs. That is no gap: what runs
	// on this one is the workload meanwhile. If nothing does, setUnheld does not call it free.
	jobsUnread := i.JobsUnknown && len(g.Jobs) == 0

	processes, known := i.Processes.Get()
	if jobsUnread && len(holders) == 0 || !known && d.isHeldByProcesses(holders, i.Jobs) {
		d.observeGap(a.now, passed.held)
		return false
	}

	a.setHolder(d, g, i.Profile, holders, i.Jobs, processes, passed.held)
	a.followMemory(d, g, i.Memory.Used, gpu.Some(i.ID), !i.Allocated.Or(true))

	if !d.awaitsHolder {
		d.observeInstance(g, i, passed.observed)
	}

	return d.workload != nil
}

// isHeldByProcesses reports whether only processes have shown that a device is in use. If they cannot
// be read now, we do not know whether they run on.
func (d *device) isHeldByProcesses(holders []gpu.Holder, jobs []string) bool {
	return d.holder.Processes && len(holders) == 0 && len(jobs) == 0
}

// observeTenants adds what the workloads on the GPU instances of a GPU draw together, while there
// are any: power and traffic are measured for the GPU alone. It returns the device of the GPU.
func (a *Advisor) observeTenants(g *gpu.GPU, held bool, elapsed float64) *device {
	d := a.deviceOf(gpu.IDOfGPU(g.UUID))
	if id := (holderID{Model: g.Name, Tenants: held}); id != d.holder {
		a.closeWindow(d, a.now)
		a.endHolder(d)

		*d = device{id: d.id, seen: a.now, since: a.now, holder: id}
		if held {
			d.workload = a.workloadOf(tenantsKey(g))
		}
	}

	if held {
		d.open.held += elapsed
		d.open.observed += elapsed
		d.observePower(g, elapsed)
		d.observeLinks(g, 0, elapsed)
	}

	return d
}

// observeGap counts the time in which the devices of a GPU were held and could not be read.
func (a *Advisor) observeGap(id gpu.UUID, held float64) {
	for _, d := range a.order {
		if d.id.GPU() == id {
			d.observeGap(a.now, held)
		}
	}
}

// observeGap counts the time in which a device was held and could not be read.
func (d *device) observeGap(now time.Time, held float64) {
	d.seen = now
	d.traffic = traffic{}
	d.hour.interrupt()

	if d.workload != nil {
		d.open.held += held
		d.idle = time.Time{}
	}
}

// dropGone drops the devices of a GPU that its last reading lacks, as after a layout change.
func (a *Advisor) dropGone(id gpu.UUID) {
	isGone := func(d *device) bool { return d.id.GPU() == id && !d.seen.Equal(a.now) }
	if !slices.ContainsFunc(a.order, isGone) {
		return
	}

	a.order = slices.DeleteFunc(a.order, func(d *device) bool {
		if !isGone(d) {
			return false
		}

		a.closeWindow(d, a.now)
		a.endHolder(d)
		delete(a.devices, d.id)

		return true
	})
}

// holdersOf returns the holders of a GPU instance or, if it is split, of the first compute instance that
// has any.
func holdersOf(i *gpu.GPUInstance) []gpu.Holder {
	if len(i.Holders) > 0 {
		return i.Holders
	}

	for c := range i.ComputeInstances {
		if len(i.ComputeInstances[c].Holders) > 0 {
			return i.ComputeInstances[c].Holders
		}
	}

	return nil
}

// deviceOf returns a device that is in the current Snapshot, and adds it if it is new.
func (a *Advisor) deviceOf(id gpu.DeviceID) *device {
	d := a.devices[id]
	if d == nil {
		d = &device{id: id}

		// A new GPU instance did not exist at the last reading of its GPU, if that was complete: nothing was
		// missed of it.
		if whole := a.devices[gpu.IDOfGPU(id.GPU())]; whole != nil {
			d.memoryRead = whole.memoryRead
			d.wasFree = a.isWatched(d)
		}

		a.devices[id] = d
		a.order = append(a.order, d)
	}

	d.seen = a.now

	return d
}

// setHolder notes what holds a device. If it is another holder than before, it closes the window of
// that one; else it counts the time for which the device was held.
func (a *Advisor) setHolder(
	d *device,
	g *gpu.GPU,
	profile string,
	holders []gpu.Holder,
	jobs []string,
	processes int,
	held float64,
) {
	id := holderID{Holders: len(holders), Processes: processes > 0}
	d.awaitsHolder = false

	if len(holders) > 0 {
		h := &holders[0]
		if h.Undescribed {
			awaited := holderID{Container: h.Container, UID: h.PodUID}
			d.awaitsHolder = h.PodUID != d.holder.UID && d.workload != nil
			d.arrived = a.sawArrival(d, &awaited)
			d.awaited = awaited

			return // the pod is described soon: until then we do not know its owner
		}

		id.Container = h.Container
		id.UID = h.PodUID
		id.Processes = false
		id.Workload = cmp.Or(h.Rightsizing.Workload, h.Workload)
		id.Template = h.Template
	}

	if len(jobs) > 0 {
		id.Job = jobs[0]
	}

	if d.workload == nil && id == (holderID{}) {
		return
	}

	id.Model = g.Name

	if id == d.holder && !d.since.IsZero() {
		d.open.held += held
		return
	}

	// Since the exporter was started, nothing has shown that the device held another container or was busy.
	goesOn := d.since.IsZero() && (d.memoryRead.IsZero() || !d.idle.IsZero())

	a.closeWindow(d, a.now)
	a.changeHolder(d, id)

	key, ok := keyOf(g, profile, holders, jobs, processes)
	if !ok {
		return
	}

	d.workload = a.workloadOf(key)
	if goesOn {
		d.workload.restoreIdle(d, a.now)
	}

	a.restoreDown(d)
	d.workload.resume(id.UID, a.now)
	a.keepUseOfWhole(d.workload, findProfile(g, profile))
}

// workloadOf returns the evidence on a workload, and begins it if there is none.
func (a *Advisor) workloadOf(key Key) *workload {
	w := a.workloads[key]
	if w == nil {
		if len(a.workloads) >= maxWorkloads {
			a.forgetOldest()
		}

		w = &workload{Key: key, First: a.now, Last: a.now, Reference: a.now, Ends: areKnown}
		a.workloads[key] = w
	}

	return w
}

// keepUseOfWhole keeps how the workload of a GPU instance used the whole GPU, before that evidence is
// forgotten. The profile of the GPU instance is nil if it is unknown.
func (a *Advisor) keepUseOfWhole(w *workload, p *gpu.Profile) {
	key := w.Key
	key.Profile = ""

	whole := a.workloads[key]
	if whole == nil || whole == w {
		return
	}

	days := whole.sums(a.now)
	if days.MinWidth > 0 {
		w.Before.Width = days.MinWidth
	}

	if days.MinBandwidth > 0 {
		w.Before.Bandwidth = days.MinBandwidth
	}

	w.BeforeMean = [2]uint16{
		uint16(whole.Width.mean() * wholeUnit),
		uint16(whole.Bandwidth.mean() * wholeUnit),
	}

	if p == nil {
		return
	}

	if u := whole.queueOf(p.SMs, p.MemorySlices); u != nil {
		w.keepBusiestHour(u.busiest(a.now))
	}
}

// keepBusiestHour keeps what the busiest hour on the whole GPU says of requests. If there is none, the
// evidence of the whole GPU has been forgotten, and what we kept before stays.
func (w *workload) keepBusiestHour(h queueHour) {
	if h.Load == 0 {
		return
	}

	w.BeforeSlow = h.slowest()
	w.BeforeBusy = uint16(min(h.Busy, 1) * wholeUnit)
	w.BeforeRun = uint16(max(h.Run, shortRun))
}

// findProfile returns the profile with a name; nil if the GPU does not offer it.
func findProfile(g *gpu.GPU, name string) *gpu.Profile {
	at := slices.IndexFunc(g.Profiles, func(p gpu.Profile) bool { return p.Name == name })
	if at < 0 {
		return nil
	}

	return &g.Profiles[at]
}

// closeWindows ends the open windows of all devices.
func (a *Advisor) closeWindows(at time.Time) {
	for _, d := range a.order {
		a.closeWindow(d, at)

		if hourOf(at) != d.hour.number {
			d.closeHour(at)
		}
	}
}

// closeWindow ends the open window of a device, and adds it to the evidence on its workload.
func (a *Advisor) closeWindow(d *device, at time.Time) {
	defer func() { d.open = window{} }()

	if d.workload == nil || d.open.held <= 0 {
		return
	}

	if observed := d.open.observed; observed > 0 {
		minutes := int(observed/windowLength.Seconds() + 0.5) // rounded
		d.addMinutes(minutes, minute{
			busy:    float32(d.open.busy / observed),
			sm:      float32(d.open.sm / observed),
			dram:    float32(d.open.dram / observed),
			unread:  d.open.activityUnread > 0,
			engines: d.open.meanEngines(),
		})
	}

	d.memory = d.open.memory
	d.workload.close(at, &d.open, d.lastTenMinutes())
	d.addLoads(at, a.options.TargetBusy)
	d.workload.endWindow(d, at)
}
