package nodedoc

import (
	"cmp"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func newActivity(g *gpu.GPU) Activity {
	view := Activity{
		Activity:         finiteActivity(g.Activity),
		Source:           g.ActivitySource,
		UtilizationRatio: Finite(g.Readings.Utilization),
		MemoryCopyRatio:  Finite(g.Readings.MemoryCopy),
	}
	if g.ActivitySource != gpu.ActivityUnknown {
		view.Rollup = gpu.Some(g.ActivityRollup)
	}

	return view
}

// WhyNoActivity says why no SM activity is known of a GPU that answers, to follow "SM activity is ".
// source is where its activity comes from; dcgm is the state of DCGM, absent if none is configured.
func WhyNoActivity(source gpu.ActivitySource, dcgm gpu.Opt[SourceState]) string {
	if source != gpu.ActivityUnknown {
		return "not known yet: it takes two readings, and none while another program profiles the GPU"
	}

	d, isConfigured := dcgm.Get()

	switch {
	case !isConfigured:
		return "not known: this GPU reports it by DCGM alone, and no DCGM is configured (--dcgm.address)"
	case !d.Up:
		return "not known: " + cmp.Or(d.Error, d.Name+" does not answer")
	default:
		return "not known: DCGM cannot profile this GPU"
	}
}

// finiteActivity returns a without ratios that JSON cannot express.
func finiteActivity(a gpu.Activity) gpu.Activity {
	for _, ratio := range a.All() {
		*ratio = Finite(*ratio)
	}

	return a
}

func finiteMedia(m gpu.Media) gpu.Media {
	return gpu.Media{
		Encoder: Finite(m.Encoder),
		Decoder: Finite(m.Decoder),
		JPEG:    Finite(m.JPEG),
		OFA:     Finite(m.OFA),
	}
}

func newPower(g *gpu.GPU) Power {
	return Power{
		Watts:                   Finite(g.Readings.PowerWatts),
		LimitWatts:              Finite(g.Readings.PowerLimitWatts),
		IdleWatts:               Finite(g.Power.IdleWatts),
		UnallocatedWatts:        Finite(g.Power.UnallocatedWatts),
		EnergyJoules:            Finite(g.Readings.EnergyJoules),
		EnergyUnallocatedJoules: total(g.Totals.EnergyUnallocatedJoules),
		EstimateMethod:          g.Power.Method,
		FromEnergy:              g.Power.FromEnergy,
	}
}

func newClocks(c gpu.Clocks) Clocks {
	return Clocks{
		SMHertz:       Finite(c.SM),
		MemoryHertz:   Finite(c.Memory),
		GraphicsHertz: Finite(c.Graphics),
		VideoHertz:    Finite(c.Video),
	}
}

func newClockEvent(r *gpu.ReasonSeconds) ClockEvent {
	return ClockEvent{
		Reason:  r.Reason,
		Active:  r.Active,
		Seconds: Finite(gpu.Some(r.Seconds.Value)),
	}
}

// ClockEventText returns what limits the clocks by a clock event reason: "the power limit".
func ClockEventText(reason string) string {
	switch reason {
	case "gpu_idle":
		return "idleness"
	case "applications_clocks_setting":
		return "clocks that an operator has set"
	case "sw_power_cap":
		return "the power limit"
	case "hw_slowdown":
		return "hardware: heat or power"
	case "sync_boost":
		return "other GPUs of its sync boost group"
	case "sw_thermal_slowdown":
		return "heat, by the driver"
	case "hw_thermal_slowdown":
		return "heat, by the hardware"
	case "hw_power_brake_slowdown":
		return "the power supply's brake signal"
	case "display_clock_setting":
		return "the display"
	}

	return strings.ReplaceAll(reason, "_", " ")
}

func newPCIe(g *gpu.GPU) PCIe {
	p := &g.Readings.PCIe

	return PCIe{
		ReceiveBytes:   total(g.Totals.PCIeReceive),
		TransmitBytes:  total(g.Totals.PCIeTransmit),
		ReceiveRate:    Finite(g.Rates.PCIeReceive),
		TransmitRate:   Finite(g.Rates.PCIeTransmit),
		Replays:        p.Replays,
		LinkWidth:      p.LinkWidth,
		LinkGeneration: p.LinkGeneration,
	}
}

func newNVLink(g *gpu.GPU) NVLink {
	return NVLink{
		ReceiveBytes:  total(g.Totals.NVLinkReceive),
		TransmitBytes: total(g.Totals.NVLinkTransmit),
		ReceiveRate:   Finite(g.Rates.NVLinkReceive),
		TransmitRate:  Finite(g.Rates.NVLinkTransmit),
		Errors:        g.Readings.NVLink.Errors,
	}
}

// eventCount returns the value of a counter of events.
func eventCount(c gpu.Opt[gpu.Counter]) gpu.Opt[uint64] {
	counter, ok := c.Get()
	if !ok {
		return gpu.None[uint64]()
	}

	return gpu.Some(uint64(counter.Value))
}

func newXIDs(g *gpu.GPU) *XIDs {
	if g.Totals.XIDs.Since.IsZero() {
		return nil
	}

	return &XIDs{Total: uint64(g.Totals.XIDs.Value), ByXID: each(g.Totals.XIDErrors, newXID)}
}
