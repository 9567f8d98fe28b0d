package advise

import (
	"cmp"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	windowLength = time.Minute
	// maxCountedGap is how much of a gap lowers the coverage: beyond it, it is rather the clock
	// that was set.
	maxCountedGap = time.Hour
	// maxWorkloads bounds the memory: beyond it, the workload that was not seen for the longest
	// time is forgotten.
	maxWorkloads = 10_000
	// forgetAfter is the age at which a workload that was not seen again is forgotten.
	forgetAfter = keptDays * 24 * time.Hour
)

// Advisor collects evidence from Snapshots. It is not safe for concurrent use.
type Advisor struct {
	options  Options
	now      time.Time // of the last Snapshot, or of the evidence that was restored; a wall clock's
	restored bool      // nothing was observed since
	ahead    time.Time // the first time that is far ahead of now; zero if the last one was not
	// unshifted is the part of all clock changes that the days of the evidence, which shift by
	// whole days, have not followed: at most half a day either way.
	unshifted time.Duration
	devices   map[gpu.DeviceID]*device
	order     []*device // devices in the order in which they came: sums must not depend on the order of a map
	workloads map[Key]*workload
	node      string
	gpus      []gpu.UUID // of the last Snapshot that had any
}

// device is a GPU or a GPU instance, which can be given to a pod, and what its open window has
// seen.
type device struct {
	id       gpu.DeviceID
	seen     time.Time
	since    time.Time // when its holder was first seen
	holder   holderID
	workload *workload // nil if nothing holds it
	open     window
	last10   [10]minute       // the last ten minutes
	memory   float64          // largest of the last window, in MiB
	count    int              // minutes of closed windows since the holder came
	nvlink   gpu.Opt[float64] // bytes at the last Snapshot
	pcie     gpu.Opt[float64]
	idle     time.Time // since when it is known that no kernel runs, and no media engine that is read
	engines  gpu.Opt[gpu.Engines]
	hour     hour

	used       gpu.Opt[float64] // memory of the last reading, in MiB; absent if that was another holder's
	memoryRead time.Time        // when it was read
	arrived    bool             // a holder that is not described yet came while the device was watched
	start      starting
	processes  processes
	// since when its container has held memory, or none; zero if it has not, or was not watched
	up, empty time.Time
	ended     endings

	traffic   traffic
	exchanges []exchange // with the other whole GPUs, since its holder came
	// inStepWith is the GPU with which its traffic was in step last; empty if unknown.
	inStepWith gpu.UUID
	server     serverSample
}

// holderID distinguishes the holders of a device over time.
type holderID struct {
	gpu.Container
	UID, Workload, Job string
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

// Observe adds what a Snapshot says, and reports whether it has: not while its time is too far
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
		// A gap counts as held, up to an hour, but not as observed.
		since := min(now.Sub(a.now), maxCountedGap)
		passed.held = since.Seconds()

		if since <= a.options.MaxGap {
			passed.observed = passed.held
		} else {
			// Nothing is known to have been idle during the gap.
			for _, d := range a.order {
				d.idle = time.Time{}
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
	a.observeServers(s)

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

func (a *Advisor) observeGPU(g *gpu.GPU, passed passedTime) {
	if g.UUID == "" {
		return
	}

	// If calls of the driver are slow, a reading may take long: the last one then says nothing
	// about now.
	isOld := !g.LastRead.IsZero() && a.now.Sub(g.LastRead) > a.options.MaxGap
	if !g.Up || isOld {
		a.observeGap(g.UUID, passed.held)
		return
	}

	defer a.dropGone(g.UUID)
	elapsed := passed.observed

	if !g.MIG.Enabled.Or(false) {
		d := a.deviceOf(gpu.IDOfGPU(g.UUID))

		list, known := g.Readings.Processes.Get()
		if !known && d.isHeldByProcesses(g.Holders, g.Jobs) {
			d.observeGap(a.now, passed.held)
			return
		}

		a.setHolder(d, g, "", g.Holders, g.Jobs, len(list), passed.held)
		a.followMemory(d, g.Readings.Memory.Used, list, gpu.None[gpu.InstanceID]())
		d.observeWhole(g, elapsed)

		return
	}

	held := false

	for i := range g.Instances {
		instance := &g.Instances[i]
		if !instance.Up {
			if d := a.devices[gpu.IDOfInstance(g.UUID, instance)]; d != nil {
				d.observeGap(a.now, passed.held)
			}

			continue
		}

		d := a.deviceOf(gpu.IDOfInstance(g.UUID, instance))
		processes, known := instance.Processes.Get()

		holders := holdersOf(instance)
		if !known && d.isHeldByProcesses(holders, instance.Jobs) {
			d.observeGap(a.now, passed.held)
			continue
		}

		a.setHolder(d, g, instance.Profile, holders, instance.Jobs, processes, passed.held)
		a.followMemory(d, instance.Memory.Used, g.Readings.Processes.Or(nil), gpu.Some(instance.ID))
		d.observeInstance(g, instance, elapsed)
		held = held || d.workload != nil
	}

	a.observeTenants(g, held, elapsed)
}

// isHeldByProcesses reports whether only processes have shown that a device is in use, now and when
// they were read last. While they are not known, they may run on, or not.
func (d *device) isHeldByProcesses(holders []gpu.Holder, jobs []string) bool {
	return d.holder.Processes && len(holders) == 0 && len(jobs) == 0
}

// observeTenants adds what the workloads on the GPU instances of a GPU draw together, while there
// are any: power and traffic are measured for the GPU alone.
func (a *Advisor) observeTenants(g *gpu.GPU, held bool, elapsed float64) {
	d := a.deviceOf(gpu.IDOfGPU(g.UUID))
	if id := (holderID{Model: g.Name, Tenants: held}); id != d.holder {
		a.closeWindow(d, a.now)

		*d = device{id: d.id, seen: a.now, since: a.now, holder: id}
		if held {
			d.workload = a.workloadOf(tenantsKey(g))
		}
	}

	d.memoryRead = a.now // the GPU instances of the next reading are new

	if !held {
		return
	}

	d.open.held += elapsed
	d.open.observed += elapsed
	d.observePower(g, elapsed)
	d.observeLinks(g, elapsed)
}

// observeGap counts the time in which the devices of a GPU were held and could not be read.
func (a *Advisor) observeGap(id gpu.UUID, held float64) {
	for _, d := range a.order {
		if d.id.GPU() == id {
			d.observeGap(a.now, held)
		}
	}
}

func (d *device) observeGap(now time.Time, held float64) {
	d.seen = now
	d.traffic = traffic{}
	d.hour.interrupt()

	if d.workload != nil {
		d.open.held += held
		d.idle = time.Time{}
	}
}

// dropGone drops the devices of a GPU that its last reading does not have any more, as after a
// layout change.
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
		d.closeHour(a.now)

		if a.isWatched(d) {
			d.endStart(a.now, false)
		}

		delete(a.devices, d.id)

		return true
	})
}

