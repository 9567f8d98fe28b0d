package advise

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// playSlice shows a pod on a 1g.20gb in stages, a minute at a time, looks at the answer every quarter of
// an hour and at the end, and returns the last Snapshot and the answers. It is never idle.
func playSlice(t *testing.T, a *Advisor, at time.Time, stages ...stage) (*gpu.Snapshot, []Recommendation) {
	t.Helper()

	var s *gpu.Snapshot

	var looks []Recommendation

	passed := 0

	for i, stage := range stages {
		g := sliceIn(t, stage)

		for minute := range stage.minutes {
			s = &gpu.Snapshot{Time: at, Hostname: "node-a", GPUs: []gpu.GPU{g}}
			at = at.Add(time.Minute)
			passed++
			a.Observe(s)

			isLast := i == len(stages)-1 && minute == stage.minutes-1
			if passed%15 == 0 || isLast {
				looks = append(looks, a.Recommend(s).Devices[0])
			}
		}
	}

	for i := range looks {
		if looks[i].Action == ActionIdle {
			t.Errorf("look %d: idle", i)
		}
	}

	return s, looks
}

// sliceIn returns a GPU with a 1g.20gb that is in a stage of a whole GPU.
func sliceIn(t *testing.T, stage stage) gpu.GPU {
	t.Helper()

	g := slicedGPU(t, "H100-80GB", "1g.20gb", load{gib: stage.gib}, pod("ml", "Deployment/a"))
	i := &g.Instances[0]
	i.Holders[0].PodUID = "uid-moved"

	if stage.change == nil {
		return g
	}

	g.Holders, g.Allocated, g.Readings.Memory = i.Holders, i.Allocated, i.Memory
	stage.change(&g)
	i.Holders, i.Allocated, i.Memory = g.Holders, g.Allocated, g.Readings.Memory
	g.Holders = nil

	list := slices.Clone(g.Readings.Processes.Or(nil))
	for k := range list {
		list[k].Instance = gpu.Some(i.ID)
	}

	if g.Readings.Processes.Present() {
		g.Readings.Processes = gpu.Some(list)
	}

	return g
}

// times returns stages that follow each other n times.
func times(n int, stages ...stage) []stage { return slices.Repeat(stages, n) }

// unreadMemoryFor returns a stage in which the use of memory cannot be read.
func unreadMemoryFor(minutes int) stage {
	return stage{minutes, 0, func(g *gpu.GPU) { g.Readings.Memory.Used = gpu.None[uint64]() }}
}

// restartedByPIDs returns stages in which another process takes the place of the last one between two
// polls, every so many minutes.
func restartedByPIDs(n, minutes int, gib float64) []stage {
	var list []stage
	for i := range n {
		list = append(list, runs(uint32(100+i), minutes, gib))
	}

	return list
}

// podsInARow returns stages of pods that follow each other.
func podsInARow(n int) []stage {
	var list []stage
	for i := range n {
		list = append(list, heldBy(fmt.Sprint("uid-", i), 90, 4), heldBy(fmt.Sprint("uid-", i), 4, 0))
	}

	return list
}

