package gpu

import "time"

// Activity is how busy a device was, by its profiling counters, over the window between their last
// two readings. Each ratio is relative to the device itself, 0-1; the hardware reports more than 1
// for mixed profiles of A100, which is passed on.
type Activity struct {
	// time with the graphics or compute engine active
	GraphicsEngine Opt[float64] `json:"graphicsEngineRatio,omitzero"`
	// time with at least one warp on an SM, mean over the SMs
	SM Opt[float64] `json:"smRatio,omitzero"`
	// warps resident of those possible, mean over the SMs
	SMOccupancy Opt[float64] `json:"smOccupancyRatio,omitzero"`
	Tensor      Opt[float64] `json:"tensorRatio,omitzero"`
	FP64        Opt[float64] `json:"fp64Ratio,omitzero"`
	FP32        Opt[float64] `json:"fp32Ratio,omitzero"`
	FP16        Opt[float64] `json:"fp16Ratio,omitzero"`
	// time in which device memory moved data; never of a compute instance
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

// Media is how busy the media engines of a device are, each the mean over its engines of the kind,
// 0-1.
type Media struct {
	Encoder Opt[float64] `json:"encoderRatio,omitzero"`
	Decoder Opt[float64] `json:"decoderRatio,omitzero"`
	JPEG    Opt[float64] `json:"jpegRatio,omitzero"`
	OFA     Opt[float64] `json:"ofaRatio,omitzero"` // the optical flow accelerator
}

// LinkRates are a GPU's traffic over the same window as its Activity, in bytes per second, if its
// profiling counters report it.
type LinkRates struct {
	PCIeReceive, PCIeTransmit, NVLinkReceive, NVLinkTransmit Opt[float64]
}

// ActivitySource names where Activity comes from.
type ActivitySource string

// The sources. ActivityUnknown: there is none, or none that can profile this GPU.
const (
	ActivityUnknown ActivitySource = ""
	ActivityGPM     ActivitySource = "gpm"
	ActivityDCGM    ActivitySource = "dcgm"
)

// Profiling is the activity of one GPU as a source other than NVML reports it. It must not be
// modified once returned.
type Profiling struct {
	// LayoutGeneration is that of the Snapshot that the activity was read for; it is not valid for
	// another layout.
	LayoutGeneration uint64
	Source           ActivitySource
	GPU              Activity
	Rates            LinkRates
	Instances        map[InstanceID]Activity
	ComputeInstances map[[2]uint32]Activity // by GPU instance and compute instance id
	Invalid          int                    // values that were no numbers, dropped
	Time             time.Time              // of the newest value; zero if there is none
	// Paused is set if there are no ratios because profiling is paused, as while another program
	// uses the counters.
	Paused bool
}
