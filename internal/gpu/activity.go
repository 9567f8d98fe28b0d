package gpu

import "time"

// Activity is how busy a device was between the last two readings of its profiling counters. Each
// ratio is relative to the device itself, 0-1. An A100 with instances of different profiles can
// report more than 1; we pass that on.
type Activity struct {
	// GraphicsEngine is the share of time in which the graphics or compute engine was active.
	GraphicsEngine Opt[float64] `json:"graphicsEngineRatio,omitzero"`
	// SM is the share of time in which an SM had at least one warp, as the mean over the SMs.
	SM Opt[float64] `json:"smRatio,omitzero"`
	// SMOccupancy is the number of resident warps relative to the most that fit, as the mean over
	// the SMs.
	SMOccupancy Opt[float64] `json:"smOccupancyRatio,omitzero"`
	Tensor      Opt[float64] `json:"tensorRatio,omitzero"`
	FP64        Opt[float64] `json:"fp64Ratio,omitzero"`
	FP32        Opt[float64] `json:"fp32Ratio,omitzero"`
	FP16        Opt[float64] `json:"fp16Ratio,omitzero"`
	// DRAM is the share of time in which device memory moved data; always absent for a compute
	// instance.
	DRAM Opt[float64] `json:"dramRatio,omitzero"`
}

// All returns pointers to every ratio, in the order of the fields.
func (a *Activity) All() [8]*Opt[float64] {
	return [8]*Opt[float64]{
		&a.GraphicsEngine,
		&a.SM,
		&a.SMOccupancy,
		&a.Tensor,
		&a.FP64,
		&a.FP32,
		&a.FP16,
		&a.DRAM,
	}
}

// Media is how busy the media engines of a device are, 0-1: for each kind of engine, the mean over
// the device's engines.
type Media struct {
	Encoder Opt[float64] `json:"encoderRatio,omitzero"`
	Decoder Opt[float64] `json:"decoderRatio,omitzero"`
	JPEG    Opt[float64] `json:"jpegRatio,omitzero"`
	OFA     Opt[float64] `json:"ofaRatio,omitzero"` // the optical flow accelerator
}

// LinkRates are a device's traffic in bytes per second, over the same window as its Activity. A
// rate is absent if the profiling counters don't report it.
type LinkRates struct {
	PCIeReceive, PCIeTransmit, NVLinkReceive, NVLinkTransmit Opt[float64]
}

// ActivitySource names where Activity comes from.
type ActivitySource string

// The sources. ActivityUnknown: no source can profile the GPU.
const (
	ActivityUnknown ActivitySource = ""
	ActivityGPM     ActivitySource = "gpm"
	ActivityDCGM    ActivitySource = "dcgm"
)

// Profiling is the activity of one GPU as a source other than NVML reports it. It must not be
// modified once returned.
type Profiling struct {
	// LayoutGeneration is the GPU's layout generation in the Snapshot for which the source read the
	// activity. The activity is not valid for another layout.
	LayoutGeneration uint64
	Source           ActivitySource
	GPU              Activity
	Rates            LinkRates
	Instances        map[InstanceID]Activity
	ComputeInstances map[[2]uint32]Activity // by GPU instance and compute instance id
	Invalid          int                    // how many values were dropped because they were no numbers
	Time             time.Time              // of the newest value; zero if there is none
	// Paused is set if there are no ratios because profiling is paused, for example while another
	// program uses the counters.
	Paused bool
}
