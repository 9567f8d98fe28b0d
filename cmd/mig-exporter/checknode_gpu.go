package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// judgeGPU judges one GPU and its instances.
func (j *nodeJudge) judgeGPU(g *gpu.GPU) {
	name := fmt.Sprintf("gpu %d", g.Index)
	c := nodeCheck{Name: name, State: checkOK, Asked: true, Found: g.Name + ", " + describeLayout(g)}
	if !g.Up {
		c.State, c.Found = checkMissing, "it does not answer"
		for _, e := range g.Errors {
			c.Found += "; " + describeError(string(e.Reading), e.Err)
		}
		c.Remedy = "look for XIDs in dmesg; docs/faults.md has each failure"
	}
	j.add(c)
	if !g.Up {
		return
	}

	j.judgeReadings(name, g.Errors)
	j.judgeEvents(name, g)
	j.judgePersistence(name, g)
	if j.cfg.Profiling == profilingOff {
		return
	}
	if len(g.Instances) == 0 && g.MIG.Enabled.Or(false) {
		j.add(nodeCheck{Name: name + " activity", State: checkOff, Found: "MIG is on, and there is no instance"})
		return
	}
	if len(g.Instances) == 0 {
		j.judgeActivity(name, g.ActivitySource, g.Activity, g.Errors)
	}
	for i := range g.Instances {
		j.judgeInstance(name, g, &g.Instances[i])
	}
}

func describeLayout(g *gpu.GPU) string {
	switch enabled, known := g.MIG.Enabled.Get(); {
	case !known:
		return "without MIG"
	case !enabled:
		return "MIG is off"
	}
	return "MIG is on, " + countOf(len(g.Instances), "GPU instance")
}

func (j *nodeJudge) judgeInstance(name string, g *gpu.GPU, i *gpu.GPUInstance) {
	name = fmt.Sprintf("%s instance %d", name, i.ID)
	if !i.Up {
		j.add(nodeCheck{Name: name, State: checkMissing, Asked: true, Found: i.Profile + " does not answer"})
	}
	j.judgeReadings(name, i.Errors)
	if len(i.ComputeInstances) == 0 {
		j.add(nodeCheck{Name: name + " activity", State: checkOff,
			Found: i.Profile + " has no compute instance: there is nothing to profile"})
		return
	}
	j.judgeActivity(name, g.ActivitySource, i.Activity, append(slices.Clone(g.Errors), i.Errors...))
}

// judgeReadings reports the readings that fail, each once. What the GPU does not have is no failure; that it has no power
// is worth a line, since nothing can be estimated then.
func (j *nodeJudge) judgeReadings(name string, errs []gpu.ReadError) {
	var seen []string
	for _, e := range errs {
		unsupported := errors.Is(e.Err, gpu.ErrNotSupported)
		if unsupported && e.Reading != gpu.ReadingPower || e.Reading == gpu.ReadingEvents ||
			e.Reading == gpu.ReadingActivity {
			continue
		}
		key := string(e.Reading) + string(e.Reason())
		if slices.Contains(seen, key) {
			continue
		}
		seen = append(seen, key)

		c := nodeCheck{
			Name: name + " " + string(e.Reading), State: checkMissing, Asked: !unsupported, Found: e.Err.Error(),
		}
		if errors.Is(e.Err, gpu.ErrNoPermission) {
			c.Remedy = "grant CAP_SYS_ADMIN with NVIDIA_MIG_MONITOR_DEVICES=all (docs/image.md)"
		}
		j.add(c)
	}
}

// judgeEvents judges whether XIDs arrive. Under MIG, the driver accepts every registration and delivers nothing to a
// process without the rights of an administrator or of MIG's monitor (OGKM gpu_rmapi.c 417-460).
func (j *nodeJudge) judgeEvents(name string, g *gpu.GPU) {
	c := nodeCheck{Name: name + " events", State: checkOK, Asked: !j.cfg.Disabled["xid"], Found: "registered"}
	admin, adminKnown := j.host.has(capSysAdmin).Get()
	monitor, monitorKnown := j.host.migMonitor.Get()
	switch {
	case !g.MIG.Enabled.Or(false) || admin || monitor:
	case adminKnown && monitorKnown:
		c.State, c.Found = checkMissing, "registered, but the driver delivers none without the rights of MIG's monitor"
		c.Remedy = "grant CAP_SYS_ADMIN with NVIDIA_MIG_MONITOR_DEVICES=all (docs/image.md)"
	default:
		c.State, c.Found = checkUnknown, "registered; whether the driver delivers them depends on rights that cannot be told"
	}
	for _, e := range g.Errors {
		if e.Reading == gpu.ReadingEvents {
			c.State, c.Found = checkMissing, e.Err.Error()
		}
	}
	j.add(c)
}

func (j *nodeJudge) judgePersistence(name string, g *gpu.GPU) {
	c := nodeCheck{Name: name + " persistence", State: checkUnknown, Found: "the driver does not say"}
	if on, ok := g.Readings.PersistenceMode.Get(); ok {
		c.State, c.Found = checkOK, "on"
		if !on {
			c.State, c.Found = checkOff, "off: the GPU is initialised anew when the first process opens it, about a second"
			c.Remedy = "run nvidia-persistenced --persistence-mode"
		}
	}
	j.add(c)
}

// judgeActivity judges the activity of a GPU without instances, or of an instance.
func (j *nodeJudge) judgeActivity(name string, from gpu.ActivitySource, a gpu.Activity, errs []gpu.ReadError) {
	c := nodeCheck{Name: name + " activity", State: checkMissing, Asked: true, Found: "none"}
	for _, e := range errs {
		if e.Reading == gpu.ReadingActivity {
			c.Found = e.Err.Error()
		}
	}
	switch {
	case a.GraphicsEngine.Present() || a.SM.Present():
		c.State, c.Found = checkOK, "by "+strings.ToUpper(string(from))
	case j.host.dcgm != nil && from == gpu.ActivityUnknown:
		c.State, c.Found = checkUnknown, "the driver has no GPM for it; DCGM, which is embedded, was not started here"
		c.Asked = j.host.dcgm.engine == "" || j.host.dcgm.profiling == ""
	case j.cfg.DCGMMode == dcgmOff:
		c.Remedy = "A100 and A30 have activity by DCGM alone: --dcgm.mode=embedded or remote, with " +
			"datacenter-gpu-manager-4-proprietary; or accept it: --profiling.source=off"
	}
	j.add(c)
}
