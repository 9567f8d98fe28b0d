package advise

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Media engines are quantities: a workload that keeps five of seven decoders busy does three fifths of its work on
// three.
//
// A device reports the mean over its engines of a kind: one of the seven decoders of a GH200 that is busy all the time
// is 14 % (NVIDIA/DALI#6387), one of three 33 % (keylase/nvidia-patch#310). NVIDIA documents neither this nor anything
// else. If a driver reported the busiest engine or their sum instead, utilization x engines would be more than what is
// used, which costs a recommendation and harms nothing.
//
// What waits for an engine is a few frames, much less than a minute's work. So the histogram counts polls, not means of
// minutes, and what was used in any minute of the last days must fit even if it was rare.

// engineReserve is the share of a slice's engines that may be busy at p99.
const engineReserve = 0.8

// saturatedEngines is the mean utilization over ten minutes from which on the engines of a slice are too few.
const saturatedEngines = 0.95

// engineUse counts how busy the media engines of a kind were, since the first use.
type engineUse struct {
	Kind uint8
	Busy histogram // time by the share of the device's engines that were busy
	// Days are the largest means over 1 minute, as shares of the device's engines, by the days of the workload.
	Days [keptDays]float32
	// Unknown is the last use of which the quantity is not known, in Unix seconds; 0 if there is none. Older exporters
	// noted only that an engine was used.
	Unknown int64
}

// engineOf returns what is known of the use of a kind of engines; nil if there is nothing.
func (w *workload) engineOf(kind int) *engineUse {
	for i := range w.Engines {
		if int(w.Engines[i].Kind) == kind {
			return &w.Engines[i]
		}
	}
	return nil
}

// addEngines counts how busy the engines of a kind were for some seconds. Nothing is kept of kinds that are not used.
func (w *workload) addEngines(kind int, share, seconds float64, now time.Time) {
	use := w.engineOf(kind)
	if use == nil {
		if share == 0 {
			return
		}
		w.Engines = append(w.Engines, engineUse{Kind: uint8(kind), Unknown: w.Media[kind]})
		use = &w.Engines[len(w.Engines)-1]
	}
	use.Busy.add(share, seconds*w.weight(now))
}

// closeEngines adds the means of a window that ended at a time to the day.
func (w *workload) closeEngines(now time.Time, v *window) {
	means, slot := v.meanEngines(), slotOf(dayOf(now))
	for i := range w.Engines {
		use := &w.Engines[i]
		use.Days[slot] = max(use.Days[slot], means[use.Kind])
	}
}

// clearEngines makes place for a day.
func (w *workload) clearEngines(slot int32) {
	for i := range w.Engines {
		w.Engines[i].Days[slot] = 0
	}
}

// maxMinute returns the largest mean over 1 minute of the days that are kept.
func (u *engineUse) maxMinute(days *[keptDays]daySums, now time.Time) float64 {
	largest := float32(0)
	for slot, d := range days {
		if d.Day > dayOf(now)-keptDays {
			largest = max(largest, u.Days[slot])
		}
	}
	return float64(largest)
}

// shift adds a duration to the time, and a number of days to the days, which still are those before.
func (u *engineUse) shift(by time.Duration, days int32, before *[keptDays]daySums) {
	shiftSeconds(by, &u.Unknown)
	means := u.Days
	u.Days = [keptDays]float32{}
	for slot, d := range before {
		if d != (daySums{}) {
			u.Days[slotOf(d.Day+days)] = means[slot]
		}
	}
}

// observeMedia adds how busy the media engines of a device are. Kinds that the device does not have need not be read:
// those of a GPU instance are never reported.
func (d *device) observeMedia(m *gpu.Media, elapsed float64) {
	unread, counts := false, countsOf(d.engines)
	for kind, used := range [mediaKinds]gpu.Opt[float64]{m.Encoder, m.Decoder, m.JPEG, m.OFA} {
		share, ok := used.Get()
		if !ok {
			unread = unread || counts[kind] > 0 || !d.engines.Present()
			continue
		}
		share = min(max(share, 0), 1)
		d.open.media[kind] = d.open.media[kind] || share > 0
		d.open.engines[kind] += share * elapsed
		d.open.enginesRead[kind] += elapsed
		if d.workload != nil {
			d.workload.addEngines(kind, share, elapsed, d.seen)
		}
	}
	if unread {
		d.open.mediaUnread += elapsed
	}
}

// findEngines looks up the media engines of a device, once: those of its GPU, or of its GPU instance's profile.
func (d *device) findEngines(g *gpu.GPU, profile string) {
	if d.engines.Present() {
		return
	}
	if d.key.Whole {
		d.engines = mostEngines(g.Profiles)
		return
	}
	for i := range g.Profiles {
		if g.Profiles[i].Name == profile {
			d.engines = g.Profiles[i].Engines
		}
	}
}

// meanEngines returns the mean utilization of each kind of engines in a window.
func (v *window) meanEngines() [mediaKinds]float32 {
	var mean [mediaKinds]float32
	for kind, read := range v.enginesRead {
		if read > 0 {
			mean[kind] = float32(v.engines[kind] / read)
		}
	}
	return mean
}

