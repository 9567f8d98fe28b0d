package advise

import (
	"fmt"
	"math"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// targetEngines is the share of a slice's engines that may be busy at p99.
	targetEngines = 0.8
	// saturatedEngines is the mean utilization over ten minutes from which on a slice has too few
	// engines.
	saturatedEngines = 0.95
	// leastEngines is what any use needs, however small: more than none.
	leastEngines = 0.001
)

// needed returns how many engines a slice must have: a fifth of them must be free at p99, and the busiest
// minute must fit. No slice needs more than the device has. A use of an unknown quantity needs as many,
// and infinitely many if their number is unknown, too.
func (u *MediaUse) needed() float64 {
	count := float64(u.Count)
	if u.Count == 0 {
		return math.Inf(1)
	}

	if u.Unknown {
		return count
	}

	return min(count, max(u.BusyP99*count/targetEngines, u.BusyMaxMinute*count, leastEngines))
}

// engineNeeds is how many engines of each kind a slice must have; 0 of those that are not used.
type engineNeeds [mediaKinds]float64

// engineNeeds returns what a workload needs of the media engines.
func (e *Evidence) engineNeeds() engineNeeds {
	var needs engineNeeds

	for i := range e.MediaUse {
		u := &e.MediaUse[i]
		needs[kindOf(u.Engine)] = u.needed()
	}

	return needs
}

// counts returns how many engines of each kind a device has; 0 if unknown.
func (c capacity) counts() [mediaKinds]int { return countsOf(c.engines) }

func countsOf(engines gpu.Opt[gpu.Engines]) [mediaKinds]int {
	e := engines.Or(gpu.Engines{})
	return [mediaKinds]int{e.Encoder, e.Decoder, e.JPEG, e.OFA}
}

// allEngines returns the needs of a workload that may use all engines of a device, since their use could
// not be read. If the driver does not report how many there are, there may be one of each kind.
func (c capacity) allEngines() engineNeeds {
	if !c.engines.Present() {
		return engineNeeds{1, 1, 1, 1}
	}

	var needs engineNeeds
	for kind, n := range c.counts() {
		needs[kind] = float64(n)
	}

	return needs
}

// largerEngines returns what a workload needs whose slice is too small. Of the engines that are short it
// needs more than the slice has: as many as it needed on the whole GPU, if it was seen there. Of the
// others it needs no more than the slice has.
func (a *Advisor) largerEngines(
	e *Evidence,
	w *workload,
	current capacity,
	g *gpu.GPU,
	short [mediaKinds]bool,
) engineNeeds {
	needs := e.engineNeeds()
	before := a.engineNeedsBefore(w, g)

	for kind, count := range current.counts() {
		if needs[kind] > 0 {
			needs[kind] = min(needs[kind], float64(max(count, 1)))
		}

		if short[kind] {
			needs[kind] = max(float64(count+1), before[kind])
		}
	}

	return needs
}

// engineNeedsBefore returns what the workload of a GPU instance needed of the media engines when it
// was on a whole GPU.
func (a *Advisor) engineNeedsBefore(w *workload, g *gpu.GPU) engineNeeds {
	key := w.Key
	key.Profile = ""

	whole := a.workloads[key]
	if whole == nil || whole == w {
		return engineNeeds{}
	}

	e := Evidence{MediaUse: whole.mediaUseOf(a.now)}
	e.countEngines(wholeCapacity(g))

	return e.engineNeeds()
}

// lacksEngines reports whether a profile has fewer engines of a kind than are needed. A profile whose
// engines are unknown has none.
func lacksEngines(p *gpu.Profile, needs engineNeeds) bool {
	for kind, have := range countsOf(p.Engines) {
		if needs[kind] > float64(have)+1e-9 { // the need may be rounded up
			return true
		}
	}

	return false
}

