package advise

import (
	"fmt"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestStartOfATemplate: starts of one version of a pod say nothing of another one, unless no owner gives
// its pods versions.
func TestStartOfATemplate(t *testing.T) {
	const week = 9 * 24 * 60

	pod := func(template string, minutes int, gib float64) stage {
		return stage{minutes, gib, func(g *gpu.GPU) {
			g.Holders[0].Template, g.Holders[0].PodUID = template, "uid-"+template
		}}
	}
	slice := answer{Action: ActionSlice, Profile: "1g.10gb"}
	unseen := answer{Action: ActionKeep, Reason: ReasonStartUnseen}

	for about, c := range map[string]struct {
		then []stage
		want answer
	}{
		"the same one after a gap":            {[]stage{gone(30), pod("1", 90, 6)}, slice},
		"the same one after a restart":        {[]stage{restart(), pod("1", 90, 6)}, slice},
		"another one in a gap":                {[]stage{gone(30), pod("2", 90, 6)}, unseen},
		"another one while we were away":      {[]stage{restart(), pod("2", 90, 6)}, unseen},
		"another one that is seen":            {[]stage{free(1), pod("2", 62, 6)}, slice},
		"another one that starts":             {[]stage{free(1), pod("2", 20, 6)}, slice},
		"another one that is restarted":       {[]stage{gone(30), pod("2", 90, 6), pod("2", 1, 0), pod("2", 62, 6)}, slice},
		"another one that is restarted soon":  {[]stage{gone(30), pod("2", 9, 6), pod("2", 1, 0), pod("2", 62, 6)}, unseen},
		"another one whose process has ended": {[]stage{gone(30), pod("2", 90, 6), pod("2", 9, 0)}, unseen},
		"another one that loads again":        {[]stage{gone(30), pod("2", 90, 6), pod("2", 1, 0), pod("2", 9, 6)}, unseen},
		"another one that holds nothing":      {[]stage{gone(30), pod("2", 9, 0)}, unseen},
		"another one, of a size that may not": {[]stage{gone(30), pod("2", 90, 0.5)}, unseen},
		"the first one again":                 {[]stage{gone(30), pod("2", 90, 6), free(1), pod("1", 62, 6)}, slice},
		"the second one again": {[]stage{free(1), pod("2", 90, 6), free(1), pod("1", 90, 6), gone(30), pod("2", 90, 6)},
			slice},
		"one without a version": {[]stage{gone(30), pod("", 90, 6)}, slice},
	} {
		a, s := playOver(t, New(fastOptions()), start(), free(1), pod("1", week, 6))
		cmptest.Equal(t, "before "+about, recommend(a, s).Devices[0].Action, ActionSlice)

		a, s = playOver(t, a, s.Time.Add(time.Minute), c.then...)
		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, about, answer{r.Action, r.Reason, r.Recommended}, c.want)

		if c.want == unseen {
			cmptest.HasTexts(t, r.Explanation, "of a version that was not observed when it started", "Restart one replica")
			cmptest.Equal(t, about+", confidence", r.Confidence <= 0.5, true)
		}
	}
}

// TestKeptVersions: a version of which a start was seen lately is not forgotten for others that were seen again
// and again.
func TestKeptVersions(t *testing.T) {
	var s starts

	has := func(hash uint32) bool { return s.findVersion(hash) != nil }

	for hash := range uint32(keptVersions) {
		s.noteVersion(hash+1, false)
	}

	for range 2 * keptVersions {
		s.noteVersion(3, false)
	}

	cmptest.Equal(t, "all of them", has(1) && has(3) && has(keptVersions), true)
	cmptest.Equal(t, "others", has(99) || has(0), false)

	s.noteVersion(99, false)
	cmptest.Equal(t, "the oldest one", has(1), false)
	cmptest.Equal(t, "the others", has(99) && has(2) && has(3), true)
}

