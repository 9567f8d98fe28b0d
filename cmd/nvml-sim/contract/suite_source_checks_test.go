package contract

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// sourceChecks are those of what the poll loop reads: nvmlsource.Source on the same driver.
func sourceChecks() []checkOf {
	return []checkOf{
		{name: "source: every GPU once", check: checkDiscovery},
		{name: "source: two readings, one node", check: reading(checkTwice)},
		{name: "source: the tree hangs together", check: reading(checkTree)},
		{name: "source: counters and units", check: reading(checkReadings)},
		{name: "source: errors are of the domain", check: reading(checkErrors)},
		{name: "source: a GPU that there is not", check: checkUnknown},
		{name: "source: closed, and opened again", check: checkClose},
	}
}

func (s *subject) source() *nvmlsource.Source {
	return nvmlsource.New(s.open(), nvmlsource.Options{Now: s.now, SlowEvery: time.Nanosecond, Logger: log.NewNopLogger()})
}

// closing ends a source, within a minute: a driver that does not let go is a failure, not a hang.
func (s *subject) closing(source *nvmlsource.Source) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	if err := source.Close(ctx); err != nil {
		s.errorf("closing: %v", err)
	}
}

func checkDiscovery(s *subject) {
	source := s.source()
	defer s.closing(source)

	inventory, err := source.Discover()
	if err != nil {
		s.errorf("%v", err)
		return
	}

	s.want(inventory.Driver.Version != "" && len(inventory.Missing) == 0, "driver %+v, missing %v", inventory.Driver,
		inventory.Missing)
	devices := s.devices()
	s.want(len(inventory.GPUs) == len(devices), "%d GPUs of %d", len(inventory.GPUs), len(devices))

	for i, found := range inventory.GPUs {
		s.want(found.Index == i && i < len(devices) && found.UUID == uuidOf(devices[i]), "%+v in place %d", found, i)
	}

	again, err := source.Discover()
	s.want(err == nil && reflect.DeepEqual(again, inventory), "%+v, then %+v, %v", inventory, again, err)
}

// reading reads every GPU twice, with what passes in between.
func reading(check func(s *subject, first, second gpu.GPU)) func(*subject) {
	return func(s *subject) {
		source := s.source()
		defer s.closing(source)

		inventory, err := source.Discover()
		if err != nil {
			s.errorf("%v", err)
			return
		}

		firsts := map[gpu.UUID]gpu.GPU{}
		for _, found := range inventory.GPUs {
			if firsts[found.UUID], err = source.Read(found.UUID); err != nil {
				s.errorf("%v", err)
			}
		}

		s.pass()

		for _, found := range inventory.GPUs {
			second, err := source.Read(found.UUID)
			if err != nil {
				s.errorf("%v", err)
				continue
			}

			s.want(second.UUID == found.UUID && second.Index == found.Index, "%s is read as %s", found.UUID, second.UUID)
			check(s, firsts[found.UUID], second)
		}
	}
}

// identities is what stays while no layout changes: facts, profiles, ids, places and names. That
// events are refused is found out beside the readings, at any time.
func identities(g gpu.GPU) []any {
	g.NoXIDs = false
	g.ReportsUnavailable = false
	g.ReportsRecovery = false

	list := []any{g.Facts, g.MIG.Enabled, g.MIG.Pending}
	for _, i := range g.Instances {
		list = append(list, i.ID, i.Profile, i.ProfileID, i.Placement, i.ComputeSlices, i.MemorySlices, i.SMs)
		for _, c := range i.ComputeInstances {
			list = append(list, c.ID, c.UUID, c.Profile, c.Placement, c.ComputeSlices, c.SMs)
		}
	}

	return list
}

// checkTwice. Generations are the poll loop's: it compares what is held here to stay the same.
func checkTwice(s *subject, first, second gpu.GPU) {
	a := identities(first)
	b := identities(second)
	s.want(reflect.DeepEqual(a, b), "%s: %+v, then %+v", first.UUID, a, b)
	s.want(first.Name != "" && first.Architecture != "" && first.PCIBusID != "", "facts %+v", first.Facts)
}

// checkTree: instances are of profiles that the GPU offers, and no more than fit.
func checkTree(s *subject, _, g gpu.GPU) {
	if !g.MIG.Enabled.Or(false) {
		s.want(len(g.Instances) == 0, "%d instances with MIG off", len(g.Instances))
	}

	profiles := map[uint32]gpu.Profile{}
	counts := map[uint32]int{}

	for _, p := range g.Profiles {
		profiles[p.ID] = p
	}

	seen := map[gpu.InstanceID]bool{}
	for _, i := range g.Instances {
		s.want(!seen[i.ID] && i.Up, "GPU instance %d twice, or not up", i.ID)

		seen[i.ID] = true
		if id, ok := i.ProfileID.Get(); ok {
			p, offered := profiles[id]
			counts[id]++
			s.want(offered && i.Profile == p.Name && counts[id] <= p.MaxInstances,
				"GPU instance %d of profile %d (%q), %d of them", i.ID, id, i.Profile, counts[id])
		}

		s.parts(i)
	}
}