// mostEngines returns how many engines of each kind a GPU has: as many as the profile with the most. It is
// absent if no profile reports any.
func mostEngines(profiles []gpu.Profile) gpu.Opt[gpu.Engines] {
	var most gpu.Engines
	known := false

	for i := range profiles {
		e, ok := profiles[i].Engines.Get()
		known = known || ok
		most.Encoder = max(most.Encoder, e.Encoder)
		most.Decoder = max(most.Decoder, e.Decoder)
		most.JPEG = max(most.JPEG, e.JPEG)
		most.OFA = max(most.OFA, e.OFA)
	}

	if !known {
		return gpu.None[gpu.Engines]()
	}

	return gpu.Some(most)
}

// shortEngines returns the kinds of engines that a slice is short of: they have been busy for all of the
// last ten minutes, and other profiles have more of them.
func (d *device) shortEngines(current capacity, profiles []gpu.Profile) (short [mediaKinds]bool) {
	if d.count < len(d.last10) {
		return short
	}

	last := d.lastTenMinutes()
	own := current.counts()
	most := countsOf(mostEngines(profiles))

	for kind, busy := range last.engines {
		short[kind] = busy >= saturatedEngines && most[kind] > own[kind]
	}

	return short
}

// PredictedEngines are the media engines of a kind that a workload uses in the recommended profile.
type PredictedEngines struct {
	Engine string `json:"engine"`
	// Needed is how many it needs, Count how many the profile has.
	Needed float64 `json:"needed"`
	Count  int     `json:"count"`
}

// predictedEngines returns the engines that a workload uses in a profile.
func (e *Evidence) predictedEngines(p *gpu.Profile) []PredictedEngines {
	var list []PredictedEngines
	counts := countsOf(p.Engines)

	for i := range e.MediaUse {
		u := &e.MediaUse[i]
		list = append(
			list,
			PredictedEngines{
				Engine: u.Engine,
				Needed: round3(u.needed()),
				Count:  counts[kindOf(u.Engine)],
			},
		)
	}

	return list
}

// EngineName returns the name of n media engines of a kind in a sentence: "2 decoders", "1 JPEG engine".
func EngineName(engine string, n int) string {
	name := engine
	switch engine {
	case "jpeg", "ofa":
		name = strings.ToUpper(engine) + " engine"
	}

	if n != 1 {
		name += "s"
	}

	return name
}

// String returns how many engines of a kind were used, as part of a sentence: "5.0 of 7 decoders
// busy at p99 and 5.2 at the busiest time".
func (u *MediaUse) String() string {
	if u.Unknown {
		return EngineName(u.Engine, 2) + " in use, it is not known how many at once"
	}

	if u.Count == 0 {
		return EngineName(u.Engine, 2) + " in use, it is not known of how many"
	}

	count := float64(u.Count)

	return fmt.Sprintf(
		"%.1f of %d %s busy at p99 and %.1f at the busiest time",
		u.BusyP99*count,
		u.Count,
		EngineName(u.Engine, u.Count),
		u.BusyMaxMinute*count,
	)
}

// describeMedia returns how many media engines are used, as part of a sentence; "" if none is.
func (e *Evidence) describeMedia() string {
	var all []string
	for i := range e.MediaUse {
		all = append(all, e.MediaUse[i].String())
	}

	return strings.Join(all, ", ")
}

// explainMedia returns a sentence on media engines that no smaller profile has enough of.
func (e *Evidence) explainMedia() string {
	var needs []string

	for i := range e.MediaUse {
		u := &e.MediaUse[i]
		if n := u.needed(); !math.IsInf(n, 0) {
			needs = append(needs, fmt.Sprintf("%.1f %s", n, EngineName(u.Engine, 2)))
		}
	}

	return fmt.Sprintf("%s; no smaller profile is known to have what it needs%s", e.describeMedia(),
		prefixed(": ", strings.Join(needs, ", ")))
}

// describeEngines returns how many of the used media engines a profile has, as part of a sentence.
func (p *Predicted) describeEngines() string {
	var all []string

	for i := range p.MediaEngines {
		n := &p.MediaEngines[i]
		all = append(all, fmt.Sprintf("%d %s", n.Count, EngineName(n.Engine, n.Count)))
	}

	return strings.Join(all, ", ")
}

// prefixed returns a text after a prefix; "" if the text is empty.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}

	return prefix + text
}
