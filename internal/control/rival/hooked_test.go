package rival

import (
	"fmt"
	"sync/atomic"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// point is a moment of our process at which the turn can be handed over: right before a driver call
// that reads instances, and before and after each that changes them. The other kinds only record
// what our process knows.
type point struct {
	Kind    string `json:"kind"`
	GPU     int    `json:"gpu"`
	Profile uint32 `json:"profile"`
	GI      uint32 `json:"gi"`
	CI      uint32 `json:"ci"`
	Slices  int    `json:"slices,omitempty"` // of list-ci: those of this size; 0 is all
	Start   int    `json:"start"`            // of what is to be created
	Size    int    `json:"size"`
	After   bool   `json:"after,omitempty"` // the call has been made
	Error   string `json:"error,omitempty"` // of that call; empty if it succeeded

	Read []int     `json:"read,omitempty"` // of wholeRead: the GPUs whose tree the engine has read
	Plan *api.Plan `json:"plan,omitempty"` // of planned
}

// The kinds of points that are no driver calls.
const (
	wholeRead = "read"
	planned   = "planned"
)

func (p point) String() string {
	when := "before"
	if p.After {
		when = "after"
	}

	if p.Kind == wholeRead || p.Kind == planned {
		return fmt.Sprintf("ours: %s %v%s", p.Kind, p.Read, planText(p.Plan))
	}

	return fmt.Sprintf("ours: GPU %d %s %s profile %d gi %d ci %d at %d:%d %s", p.GPU, when, p.Kind, p.Profile, p.GI,
		p.CI, p.Start, p.Size, p.Error)
}

func planText(p *api.Plan) (text string) {
	if p == nil {
		return ""
	}

	for _, g := range p.GPUs {
		text += fmt.Sprintf("GPU %d: %s -> %s; ", g.Index, treeOfAPI(g.Before), treeOfAPI(g.After))
	}

	return text
}

func (p point) changes() bool {
	return p.Kind == createGI || p.Kind == createCI || p.Kind == destroyGI || p.Kind == destroyCI
}

func (p point) reads() bool { return !p.changes() && p.Kind != wholeRead && p.Kind != planned }

// verdict is what happens to a driver call.
type verdict int

const (
	proceed verdict = iota
	fail            // the driver refuses the call
	die             // the process is killed: none of its later calls has an effect
)

// hook is called at every point. It is used by pointer: handles of GPUs contain it and must be
// comparable.
type hook struct{ decideAt func(point) verdict }

// after returns a hook that lets every call pass before the program runs.
func (h *hook) after(running *atomic.Bool) *hook {
	return &hook{decideAt: func(p point) verdict {
		if !running.Load() {
			return proceed
		}

		return h.decideAt(p)
	}}
}

// hooked is a driver that calls a hook at every call.
type hooked struct {
	nvmlsource.Library
	hook *hook
}

func (l hooked) DeviceGetHandleByIndex(index int) (nvmlsource.Device, nvml.Return) {
	d, ret := l.Library.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	return hookedDevice{d.(nvmlsource.MutableDevice), l.hook, index}, ret
}

type hookedDevice struct {
	nvmlsource.MutableDevice
	hook  *hook
	index int
}

// read makes a call that reads instances.
func read[T any](h *hook, p point, call func() (T, nvml.Return)) (T, nvml.Return) {
	if h.decideAt(p) == die {
		var none T
		return none, nvml.ERROR_UNINITIALIZED
	}

	return call()
}

// change makes a call that changes instances.
func change[T any](h *hook, p point, call func() (T, nvml.Return), created func(T, *point)) (T, nvml.Return) {
	var none T

	switch h.decideAt(p) {
	case fail:
		return none, nvml.ERROR_UNKNOWN
	case die:
		return none, nvml.ERROR_UNINITIALIZED
	}

	value, ret := call()

	p.After = true
	if ret != nvml.SUCCESS {
		p.Error = ret.Error()
	} else if created != nil {
		created(value, &p)
	}

	if h.decideAt(p) == die {
		return none, nvml.ERROR_UNINITIALIZED
	}

	return value, ret
}

func (d hookedDevice) GetGpuInstances(profile uint32, capacity int) ([]nvmlsource.GPUInstance, nvml.Return) {
	list, ret := read(d.hook, point{Kind: listGIs, GPU: d.index, Profile: profile},
		func() ([]nvmlsource.GPUInstance, nvml.Return) {
			return d.MutableDevice.GetGpuInstances(profile, capacity)
		})
	for i := range list {
		list[i] = d.instance(list[i].(nvmlsource.MutableInstance))
	}

	return list, ret
}

func (d hookedDevice) instance(i nvmlsource.MutableInstance) hookedInstance {
	info, _ := i.GetInfo() // an id of 0 for one that is gone already
	return hookedInstance{i, d, info.ID}
}

func (d hookedDevice) GetMigDeviceHandleByIndex(index int) (nvmlsource.MIGDevice, nvml.Return) {
	return read(d.hook, point{Kind: "mig-device", GPU: d.index}, func() (nvmlsource.MIGDevice, nvml.Return) {
		return d.MutableDevice.GetMigDeviceHandleByIndex(index)
	})
}

func (d hookedDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return read(d.hook, point{Kind: "processes", GPU: d.index}, d.MutableDevice.GetComputeRunningProcesses)
}

func (d hookedDevice) CreateGpuInstanceWithPlacement(id uint32,
	at nvml.GpuInstancePlacement) (nvmlsource.MutableInstance, nvml.Return) {
	made, ret := change(d.hook, point{
		Kind: createGI, GPU: d.index, Profile: id, Start: int(at.Start), Size: int(at.Size),
	}, func() (nvmlsource.MutableInstance, nvml.Return) {
		i, ret := d.MutableDevice.CreateGpuInstanceWithPlacement(id, at)
		if ret != nvml.SUCCESS {
			return nil, ret
		}

		return d.instance(i), ret
	}, func(i nvmlsource.MutableInstance, p *point) { p.GI = i.(hookedInstance).id })

	return made, ret
}

type hookedInstance struct {
	nvmlsource.MutableInstance
	device hookedDevice
	id     uint32
}

func (i hookedInstance) at(kind string) point {
	return point{Kind: kind, GPU: i.device.index, GI: i.id}
}

func (i hookedInstance) GetInfo() (nvmlsource.GPUInstanceInfo, nvml.Return) {
	return read(i.device.hook, i.at("info"), i.MutableInstance.GetInfo)
}

func (i hookedInstance) GetComputeInstances() ([]nvmlsource.ComputeInstanceInfo, nvml.Return) {
	return read(i.device.hook, i.at(listCIs), i.MutableInstance.GetComputeInstances)
}

func (i hookedInstance) CreateComputeInstanceWithPlacement(id uint32,
	at nvml.ComputeInstancePlacement) (nvmlsource.ComputeInstance, nvml.Return) {
	p := i.at(createCI)
	p.Start, p.Size = int(at.Start), int(at.Size)

	return change(i.device.hook, p, func() (nvmlsource.ComputeInstance, nvml.Return) {
		c, ret := i.MutableInstance.CreateComputeInstanceWithPlacement(id, at)
		if ret != nvml.SUCCESS {
			return nil, ret
		}

		info, _ := c.GetInfo()

		return hookedCompute{c, i, info.ID}, ret
	}, func(c nvmlsource.ComputeInstance, p *point) { p.CI = c.(hookedCompute).id })
}

func (i hookedInstance) Destroy() nvml.Return {
	_, ret := change(i.device.hook, i.at(destroyGI), func() (bool, nvml.Return) {
		return true, i.MutableInstance.Destroy()
	}, nil)

	return ret
}

type hookedCompute struct {
	nvmlsource.ComputeInstance
	instance hookedInstance
	id       uint32
}

func (c hookedCompute) Destroy() nvml.Return {
	p := c.instance.at(destroyCI)
	p.CI = c.id
	_, ret := change(c.instance.device.hook, p, func() (bool, nvml.Return) { return true, c.ComputeInstance.Destroy() },
		nil)

	return ret
}