// MediaUse is what was seen of the media engines of a kind that was used in the last eight days.
type MediaUse struct {
	Engine string `json:"engine"` // encoder, decoder, jpeg or ofa
	// Count is how many of them the device has; 0 if that is not known.
	Count int `json:"count,omitempty"`
	// BusyP99 and BusyMaxMinute are shares of these: at p99 of the polls since the first use, and in the busiest minute.
	BusyP99       float64 `json:"busyP99Ratio"`
	BusyMaxMinute float64 `json:"busyMaxMinuteRatio"`
	// Unknown: for some of the time it is known that the engines were used, and not how many.
	Unknown bool `json:"quantityUnknown,omitempty"`
}

// mediaUseOf returns what is known of the kinds of engines that were used.
func (w *workload) mediaUseOf(now time.Time) []MediaUse {
	var list []MediaUse
	for kind, name := range mediaNames() {
		if !isRecent(w.Media[kind], now) {
			continue
		}
		used := MediaUse{Engine: name, Unknown: true}
		if e := w.engineOf(kind); e != nil && e.Busy.total() > 0 {
			used.BusyP99, used.BusyMaxMinute = round3(e.Busy.quantile(0.99)), round3(e.maxMinute(&w.Days, now))
			used.Unknown = isRecent(e.Unknown, now)
		}
		list = append(list, used)
	}
	return list
}

// setMediaUse sets what is known of engines.
func (e *Evidence) setMediaUse(list []MediaUse) {
	e.MediaUse, e.MediaEngines = list, nil
	for i := range list {
		e.MediaEngines = append(e.MediaEngines, list[i].Engine)
	}
}

// AddUnknownUse adds that media engines of a kind were used, and that it is not known how many, unless their use is in
// the evidence already.
func (e *Evidence) AddUnknownUse(engine string) {
	if !slices.Contains(e.MediaEngines, engine) {
		e.setMediaUse(append(e.MediaUse, MediaUse{Engine: engine, Unknown: true}))
	}
}

// countEngines fills in how many engines the device has.
func (e *Evidence) countEngines(of capacity) {
	counts := of.counts()
	for i := range e.MediaUse {
		e.MediaUse[i].Count = counts[kindOf(e.MediaUse[i].Engine)]
	}
}

// kindOf returns the kind of the engines of a name.
func kindOf(name string) int {
	for kind, known := range mediaNames() {
		if known == name {
			return kind
		}
	}
	return 0
}

// needed returns how many engines a slice must have: at p99 a fifth of them stays free, and the busiest minute fits.
// What is not known of a quantity takes all of the device's; it is infinite if their number is unknown, too. No slice
// needs more than the device has.
func (u *MediaUse) needed() float64 {
	count := float64(u.Count)
	if u.Count == 0 {
		return math.Inf(1)
	}
	if u.Unknown {
		return count
	}
	return min(count, max(u.BusyP99*count/engineReserve, u.BusyMaxMinute*count, leastEngines))
}

// leastEngines is what any use needs: more than none.
const leastEngines = 0.001

// engineNeeds are how many engines of each kind a slice must have; 0 of those that are not used.
type engineNeeds [mediaKinds]float64

func (e *Evidence) engineNeeds() engineNeeds {
	var needs engineNeeds
	for i := range e.MediaUse {
		u := &e.MediaUse[i]
		needs[kindOf(u.Engine)] = u.needed()
	}
	return needs
}

// counts returns how many engines of each kind a device has; 0 if that is not known.
func (c capacity) counts() [mediaKinds]int { return countsOf(c.engines) }

func countsOf(engines gpu.Opt[gpu.Engines]) [mediaKinds]int {
	e := engines.Or(gpu.Engines{})
	return [mediaKinds]int{e.Encoder, e.Decoder, e.JPEG, e.OFA}
}

// allEngines are the needs of a workload that may use all engines of a device: their use could not be read. One of
// each kind may be there if the driver does not report any.
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

// largerEngines are the needs of a workload for which a slice is too small: at most the engines that the slice has, and
// more of those that are short: as many as it needed on the whole GPU, if it was seen there.
func (a *Advisor) largerEngines(e *Evidence, w *workload, of capacity, g *gpu.GPU, short [mediaKinds]bool) engineNeeds {
	needs, before := e.engineNeeds(), a.engineNeedsBefore(w, g)
	for kind, count := range of.counts() {
		if needs[kind] > 0 {
			needs[kind] = min(needs[kind], float64(max(count, 1)))
		}
		if short[kind] {
			needs[kind] = max(float64(count+1), before[kind])
		}
	}
	return needs
}

// engineNeedsBefore are those of the workload of a GPU instance from when it was on a whole GPU.
func (a *Advisor) engineNeedsBefore(w *workload, g *gpu.GPU) engineNeeds {
	key := w.Key
	key.Profile = ""
	whole := a.workloads[key]
	if whole == nil || whole == w {
		return engineNeeds{}
	}
	e := Evidence{MediaUse: whole.mediaUseOf(a.now)}
	e.countEngines(wholeOf(g))
	return e.engineNeeds()
}