// lateEnds are what a container does after it was up in its slice for an hour. from is the minute from
// which on it must grow; 0 if it never must.
func lateEnds() map[string]struct {
	before, after []stage
	from          int
} {
	const day = 24 * 60
	runs2h, killed := held(70, 4), held(5, 0)
	night := held(6*60, 0)
	// A process frees its memory, and keeps its context.
	frees := []stage{runs(7, 100, 8), runs(7, 500, 0.4), runs(7, 100, 8), runs(7, 500, 0.4), runs(7, 90, 8), runs(7, 9, 0.4)}
	hidden := []stage{held(100, 8), held(500, 0.4), held(100, 8), held(500, 0.4), held(100, 8), held(500, 0.4)}

	return map[string]struct {
		before, after []stage
		from          int
	}{
		"killed every 75 minutes":                  {nil, times(19, runs2h, killed), 145},
		"restarted between polls, every 65":        {nil, restartedByPIDs(20, 65, 4), 130},
		"grows until it is killed":                 {nil, times(12, held(40, 4), held(40, 6), held(40, 9), held(5, 0)), 245},
		"killed every nine hours":                  {nil, times(5, held(9*60, 4), killed), 18*60 + 5},
		"grows for hours, and is restarted once":   {nil, []stage{held(40, 4), held(40, 5), held(40, 6), killed, held(90, 4)}, 0},
		"grows for hours in each of its pods":      {nil, []stage{heldBy("uid-1", 80, 4), heldBy("uid-1", 40, 6), free(1), heldBy("uid-2", 80, 4), heldBy("uid-2", 40, 6), free(1)}, 0},
		"restarted once":                           {nil, []stage{held(90, 4), killed, held(day, 4)}, 0},
		"restarted once, its process listed late":  {nil, []stage{runs(7, 90, 4), runs(7, 1, 0), runs(8, 90, 4)}, 0},
		"restarted every day":                      {nil, times(5, held(day-5, 4), killed), 0},
		"restarted every day, a little early":      {nil, times(5, held(day-15, 4), killed), 0},
		"killed once by each pod":                  {nil, []stage{heldBy("uid-1", 90, 4), heldBy("uid-1", 4, 0), heldBy("uid-1", 90, 4), heldBy("uid-2", 90, 4), heldBy("uid-2", 4, 0), heldBy("uid-2", 90, 4)}, 0},
		"pods that follow each other":              {nil, podsInARow(12), 0},
		"frees its memory":                         {nil, frees, 0},
		"frees its memory, its processes hidden":   {nil, hidden, 0},
		"an idle kernel":                           {nil, []stage{held(90, 4), held(20*60, 0.5)}, 0},
		"as often before":                          {times(6, held(4*60, 4), killed), times(6, held(4*60, 4), killed), 0},
		"a little more often than before":          {times(3, held(7*60, 4), killed), times(6, held(5*60, 4), killed), 0},
		"once a day before":                        {times(3, held(day-5, 4), killed), times(12, runs2h, killed), 145},
		"much more often than before":              {times(4, held(9*60, 4), killed), times(19, runs2h, killed), 520},
		"lost its memory":                          {nil, []stage{held(2*60, 4), held(10*60, 0)}, 6 * 60},
		"lost its memory for less":                 {nil, []stage{held(2*60, 4), held(3*60, 0), held(60, 4)}, 0},
		"lost its memory, as before":               {times(2, held(12*60, 4), night), []stage{held(2*60, 4), held(10*60, 0)}, 0},
		"memory that is not read":                  {nil, []stage{held(2*60, 4), unreadMemoryFor(10 * 60)}, 0},
		"memory that is not read, once it is gone": {nil, []stage{held(2*60, 4), held(2, 0), unreadMemoryFor(10 * 60)}, 0},
		"never read":                               {nil, []stage{unreadMemoryFor(10 * 60)}, 0},
	}
}

// TestLateEnds: a container that was up for an hour and ends again and again, or holds no memory for
// hours, must grow as long as that lasts, unless the same was usual on the whole GPU.
func TestLateEnds(t *testing.T) {
	for about, c := range lateEnds() {
		a := New(fastOptions())
		before := append([]stage{free(1)}, held(2*24*60, 4))
		s := play(t, a, start(), append(before, c.before...)...)
		s = play(t, a, s.Time.Add(time.Minute), free(1))
		_, looks := playSlice(t, a, s.Time.Add(time.Minute), c.after...)

		for i := range looks {
			r := &looks[i]
			mustGrow := c.from > 0 && 15*(i+1) > c.from
			got := answer{r.Action, r.Reason, r.Recommended}

			isRight := r.Action != ActionGrow && r.Reason != ReasonNotUp
			if mustGrow {
				isRight = got == answer{Action: ActionGrow, Reason: ReasonNotUp, Profile: "3g.40gb"}
			}

			if !isRight {
				t.Errorf("%s: look %d of %d: %+v, must grow: %v", about, i, len(looks), got, mustGrow)
				break
			}
		}
	}
}

// TestLateEndsAreExplained: what is said names what happened.
func TestLateEndsAreExplained(t *testing.T) {
	for about, c := range map[string]struct {
		stages []stage
		says   []string
	}{
		"killed": {times(4, held(70, 4), held(5, 0)), []string{"does not stay up", "4 times in the last 20 h"}},
		"lost":   {[]stage{held(70, 4), held(8*60+1, 0)}, []string{"it is not up", "no memory for 8.0 h"}},
		"start":  {[]stage{held(31, 0)}, []string{"did not come up"}},
	} {
		a := New(fastOptions())
		s := play(t, a, start(), free(1), held(2*24*60, 4))
		_, looks := playSlice(t, a, s.Time.Add(time.Minute), c.stages...)
		r := looks[len(looks)-1]
		cmptest.Equal(t, about, r.Reason, ReasonNotUp)
		cmptest.HasTexts(t, r.Explanation, c.says...)
	}
}

