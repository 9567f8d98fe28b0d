package nodedoc

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// New returns the document of a Snapshot. Treat it as read-only: it shares lists with the Snapshot,
// which is immutable.
func New(snap *gpu.Snapshot) Document {
	driver, _ := snap.Driver.Get()

	detail := snap.Processes
	if !detail.ListsProcesses() {
		detail = ""
	}

	return Document{
		APIVersion: "mig-exporter/v1",
		Generation: snap.Generation,
		Time:       snap.Time.UTC(),
		Node: Host{
			Hostname:          snap.Hostname,
			DriverVersion:     driver.Version,
			NVMLVersion:       driver.NVML,
			CUDAVersion:       driver.CUDA,
			Sources:           each(snap.Sources, NewSource),
			UnmatchedDevices:  each(snap.Unmatched, newUnmatched),
			HoldersIncomplete: snap.HoldersIncomplete,
			GPUsUnread:        slices.Clone(snap.Unread),
			GPUsUnknown:       snap.WhyUnknown(),
			ProcessDetail:     detail,
			HungCalls:         snap.HungCalls,
			ReadEvery:         newReadEvery(&snap.Pace),
		},
		GPUs: each(snap.GPUs, func(g *gpu.GPU) GPU { return newGPU(g, detail) }),
	}
}

func newReadEvery(p *gpu.Pace) *ReadEvery {
	if p.Fast.Configured == 0 {
		return nil
	}

	return &ReadEvery{
		FastSeconds: p.Fast.Now.Seconds(), FastConfiguredSeconds: p.Fast.Configured.Seconds(),
		SlowSeconds: p.Slow.Now.Seconds(), SlowConfiguredSeconds: p.Slow.Configured.Seconds(),
	}
}

// each applies convert to each element of a list. The result is never nil, so that JSON has [] and
// not null.
func each[T, V any](list []T, convert func(*T) V) []V {
	converted := make([]V, 0, len(list))
	for i := range list {
		converted = append(converted, convert(&list[i]))
	}

	return converted
}

// NewSource returns the document of a source.
func NewSource(s *gpu.SourceState) SourceState {
	view := SourceState{
		Name:          s.Name,
		Up:            s.Up,
		Stale:         s.Stale,
		NotConfigured: errors.Is(s.Err, gpu.ErrNotConfigured),
		LastSuccess:   utc(s.LastSuccess),
	}
	if s.Err != nil {
		view.Error = s.Err.Error()
	}

	return view
}

func newUnmatched(a *gpu.Assignment) Unmatched {
	return Unmatched{
		ID:        ShortText(a.ID),
		Resource:  ShortText(a.Holder.Resource),
		Namespace: a.Holder.Namespace,
		Pod:       a.Holder.Pod,
		Container: a.Holder.Name,
	}
}

func newRelease(released gpu.Opt[gpu.Release]) *Release {
	r, ok := released.Get()
	if !ok {
		return nil
	}

	return &Release{Since: utc(r.Since), By: r.Cause, Unbound: r.Unbound}
}

func newGPU(g *gpu.GPU, detail gpu.ProcessDetail) GPU {
	r := &g.Readings

	return GPU{
		Index:            g.Index,
		UUID:             g.UUID,
		Name:             g.Name,
		Up:               g.Up,
		Released:         newRelease(g.Released),
		LastRead:         utc(g.LastRead),
		Architecture:     g.Architecture,
		PCIBusID:         g.PCIBusID,
		Minor:            g.Minor,
		Serial:           g.Serial,
		VBIOS:            g.VBIOS,
		SMs:              g.SMs,
		MIGMode:          Mode{Current: ModeName(g.MIG.Enabled), Pending: ModeName(g.MIG.Pending)},
		LayoutGeneration: g.MIG.LayoutGeneration,
		LayoutChanges:    uint64(g.Totals.LayoutChanges.Value),
		Memory:           r.Memory,
		Power:            newPower(g),
		Activity:         newActivity(g),
		Temperature:      newTemperature(r),
		Clocks:           newClocks(r.ClockHertz),
		ClockEvents:      each(g.Totals.ClockEvents, newClockEvent),
		PerformanceState: r.PerformanceState,
		Fans:             r.Fans,
		Media:            finiteMedia(r.Media),
		PCIe:             newPCIe(g),
		NVLink:           newNVLink(g),
		Fabric:           r.Fabric,
		ECC:              r.ECC,
		RemappedRows:     r.RemappedRows,
		RecoveryAction:   r.RecoveryAction,
		ExclusiveCompute: r.ExclusiveComputeMode,
		PersistenceMode:  r.PersistenceMode,
		Use:              newUse(&g.Device, count(r.Processes), g.Jobs, g.JobsUnknown),
		XIDs:             newXIDs(g),

		UnavailableEvents:    eventCount(g.Totals.Unavailable),
		RecoveryActionEvents: eventCount(g.Totals.RecoveryActions),

		Capacity:     newCapacity(g.Capacity),
		Profiles:     g.Profiles,
		Containers:   each(g.Containers, newContainer),
		ProcessList:  ListProcesses(g, detail),
		Errors:       each(g.Errors, newError),
		ReadErrors:   each(g.Totals.ReadErrors, newErrorCount),
		GPUInstances: each(g.Instances, newInstance),
	}
}

func newTemperature(r *gpu.Readings) Temperature {
	return Temperature{
		GPUCelsius:    Finite(r.TemperatureCelsius),
		MemoryCelsius: Finite(r.MemoryCelsius),
		MarginCelsius: Finite(r.TemperatureMarginCelsius),
	}
}

