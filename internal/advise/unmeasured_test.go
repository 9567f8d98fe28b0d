package advise

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// withoutSMs returns an A100 as the exporter sees it without DCGM: utilization, and no SM activity.
func withoutSMs(t *testing.T, utilization float64) gpu.GPU {
	g := wholeGPU(t, "A100-80GB", 0, load{gib: 4}, pod("ml", "Deployment/a"))
	g.Activity, g.Readings.Utilization = gpu.Activity{}, gpu.Some(utilization)

	return g
}

// measured returns the same GPU once SM activity is read.
func measured(g gpu.GPU, l load) gpu.GPU {
	g.Activity = gpu.Activity{GraphicsEngine: gpu.Some(l.busy), SM: gpu.Some(l.sm), DRAM: gpu.Some(l.dram)}
	return g
}

// TestUnreadNVLinkIsUnknown: if its traffic could not be read, data may have been exchanged over
// NVLink. A GPU that has none reports no traffic, and no error.
func TestUnreadNVLinkIsUnknown(t *testing.T) {
	failed := gpu.ReadError{Reading: gpu.ReadingNVLink, Err: errors.New("GPU access blocked")}

	for name, c := range map[string]struct {
		each int // polls fail
		want answer
	}{
		"never":  {0, answer{Action: ActionSlice, Profile: "1g.10gb"}},
		"rarely": {200, answer{Action: ActionSlice, Profile: "1g.10gb"}},
		"often":  {4, answer{Action: ActionKeep, Reason: ReasonNVLinkUnread}},
	} {
		g := wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a"))
		a := New(fastOptions())
		s := &gpu.Snapshot{Time: start().Add(-time.Minute), GPUs: unheld([]gpu.GPU{g})}
		a.Observe(s)

		for poll := range int(longEnough / time.Minute) {
			g.Errors = nil
			if c.each > 0 && poll%c.each == 0 {
				g.Errors = []gpu.ReadError{failed}
			}

			s = &gpu.Snapshot{Time: start().Add(time.Duration(poll) * time.Minute), GPUs: []gpu.GPU{g}}
			a.Observe(s)
		}

		r := a.Recommend(s).Devices[0]
		cmptest.Equal(t, name+": "+r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)
	}
}

// TestUnsupportedNVLinkWasThere: a driver that has counted the traffic over NVLink, and does not now, is
// no sign that there is none.
func TestUnsupportedNVLinkWasThere(t *testing.T) {
	g := wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a"))
	a := New(fastOptions())
	s := &gpu.Snapshot{Time: start().Add(-time.Minute), GPUs: unheld([]gpu.GPU{g})}
	a.Observe(s)

	for minute := range 8 * 1440 {
		total := gpu.None[gpu.Counter]()
		if minute/60%24 >= 12 {
			total = gpu.Some(gpu.Counter{Since: start()})
		}

		g.Totals.NVLinkReceive, g.Totals.NVLinkTransmit = total, total
		s = &gpu.Snapshot{Time: start().Add(time.Duration(minute) * time.Minute), GPUs: []gpu.GPU{g}}
		a.Observe(s)
	}

	cmptest.Equal(t, "reason", recommend(a, s).Devices[0].Reason, ReasonNVLinkUnread)
}

// TestNVLinkIsOfTheGPU: a pod that comes again on a GPU that has no NVLink, after one that has, has no
// traffic that is not read.
func TestNVLinkIsOfTheGPU(t *testing.T) {
	bridged := wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a"))
	bridged.Totals.NVLinkReceive = gpu.Some(gpu.Counter{Since: start()})
	bridged.Totals.NVLinkTransmit = bridged.Totals.NVLinkReceive
	alone := wholeGPU(t, "H100-80GB", 1, slight(), pod("ml", "Deployment/a"))
	alone.Holders[0].Pod = "b"
	a := New(fastOptions())
	show(a, start(), 24*time.Hour, bridged, func(time.Time, *gpu.GPU) {})

	s := &gpu.Snapshot{Time: start().Add(24 * time.Hour), GPUs: unheld([]gpu.GPU{bridged, alone})}
	a.Observe(s)

	for minute := range 9 * 1440 {
		free := unheld([]gpu.GPU{bridged})[0]
		s = &gpu.Snapshot{Time: start().Add(24*time.Hour + time.Duration(minute+1)*time.Minute), GPUs: []gpu.GPU{free, alone}}
		a.Observe(s)
	}

	if r := recommend(a, s).Devices[1]; r.Reason == ReasonNVLinkUnread {
		t.Errorf("%s: %s", r.Reason, r.Explanation)
	}
}