// TestLateEndsWithoutHistory: of a workload that was on no larger device, it is not known what is usual.
func TestLateEndsWithoutHistory(t *testing.T) {
	for about, stages := range map[string][]stage{
		"killed": times(19, held(70, 4), held(5, 0)),
		"lost":   {held(2*60, 4), held(10*60, 0)},
	} {
		a := New(fastOptions())
		a.Observe(&gpu.Snapshot{Time: start(), Hostname: "node-a"})
		_, looks := playSlice(t, a, start().Add(time.Minute), stages...)

		for i := range looks {
			if looks[i].Action != ActionKeep {
				t.Errorf("%s: look %d: %s", about, i, looks[i].Action)
			}
		}
	}
}

// TestLateEndsAreKept: what came before a restart of the exporter counts after it, and so does what was
// usual; the evidence of older versions says nothing of either.
func TestLateEndsAreKept(t *testing.T) {
	grow := answer{Action: ActionGrow, Reason: ReasonNotUp, Profile: "3g.40gb"}
	usual := times(6, held(4*60, 4), held(5, 0))

	for about, c := range map[string]struct {
		before, first, then []stage
		isOld               bool
		want                answer
	}{
		"killed before and after": {nil, []stage{held(90, 4), held(5, 0), held(30, 4)}, []stage{held(90, 4), held(5, 0), held(5, 4)}, false, grow},
		"killed twice before":     {nil, times(2, held(90, 4), held(5, 0)), []stage{held(70, 4)}, false, grow},
		"empty before and after":  {nil, []stage{held(90, 4), held(3*60, 0)}, []stage{held(80, 0)}, false, grow},
		"usual":                   {usual, times(5, held(90, 4), held(5, 0)), []stage{held(70, 4)}, false, answer{Action: ActionKeep}},
		"of an older version":     {nil, times(5, held(90, 4), held(5, 0)), []stage{held(90, 4), held(5, 0), held(90, 4), held(4*60, 0)}, true, answer{Action: ActionKeep}},
	} {
		a := New(fastOptions())
		s := play(t, a, start(), append([]stage{free(1), held(24*60, 4)}, c.before...)...)
		s = play(t, a, s.Time.Add(time.Minute), free(1))
		s, _ = playSlice(t, a, s.Time.Add(time.Minute), c.first...)
		a = restarted(t, a, s)

		if c.isOld {
			a.down = nil
			for _, w := range a.workloads {
				w.Ends = 0
			}
		}

		_, looks := playSlice(t, a, s.Time.Add(time.Minute), c.then...)
		r := looks[len(looks)-1]

		got := answer{r.Action, r.Reason, r.Recommended}
		if c.want.Action == ActionKeep && r.Reason != ReasonNotUp {
			got.Reason = ""
		}

		cmptest.Equal(t, about, got, c.want)
	}
}

// TestEndsAreKnownAfterADay: an exporter that takes over the evidence of an older version shortly before
// midnight has counted nothing of the day before.
func TestEndsAreKnownAfterADay(t *testing.T) {
	var w workload

	for day, want := range []bool{false, true, true} {
		w.today(start().AddDate(0, 0, day))
		w.Ends = w.Ends.with(1 | areKnown)

		cmptest.Equal(t, fmt.Sprintf("known on day %d", day), w.Ends&areKnown != 0, want)
	}
}

// TestLateEndsAndClock: ends keep their ages if the clock is set.
func TestLateEndsAndClock(t *testing.T) {
	for _, by := range []time.Duration{-72 * time.Hour, 72 * time.Hour} {
		a := New(fastOptions())
		s := play(t, a, start(), free(1), held(2*24*60, 4))
		s, _ = playSlice(t, a, s.Time.Add(time.Minute), times(3, held(90, 4), held(5, 0))...)

		if by > 0 { // it is believed after a while
			s, _ = playSlice(t, a, s.Time.Add(by), held(15, 4))
			by = 0
		}

		_, looks := playSlice(t, a, s.Time.Add(by), held(70, 4))
		cmptest.Equal(t, by.String(), looks[len(looks)-1].Action, ActionGrow)
	}
}
