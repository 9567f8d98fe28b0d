package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// judgeGPU judges one GPU and its instances.
func (j *nodeJudge) judgeGPU(g *gpu.GPU) {
	name := fmt.Sprintf("gpu %d", g.Index)

	c := nodeCheck{
		Name:  name,
		State: checkOK,
		Asked: true,
		Found: g.Name + ", " + describeLayout(g),
	}
	switch {
	case !g.Up:
		c.State = checkMissing
		c.Found = "it does not answer"

		for _, e := range g.Errors {
			c.Found += fmt.Sprintf("; %s: %v", e.Reading, e.Err)
		}

		c.Remedy = "look for XIDs in dmesg; docs/faults.md has each failure"
	case g.LastRead.Before(j.lastPoll):
		c.State = checkUnknown
		c.Found += fmt.Sprintf("; what follows was read %s before the last poll: it answers slowly",
			j.lastPoll.Sub(g.LastRead).Round(time.Millisecond))
	}

	j.add(c)

	if !g.Up {
		return
	}

	j.judgeReadings(nodeCheck{Name: name}, g.Errors)
	j.judgeCore(name, g)
	j.judgeEvents(name, g)
	j.judgePersistence(name, g)

	if g.MIG.Enabled.Or(false) {
		j.judgeMIGActivity(name, g)
	} else if len(g.Instances) == 0 {
		j.judgeActivity(nodeCheck{Name: name}, g.ActivitySource, g.Activity, g.Errors)
	}

	for i := range g.Instances {
		j.judgeInstance(name, g, &g.Instances[i])
	}
}

// judgeMIGActivity judges the activity of a GPU in MIG mode, except that of its instances: whether it
// has instances at all, and whether GPM gives its traffic, which needs a right of its own.
func (j *nodeJudge) judgeMIGActivity(name string, g *gpu.GPU) {
	if j.cfg.Profiling.Source == profilingOff {
		return
	}

	if len(g.Instances) == 0 {
		c := nodeCheck{
			Name:  name + " activity",
			State: checkOff,
			Found: "MIG is on, and there is no instance",
		}
		if errorOf(gpu.ReadingMIG, g.Errors) != nil {
			c.State = checkUnknown
			c.Asked = true
			c.Found = "MIG is on, and its instances are not known"
		}

		j.add(c)
	}

	err := errorOf(gpu.ReadingActivity, g.Errors)
	if err == nil || g.ActivitySource == gpu.ActivityUnknown {
		return
	}

	c := nodeCheck{Name: name + " traffic", State: checkMissing, Asked: true,
		Found: "no rates of PCIe and NVLink by GPM: " + err.Error()}
	if errors.Is(err, gpu.ErrNoPermission) {
		c.Remedy = rightsRemedy
	}

	j.add(c)
}

// errorOf returns the last error of a reading; nil if there is none.
func errorOf(reading gpu.Reading, errs []gpu.ReadError) error {
	var last error

	for _, e := range errs {
		if e.Reading == reading {
			last = e.Err
		}
	}

	return last
}

func describeLayout(g *gpu.GPU) string {
	switch enabled, known := g.MIG.Enabled.Get(); {
	case !known && errorOf(gpu.ReadingMIG, g.Errors) != nil:
		return "MIG mode unknown"
	case !known:
		return "without MIG"
	case !enabled:
		return "MIG is off"
	case errorOf(gpu.ReadingMIG, g.Errors) != nil: // others may be hidden
		return "MIG is on, " + nodedoc.Count(len(g.Instances), "GPU instance", "GPU instances") + " seen"
	}

	return "MIG is on, " + nodedoc.Count(len(g.Instances), "GPU instance", "GPU instances")
}

func (j *nodeJudge) judgeInstance(name string, g *gpu.GPU, i *gpu.GPUInstance) {
	base := nodeCheck{
		Name:     fmt.Sprintf("%s instance %d", name, i.ID),
		gpu:      name,
		instance: gpu.Some(i.ID),
	}
	if !i.Up {
		c := base
		c.State = checkMissing
		c.Asked = true
		c.Found = i.Profile + " does not answer"
		j.add(c)
	}

	j.judgeReadings(base, i.Errors)

	for k := range i.ComputeInstances {
		if i.Up { // otherwise all of them fail for the same reason
			j.judgeCompute(base, g, i, &i.ComputeInstances[k])
		}
	}

	if i.IsEmpty() {
		if j.cfg.Profiling.Source != profilingOff {
			c := base.about("activity")
			c.State = checkOff
			c.Found = i.Profile + " has no compute instance: there is nothing to profile"
			j.add(c)
		}

		return
	}

	j.judgeActivity(base, g.ActivitySource, i.Activity, append(slices.Clone(g.Errors), i.Errors...))
}

