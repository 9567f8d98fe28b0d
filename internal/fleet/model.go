package fleet

import (
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// models finds the known models that GPUs are of. It remembers them.
type models map[string]mig.Model

// find returns the model of a GPU by the name that its driver reports, and its memory, which is the
// model's if that is unknown. It returns false if the model is none that is known with its profiles
// or if the memory is another model's. Prometheus has no profiles of a GPU without MIG, so these
// are the table's.
func (known models) find(name string, totalBytes float64) (mig.Model, float64, bool) {
	m, ok := known[name]
	if !ok {
		m = modelNamed(name)
		known[name] = m
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

	if math.Abs(largest/totalBytes-1) > 0.05 {
		return mig.Model{}, totalBytes, false
	}

	return m, totalBytes, true
}

// modelNamed returns the model of a name such as "NVIDIA H100 80GB HBM3": the one that is called
// so, or the only one of which all words are in the name. It is the zero Model if there is none.
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

// gpuOf returns a whole GPU of a model as package advise takes it.
func gpuOf(m *mig.Model, totalBytes float64) *gpu.GPU {
	sms := m.SMs
	if hasWords(m.Name, "A100") {
		sms = 108 // the largest profile of an A100 has 98 of them
	}

	g := &gpu.GPU{Facts: gpu.Facts{Name: m.Name, SMs: gpu.Some(sms), Profiles: m.Profiles}}
	g.MIG.Enabled = gpu.Some(false)
	g.Readings.Memory.Total = gpu.Some(uint64(totalBytes))

	return g
}

func shortName(name string) string { return strings.TrimPrefix(name, "NVIDIA ") }

// hasWords reports whether a name has all words of another one.
func hasWords(name, other string) bool {
	have := words(name)
	wanted := words(other)

	return len(wanted) > 0 &&
		!slices.ContainsFunc(wanted, func(w string) bool { return !slices.Contains(have, w) })
}

// words splits a name into letters and digits, in lower case.
func words(name string) []string {
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}

// PriceOf returns the price of a GPU by the name that its driver reports.
func PriceOf(prices []Price, name string) (Price, bool) {
	return priceOf(prices, shortName(name), modelNamed(name).Name)
}

// priceOf returns the price of a GPU: of those whose words are all in its name or its model's, the
// one with the most words.
func priceOf(prices []Price, name, modelName string) (Price, bool) {
	best := Price{}
	found := false

	for _, p := range prices {
		if hasWords(name+" "+modelName, p.Model) &&
			(!found || len(words(p.Model)) >= len(words(best.Model))) {
			best = p
			found = true
		}
	}

	return best, found
}
