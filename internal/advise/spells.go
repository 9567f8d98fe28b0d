package advise

import "math"

// spells counts work by the busy share of the ten seconds in which it comes.
type spells struct {
	busy, observed float64               // of the open spell, in seconds
	squares        float64               // of the spells' busy shares, each times its seconds
	work           [spellBuckets]float32 // busy seconds by busy share

	// Polls that were neither idle nor busy all the time: their seconds, and how many runs of such
	// polls there were.
	partly, partlyPolls, partlyRuns float64
	wasPartly                       bool // the last poll
}

const (
	// spellSeconds is how long a spell lasts: it ends with the first poll that completes it.
	spellSeconds = 10
	spellBuckets = 40
	// burstMargin is how many times the variance that single requests cause the variance from spell
	// to spell must be before we speak of bursts: both are estimates.
	burstMargin = 1.5
)

// restart drops the closed spells, and keeps the open one.
func (s *spells) restart() {
	*s = spells{busy: s.busy, observed: s.observed, wasPartly: s.wasPartly}
}

// add adds a poll with its busy share, and closes the spell if it is long enough.
func (s *spells) add(busy, elapsed float64) {
	s.busy += busy * elapsed
	s.observed += elapsed

	isPartly := busy > 1-alwaysBusy && busy < alwaysBusy
	if isPartly {
		s.partly += elapsed
		s.partlyPolls++

		if !s.wasPartly {
			s.partlyRuns++
		}
	}

	s.wasPartly = isPartly

	if s.observed >= spellSeconds {
		s.squares += s.busy * s.busy / s.observed
		s.work[min(int(s.busy/s.observed*spellBuckets), spellBuckets-1)] += float32(s.busy)
		s.busy = 0
		s.observed = 0
	}
}

// share returns the busy share below which a share q of the work comes: the middle of its bucket.
func (s *spells) share(q float64) float64 {
	bucket := firstReaching(s.work[:], q*sumOf(s.work[:]))
	return (float64(bucket) + 0.5) / spellBuckets
}

// isDense reports whether most polls with work have several requests. Then polls that are neither
// idle nor busy all the time follow each other: requests neither begin nor end in them alone. A run that
// goes on from the hour before is not counted in partlyRuns.
func (s *spells) isDense() bool { return s.partlyPolls >= densePolls*max(s.partlyRuns, 1) }

// densePolls is the mean length of such runs from which on polls have several requests. A request that
// is longer than a poll has two of one poll, or one of two polls.
const densePolls = 3

// fifthUnit is the unit of queueHour.Fifths.
const fifthUnit = 255

// met returns the busy time in which the work comes, see queueHour.Met and Fifths.
func (h *hour) met() (met float32, fifths [4]uint8) {
	busy := h.work / h.observed
	random := float64(h.poll.variance())

	// Requests that are longer than a poll show in polls that are idle or busy all the time. The polls
	// between are those in which a request begins or ends: they say how many requests there were, and
	// that how much spells vary by chance.
	if !h.spells.isDense() {
		random = max(random, busy*2*busy/max(h.spells.partly/h.observed, 1e-3))
	}

	variance := h.spells.squares/h.observed - busy*busy
	bursts := max(0, variance-burstMargin*random/spellSeconds)
	shareOfBursts := 0.

	if bursts > 0 {
		shareOfBursts = math.Sqrt(bursts / variance)
	}

	// We move each share towards the mean by as much of its distance as is chance.
	most := min(busy+max(0, h.spells.share(0.9)-busy)*shareOfBursts, 1)

	for i := range fifths {
		share := busy + (h.spells.share(0.1+0.2*float64(i))-busy)*shareOfBursts
		fifths[i] = uint8(math.Round(min(max(share/most, 1./fifthUnit), 1) * fifthUnit))
	}

	return float32(most), fifths
}

// spellShares returns the busy time in which each fifth of the work comes, the busiest one last.
func (h *queueHour) spellShares() [5]float64 {
	met := float64(h.Met)
	shares := [5]float64{met, met, met, met, met}

	for i, part := range h.Fifths {
		if part > 0 {
			shares[i] = met * float64(part) / fifthUnit
		}
	}

	return shares
}