// lacksEngines reports whether a profile has fewer engines of a kind than are needed. One whose engines are unknown
// lacks all that are.
func lacksEngines(p *gpu.Profile, needs engineNeeds) bool {
	for kind, have := range countsOf(p.Engines) {
		if needs[kind] > float64(have)+1e-9 {
			return true
		}
	}
	return false
}

// mostEngines returns how many engines of each kind a GPU has: as many as the profile with the most; absent if no
// profile's are known.
func mostEngines(profiles []gpu.Profile) gpu.Opt[gpu.Engines] {
	var most gpu.Engines
	known := false
	for i := range profiles {
		e, ok := profiles[i].Engines.Get()
		known = known || ok
		most.Encoder, most.Decoder = max(most.Encoder, e.Encoder), max(most.Decoder, e.Decoder)
		most.JPEG, most.OFA = max(most.JPEG, e.JPEG), max(most.OFA, e.OFA)
	}
	if !known {
		return gpu.None[gpu.Engines]()
	}
	return gpu.Some(most)
}

// shortEngines returns the kinds of engines of a slice that have been busy for all of the last ten minutes, and of
// which its GPU has more.
func (d *device) shortEngines(of capacity, profiles []gpu.Profile) (short [mediaKinds]bool) {
	if d.count < len(d.last10) {
		return short
	}
	last, own, most := d.meanOfLast(), of.counts(), countsOf(mostEngines(profiles))
	for kind, busy := range last.engines {
		short[kind] = busy >= saturatedEngines && most[kind] > own[kind]
	}

	return short
}

// WindowEngines are the media engines of a kind that were used in a part of the time.
type WindowEngines struct {
	Engine string // encoder, decoder, jpeg or ofa
	// Mean and Most say how busy they were, as shares of the device's engines of the kind: on average, and at most in a
	// sample.
	Mean, Most float64
}

// addEngines adds the media engines of a window. The largest sample stands for the window, as a poll does for the time
// since the one before.
func (r *Record) addEngines(v *Window, seconds float64) {
	var most [mediaKinds]float64
	for i := range v.Engines {
		used := &v.Engines[i]
		kind := kindOf(used.Engine)
		most[kind] = min(max(used.Most, used.Mean), 1)
		r.engines[kind] = max(r.engines[kind], min(used.Mean, 1))
	}

	for kind, share := range most {
		r.workload.addEngines(kind, share, seconds, v.End)
	}
}

// mediaUse returns what is known of the kinds of engines that were used at any time.
func (r *Record) mediaUse() []MediaUse {
	var list []MediaUse
	for kind, name := range mediaNames() {
		if use := r.workload.engineOf(kind); use != nil {
			list = append(list, MediaUse{
				Engine: name, BusyP99: round3(use.Busy.quantile(0.99)), BusyMaxMinute: round3(r.engines[kind]),
			})
		}
	}
	return list
}

// HasEngine reports whether a GPU with some profiles can have media engines of a kind: not if none of them has any.
func HasEngine(profiles []gpu.Profile, engine string) bool {
	most := mostEngines(profiles)
	return !most.Present() || countsOf(most)[kindOf(engine)] > 0
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
		list = append(list, PredictedEngines{Engine: u.Engine, Needed: round3(u.needed()), Count: counts[kindOf(u.Engine)]})
	}
	return list
}

// EngineName returns what a number of media engines of a kind are called in a sentence.
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

// String returns how many engines of a kind were used, as part of a sentence: "5.0 of 7 decoders busy at p99 and 5.2
// at the busiest time".
func (u *MediaUse) String() string {
	if u.Unknown {
		return EngineName(u.Engine, 2) + " in use, it is not known how many at once"
	}
	if u.Count == 0 {
		return EngineName(u.Engine, 2) + " in use, it is not known of how many"
	}
	count := float64(u.Count)
	return fmt.Sprintf("%.1f of %d %s busy at p99 and %.1f at the busiest time", u.BusyP99*count, u.Count,
		EngineName(u.Engine, u.Count), u.BusyMaxMinute*count)
}

// describeMedia returns what is used of media engines, as part of a sentence; empty if nothing is.
func (e *Evidence) describeMedia() string {
	var all []string
	for i := range e.MediaUse {
		all = append(all, e.MediaUse[i].String())
	}
	return strings.Join(all, ", ")
}

// explainMedia returns why no smaller profile has the engines that are needed.
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

// describeEngines returns what a profile has of the media engines that are used, as part of a sentence.
func (p *Predicted) describeEngines() string {
	var all []string
	for i := range p.MediaEngines {
		n := &p.MediaEngines[i]
		all = append(all, fmt.Sprintf("%d %s", n.Count, EngineName(n.Engine, n.Count)))
	}
	return strings.Join(all, ", ")
}

// prefixed returns a text after a prefix, or nothing if it is empty.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}