// TestAnUnreadHourMayHideAUse: what decides by its largest value must be read nearly always: in the
// hour of each day in which it is not, there may have been more. A short time of much work counts by
// its share of the busy time.
func TestAnUnreadHourMayHideAUse(t *testing.T) {
	for about, c := range map[string]struct {
		unread func(*gpu.GPU)
		reason Reason
	}{
		"media":  {func(g *gpu.GPU) { g.Readings.Media = gpu.Media{} }, ReasonMediaNotChecked},
		"memory": {func(g *gpu.GPU) { g.Readings.Memory.Used = gpu.None[uint64]() }, ReasonMemoryUnread},
		"NVLink": {func(g *gpu.GPU) {
			g.Errors = []gpu.ReadError{{Reading: gpu.ReadingNVLink, Err: errors.New("no permission")}}
		}, ReasonNVLinkUnread},
	} {
		for _, tt := range []struct {
			minutes, busyMinutes int // of each day: unread, and with kernels
			want                 Reason
		}{
			{66, 1440, c.reason},
			{5, 1440, ReasonNone},
			{5, 60, c.reason},
		} {
			a := New(fastOptions())
			whole := wholeGPU(t, "H100-80GB", 0, load{gib: 4}, pod("ml", "Deployment/a"))
			s := &gpu.Snapshot{Time: start().Add(-time.Minute), GPUs: unheld([]gpu.GPU{whole})}
			a.Observe(s)

			for minute := range 8 * 1440 {
				g := whole

				setActivity(&g, 0, 0, 0)

				if of := minute % 1440; of > 60 && of <= 60+tt.busyMinutes {
					setActivity(&g, 0.3, 0.01, 0.01)
				}

				if of := minute % 1440; of > 60 && of <= 60+tt.minutes {
					c.unread(&g)
				}

				s = &gpu.Snapshot{Time: start().Add(time.Duration(minute) * time.Minute), GPUs: []gpu.GPU{g}}
				a.Observe(s)
			}

			r := recommend(a, s).Devices[0]
			reason := r.Reason

			if r.Action == ActionSlice {
				reason = r.WhyNotFinal()
			}

			cmptest.Equal(t, fmt.Sprintf("%s, %d of %d minutes: %s", about, tt.minutes, tt.busyMinutes, r.Explanation),
				reason, tt.want)
		}
	}
}

// TestUnmeasuredIsUnknown: without SM activity nothing is recommended, whether the worst case would
// do or nothing ran. The answer is unknown and says what would measure it; what memory alone
// decides is decided.
func TestUnmeasuredIsUnknown(t *testing.T) {
	for _, utilization := range []float64{0, 0.001, 0.05, 0.9} {
		for _, strict := range []bool{false, true} {
			o := fastOptions()
			o.Strict = strict
			o.MaxStretch = 100 // the worst case is within the limit
			r := recommendFor(o, 8*24*time.Hour, withoutSMs(t, utilization))
			cmptest.Equal(t, "answer", answer{r.Action, r.Reason, r.Recommended}, answer{ActionUnknown, ReasonNoActivity, ""})
			cmptest.Equal(t, "candidate", r.Candidate(), false)
			cmptest.HasTexts(t, r.Explanation, "unknown", "An hour", "--dcgm.address", "DCGM_FI_PROF_SM_ACTIVE")
			cmptest.LacksTexts(t, asJSON(t, r), `"stretch`, "kernelsP95", "widthHistogram")

			if r.Confidence > 0.2 {
				t.Errorf("the confidence is %v", r.Confidence)
			}
		}
	}

	g := withoutSMs(t, 0.05)
	g.Readings.Memory.Used = gpu.Some(uint64(44 << 30))
	r := recommendFor(fastOptions(), 8*24*time.Hour, g)
	cmptest.Equal(t, "too much memory", answer{r.Action, r.Reason, r.Recommended}, answer{ActionKeep, ReasonMemory, ""})
}

