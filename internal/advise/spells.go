package advise

import "math"

// spells counts work by the busy share of the ten seconds in which it comes.
type spells struct {
	busy, observed float64               // of the open one, in seconds
	squares        float64               // of the shares, times the seconds
	partly         float64               // seconds of polls that were neither idle nor busy all the time
	work           [spellBuckets]float32 // by busy share
}

const (
	spellSeconds = 10
	// clearly is how much larger the variance from spell to spell must be than the variance that
	// single requests cause: both are estimates.
	clearly      = 1.5
	spellBuckets = 40
)

func (s *spells) add(busy, elapsed float64) {
	s.busy += busy * elapsed
	s.observed += elapsed

	if busy > 1-alwaysBusy && busy < alwaysBusy {
		s.partly += elapsed
	}

	if s.observed >= spellSeconds {
		s.squares += s.busy * s.busy / s.observed
		s.work[min(int(s.busy/s.observed*spellBuckets), spellBuckets-1)] += float32(s.busy)
		s.busy = 0
		s.observed = 0
	}
}

// share returns the busy share in which a share q of the work comes at most.
func (s *spells) share(q float64) float64 {
	var all, sum float64
	for _, work := range s.work {
		all += float64(work)
	}

	for bucket, work := range s.work {
		sum += float64(work)
		if sum >= q*all {
			return (float64(bucket) + 0.5) / spellBuckets
		}
	}

	return 0
}

// fifthUnit is what the busy shares of queueHour.Fifths are parts of.
const fifthUnit = 255

// met returns the busy time in which the work comes, see queueHour.Met and Fifths. Requests that
// are longer than a poll show in polls that are idle or busy all the time: those between are where
// one begins or ends.
func (h *hour) met() (met float32, fifths [4]uint8) {
	busy := h.work / h.seconds
	random := float64(h.poll.variance())

	if partly := h.spell.partly / h.seconds; partly < 0.5 {
		random = max(random, busy*2*busy/max(partly, 1e-3))
	}

	variance := h.spell.squares/h.seconds - busy*busy
	bursts := max(0, variance-clearly*random/spellSeconds)
	shareOfBursts := 0.

	if bursts > 0 {
		shareOfBursts = math.Sqrt(bursts / variance)
	}

	most := min(busy+max(0, h.spell.share(0.9)-busy)*shareOfBursts, 1)

	for i := range fifths {
		share := busy + (h.spell.share(0.1+0.2*float64(i))-busy)*shareOfBursts
		fifths[i] = uint8(math.Round(min(max(share/most, 1./fifthUnit), 1) * fifthUnit))
	}

	return float32(most), fifths
}

// shares returns the busy time in which each fifth of the work comes.
func (h *queueHour) shares() [5]float64 {
	met := float64(h.Met)
	shares := [5]float64{met, met, met, met, met}

	for i, part := range h.Fifths {
		if part > 0 {
			shares[i] = met * float64(part) / fifthUnit
		}
	}

	return shares
}
