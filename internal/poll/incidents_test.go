package poll

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// report is one report of an XID: when, by which source, and of which GPU instance (-1: none).
type report struct {
	at       time.Duration
	xid      uint64
	instance int
	logged   bool
}

// TestOneIncidentIsOneCount counts the incidents in reports of both sources.
func TestOneIncidentIsOneCount(t *testing.T) {
	const s, ms = time.Second, time.Millisecond

	burst := func(xid uint64, n int, gap time.Duration) (list []report) {
		for i := range n {
			list = append(list, report{at: time.Duration(i) * gap, xid: xid, instance: 0})
		}

		return list
	}
	for name, tc := range map[string]struct {
		reports []report
		want    float64
	}{
		"79 once for each of 50 channels":     {burst(79, 50, ms), 1},
		"119 that goes on for a minute":       {burst(119, 7, 10*s), 1},
		"120 again after 10 s":                {burst(120, 3, 10*s+ms), 3},
		"79 with its line of the log":         {append(burst(79, 50, ms), report{s, 79, -1, true}), 1},
		"79 of the log alone":                 {[]report{{0, 79, -1, true}, {11 * s, 79, -1, true}}, 2},
		"94 of two instances":                 {[]report{{0, 94, 1, false}, {s, 94, 2, false}, {s, 94, 1, false}}, 2},
		"94, whose line names no instance":    {[]report{{0, 94, 1, false}, {s, 94, -1, true}}, 1},
		"94 of none, then of two instances":   {[]report{{0, 94, -1, true}, {s, 94, 1, false}, {2 * s, 94, 2, false}}, 2},
		"94 of two instances, then of none":   {[]report{{0, 94, 2, false}, {s, 94, 1, false}, {2 * s, 94, -1, true}}, 2},
		"13 three times":                      {burst(13, 3, ms), 3},
		"13 three times, with lines":          {append(burst(13, 3, ms), report{s, 13, 0, true}, report{s, 13, -1, true}), 3},
		"13, more lines than events":          {[]report{{0, 13, 1, false}, {s, 13, 1, true}, {s, 13, 1, true}}, 2},
		"13, whose line comes 5 s later":      {[]report{{0, 13, 1, false}, {5 * s, 13, 1, true}}, 1},
		"13, and a line after more than 5 s":  {[]report{{0, 13, 1, false}, {5*s + ms, 13, 1, true}}, 2},
		"13, whose line comes first":          {[]report{{0, 13, 1, true}, {s, 13, 1, false}}, 1},
		"13 of one instance, line of another": {[]report{{0, 13, 1, false}, {s, 13, 2, true}}, 2},
		"31 beside 13":                        {[]report{{0, 13, 1, false}, {s, 31, 1, true}}, 2},
		"9999, which the table does not know": {burst(9999, 3, ms), 3},
		"13 twice, and the lines of both after that": {[]report{{0, 13, 1, false}, {30 * s, 13, 1, false}, {0, 13, 1, true},
			{30 * s, 13, 1, true}}, 2},
		"79 twice, and the lines of both after that": {[]report{{0, 79, -1, false}, {30 * s, 79, -1, false},
			{0, 79, -1, true}, {30 * s, 79, -1, true}}, 2},
		"79 for a minute, and a line of its middle": {append(burst(79, 7, 10*s), report{25 * s, 79, -1, true}), 1},
		"the clock is set back by an hour":          {[]report{{0, 79, -1, false}, {-time.Hour, 79, -1, false}}, 2},
		"lines prefer events of their instance": {[]report{{0, 31, -1, false}, {s, 31, 4, false}, {s, 31, 4, true},
			{s, 31, -1, true}}, 2},
	} {
		var tracked trackedGPU
		var now time.Time

		for _, r := range tc.reports {
			e := gpu.Event{Kind: gpu.EventXID, XID: r.xid, Logged: r.logged, Time: time.Unix(1e9, 0).Add(r.at)}
			if r.instance >= 0 && gpu.XIDByNumber(r.xid).Scope != gpu.XIDOfGPU {
				e.Instance = gpu.Some(gpu.InstanceID(r.instance))
			}

			now = laterOf(now, e.Time)
			tracked.countXID(e, now)
		}

		cmptest.Equal(t, name, tracked.totals.XIDs.Value, tc.want)
	}
}

// TestIncidentsAreBounded: a flood of XIDs takes no more memory, and is counted.
func TestIncidentsAreBounded(t *testing.T) {
	var l incidents
	counted := 0

	for i := range 10 * maxIncidents {
		at := time.Unix(1e9, int64(i))
		if isNew, _ := l.record(&gpu.Event{XID: 13, Time: at}, at); isNew {
			counted++
		}
	}

	cmptest.Equal(t, "counted", counted, 10*maxIncidents)
	cmptest.Equal(t, "remembered", len(l), maxIncidents)
}
