package promtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// pastMinutes is how long the history is that askFleetOfPast writes.
const pastMinutes = 2 * 24 * 60

// askFleetOfPast writes a history of two days and runs migctl fleet over it. write is called for every
// so many minutes, and puts the value of a family at that time, with names and values of its labels.
func askFleetOfPast(
	t *testing.T,
	every int,
	write func(minute int, put func(family string, value float64, pairs ...string)),
) fleetReport {
	t.Helper()

	return askFleetAfter(t, pastMinutes, every, write)
}

// askFleetAfter is askFleetOfPast for a history of some minutes, of which the last two days count.
func askFleetAfter(
	t *testing.T,
	minutes, every int,
	write func(minute int, put func(family string, value float64, pairs ...string)),
) fleetReport {
	t.Helper()

	e := NewPrometheus(t)
	app := e.db.Appender(t.Context())

	for minute := 0; minute < minutes; minute += every {
		at := scraped().Add(time.Duration(minute)*time.Minute + 30*time.Second).UnixMilli()

		write(minute, func(family string, value float64, pairs ...string) {
			of := labels.FromStrings(append([]string{"__name__", family}, pairs...)...)
			if _, err := app.Append(0, of, at, value); err != nil {
				t.Fatal(err)
			}
		})
	}

	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}

	_, url := serveAPI(t, e)

	return askFleet(t, url, "2d", scraped().Add(time.Duration(minutes)*time.Minute))
}

// answerOf returns what is recommended for a GPU, as "action reason profile".
func answerOf(g *fleetGPU) string {
	return fmt.Sprint(g.Action, " ", g.Reason, " ", g.RecommendedProfile)
}
