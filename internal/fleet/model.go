package fleet

import (
	"math"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// models caches models of the table by the name that the driver reports. Prometheus has no profiles
// of a GPU without MIG, so we take them from the table.
type models map[string]mig.Model

// find returns the model of a GPU and the GPU's memory: totalBytes, or the model's memory if
// totalBytes is 0. It returns false if the table does not have the model with its profiles, or if
// totalBytes is the memory of another variant.
func (cache models) find(name string, totalBytes float64) (mig.Model, float64, bool) {
	m, ok := cache[name]
	if !ok {
		m = modelNamed(name)
		cache[name] = m
	}

	if !m.PlacementsKnown() {
		return mig.Model{}, totalBytes, false
	}

	largest := 0.
	for i := range m.Profiles {
		largest = max(largest, float64(m.Profiles[i].MemoryBytes))
	}

	if totalBytes == 0 {
		return m, largest, true
	}

	// The largest profile has a little less memory than the GPU.
	if math.Abs(largest/totalBytes-1) > 0.05 {
		return mig.Model{}, totalBytes, false
	}

	return m, totalBytes, true
}

// modelNamed returns the model for a name such as "NVIDIA H100 80GB HBM3": the model with this name,
// or the only one whose words are all in it. It returns the zero Model if there is none.
func modelNamed(name string) mig.Model {
	if m, ok := mig.FindModel(shortName(name)); ok {
		return m
	}

	var found []mig.Model

	for _, m := range mig.Models() {
		if slices.ContainsFunc(append([]string{m.Name}, m.Aliases...),
			func(called string) bool { return hasWords(name, called) }) {
			found = append(found, m)
		}
	}

	if len(found) != 1 {
		return mig.Model{}
	}

	return found[0]
}

// gpuOf returns a GPU of this model with MIG off, as advise.Choose takes it.
func gpuOf(m *mig.Model, totalBytes float64) *gpu.GPU {
	sms := m.SMs
	if hasWords(m.Name, "A100") {
		sms = 108 // m.SMs is that of the largest profile: 98
	}

	g := &gpu.GPU{Facts: gpu.Facts{Name: m.Name, SMs: gpu.Some(sms), Profiles: m.Profiles}}
	g.MIG.Enabled = gpu.Some(false)
	g.Readings.Memory.Total = gpu.Some(uint64(totalBytes))

	return g
}

// lacksMIG reports whether a GPU is of a data-center or desktop model that is known to have no MIG. The
// table has those that have it; a name in neither may be of a newer model.
//
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-gpus.html
func lacksMIG(name string) bool {
	return slices.ContainsFunc([]string{
		"K80", "M60", "P4", "P40", "P100", "V100", "V100S", "T4", "A2", "A10", "A10G", "A16", "A40",
		"L4", "L20", "L40", "L40S",
		"GeForce", "Quadro", "TITAN",
	}, func(model string) bool { return hasWords(name, model) })
}

func shortName(name string) string { return strings.TrimPrefix(name, "NVIDIA ") }

// hasWords reports whether a name has all words of another one.
func hasWords(name, other string) bool {
	all := mig.NameWords(name)
	wanted := mig.NameWords(other)

	return len(wanted) > 0 &&
		!slices.ContainsFunc(wanted, func(w string) bool { return !slices.Contains(all, w) })
}

// PriceOf returns the price of a GPU by the name that its driver reports.
func PriceOf(prices []Price, name string) (Price, bool) {
	return priceOf(prices, shortName(name), modelNamed(name).Name)
}

// priceOf returns the price of a GPU. All words of the price's model must be in the GPU's name or in
// its model's. If that is so for several prices, the one with the most words counts: A100-80GB before
// A100. Of several with as many words the last one counts.
func priceOf(prices []Price, name, modelName string) (Price, bool) {
	best := Price{}
	found := false

	for _, p := range prices {
		if hasWords(name+" "+modelName, p.Model) &&
			(!found || len(mig.NameWords(p.Model)) >= len(mig.NameWords(best.Model))) {
			best = p
			found = true
		}
	}

	return best, found
}