// holdersOf returns the holders of a GPU instance, or of the first compute instance that is held if
// it is split.
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

func (a *Advisor) deviceOf(id gpu.DeviceID) *device {
	d := a.devices[id]
	if d == nil {
		d = &device{id: id}
		// A new GPU instance did not exist at the last reading of its GPU.
		if whole := a.devices[gpu.IDOfGPU(id.GPU())]; whole != nil {
			d.memoryRead = whole.memoryRead
		}

		a.devices[id] = d
		a.order = append(a.order, d)
	}

	d.seen = a.now

	return d
}

// setHolder closes the window of the holder before, if there is another one now, and counts the
// time.
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
	if len(holders) > 0 {
		h := &holders[0]
		if h.Undescribed {
			d.arrived = d.arrived || h.PodUID != d.holder.UID && a.sawArrival(d)
			return // its owner is known in a second
		}

		id.Container = h.Container
		id.UID = h.PodUID
		id.Processes = false
		id.Workload = cmp.Or(h.Rightsizing.Workload, h.Workload)
	}

	if len(jobs) > 0 {
		id.Job = jobs[0]
	}

	if d.workload == nil && id == (holderID{}) {
		return
	}

	id.Model = g.Name
	if id != d.holder || d.since.IsZero() {
		a.closeWindow(d, a.now)
		a.change(d, id)

		if key, ok := keyOf(g, profile, holders, jobs, processes); ok {
			d.workload = a.workloadOf(key)
			if d.memoryRead.IsZero() {
				d.workload.takeUp(d, a.now)
			}

			d.workload.resume(id.UID, a.now)
			a.compareWithWhole(d.workload, findProfile(g, profile))
		}

		return
	}

	d.open.held += held
}

func (a *Advisor) workloadOf(key Key) *workload {
	w := a.workloads[key]
	if w == nil {
		if len(a.workloads) >= maxWorkloads {
			a.forgetOldest()
		}

		w = &workload{Key: key, First: a.now, Last: a.now, Reference: a.now}
		a.workloads[key] = w
	}

	return w
}

// compareWithWhole keeps what the workload of a GPU instance used on the whole GPU, before that
// evidence is forgotten. The profile is nil if it is not known.
func (a *Advisor) compareWithWhole(w *workload, p *gpu.Profile) {
	key := w.Key
	key.Profile = ""

	if whole := a.workloads[key]; whole != nil && whole != w {
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
			w.compareWithHour(u.busiest(a.now))
		}
	}
}

// compareWithHour keeps what the busiest hour on the whole GPU says of requests. What was kept
// before stays if there is none: evidence of the whole GPU is forgotten in the end.
func (w *workload) compareWithHour(h queueHour) {
	if h.Load == 0 {
		return
	}

	w.BeforeSlow = h.slowest()
	w.BeforeBusy = uint16(min(h.Busy, 1) * wholeUnit)
	w.BeforeRun = uint16(max(h.Run, shortRun))
}

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

func (a *Advisor) closeWindow(d *device, at time.Time) {
	if d.workload != nil && d.open.held > 0 {
		if observed := d.open.observed; observed > 0 {
			d.addMinutes(int(observed/windowLength.Seconds()+0.5), minute{
				busy:    float32(d.open.busy / observed),
				sm:      float32(d.open.sm / observed),
				dram:    float32(d.open.dram / observed),
				unread:  d.open.activityUnread > 0,
				engines: d.open.meanEngines(),
			})
		}

		d.memory = d.open.memory
		d.workload.close(at, &d.open, d.meanOfLast())
		d.addLoads(at, a.options.TargetBusy)
		d.workload.seen(d, at)
	}

	d.open = window{}
}
