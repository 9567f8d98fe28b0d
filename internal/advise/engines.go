package advise

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Media engines are quantities: a workload that keeps five of seven decoders busy does three fifths
// of its work on three.
//
// A device reports the mean over its engines of a kind. If one of the seven decoders of a GH200 is
// busy all the time, it reports 14 % (NVIDIA/DALI#6387); of three decoders, 33 %
// (keylase/nvidia-patch#310). NVIDIA does not document this. If a driver reported the busiest engine or
// their sum instead, utilization x engines would be more than what is used: we would miss a
// recommendation, and give no wrong one.
//
// Only a few frames wait for an engine, much less than a minute's work. So the histogram counts polls,
// not means of minutes, and the busiest minute of the last days must fit, too, even if it was rare.

// engineUse counts how busy the media engines of a kind were, since the first use.
type engineUse struct {
	Kind uint8
	Busy histogram // time by the share of the device's engines that were busy
	// Days are the largest means over 1 minute, as shares of the device's engines, by the days of
	// the workload.
	Days [keptDays]float32
	// Unknown is the last use of an unknown quantity, in Unix seconds; 0 if there was none. Older
	// versions noted only that an engine was used.
	Unknown int64
}

// engineOf returns what we know of the use of a kind of engines; nil if there is nothing.
func (w *workload) engineOf(kind int) *engineUse {
	for i := range w.Engines {
		if int(w.Engines[i].Kind) == kind {
			return &w.Engines[i]
		}
	}

	return nil
}

// addEngines counts how busy the engines of a kind were for some seconds. It keeps nothing of kinds that
// were never used.
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

// closeEngines adds the means of a window that ends now to the day.
func (w *workload) closeEngines(now time.Time, v *window) {
	means := v.meanEngines()
	slot := slotOf(dayOf(now))

	for i := range w.Engines {
		use := &w.Engines[i]
		use.Days[slot] = max(use.Days[slot], means[use.Kind])
	}
}

// clearEngines clears the slot of a day.
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

// shift adds a duration to the time, and a number of days to the days. before are the days of the
// workload, which are shifted after it.
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

// observeMedia adds how busy the media engines of a device are. Kinds that the device does not have
// need not be read: those of a GPU instance are never reported. The device is busy for a share.
func (d *device) observeMedia(m *gpu.Media, busy, elapsed float64) {
	unread := false
	counts := countsOf(d.engines)

	for kind, used := range [mediaKinds]gpu.Opt[float64]{m.Encoder, m.Decoder, m.JPEG, m.OFA} {
		share, ok := used.Get()
		if !ok {
			unread = unread || counts[kind] > 0 || !d.engines.Present()
			continue
		}

		share = min(max(share, 0), 1)
		if share > 0 {
			d.open.media[kind] = true
			d.idle = time.Time{} // busy time does not contain media engines
		}

		d.open.engines[kind] += share * elapsed
		d.open.enginesRead[kind] += elapsed

		if d.workload != nil {
			d.workload.addEngines(kind, share, elapsed, d.seen)
		}
	}

	if unread {
		d.open.mediaUnread.add(busy, elapsed)
	}
}

// findEngines looks up, once, which media engines a device has: its GPU's profiles say it, or the profile
// of its GPU instance.
func (d *device) findEngines(g *gpu.GPU, profile string) {
	if d.engines.Present() {
		return
	}

	if !d.id.Instance().Present() {
		d.engines = mostEngines(g.Profiles)
		return
	}

	if p := findProfile(g, profile); p != nil {
		d.engines = p.Engines
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

// MediaUse is the use of media engines of a kind that was used in the last eight days.
type MediaUse struct {
	Engine string `json:"engine"` // encoder, decoder, jpeg or ofa
	// Count is how many of them the device has; 0 if unknown.
	Count int `json:"count,omitempty"`
	// BusyP99 and BusyMaxMinute are shares of these: at p99 of the polls since the first use, and
	// in the busiest minute.
	BusyP99       float64 `json:"busyP99Ratio"`
	BusyMaxMinute float64 `json:"busyMaxMinuteRatio"`
	// Unknown: at some time the engines were used, and we do not know how many of them.
	Unknown bool `json:"quantityUnknown,omitempty"`
}

// mediaUseOf returns what we know of the kinds of engines that were used.
func (w *workload) mediaUseOf(now time.Time) []MediaUse {
	var list []MediaUse

	for kind, name := range mediaNames() {
		if !isRecent(w.Media[kind], now) {
			continue
		}

		used := MediaUse{Engine: name, Unknown: true}
		if e := w.engineOf(kind); e != nil && e.Busy.total() > 0 {
			used.BusyP99 = round3(e.Busy.quantile(0.99))
			used.BusyMaxMinute = round3(e.maxMinute(&w.Days, now))
			used.Unknown = isRecent(e.Unknown, now)
		}

		list = append(list, used)
	}

	return list
}

// setMediaUse sets what we know of engines.
func (e *Evidence) setMediaUse(list []MediaUse) {
	e.MediaUse = list
	e.MediaEngines = nil

	for i := range list {
		e.MediaEngines = append(e.MediaEngines, list[i].Engine)
	}
}

// AddUnknownUse adds that an unknown number of media engines of a kind was used, unless the evidence has
// their use already.
func (e *Evidence) AddUnknownUse(engine string) {
	if !slices.Contains(e.MediaEngines, engine) {
		e.setMediaUse(append(e.MediaUse, MediaUse{Engine: engine, Unknown: true}))
	}
}

// countEngines fills in how many engines the device has.
func (e *Evidence) countEngines(current capacity) {
	counts := current.counts()
	for i := range e.MediaUse {
		e.MediaUse[i].Count = counts[kindOf(e.MediaUse[i].Engine)]
	}
}

// kindOf returns the kind of media engines with a name.
func kindOf(name string) int {
	for kind, known := range mediaNames() {
		if known == name {
			return kind
		}
	}

	return 0
}

// WindowEngines are the media engines of a kind that were used in a Window.
type WindowEngines struct {
	Engine string // encoder, decoder, jpeg or ofa
	// Mean and Most say how busy they were, as shares of the device's engines of the kind: on
	// average, and at most in a sample.
	Mean, Most float64
}

// addEngines adds the media engines of a window. The largest sample stands for the window, as a
// poll does for the time since the one before.
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

// mediaUse returns what we know of the kinds of engines that were used at any time of the history.
func (r *Record) mediaUse() []MediaUse {
	var list []MediaUse

	for kind, name := range mediaNames() {
		if use := r.workload.engineOf(kind); use != nil {
			list = append(list, MediaUse{
				Engine:        name,
				BusyP99:       round3(use.Busy.quantile(0.99)),
				BusyMaxMinute: round3(r.engines[kind]),
			})
		}
	}

	return list
}

// HasEngine reports whether a GPU can have media engines of a kind: it cannot if none of its profiles has
// any.
func HasEngine(profiles []gpu.Profile, engine string) bool {
	most := mostEngines(profiles)
	return !most.Present() || countsOf(most)[kindOf(engine)] > 0
}