func newInstance(i *gpu.GPUInstance) Instance {
	return Instance{
		ID:            i.ID,
		Generation:    i.Generation,
		Profile:       i.Profile,
		ProfileID:     i.ProfileID,
		Placement:     i.Placement,
		ComputeSlices: i.ComputeSlices,
		MemorySlices:  i.MemorySlices,
		SMs:           i.SMs,

		Up:       i.Up,
		LastRead: utc(i.LastRead),

		Memory:               i.Memory,
		Activity:             finiteActivity(i.Activity),
		Media:                finiteMedia(i.Media),
		PCIeReceiveRate:      Finite(i.Rates.PCIeReceive),
		PCIeTransmitRate:     Finite(i.Rates.PCIeTransmit),
		PowerEstimateWatts:   Finite(i.PowerWatts),
		EnergyEstimateJoules: total(i.EnergyJoules),

		Use:                    newUse(&i.Device, i.Processes, i.Jobs, i.JobsUnknown),
		XIDErrors:              each(i.XIDErrors, newXID),
		Errors:                 each(i.Errors, newError),
		ComputeInstances:       each(i.ComputeInstances, newCompute),
		ComputeInstancesHidden: i.ComputeInstancesHidden,
	}
}

func newCompute(c *gpu.ComputeInstance) ComputeInstance {
	return ComputeInstance{
		ID:            c.ID,
		Generation:    c.Generation,
		UUID:          c.UUID,
		Profile:       c.Profile,
		Placement:     c.Placement,
		ComputeSlices: c.ComputeSlices,
		SMs:           c.SMs,
		Up:            c.Up,
		Activity:      finiteActivity(c.Activity),
		ECC:           c.ECC,
		Use:           newUse(&c.Device, c.Processes, nil, false),
		Errors:        each(c.Errors, newError),
	}
}

func newUse(d *gpu.Device, processes gpu.Opt[int], jobs []string, jobsUnknown bool) Use {
	return Use{
		Processes:     processes,
		Allocated:     d.Allocated,
		ConfirmedFree: d.ConfirmedFree,
		Holders:       each(d.Holders, newHolder),
		Jobs:          jobs,
		JobsUnknown:   jobsUnknown,
	}
}

func newXID(x *gpu.XIDCount) XID {
	return XID{XID: x.XID, Count: uint64(x.Value), Last: utc(x.Last)}
}

func newCapacity(capacity gpu.Opt[gpu.Capacity]) *Capacity {
	c, ok := capacity.Get()
	if !ok {
		return nil
	}

	return &Capacity{ComputeSlices: c.Compute, MemorySlices: c.Memory,
		Profiles: append([]gpu.ProfileCapacity{}, c.Profiles...)}
}

func newHolder(h *gpu.Holder) Holder {
	view := Holder{
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
		view.Confirmed = gpu.Some(false)
		view.UnconfirmedReason = h.Unconfirmed
	}

	for _, l := range h.Labels {
		if view.Labels == nil {
			view.Labels = make(map[string]string, len(h.Labels))
		}

		view.Labels[l.Name] = l.Value
	}

	return view
}

func newContainer(c *gpu.ContainerUse) Container {
	return Container{
		Namespace:            c.Namespace,
		Pod:                  c.Pod,
		Container:            c.Name,
		Job:                  c.Job,
		GPUInstance:          c.Instance,
		ComputeInstance:      c.Compute,
		Sharing:              c.Sharing,
		MemoryUsedBytes:      c.MemoryUsed,
		PowerEstimateWatts:   Finite(c.PowerWatts),
		EnergyEstimateJoules: total(c.EnergyJoules),
	}
}

func newError(e *gpu.ReadError) Error {
	view := Error{Reading: e.Reading, Reason: e.Reason()}
	if e.Err != nil {
		view.Message = e.Err.Error()
	}

	return view
}

func newErrorCount(e *gpu.ErrorCount) ErrorCount {
	return ErrorCount{Reading: e.Reading, Reason: e.Reason, Count: uint64(e.Value)}
}

// ModeName returns "enabled", "disabled", or "" if the mode is unknown.
func ModeName(enabled gpu.Opt[bool]) string {
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

// Finite returns v, or an absent value if v is infinite or not a number, which JSON cannot express.
func Finite(v gpu.Opt[float64]) gpu.Opt[float64] {
	if f, ok := v.Get(); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		return gpu.None[float64]()
	}

	return v
}

// total returns the value of a counter.
func total(c gpu.Opt[gpu.Counter]) gpu.Opt[float64] {
	counter, ok := c.Get()
	if !ok {
		return gpu.None[float64]()
	}

	return Finite(gpu.Some(counter.Value))
}

// count returns the length of a list; absent if the list is.
func count[T any](list gpu.Opt[[]T]) gpu.Opt[int] {
	l, ok := list.Get()
	if !ok {
		return gpu.None[int]()
	}

	return gpu.Some(len(l))
}

// utc returns t in UTC. It keeps a zero time zero, so that JSON leaves it out.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}

	return t.UTC()
}

// MaxText is how many characters we show of a text of any length that other programs write, such as
// a device id.
const MaxText = 128

// ShortText returns at most MaxText characters of a text, and "…" if it is longer. Bytes that are
// not UTF-8 become U+FFFD.
func ShortText(s string) string {
	n := 0
	for i := range s {
		if n == MaxText {
			s = s[:i] + "…"
			break
		}

		n++
	}

	return strings.ToValidUTF8(s, "\uFFFD")
}
