package web

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func stateOfActivity(g *gpu.GPU) stateActivity {
	view := stateActivity{
		Activity:         finiteActivity(g.Activity),
		Source:           g.ActivitySource,
		UtilizationRatio: finite(g.Readings.Utilization),
		MemoryCopyRatio:  finite(g.Readings.MemoryCopy),
	}
	if g.ActivitySource != gpu.ActivityUnknown {
		view.Rollup = gpu.Some(g.ActivityRollup)
	}
	return view
}

func finiteActivity(a gpu.Activity) gpu.Activity {
	for _, ratio := range a.All() {
		*ratio = finite(*ratio)
	}
	return a
}

func finiteMedia(m gpu.Media) gpu.Media {
	return gpu.Media{Encoder: finite(m.Encoder), Decoder: finite(m.Decoder), JPEG: finite(m.JPEG), OFA: finite(m.OFA)}
}

func stateOfPower(g *gpu.GPU) statePower {
	return statePower{
		Watts:                   finite(g.Readings.PowerWatts),
		LimitWatts:              finite(g.Readings.PowerLimitWatts),
		IdleWatts:               finite(g.Power.IdleWatts),
		UnallocatedWatts:        finite(g.Power.UnallocatedWatts),
		EnergyJoules:            finite(g.Readings.EnergyJoules),
		EnergyUnallocatedJoules: total(g.Totals.EnergyUnallocatedJoules),
		EstimateMethod:          g.Power.Method,
	}
}

func stateOfClocks(c gpu.Clocks) stateClocks {
	return stateClocks{
		SMHertz:       finite(c.SM),
		MemoryHertz:   finite(c.Memory),
		GraphicsHertz: finite(c.Graphics),
		VideoHertz:    finite(c.Video),
	}
}

func stateOfClockEvent(r *gpu.ReasonSeconds) stateClockEvent {
	return stateClockEvent{Reason: r.Reason, Active: r.Active, Seconds: finite(gpu.Some(r.Seconds.Value))}
}

func stateOfPCIe(g *gpu.GPU) statePCIe {
	p := &g.Readings.PCIe
	return statePCIe{
		ReceiveBytes:   total(g.Totals.PCIeReceive),
		TransmitBytes:  total(g.Totals.PCIeTransmit),
		ReceiveRate:    finite(g.Rates.PCIeReceive),
		TransmitRate:   finite(g.Rates.PCIeTransmit),
		Replays:        p.Replays,
		LinkWidth:      p.LinkWidth,
		LinkGeneration: p.LinkGeneration,
	}
}

func stateOfNVLink(g *gpu.GPU) stateNVLink {
	return stateNVLink{
		ReceiveBytes:  total(g.Totals.NVLinkReceive),
		TransmitBytes: total(g.Totals.NVLinkTransmit),
		ReceiveRate:   finite(g.Rates.NVLinkReceive),
		TransmitRate:  finite(g.Rates.NVLinkTransmit),
		Errors:        g.Readings.NVLink.Errors,
	}
}

func stateOfXIDs(g *gpu.GPU) *stateXIDs {
	if g.Totals.XIDs.Since.IsZero() {
		return nil
	}
	return &stateXIDs{Total: uint64(g.Totals.XIDs.Value), ByXID: each(g.Totals.XIDErrors, stateOfXID)}
}
