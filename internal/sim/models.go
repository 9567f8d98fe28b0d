package sim

import (
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Architecture is a GPU generation, as far as the driver's behaviour depends on it.
type Architecture string

// The architectures that can be simulated.
const (
	Ampere    Architecture = "Ampere"
	Hopper    Architecture = "Hopper"
	Blackwell Architecture = "Blackwell"
)

// gpuModel has the properties of a model, apart from its MIG geometry: published data sheets and
// what nvidia-smi prints.
type gpuModel struct {
	key      string   // how scenarios call it
	aliases  []string // other ways to call it
	geometry string   // its name in the table of MIG models
	name     string   // as the driver names it
	arch     Architecture

	memoryMiB uint64 // nvmlMemory_v2 total
	// of it the driver's own; drivers before R510 leave it out of the total (40536 of 40960 MiB)
	reservedMiB uint64
	sms         int // of the GPU; the largest MIG profile may have fewer
	coresPerSM  int
	capability  [2]int // CUDA compute capability
	pciDevice   uint32 // device and vendor id
	pciSubsys   uint32
	vbios       string
	idleWatts   float64
	limitWatts  float64
	idleSMMHz   uint32
	maxSMMHz    uint32
	memoryMHz   uint32
	pcieGen     int
	nvlinks     int
	memoryTemp  bool       // reports its memory's temperature
	idleState   int        // performance state without work: only GPUs with several memory clocks leave P0
	idleMemory  idleMemory // what the driver itself uses with MIG on; zero: as of an A100
	noMIGPower  bool       // the driver reports no power while MIG is on

	mig mig.Model // its geometry, out of the table of known models; filled in by findModel
}

// idleMemory is what the driver itself uses of a GPU and of its MIG devices, by their compute
// slices, in MiB. An A100 with two empty 3g.20gb of 5 MiB shows 11.
type idleMemory struct{ gpu, one, two, more uint64 }

// gpuModels lists the models that can be simulated.
func gpuModels() []gpuModel {
	return []gpuModel{
		{
			key:         "A30-24GB",
			aliases:     []string{"A30"},
			geometry:    "A30-24GB",
			name:        "NVIDIA A30",
			arch:        Ampere,
			memoryMiB:   24576,
			reservedMiB: 318,
			sms:         56,
			coresPerSM:  64,
			capability:  [2]int{8, 0},
			pciDevice:   0x20B710DE,
			pciSubsys:   0x153210DE,
			vbios:       "92.00.66.00.04",
			idleWatts:   28,
			limitWatts:  165,
			idleSMMHz:   210,
			maxSMMHz:    1440,
			memoryMHz:   1215,
			pcieGen:     4,
			nvlinks:     4,
			memoryTemp:  true,
		},
		{
			key:         "A100-40GB",
			aliases:     []string{"A100-SXM4-40GB"},
			geometry:    "A100-40GB",
			name:        "NVIDIA A100-SXM4-40GB",
			arch:        Ampere,
			memoryMiB:   40960,
			reservedMiB: 424,
			sms:         108,
			coresPerSM:  64,
			capability:  [2]int{8, 0},
			pciDevice:   0x20B010DE,
			pciSubsys:   0x134F10DE,
			vbios:       "92.00.45.00.03",
			idleWatts:   52,
			limitWatts:  400,
			idleSMMHz:   210,
			maxSMMHz:    1410,
			memoryMHz:   1215,
			pcieGen:     4,
			nvlinks:     12,
			memoryTemp:  true,
		},
		{
			key:         "A100-PCIE-40GB",
			geometry:    "A100-40GB",
			name:        "NVIDIA A100-PCIE-40GB",
			arch:        Ampere,
			memoryMiB:   40960,
			reservedMiB: 424,
			sms:         108,
			coresPerSM:  64,
			capability:  [2]int{8, 0},
			pciDevice:   0x20F110DE,
			pciSubsys:   0x145F10DE,
			vbios:       "92.00.25.00.08",
			idleWatts:   34,
			limitWatts:  250,
			idleSMMHz:   210,
			maxSMMHz:    1410,
			memoryMHz:   1215,
			pcieGen:     4,
			memoryTemp:  true,
		},
		{
			key:         "A100-80GB",
			aliases:     []string{"A100-SXM4-80GB"},
			geometry:    "A100-80GB",
			name:        "NVIDIA A100-SXM4-80GB",
			arch:        Ampere,
			memoryMiB:   81920,
			reservedMiB: 669,
			sms:         108,
			coresPerSM:  64,
			capability:  [2]int{8, 0},
			pciDevice:   0x20B210DE,
			pciSubsys:   0x147F10DE,
			vbios:       "92.00.36.00.02",
			idleWatts:   60,
			limitWatts:  400,
			idleSMMHz:   210,
			maxSMMHz:    1410,
			memoryMHz:   1593,
			pcieGen:     4,
			nvlinks:     12,
			memoryTemp:  true,
		},
		{
			key:         "H100-80GB",
			aliases:     []string{"H100-SXM5-80GB", "H100 80GB HBM3"},
			geometry:    "H100-80GB",
			name:        "NVIDIA H100 80GB HBM3",
			arch:        Hopper,
			memoryMiB:   81559,
			reservedMiB: 551,
			sms:         132,
			coresPerSM:  128,
			capability:  [2]int{9, 0},
			pciDevice:   0x233010DE,
			pciSubsys:   0x16C110DE,
			vbios:       "96.00.74.00.01",
			idleWatts:   70,
			limitWatts:  700,
			idleSMMHz:   345,
			maxSMMHz:    1980,
			memoryMHz:   2619,
			pcieGen:     5,
			nvlinks:     18,
			memoryTemp:  true,
		},
		{
			key:         "H100-94GB",
			aliases:     []string{"H100-NVL", "H100 NVL"},
			geometry:    "H100-94GB",
			name:        "NVIDIA H100 NVL",
			arch:        Hopper,
			memoryMiB:   95830,
			reservedMiB: 464,
			sms:         132,
			coresPerSM:  128,
			capability:  [2]int{9, 0},
			pciDevice:   0x232110DE,
			pciSubsys:   0x183910DE,
			vbios:       "96.00.88.00.11",
			idleWatts:   60,
			limitWatts:  400,
			idleSMMHz:   345,
			maxSMMHz:    1785,
			memoryMHz:   2619,
			pcieGen:     5,
			nvlinks:     12,
			memoryTemp:  true,
		},
		h200(),
		b200(),
		{
			key:         "RTX-PRO-6000",
			aliases:     []string{"RTX PRO 6000", "RTX PRO 6000 Blackwell 96GB"},
			geometry:    "RTX PRO 6000 Blackwell 96GB",
			name:        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
			arch:        Blackwell,
			memoryMiB:   97887,
			reservedMiB: 638,
			sms:         188,
			coresPerSM:  128,
			capability:  [2]int{12, 0},
			pciDevice:   0x2BB510DE,
			pciSubsys:   0x204E10DE,
			vbios:       "98.02.6A.00.03",
			idleWatts:   35,
			limitWatts:  600,
			idleSMMHz:   180,
			maxSMMHz:    2430,
			memoryMHz:   12481,
			pcieGen:     5,
			idleState:   8,
		},
	}
}

// h200 returns the H200.
func h200() gpuModel {
	return gpuModel{
		key:         "H200-141GB",
		aliases:     []string{"H200"},
		geometry:    "H200-141GB",
		name:        "NVIDIA H200",
		arch:        Hopper,
		memoryMiB:   143771,
		reservedMiB: 614,
		sms:         132,
		coresPerSM:  128,
		capability:  [2]int{9, 0},
		pciDevice:   0x233510DE,
		pciSubsys:   0x18BE10DE,
		vbios:       "96.00.99.00.01",
		idleWatts:   75,
		limitWatts:  700,
		idleSMMHz:   345,
		maxSMMHz:    1980,
		memoryMHz:   3201,
		pcieGen:     5,
		nvlinks:     18,
		memoryTemp:  true,
		// MIG devices of 22, 17 and 9 MiB, and 55 of the whole GPU (a capture with driver
		// 590.48.01); which sizes these were is unknown.
		idleMemory: idleMemory{gpu: 7, one: 9, two: 17, more: 22},
	}
}

// b200 returns the B200.
func b200() gpuModel {
	return gpuModel{
		// Published nvidia-smi and CUDA output of HGX B200 systems: memory, idle power of 136 to
		// 145 W, limit, SMs, clocks under load (pytorch/ao PR 4002), device, subsystem, VBIOS. The
		// idle clock and PCIe's generation are unknown: as of an H200.
		key:         "B200-180GB",
		aliases:     []string{"B200"},
		geometry:    "B200-180GB",
		name:        "NVIDIA B200",
		arch:        Blackwell,
		memoryMiB:   183359,
		reservedMiB: 728,
		sms:         148,
		coresPerSM:  128,
		capability:  [2]int{10, 0},
		pciDevice:   0x290110DE,
		pciSubsys:   0x199910DE,
		vbios:       "97.00.88.00.0E",
		idleWatts:   140,
		limitWatts:  1000,
		idleSMMHz:   345,
		maxSMMHz:    1965,
		memoryMHz:   3996,
		pcieGen:     5,
		nvlinks:     18,
		memoryTemp:  true,
		// With MIG on nvidia-smi shows no power, 31 MiB of each empty 2g.45gb, and 107 MiB of a GPU
		// with three of them and a 1g.23gb (gpu-operator issue 2155). How much of the remaining 14
		// is the 1g's, and what larger ones have, is unknown.
		idleMemory: idleMemory{gpu: 1, one: 13, two: 31, more: 31},
		noMIGPower: true,
	}
}

// findModel finds a model by its name in scenarios; case does not matter.
func findModel(name string) (gpuModel, bool) {
	for _, m := range gpuModels() {
		for _, known := range append([]string{m.key}, m.aliases...) {
			if strings.EqualFold(known, name) {
				var ok bool
				m.mig, ok = mig.FindModel(m.geometry)

				return m, ok
			}
		}
	}

	return gpuModel{}, false
}

// joinNames lists the names of items for a message.
func joinNames[T any](items []T, name func(T) string) string {
	var names []string
	for _, item := range items {
		names = append(names, name(item))
	}

	return strings.Join(names, ", ")
}