// TestStartsThatOthersPushOut: what one of the last five starts of a version needed stays known while starts of
// others take their places, and no longer.
func TestStartsThatOthersPushOut(t *testing.T) {
	type run struct {
		times   int
		version uint32
		peak    float64
		again   bool // of processes
	}

	var s starts

	// Each step goes on where the one before has ended. want is what is kept of version 1.
	for _, step := range []struct {
		about string
		runs  []run
		want  float32
	}{
		{"its own have pushed it out", []run{{1, 1, 60, false}, {keptStarts, 1, 6, false}}, 0},
		{"others have", []run{{1, 1, 60, false}, {keptStarts, 2, 6, false}}, 60},
		{"four starts later", []run{{keptStarts - 1, 1, 6, false}}, 60},
		{"five starts later", []run{{1, 1, 6, false}}, 0},
		{"its own newer one has", []run{{1, 1, 60, false}, {keptStarts - 1, 2, 6, false}, {1, 1, 6, false}}, 60},
		{"its processes start", []run{{keptStarts, 2, 6, false}, {2 * keptStarts, 1, 6, true}}, 60},
		{"its containers start", []run{{keptStarts, 1, 6, false}}, 0},
		{"processes push a process out", []run{{1, 1, 50, true}, {keptStarts, 2, 6, true}}, 50},
		{"containers push a process out", []run{{1, 1, 70, true}, {keptStarts, 2, 6, false}}, 70},
	} {
		for _, r := range step.runs {
			for range r.times {
				s.add(&starting{template: r.version, peak: r.peak, used: 1, again: r.again})
			}
		}

		cmptest.Equal(t, step.about, s.findVersion(1).Peak, step.want)
	}

	w := workload{Starts: s}
	(&starting{open: true, template: 1, peak: 80 << 10}).raise(&w)
	cmptest.Equal(t, "of one that was lost", w.Starts.findVersion(1).Peak, 80<<10)
}

// TestStartsOfACanary: while a pod of a version runs, what its start needed counts, however often others have
// started since.
func TestStartsOfACanary(t *testing.T) {
	memory := answer{Action: ActionKeep, Reason: ReasonMemory}

	for about, c := range map[string]struct {
		after stage // the first five minutes
		gib   float64
		want  answer
	}{
		"it runs":                   {stage{}, 6, memory},
		"it has gone":               {stage{}, 0, answer{Action: ActionKeep, Reason: ReasonNoGain}}, // a slice would do
		"its start was lost partly": {gone(20), 6, memory},
	} {
		a := New(fastOptions())
		at := start()
		show := func(minutes int, canary string, stableGiB, canaryGiB float64) (s *gpu.Snapshot) {
			var gpus []gpu.GPU

			for i, pods := range []struct {
				template string
				gib      float64
			}{{"1", stableGiB}, {canary, canaryGiB}} {
				h := pod("ml", "StatefulSet/a")
				h.Pod, h.PodUID, h.Template = fmt.Sprint("a-", i), fmt.Sprint("uid-", i, pods.template), pods.template
				g := wholeGPU(t, "H100-80GB", i, load{busy: 0.5, sm: 0.01, gib: pods.gib}, h)

				if pods.gib == 0 {
					g.Holders, g.Allocated = nil, gpu.Some(false)
				}

				gpus = append(gpus, g)
			}

			s = observeFor(a, at, time.Duration(minutes-1)*time.Minute, gpus...)
			at = s.Time.Add(time.Minute)

			return s
		}

		show(1, "2", 0, 0)
		show(70, "2", 6, 6)
		show(5, "2", 0, 6)
		show(5, "2", 60, 6)

		at = at.Add(time.Duration(c.after.minutes) * time.Minute)
		show(10*24*60, "2", 6, 6)

		for i := range keptStarts {
			show(62, fmt.Sprint(3+i), 6, 6)
		}

		s := show(62, "9", c.gib, 6)
		r := recommend(a, s).Devices[1]
		cmptest.Equal(t, about, answer{r.Action, r.Reason, r.Recommended}, c.want)
	}
}

// TestVersionOnALostGPU: a pod on a GPU that has not been read for an hour says nothing of what runs now.
func TestVersionOnALostGPU(t *testing.T) {
	a := New(fastOptions())
	at := start()
	show := func(minutes int, version string, up bool) answer {
		var gpus []gpu.GPU

		for i, template := range []string{"1", version} {
			h := pod("ml", "Deployment/a")
			h.Pod, h.PodUID, h.Template = fmt.Sprint("a-", i, template), fmt.Sprint("uid-", i, template), template
			gpus = append(gpus, wholeGPU(t, "H100-80GB", i, load{busy: 0.5, sm: 0.01, gib: 6}, h))
		}

		gpus[1].Up = up
		s := observeFor(a, at, time.Duration(minutes)*time.Minute, gpus...)
		at = s.Time.Add(time.Minute)
		r := recommend(a, s).Devices[0]

		return answer{r.Action, r.Reason, r.Recommended}
	}
	slice := answer{Action: ActionSlice, Profile: "1g.10gb"}
	unseen := answer{Action: ActionKeep, Reason: ReasonStartUnseen}

	cmptest.Equal(t, "at first", show(9*24*60, "1", true), slice)

	at = at.Add(time.Hour)
	cmptest.Equal(t, "another version, after a gap", show(90, "2", true), unseen)
	cmptest.Equal(t, "its GPU is lost", show(50, "2", false), unseen)
	cmptest.Equal(t, "an hour later", show(60, "2", false), slice)
	cmptest.Equal(t, "it is back", show(9, "2", true), unseen)
}
