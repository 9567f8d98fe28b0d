package fleet

import (
	"math"
	"testing"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestStartsInTheHistory: a start is seen if the last holder came while it was known that it was
// not there, and one that came has stayed for an hour.
func TestStartsInTheHistory(t *testing.T) {
	nan := float32(math.NaN())

	for about, c := range map[string]struct {
		pods map[string][2]int // hours for which each held it
		lose [2]int            // hours of which nothing is known
		hide [2]int            // hours of which it is not known what held it
		want bool
	}{
		"all the time":                   {map[string][2]int{"a": {0, 168}}, [2]int{}, [2]int{}, false},
		"from the second hour on":        {map[string][2]int{"a": {1, 168}}, [2]int{}, [2]int{}, true},
		"one after the other":            {map[string][2]int{"a": {0, 70}, "b": {70, 168}}, [2]int{}, [2]int{}, true},
		"after a gap":                    {map[string][2]int{"a": {50, 168}}, [2]int{0, 50}, [2]int{}, false},
		"over a gap":                     {map[string][2]int{"a": {40, 50}, "a ": {60, 168}}, [2]int{50, 60}, [2]int{}, true},
		"over a gap, from the start":     {map[string][2]int{"a": {0, 50}, "a ": {60, 168}}, [2]int{50, 60}, [2]int{}, false},
		"an earlier one came":            {map[string][2]int{"a": {0, 168}, "b": {20, 30}}, [2]int{}, [2]int{}, false},
		"holders hidden at first":        {map[string][2]int{"a": {50, 168}}, [2]int{}, [2]int{0, 50}, false},
		"holders hidden in the middle":   {map[string][2]int{"a": {0, 50}, "a ": {60, 168}}, [2]int{}, [2]int{50, 60}, false},
		"hidden between a and b":         {map[string][2]int{"a": {0, 50}, "b": {60, 168}}, [2]int{}, [2]int{50, 60}, true},
		"hidden in the middle, and came": {map[string][2]int{"a": {40, 50}, "a ": {60, 168}}, [2]int{}, [2]int{50, 60}, true},
	} {
		h := narrow(weekly()).history
		h.arrived = false
		h.stayed = false
		clear(h.held)
		clear(h.namespaces)
		hours(c.lose[0], c.lose[1], func(at int) { h.busy[at] = nan })
		hours(c.hide[0], c.hide[1], func(at int) { h.nameless[at] = namelessUnknown })

		all := heldByHolder{}

		for name, span := range c.pods {
			labels := model.Metric{"namespace": "ml", "pod": model.LabelValue(name[:1])}
			hours(span[0], span[1], func(at int) { all.add(h, labels)(at, 1) })
		}

		all.findStarts()
		cmptest.Equal(t, about, h.sawStart(), c.want)
	}
}

// TestStartOfProcesses: where nothing names holders, processes that come are a start.
func TestStartOfProcesses(t *testing.T) {
	for from, want := range map[int]bool{0: false, 10: true} {
		h := narrow(weekly()).history
		h.arrived = false
		h.stayed = false
		clear(h.namespaces)
		hours(0, from, func(at int) { h.held[at] = false })
		cmptest.Equal(t, "start", h.sawStart(), want)
	}
}