// judgeCompute judges a compute instance: its readings and, if its GPU instance has several, its
// activity.
func (j *nodeJudge) judgeCompute(
	base nodeCheck,
	g *gpu.GPU,
	i *gpu.GPUInstance,
	ci *gpu.ComputeInstance,
) {
	subject := fmt.Sprintf("compute instance %d", ci.ID)
	if !ci.Up {
		c := base.about(subject)
		c.State = checkMissing
		c.Asked = true
		c.Found = ci.Profile + " does not answer"
		j.add(c)
	}

	base = base.about(subject)
	j.judgeReadings(base, ci.Errors)

	if len(i.ComputeInstances) > 1 {
		j.judgeActivity(
			base,
			g.ActivitySource,
			ci.Activity,
			append(slices.Clone(g.Errors), ci.Errors...),
		)
	}
}

// judgeReadings reports the readings of a device that fail, each once. base names the device. A
// reading that the GPU does not support is no failure, except power, because estimates need it.
// Other checks report the PID namespace, events and activity.
func (j *nodeJudge) judgeReadings(base nodeCheck, errs []gpu.ReadError) {
	var seen []string

	for _, e := range errs {
		unsupported := errors.Is(e.Err, gpu.ErrNotSupported)
		if unsupported && e.Reading != gpu.ReadingPower || !e.Reason().IsFailure() ||
			e.Reading == gpu.ReadingEvents || e.Reading == gpu.ReadingActivity {
			continue
		}

		key := string(e.Reading) + string(e.Reason())
		if slices.Contains(seen, key) {
			continue
		}

		seen = append(seen, key)

		c := base.about(string(e.Reading))
		c.State = checkMissing
		c.Asked = !unsupported
		c.Found = e.Err.Error()

		if errors.Is(e.Err, gpu.ErrNoPermission) {
			c.Remedy = rightsRemedy
		}

		j.add(c)
	}
}

// judgeEvents judges whether XIDs arrive. That the driver accepted a registration does not show that:
// it accepts registrations whose events it does not deliver.
func (j *nodeJudge) judgeEvents(name string, g *gpu.GPU) {
	c := nodeCheck{
		Name:  name + " events",
		State: checkOK,
		Asked: !j.cfg.Metrics.Disabled["xid"],
		Found: "XIDs are received",
	}
	if g.NoXIDs {
		c.State = checkUnknown
		c.Found = "no XID is received: the driver does not report them, or nothing shows whether it delivers them"
	}

	for _, e := range g.Errors {
		if e.Reading != gpu.ReadingEvents {
			continue
		}

		c.State = checkMissing
		c.Found = e.Err.Error()

		if errors.Is(e.Err, gpu.ErrNoPermission) {
			c.Remedy = rightsRemedy
		}
	}

	if s := j.source(gpu.SourceKernelLog); s != nil && s.Up && c.State != checkOK {
		c.Found += "; XIDs come from the kernel's log"
	}

	j.add(c)
}

// judgeCore reports in one line which basic readings the driver does not offer. Other metrics and
// estimates depend on them, but the configuration cannot ask for them.
func (j *nodeJudge) judgeCore(name string, g *gpu.GPU) {
	r := &g.Readings
	var absent []string

	for _, core := range []struct {
		name    string
		reading gpu.Reading
		present bool
	}{
		{"power", gpu.ReadingPower, r.PowerWatts.Present() && !g.Power.FromEnergy},
		{"energy", gpu.ReadingEnergy, r.EnergyJoules.Present()},
		{"memory", gpu.ReadingMemory, r.Memory.Total.Present()},
		{"clocks", gpu.ReadingClocks, r.ClockHertz.SM.Present()},
	} {
		failed := slices.ContainsFunc(g.Errors, func(e gpu.ReadError) bool {
			return e.Reading == core.reading
		})
		if !core.present && !failed {
			absent = append(absent, core.name)
		}
	}

	if len(absent) == 0 {
		return
	}

	c := nodeCheck{Name: name + " readings", State: checkMissing}
	c.Found = "the driver reports no " + strings.Join(absent, ", ")

	switch {
	case g.Power.FromEnergy:
		c.Found += "; power is the mean by the energy counter"
	case !r.PowerWatts.Present() && g.MIG.Enabled.Or(false):
		c.Found += "; the power of instances is not estimated"
	}

	j.add(c)
}