func asJSON(t *testing.T, r Recommendation) string {
	t.Helper()

	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// TestSampleOfAnHour: an hour of busy time with SM activity after a week without gives a provisional
// answer, by that hour alone, and eight days a candidate. The restart of an exporter in between changes
// nothing.
func TestSampleOfAnHour(t *testing.T) {
	a := New(fastOptions())
	at := start()
	var last *gpu.Snapshot
	blind := withoutSMs(t, 0.5)
	seen := measured(blind, load{busy: 0.5, sm: 0.5 * 0.1, dram: 0.01})
	show := func(g gpu.GPU, d time.Duration) Recommendation {
		last = observeFor(a, at, d, g)
		at = last.Time.Add(time.Minute)

		return recommend(a, last).Devices[0]
	}

	show(blind, 8*24*time.Hour)
	r := show(seen, 90*time.Minute)
	cmptest.Equal(t, "after 45 busy minutes", r.Action, ActionUnknown)

	a = restarted(t, a, last)
	r = show(seen, 40*time.Minute)
	cmptest.Equal(t, "after an hour", answer{r.Action, r.Reason, r.Recommended}, answer{ActionSlice, ReasonNone, "1g.10gb"})
	cmptest.Equal(t, "provisional", r.Provisional, true)
	cmptest.HasTexts(t, r.Explanation, "(by a sample of 1.1 h, 1.6 % of the busy time)")

	if r.Evidence.P95.Width > 0.12 || r.Evidence.ActivityHours < 1 || r.Evidence.ActivityHours > 1.2 {
		t.Errorf("width %v by a sample of %v h", r.Evidence.P95.Width, r.Evidence.ActivityHours)
	}

	if r.Confidence > 0.02 {
		t.Errorf("the confidence is %v after a sixtieth of the busy time", r.Confidence)
	}

	r = show(seen, 5*24*time.Hour)
	cmptest.Equal(t, "after five days", r.WhyNotFinal(), ReasonProvisional)

	r = show(seen, 4*24*time.Hour)
	cmptest.Equal(t, "after nine days", r.Candidate(), true)
	cmptest.LacksTexts(t, r.Explanation, "sample")

	a = restarted(t, a, last)
	r = show(seen, 0)
	cmptest.Equal(t, "after another restart", r.Candidate(), true)
}

// kernelsAt is what a GPU does at a time of the day: busy time and the width of its kernels, and whether
// SM activity is read.
type kernelsAt func(minute int) (busy, width float64, read bool)

// TestUnreadOfOlderEvidence: an older exporter has counted what it could not read, and not when. That
// counts on after a restart.
func TestUnreadOfOlderEvidence(t *testing.T) {
	a := New(fastOptions())
	g := wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a"))
	blind := g
	blind.Readings.Media = gpu.Media{}
	s := observeFor(a, start(), 8*24*time.Hour, blind)

	for _, w := range a.workloads {
		w.UnreadDays = [unreadKinds]uint16{}
	}

	a = restarted(t, a, s)
	s = observeFor(a, s.Time.Add(time.Minute), time.Hour, g)
	cmptest.Equal(t, "not checked", recommend(a, s).Devices[0].NotChecked, true)
}

// TestUnreadKernelsAreUnknown: what was read says nothing of kernels that ran while SM activity was not
// read, however long it was read while hardly any ran.
func TestUnreadKernelsAreUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		kernels  kernelsAt
		action   Action
		final    bool
		most     float64 // confidence
		explains string
	}{
		"wide by day, narrow at night": {func(minute int) (float64, float64, bool) {
			if hour := minute / 60 % 24; hour >= 4 {
				return 0.7, 0.98, false
			}

			return 0.3, 0.1, true
		}, ActionSlice, false, 0.1, "by a sample of"},
		"unread for an hour of much work": {func(minute int) (float64, float64, bool) {
			if minute%1440 < 66 {
				return 0.9, 0.98, false
			}

			return 0.02, 0.1, true
		}, ActionSlice, false, 0.4, "by a sample of"},
		"a sample without kernels": {func(minute int) (float64, float64, bool) {
			if minute < 7*1440 {
				return 0.9, 0.98, false
			}

			return 0.001, 0.1, true
		}, ActionUnknown, false, 0.1, "An hour of busy time"},
		"unread while idle": {func(minute int) (float64, float64, bool) {
			if minute/60%24 >= 12 {
				return 0, 0, false
			}

			return 0.3, 0.1, true
		}, ActionSlice, true, 1, "kernels on"},
		"rarely busy, most of it read": {func(minute int) (float64, float64, bool) {
			if minute%1440 >= 10 {
				return 0, 0, true
			}

			return 0.3, 0.1, minute%3 > 0
		}, ActionSlice, false, 0.7, "by a sample of"},
		"rarely busy, less of it read": {func(minute int) (float64, float64, bool) {
			if minute%1440 >= 10 {
				return 0, 0, true
			}

			return 0.3, 0.1, minute%3 == 0
		}, ActionUnknown, false, 0.5, "An hour of busy time"},
	} {
		a := New(fastOptions())
		g := wholeGPU(t, "A100-80GB", 0, load{gib: 4}, pod("ml", "Deployment/a"))
		s := &gpu.Snapshot{Time: start().Add(-time.Minute), GPUs: unheld([]gpu.GPU{g})}
		a.Observe(s)

		for minute := range 8 * 1440 {
			busy, width, read := c.kernels(max(0, minute-1)) // a Snapshot is about the time before it
			g.Activity = gpu.Activity{}
			g.Readings.Utilization = gpu.Some(busy)

			if read {
				setActivity(&g, busy, busy*width, 0.1*busy)
			}

			s = &gpu.Snapshot{Time: start().Add(time.Duration(minute) * time.Minute), GPUs: []gpu.GPU{g}}
			a.Observe(s)
		}

		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, name+": "+r.Explanation, r.Action, c.action)
		cmptest.Equal(t, name+": candidate", r.Candidate(), c.final)
		cmptest.HasTexts(t, r.Explanation, c.explains)

		if r.Confidence > c.most {
			t.Errorf("%s: the confidence is %v, expected %v at most", name, r.Confidence, c.most)
		}
	}
}

