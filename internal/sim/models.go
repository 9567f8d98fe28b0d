package sim

import (
	"cmp"
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

// gpuModel has the properties of a model. The figures are from published data sheets and from what
// nvidia-smi prints.
type gpuModel struct {
	gpuChip

	key      string   // its name in scenarios
	aliases  []string // other names in scenarios
	geometry string   // its name in the table of MIG models (mig.FindModel); empty: key
	name     string   // its name in the driver

	memoryMiB uint64 // the total of nvmlMemory_v2
	// reservedMiB is the part of memoryMiB that the driver takes. Drivers before R510 leave it out of
	// the total: 40536 of 40960 MiB.
	reservedMiB uint64
	sms         int    // of the GPU; the largest MIG profile may have fewer
	pciDevice   uint32 // device and vendor id
	pciSubsys   uint32
	vbios       string
	idleWatts   float64
	limitWatts  float64
	maxSMMHz    uint32
	memoryMHz   uint32
	nvlinks     int
	idleState   int        // performance state without work; 0 (P0) unless it has several memory clocks
	idleMemory  idleMemory // zero fields: as of an A100

	noMemoryTemp bool // the driver does not report its memory's temperature
	noMIGPower   bool // the driver reports no power while MIG is on

	mig mig.Model // its MIG geometry; findModel fills it in
}

// gpuChip has the properties that all models with a chip have.
type gpuChip struct {
	arch       Architecture
	coresPerSM int
	capability [2]int // CUDA compute capability
	idleSMMHz  uint32
	pcieGen    int
}

// idleMemory is how much memory in MiB the driver itself uses with MIG on: of the GPU, and of each
// MIG device by its number of compute slices. An A100 uses 1 and 5: with two empty 3g.20gb it shows
// 11.
type idleMemory struct{ gpu, one, two, more uint64 }

// gpuModels lists the models that can be simulated.
func gpuModels() []gpuModel {
	ga100 := gpuChip{Ampere, 64, [2]int{8, 0}, 210, 4}
	gh100 := gpuChip{Hopper, 128, [2]int{9, 0}, 345, 5}
	// The idle clock and the PCIe generation of a B200 are unknown: we take those of an H200.
	gb100 := gpuChip{Blackwell, 128, [2]int{10, 0}, 345, 5}
	gb202 := gpuChip{Blackwell, 128, [2]int{12, 0}, 180, 5}

	return []gpuModel{
		{
			key:         "A30-24GB",
			aliases:     []string{"A30"},
			name:        "NVIDIA A30",
			gpuChip:     ga100,
			memoryMiB:   24576,
			reservedMiB: 318,
			sms:         56,
			pciDevice:   0x20B710DE,
			pciSubsys:   0x153210DE,
			vbios:       "92.00.66.00.04",
			idleWatts:   28,
			limitWatts:  165,
			maxSMMHz:    1440,
			memoryMHz:   1215,
			nvlinks:     4,
		},
		{
			key:         "A100-40GB",
			aliases:     []string{"A100-SXM4-40GB"},
			name:        "NVIDIA A100-SXM4-40GB",
			gpuChip:     ga100,
			memoryMiB:   40960,
			reservedMiB: 424,
			sms:         108,
			pciDevice:   0x20B010DE,
			pciSubsys:   0x134F10DE,
			vbios:       "92.00.45.00.03",
			idleWatts:   52,
			limitWatts:  400,
			maxSMMHz:    1410,
			memoryMHz:   1215,
			nvlinks:     12,
		},
		{
			key:         "A100-PCIE-40GB",
			geometry:    "A100-40GB",
			name:        "NVIDIA A100-PCIE-40GB",
			gpuChip:     ga100,
			memoryMiB:   40960,
			reservedMiB: 424,
			sms:         108,
			pciDevice:   0x20F110DE,
			pciSubsys:   0x145F10DE,
			vbios:       "92.00.25.00.08",
			idleWatts:   34,
			limitWatts:  250,
			maxSMMHz:    1410,
			memoryMHz:   1215,
		},
		{
			key:         "A100-80GB",
			aliases:     []string{"A100-SXM4-80GB"},
			name:        "NVIDIA A100-SXM4-80GB",
			gpuChip:     ga100,
			memoryMiB:   81920,
			reservedMiB: 669,
			sms:         108,
			pciDevice:   0x20B210DE,
			pciSubsys:   0x147F10DE,
			vbios:       "92.00.36.00.02",
			idleWatts:   60,
			limitWatts:  400,
			maxSMMHz:    1410,
			memoryMHz:   1593,
			nvlinks:     12,
		},
		{
			key:         "H100-80GB",
			aliases:     []string{"H100-SXM5-80GB", "H100 80GB HBM3"},
			name:        "NVIDIA H100 80GB HBM3",
			gpuChip:     gh100,
			memoryMiB:   81559,
			reservedMiB: 551,
			sms:         132,
			pciDevice:   0x233010DE,
			pciSubsys:   0x16C110DE,
			vbios:       "96.00.74.00.01",
			idleWatts:   70,
			limitWatts:  700,
			maxSMMHz:    1980,
			memoryMHz:   2619,
			nvlinks:     18,
		},
		{
			key:         "H100-94GB",
			aliases:     []string{"H100-NVL", "H100 NVL"},
			name:        "NVIDIA H100 NVL",
			gpuChip:     gh100,
			memoryMiB:   95830,
			reservedMiB: 464,
			sms:         132,
			pciDevice:   0x232110DE,
			pciSubsys:   0x183910DE,
			vbios:       "96.00.88.00.11",
			idleWatts:   60,
			limitWatts:  400,
			maxSMMHz:    1785,
			memoryMHz:   2619,
			nvlinks:     12,
		},
		{
			key:         "H200-141GB",
			aliases:     []string{"H200"},
			name:        "NVIDIA H200",
			gpuChip:     gh100,
			memoryMiB:   143771,
			reservedMiB: 614,
			sms:         132,
			pciDevice:   0x233510DE,
			pciSubsys:   0x18BE10DE,
			vbios:       "96.00.99.00.01",
			idleWatts:   75,
			limitWatts:  700,
			maxSMMHz:    1980,
			memoryMHz:   3201,
			nvlinks:     18,
			// A capture with driver 590.48.01 shows 55 MiB for the GPU, and 22, 17 and 9 for three empty
			// MIG devices. Which sizes they had is unknown: we take the largest to use the most.
			idleMemory: idleMemory{gpu: 7, one: 9, two: 17, more: 22},
		},
		{
			// Published output of nvidia-smi and CUDA on HGX B200 systems shows memory, limit, SMs,
			// clocks under load (pytorch/ao PR 4002), device, subsystem, VBIOS, and an idle power of
			// 136 to 145 W.
			key:         "B200-180GB",
			aliases:     []string{"B200"},
			name:        "NVIDIA B200",
			gpuChip:     gb100,
			memoryMiB:   183359,
			reservedMiB: 728,
			sms:         148,
			pciDevice:   0x290110DE,
			pciSubsys:   0x199910DE,
			vbios:       "97.00.88.00.0E",
			idleWatts:   140,
			limitWatts:  1000,
			maxSMMHz:    1965,
			memoryMHz:   3996,
			nvlinks:     18,
			// With MIG on, nvidia-smi shows no power, 31 MiB for each empty 2g.45gb, and 107 MiB for a
			// GPU with three of them and a 1g.23gb (gpu-operator issue 2155). That leaves 14 MiB for the
			// 1g and the GPU itself. What larger instances use is unknown: we take 31.
			idleMemory: idleMemory{gpu: 1, one: 13, two: 31, more: 31},
			noMIGPower: true,
		},
		{
			key:          "RTX-PRO-6000",
			aliases:      []string{"RTX PRO 6000", "RTX PRO 6000 Blackwell 96GB"},
			geometry:     "RTX PRO 6000 Blackwell 96GB",
			name:         "NVIDIA RTX PRO 6000 Blackwell Server Edition",
			gpuChip:      gb202,
			memoryMiB:    97887,
			reservedMiB:  638,
			sms:          188,
			pciDevice:    0x2BB510DE,
			pciSubsys:    0x204E10DE,
			vbios:        "98.02.6A.00.03",
			idleWatts:    35,
			limitWatts:   600,
			maxSMMHz:     2430,
			memoryMHz:    12481,
			idleState:    8,
			noMemoryTemp: true,
		},
	}
}

// findModel finds a model by its name in scenarios; case does not matter.
func findModel(name string) (gpuModel, bool) {
	for _, m := range gpuModels() {
		for _, known := range append([]string{m.key}, m.aliases...) {
			if strings.EqualFold(known, name) {
				var ok bool
				m.mig, ok = mig.FindModel(cmp.Or(m.geometry, m.key))

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
