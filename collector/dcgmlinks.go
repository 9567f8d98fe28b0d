package collector

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func dcgmLinkFields() []dcgmField {
	rate := func(name string, id int, help string, read func(*gpu.LinkRates) gpu.Opt[float64]) dcgmField {
		f := dcgmField{
			name:    name,
			id:      id,
			unit:    "B/s",
			help:    help,
			source:  fromProfiling,
			gpuOnly: true,
			value:   wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] { return read(&g.Rates) }),
		}
		if help != "" {
			f.byDefault = CounterGauge
		}

		return f
	}

	return []dcgmField{
		{
			name:      "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
			id:        202,
			unit:      "1",
			byDefault: CounterCounter,
			help:      "Retries on the PCIe link.",
			source:    fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(g.Readings.PCIe.Replays, 1)
			}),
		},
		{
			name:   "DCGM_FI_DEV_PCIE_LINK_GEN",
			id:     237,
			unit:   "1",
			source: fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(g.Readings.PCIe.LinkGeneration, 1)
			}),
		},
		{
			name:   "DCGM_FI_DEV_PCIE_LINK_WIDTH",
			id:     238,
			unit:   "1",
			source: fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(g.Readings.PCIe.LinkWidth, 1)
			}),
		},
		rate(
			"DCGM_FI_PROF_PCIE_TX_BYTES",
			1009,
			"Data and protocol sent over PCIe (in bytes per second).",
			func(r *gpu.LinkRates) gpu.Opt[float64] { return r.PCIeTransmit },
		),
		rate(
			"DCGM_FI_PROF_PCIE_RX_BYTES",
			1010,
			"Data and protocol received over PCIe (in bytes per second).",
			func(r *gpu.LinkRates) gpu.Opt[float64] { return r.PCIeReceive },
		),
		rate(
			"DCGM_FI_PROF_NVLINK_TX_BYTES",
			1011,
			"",
			func(r *gpu.LinkRates) gpu.Opt[float64] { return r.NVLinkTransmit },
		),
		rate(
			"DCGM_FI_PROF_NVLINK_RX_BYTES",
			1012,
			"",
			func(r *gpu.LinkRates) gpu.Opt[float64] { return r.NVLinkReceive },
		),
		// DCGM divides KiB/s by 1000 and calls that MB/s. dcgm-exporter's list called the rate a
		// counter until 4.8.3.
		{
			name:      "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
			id:        449,
			unit:      "MB/s",
			byDefault: CounterCounter,
			help:      "NVLink traffic of all links, both directions (in MB/s).",
			source:    fromProfiling,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(nvlinkRate(g), 1.0/1024/1000)
			}),
		},
		nvlinkErrors("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 409, "crc_flit"),
		nvlinkErrors("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 419, "crc_data"),
		nvlinkErrors("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 429, "replay"),
		nvlinkErrors("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 439, "recovery"),
	}
}

// nvlinkRate returns the sum of both directions in bytes per second.
func nvlinkRate(g *gpu.GPU) gpu.Opt[float64] {
	sent, sentOK := g.Rates.NVLinkTransmit.Get()

	received, receivedOK := g.Rates.NVLinkReceive.Get()
	if !sentOK || !receivedOK {
		return gpu.None[float64]()
	}

	return gpu.Some(sent + received)
}

func nvlinkErrors(name string, id int, kind string) dcgmField {
	return dcgmField{
		name:   name,
		id:     id,
		unit:   "1",
		source: fromNVML,
		value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
			errs := g.Readings.NVLink.Errors

			i := slices.IndexFunc(errs, func(e gpu.NVLinkErrors) bool { return e.Kind == kind })
			if i < 0 {
				return gpu.None[float64]()
			}

			return gpu.Some(float64(errs[i].Count))
		}),
	}
}