// TestUnreadBusyTimeOfOlderEvidence: an older exporter has counted only for how long activity was not
// read, and not how busy the GPU was then.
func TestUnreadBusyTimeOfOlderEvidence(t *testing.T) {
	for _, tt := range []struct {
		unread int // days
		want   Reason
	}{{0, ReasonNone}, {1, ReasonProvisional}} {
		a := New(fastOptions())
		g := withoutSMs(t, 0.9)
		seen := measured(g, load{busy: 0.9, sm: 0.09, dram: 0.09})
		s := observeFor(a, start(), 8*24*time.Hour, seen)

		if tt.unread > 0 {
			s = observeFor(a, s.Time.Add(time.Minute), time.Duration(tt.unread)*24*time.Hour, g)
		}

		for _, w := range a.workloads {
			w.BusyUnread = 0
			w.UnreadDays = [unreadKinds]uint16{}
		}

		a = restarted(t, a, s)
		s = observeFor(a, s.Time.Add(time.Minute), 0, seen)
		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, r.Explanation, r.WhyNotFinal(), tt.want)
	}
}

// TestEvidenceWithoutMeasuredTime: an older exporter has not counted for how long activity was
// read. What it read all the time stays known; where it was unread for long, it is unknown.
func TestEvidenceWithoutMeasuredTime(t *testing.T) {
	for _, tt := range []struct {
		g    gpu.GPU
		want Action
	}{
		{measured(withoutSMs(t, 0), load{busy: 0.3, sm: 0.03, dram: 0.01}), ActionSlice},
		{withoutSMs(t, 0.3), ActionUnknown},
	} {
		a := New(fastOptions())

		s := observeFor(a, start(), 8*24*time.Hour, tt.g)
		for _, w := range a.workloads {
			for i := range w.Days {
				w.Days[i].Sampled = 0
			}
		}

		a = restarted(t, a, s)
		s.Time = s.Time.Add(time.Minute)
		a.Observe(s)
		cmptest.Equal(t, "action", recommend(a, s).Devices[0].Action, tt.want)
	}
}

// TestNothingRan: what a slice would do to requests is unknown where none ran: no figure, and half
// the confidence at most. Strictly it is no slice.
func TestNothingRan(t *testing.T) {
	idle := wholeGPU(t, "H100-80GB", 0, load{busy: idleShare, sm: idleShare, gib: 0.6}, pod("ml", "Deployment/a"))
	r := recommendFor(fastOptions(), 8*24*time.Hour, idle)
	cmptest.Equal(t, "answer", answer{r.Action, r.Reason, r.Recommended}, answer{ActionSlice, ReasonNone, "1g.10gb"})
	cmptest.Equal(t, "never busy", r.Evidence.NeverBusy, true)
	cmptest.HasTexts(t, r.Explanation, "no kernel ran", "unknown")
	cmptest.LacksTexts(t, asJSON(t, r), `"stretch`, "throughputRatio", "kernelsP95", "widthHistogram")

	if r.Confidence > 0.2 {
		t.Errorf("the confidence is %v", r.Confidence)
	}

	o := fastOptions()
	o.Strict = true
	r = recommendFor(o, 8*24*time.Hour, idle)
	cmptest.Equal(t, "strictly", answer{r.Action, r.Reason, r.Recommended}, answer{ActionUnknown, ReasonNoBusyTime, ""})
	cmptest.HasTexts(t, r.Explanation, "no kernel ran")
}