// parts holds the compute instances to the GPU instance that they are of.
func (s *subject) parts(i gpu.GPUInstance) {
	slices := 0
	sms := 0

	ids := map[gpu.ComputeID]bool{}
	for _, c := range i.ComputeInstances {
		s.want(!ids[c.ID] && c.UUID != "" && c.Up, "compute instance %d/%d (%q) twice, unnamed or not up", i.ID, c.ID, c.UUID)
		ids[c.ID] = true
		slices += c.ComputeSlices.Or(0)
		sms += c.SMs.Or(0)
	}

	s.want(slices <= i.ComputeSlices.Or(slices), "GPU instance %d: %d of %d compute slices", i.ID, slices,
		i.ComputeSlices.Or(0))
	s.want(sms <= i.SMs.Or(sms), "GPU instance %d: %d of %d SMs", i.ID, sms, i.SMs.Or(0))
	total, known := i.Memory.Total.Get()
	s.want(!known || i.Memory.Used.Or(0) <= total, "GPU instance %d: memory %+v", i.ID, i.Memory)
}

func checkReadings(s *subject, first, second gpu.GPU) {
	a := first.Readings
	b := second.Readings
	s.want(a.EnergyJoules.Or(0) <= b.EnergyJoules.Or(a.EnergyJoules.Or(0)), "energy %v, then %v", a.EnergyJoules,
		b.EnergyJoules)
	s.want(b.PowerWatts.Or(100) > 3 && b.PowerWatts.Or(100) < 3000, "power %v", b.PowerWatts)
	s.want(b.PowerLimitWatts.Or(100) >= 20 && b.PowerLimitWatts.Or(100) < 3000, "power limit %v", b.PowerLimitWatts)
	s.want(b.TemperatureCelsius.Or(40) > 0 && b.TemperatureCelsius.Or(40) < 125, "temperature %v", b.TemperatureCelsius)
	s.want(b.ClockHertz.SM.Or(0) < 2e10, "SM clock %v", b.ClockHertz.SM)

	for _, share := range []gpu.Opt[float64]{b.Utilization, b.MemoryCopy} {
		s.want(share.Or(0) >= 0 && share.Or(0) <= 1, "utilization %v", share)
	}

	m := b.Memory
	s.want(m.Used.Or(0)+m.Free.Or(0)+m.Reserved.Or(0) <= m.Total.Or(1<<62), "memory %+v", m)
	s.want(a.PCIe.Replays.Or(0) <= b.PCIe.Replays.Or(1<<62), "PCIe replays %v, then %v", a.PCIe.Replays, b.PCIe.Replays)
}

// checkErrors: what fails is a reading by name, for a reason of the domain; what is not offered is
// no error.
func checkErrors(s *subject, _, g gpu.GPU) {
	list := g.Errors
	for _, i := range g.Instances {
		list = append(list, i.Errors...)
		for _, c := range i.ComputeInstances {
			list = append(list, c.Errors...)
		}
	}

	for _, e := range list {
		s.want(e.Reading != "" && !errors.Is(e.Err, gpu.ErrNotSupported) && errors.Is(e.Err, gpu.ErrNoPermission), "%s: %v",
			e.Reading, e.Err)
	}
}

func checkUnknown(s *subject) {
	source := s.source()
	defer s.closing(source)

	if _, err := source.Discover(); err != nil {
		s.errorf("%v", err)
	}

	_, err := source.Read("GPU-00000000-0000-0000-0000-000000000000")
	s.want(errors.Is(err, gpu.ErrNotFound), "%v", err)
}

// checkClose: after Close there are errors, and no driver call; another source then reads the same
// GPUs.
func checkClose(s *subject) {
	source := s.source()
	before, err := source.Discover()
	s.want(err == nil, "%v", err)
	s.closing(source)
	s.closing(source)
	calls := source.DriverCalls()
	_, err = source.Discover()
	s.want(err != nil, "a closed source finds GPUs")

	for _, found := range before.GPUs {
		_, err := source.Read(found.UUID)
		s.want(err != nil, "a closed source reads a GPU")
	}

	s.want(source.DriverCalls() == calls, "a closed source asks the driver")
	again := s.source()
	defer s.closing(again)
	after, err := again.Discover()
	s.want(err == nil && reflect.DeepEqual(before, after), "%+v, then %+v, %v", before, after, err)
	s.devices() // what others do with the driver goes on
}
