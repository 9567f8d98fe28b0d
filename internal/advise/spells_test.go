package advise

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestBurstsAreToldFromChance: requests that come at random make spells differ by chance, whether a
// request is shorter than a poll or longer. Requests that come in ten minutes of an hour do not.
func TestBurstsAreToldFromChance(t *testing.T) {
	for about, c := range map[string]struct {
		busy, service float64 // while requests come
		share         float64 // of the hour in which they come
	}{
		"short requests all the time":             {0.3, 0.01, 1},
		"short requests all the time, seldom":     {0.03, 0.05, 1},
		"requests of a second":                    {0.3, 1, 1},
		"long requests all the time":              {0.3, 4, 1},
		"short requests in ten minutes":           {0.8, 0.01, 1. / 6},
		"short requests for a part of the time":   {0.8, 0.01, 0.45},
		"short requests in ten minutes, not many": {0.3, 0.02, 1. / 6},
	} {
		const seconds = 3600

		r := rand.New(rand.NewPCG(3, 4))
		_, polls := poisson(r, c.busy, c.service, 1, c.share*seconds).serve(1, c.share*seconds)

		h := hour{}

		for second := range seconds {
			busy := 0.
			if second < len(polls) {
				busy = polls[second]
			}

			h.add(busy, 1)
		}

		want := h.work / seconds / c.share
		if met, _ := h.met(); math.Abs(float64(met)/want-1) > 0.15 {
			t.Errorf("%s: nine tenths of the work come below a busy time of %.2f, want %.2f", about, met, want)
		}
	}
}

// TestDenseRequestsOfManyHours: requests come close to each other hour after hour, and in every other
// minute there are three times as many. In no hour that is chance.
func TestDenseRequestsOfManyHours(t *testing.T) {
	h := hour{}

	for number := range 3 {
		for second := range 3600 {
			busy := 0.2
			if second/60%2 == 1 {
				busy = 0.6
			}

			h.add(busy, 1)
		}

		if met, _ := h.met(); met < 0.55 {
			t.Errorf("hour %d: nine tenths of the work come below a busy time of %.2f, want 0.6", number, met)
		}

		h.observed = 0
		h.work = 0
		h.poll.restart()
		h.spells.restart()
	}
}
