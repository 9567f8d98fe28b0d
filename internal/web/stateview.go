package web

import (
	"math"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// stateOf is the Snapshot in the form of /api/v1/node.
func stateOf(snap *gpu.Snapshot) stateNode {
	driver, _ := snap.Driver.Get()
	return stateNode{
		APIVersion: "mig-exporter/v1",
		Generation: snap.Generation,
		Time:       snap.Time.UTC(),
		Node: stateHost{
			Hostname:          snap.Hostname,
			DriverVersion:     driver.Version,
			NVMLVersion:       driver.NVML,
			CUDAVersion:       driver.CUDA,
			Sources:           each(snap.Sources, stateOfSource),
			UnmatchedDevices:  each(snap.Unmatched, stateOfUnmatched),
			HoldersIncomplete: snap.HoldersIncomplete,
			HungCalls:         snap.HungCalls,
		},
		GPUs: each(snap.GPUs, stateOfGPU),
	}
}

// each maps a list to one that is never nil, so that JSON has [] and not null.
func each[T, V any](list []T, view func(*T) V) []V {
	views := make([]V, 0, len(list))
	for i := range list {
		views = append(views, view(&list[i]))
	}
	return views
}

func stateOfSource(s *gpu.SourceState) stateSource {
	view := stateSource{Name: s.Name, Up: s.Up, Stale: s.Stale, LastSuccess: utc(s.LastSuccess)}
	if s.Err != nil {
		view.Error = s.Err.Error()
	}
	return view
}

func stateOfUnmatched(a *gpu.Assignment) stateUnmatched {
	return stateUnmatched{
		ID:        shortText(a.ID),
		Resource:  shortText(a.Holder.Resource),
		Namespace: a.Holder.Namespace,
		Pod:       a.Holder.Pod,
		Container: a.Holder.Name,
	}
}

func stateOfGPU(g *gpu.GPU) stateGPU {
	r := &g.Readings
	return stateGPU{
		Index:            g.Index,
		UUID:             g.UUID,
		Name:             g.Name,
		Up:               g.Up,
		LastRead:         utc(g.LastRead),
		Architecture:     g.Architecture,
		PCIBusID:         g.PCIBusID,
		Minor:            g.Minor,
		Serial:           g.Serial,
		VBIOS:            g.VBIOS,
		SMs:              g.SMs,
		MIGMode:          stateMode{Current: modeName(g.MIG.Enabled), Pending: modeName(g.MIG.Pending)},
		LayoutGeneration: g.MIG.LayoutGeneration,
		LayoutChanges:    uint64(g.Totals.LayoutChanges.Value),
		Memory:           r.Memory,
		Power:            stateOfPower(g),
		Activity:         stateOfActivity(g),
		Temperature:      stateTemperature{GPUCelsius: finite(r.TemperatureCelsius), MemoryCelsius: finite(r.MemoryCelsius)},
		Clocks:           stateOfClocks(r.ClockHertz),
		ClockEvents:      each(g.Totals.ClockEvents, stateOfClockEvent),
		PerformanceState: r.PerformanceState,
		Fans:             r.Fans,
		Media:            finiteMedia(r.Media),
		PCIe:             stateOfPCIe(g),
		NVLink:           stateOfNVLink(g),
		ECC:              r.ECC,
		RemappedRows:     r.RemappedRows,
		RecoveryAction:   r.RecoveryAction,
		ExclusiveCompute: r.ExclusiveComputeMode,
		Processes:        count(r.Processes),
		XIDs:             stateOfXIDs(g),
		Capacity:         stateOfCapacity(g.Capacity),
		Profiles:         g.Profiles,
		Allocated:        g.Allocated,
		ConfirmedFree:    g.ConfirmedFree,
		Holders:          each(g.Holders, stateOfHolder),
		Jobs:             g.Jobs,
		Containers:       each(g.Containers, stateOfContainer),
		Errors:           each(g.Errors, stateOfError),
		ReadErrors:       each(g.Totals.ReadErrors, stateOfErrorCount),
		GPUInstances:     each(g.Instances, stateOfInstance),
	}
}

func stateOfInstance(i *gpu.GPUInstance) stateInstance {
	return stateInstance{
		ID:                   i.ID,
		Generation:           i.Generation,
		Profile:              i.Profile,
		ProfileID:            i.ProfileID,
		Placement:            i.Placement,
		ComputeSlices:        i.ComputeSlices,
		MemorySlices:         i.MemorySlices,
		SMs:                  i.SMs,
		Up:                   i.Up,
		LastRead:             utc(i.LastRead),
		Memory:               i.Memory,
		Activity:             finiteActivity(i.Activity),
		Media:                finiteMedia(i.Media),
		PowerEstimateWatts:   finite(i.PowerWatts),
		EnergyEstimateJoules: total(i.EnergyJoules),
		Processes:            i.Processes,
		XIDErrors:            each(i.XIDErrors, stateOfXID),
		Allocated:            i.Allocated,
		ConfirmedFree:        i.ConfirmedFree,
		Holders:              each(i.Holders, stateOfHolder),
		Jobs:                 i.Jobs,
		Errors:               each(i.Errors, stateOfError),
		ComputeInstances:     each(i.Computes, stateOfCompute),
	}
}

func stateOfCompute(c *gpu.ComputeInstance) stateCompute {
	return stateCompute{
		ID:            c.ID,
		Generation:    c.Generation,
		UUID:          c.UUID,
		Profile:       c.Profile,
		Placement:     c.Placement,
		ComputeSlices: c.ComputeSlices,
		SMs:           c.SMs,
		Up:            c.Up,
		Activity:      finiteActivity(c.Activity),
		Processes:     c.Processes,
		Allocated:     c.Allocated,
		ConfirmedFree: c.ConfirmedFree,
		Holders:       each(c.Holders, stateOfHolder),
		Errors:        each(c.Errors, stateOfError),
	}
}

func stateOfXID(x *gpu.XIDCount) stateXID {
	return stateXID{XID: x.XID, Count: uint64(x.Value), Last: utc(x.Last)}
}

func stateOfCapacity(capacity gpu.Opt[gpu.Capacity]) *stateCapacity {
	c, ok := capacity.Get()
	if !ok {
		return nil
	}
	return &stateCapacity{ComputeSlices: c.Compute, MemorySlices: c.Memory, Profiles: append([]gpu.ProfileCapacity{}, c.Profiles...)}
}

func stateOfHolder(h *gpu.Holder) stateHolder {
	view := stateHolder{
		Namespace: h.Namespace,
		Pod:       h.Pod,
		PodUID:    h.PodUID,
		Container: h.Name,
		Workload:  h.Workload,
		Resource:  h.Resource,
		Sharing:   h.Sharing,
		Replica:   h.Replica,
	}
	if h.Unconfirmed != "" {
		view.Confirmed, view.UnconfirmedReason = gpu.Some(false), h.Unconfirmed
	}
	for _, l := range h.Labels {
		if view.Labels == nil {
			view.Labels = make(map[string]string, len(h.Labels))
		}
		view.Labels[l.Name] = l.Value
	}
	return view
}

func stateOfContainer(c *gpu.ContainerUse) stateContainer {
	return stateContainer{
		Namespace:            c.Namespace,
		Pod:                  c.Pod,
		Container:            c.Name,
		Job:                  c.Job,
		GPUInstance:          c.Instance,
		ComputeInstance:      c.Compute,
		Sharing:              c.Sharing,
		MemoryUsedBytes:      c.MemoryUsed,
		PowerEstimateWatts:   finite(c.PowerWatts),
		EnergyEstimateJoules: total(c.EnergyJoules),
	}
}

func stateOfError(e *gpu.ReadError) stateError {
	view := stateError{Reading: e.Reading, Reason: e.Reason()}
	if e.Err != nil {
		view.Message = e.Err.Error()
	}
	return view
}

func stateOfErrorCount(e *gpu.ErrorCount) stateErrorCount {
	return stateErrorCount{Reading: e.Reading, Reason: e.Reason, Count: uint64(e.Value)}
}

func modeName(enabled gpu.Opt[bool]) string {
	on, ok := enabled.Get()
	switch {
	case !ok:
		return ""
	case on:
		return "enabled"
	default:
		return "disabled"
	}
}

// finite drops what JSON has no form for; a reading that is not a number is no reading.
func finite(v gpu.Opt[float64]) gpu.Opt[float64] {
	if f, ok := v.Get(); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		return gpu.None[float64]()
	}
	return v
}

// total is a counter's value.
func total(c gpu.Opt[gpu.Counter]) gpu.Opt[float64] {
	counter, ok := c.Get()
	if !ok {
		return gpu.None[float64]()
	}
	return finite(gpu.Some(counter.Value))
}

func count[T any](list gpu.Opt[[]T]) gpu.Opt[int] {
	l, ok := list.Get()
	if !ok {
		return gpu.None[int]()
	}
	return gpu.Some(len(l))
}

// utc keeps the zero time zero, which JSON leaves out.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}