// judgeExtras judges the collectors that are off by default and whose readings not every driver has.
func (j *nodeJudge) judgeExtras() {
	for _, extra := range []struct {
		name  string
		asked bool
		has   func(gpu.Visit) bool
	}{
		{collector.GroupFabric, j.extras.Fabric, func(d gpu.Visit) bool {
			return d.GPU.Readings.Fabric.Present()
		}},
		{collector.GroupInstancePCIe, j.extras.InstancePCIe, func(d gpu.Visit) bool {
			return d.Instance != nil && d.Instance.Rates != (gpu.LinkRates{})
		}},
		{collector.GroupInstanceECC, j.extras.InstanceECC, func(d gpu.Visit) bool {
			return d.Compute != nil && len(d.Compute.ECC) > 0
		}},
		{"media", j.extras.Media, func(d gpu.Visit) bool {
			return d.GPU.Readings.Media != (gpu.Media{}) ||
				d.Instance != nil && d.Instance.Media != (gpu.Media{})
		}},
	} {
		if !extra.asked {
			continue
		}

		var gpus []string

		for d := range j.last.Devices() {
			index := fmt.Sprint(d.GPU.Index)
			if extra.has(d) && !slices.Contains(gpus, index) {
				gpus = append(gpus, index)
			}
		}

		c := nodeCheck{Name: "collector." + extra.name, State: checkOK, Asked: true,
			Found: "reported by GPUs " + strings.Join(gpus, ", ")}
		if len(gpus) == 0 {
			c.State = checkMissing
			c.Found = "no GPU reports it"
		}

		j.add(c)
	}
}

func (j *nodeJudge) judgePersistence(name string, g *gpu.GPU) {
	c := nodeCheck{
		Name:  name + " persistence",
		State: checkUnknown,
		Found: "the driver does not say",
	}
	if on, ok := g.Readings.PersistenceMode.Get(); ok {
		c.State = checkOK
		c.Found = "on"

		if !on {
			c.State = checkOff
			c.Found = "off: the GPU is initialised anew when the first process opens it, about a second"
			c.Remedy = "run nvidia-persistenced --persistence-mode"
		}

		if !on && j.confidential {
			c.State = checkMissing
			c.Asked = true
			c.Found = "off, in confidential-computing mode: the GPU can become unusable until a reset " +
				"when the last process that has it open ends"
		}
	}

	j.add(c)
}

// judgeActivity judges the activity of a GPU without instances or of an instance, which base names.
// It reports nothing if --profiling.source is off.
func (j *nodeJudge) judgeActivity(
	base nodeCheck,
	source gpu.ActivitySource,
	a gpu.Activity,
	errs []gpu.ReadError,
) {
	if j.cfg.Profiling.Source == profilingOff {
		return
	}

	c := base.about("activity")
	c.State = checkMissing
	c.Asked = true
	c.Found = "none"

	err := errorOf(gpu.ReadingActivity, errs)
	if err != nil {
		c.Found = err.Error()
	}

	switch {
	case a.GraphicsEngine.Present() || a.SM.Present():
		c.State = checkOK
		c.Found = "by " + strings.ToUpper(string(source))
	case j.host.dcgm != nil && source == gpu.ActivityUnknown:
		c.State = checkUnknown
		c.Found = "the driver has no GPM for it; DCGM, which is embedded, was not started here"
		c.Asked = j.host.dcgm.engine == "" || j.host.dcgm.profiling == ""
	case errors.Is(err, gpu.ErrNoPermission):
		c.Remedy = rightsRemedy
	case err != nil && !errors.Is(err, gpu.ErrNotSupported): // the driver failed to answer: the GPU may have GPM
	case j.cfg.Profiling.dcgmMode() == dcgmOff:
		c.Remedy = "A100 and A30 have activity by DCGM alone: --dcgm.address=HOST:PORT or embedded, with " +
			"datacenter-gpu-manager-4-proprietary; or accept it: --profiling.source=off"
	}

	j.add(c)
}
