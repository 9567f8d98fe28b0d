package truth

import (
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// record is what is kept of a workload.
type record struct {
	name, kind, mix, model string
	arrivals               string // of requests; empty if it answers none
	known                  bool   // annotations say what they are
	// start is how its pods start, startSeen whether one did while it was observed.
	start     string
	startSeen bool
	// foreseeable is false if a new version came after the advice: nothing that was observed shows
	// it.
	foreseeable bool
	// all and past say whether the oracles, that knows all and that knows what could be observed,
	// have a slice for it. bare is past for an oracle that keeps no memory free.
	all, past, bare bool
	present         bool // it held its GPU when the advice was asked for
	flaps           int
	verdicts        [ways]verdict
	reason          string // why nothing is recommended by default
}

// verdict is what came of one way's advice.
type verdict struct {
	given                      bool
	profile                    string
	outOfMemory, engineMissing bool
	seen, hidden               effect
	predicted                  advise.Stretch // at p95
	latency                    advise.Latency
	waitsBefore                waits // in the last week before the move
	// all, past and bare say whether the oracles agree that the profile does.
	all, past, bare bool
}

// effect is what a slice did to a workload.
type effect struct {
	throughput, stretch, worstHour float64
	engines                        float64 // throughput by media engines alone
	waits                          waits
	// regret is slow or late: a limit was passed as the workload model has it minute by minute, or
	// by requests.
	regret, slow, late bool
	// p95Alone says that of latency only p95 passed its limit, see waits.passesAtP95Alone.
	p95Alone bool
	// delay is the time in minutes from the first loss to the advice to grow, lateDelay from the
	// first hour in which requests passed their limit; -1 if there was no such advice. grew says
	// that there was.
	delay, lateDelay int
	grew             bool
}

// record sums up what was measured of a workload.
func (s *subject) record(n *node) record {
	r := record{
		name: fmt.Sprintf("%s GPU %d", n.name, s.gpu), kind: s.work.kind, mix: s.work.mix, model: n.model.Name,
		start: s.work.start.name, startSeen: s.work.startSeen(),
		foreseeable: s.work.changes == 0, flaps: s.flaps, all: s.best(n, s.knowsAll) != nil, past: s.best(n, s.knowsPast) != nil, bare: s.best(n, s.keepsNothing) != nil,
		present: s.report[byDefault].Action != advise.ActionFree,
		reason:  string(s.report[byDefault].Reason),
	}
	if v := s.work.serves; v != nil {
		r.arrivals = v.arrivals
		r.known = v.known
	}

	for way, c := range s.answers {
		if c == nil {
			continue
		}

		v := verdict{
			given: true, profile: c.profile.Name,
			outOfMemory: s.next.outOfMemory(c.profile), engineMissing: lacks(c.profile, s.next.media),
			all: s.work.cuttable() && s.knowsAll(n, c), past: s.work.cuttable() && s.knowsPast(n, c), bare: s.work.cuttable() && s.keepsNothing(n, c),
		}
		noticed := [2]int{-1, -1}

		if way != naively {
			p := s.report[way].Predicted
			v.predicted = p.StretchP95
			v.latency = p.Latency
			noticed = s.noticed[way]
		}

		v.seen = s.effect(c.real, s.waitsOf(n, c.size, after), noticed[0])
		v.hidden = s.effect(c.hidden, s.waitsOf(n, c.size, afterWithLoss), noticed[1])
		v.waitsBefore = *s.waitsOf(n, c.size, before)
		r.verdicts[way] = v
	}

	return r
}

// effect sums up an outcome and what became of requests, with the minute of the advice to grow.
func (s *subject) effect(o *outcome, v *waits, noticed int) effect {
	e := effect{
		throughput: o.throughput(), stretch: o.stretch.quantile(0.95), worstHour: o.worstHour, waits: *v,
		slow: o.regret(s.work.promised()), late: v.regret(s.work), delay: -1, lateDelay: -1, grew: noticed >= 0,
	}
	e.regret = e.slow || e.late
	e.p95Alone = v.passesAtP95Alone(s.work)

	e.engines = 1
	if o.allWork > 0 {
		e.engines = o.engineWork / o.allWork
	}

	if began := o.began(s.work.promised()); e.grew && began >= 0 {
		e.delay = max(0, noticed-began)
	}

	if e.grew && v.bad >= 0 {
		e.lateDelay = max(0, noticed-v.bad)
	}

	if !e.slow {
		e.delay = e.lateDelay
	}

	return e
}

// dies reports whether the workload ran out of memory or lacked an engine.
func (v *verdict) dies() bool { return v.outOfMemory || v.engineMissing }

// The limits. Figures are bounded by the resolution of the distributions, half a percent.
const (
	maxRegrets   = 0.01
	maxUnseen    = 0.002 // regrets that polls do not show
	noticeWithin = 60
	resolution   = 1.006
	minRecall    = 0.8
)

// noticed reports whether the advice to grow came within an hour, for all that was passed.
func (e *effect) noticed() bool {
	soon := func(delay int) bool { return delay >= 0 && delay <= noticeWithin }
	return (!e.slow || soon(e.delay)) && (!e.late || soon(e.lateDelay))
}

// noticeable reports whether polls show that a limit was passed.
func (e *effect) noticeable() bool { return e.slow || !e.p95Alone }

// violations returns which limits do not hold.
func violations(records []record) []string {
	var found []string
	given := 0
	regrets := 0
	unseen := 0

	for i := range records {
		r := &records[i]
		if !r.foreseeable {
			continue
		}

		for way := range naively {
			v := &r.verdicts[way]
			if !v.given {
				continue
			}

			about := fmt.Sprintf("%s (%s, %s, %s) in %s, way %d", r.name, r.model, r.kind, r.mix, v.profile, way)
			if !r.startSeen {
				found = append(found, about+": is recommended although no start was observed")
			}

			if v.dies() {
				found = append(found, fmt.Sprintf("%s: out of memory %v, engine missing %v", about, v.outOfMemory, v.engineMissing))
			}

			if v.seen.stretch > v.predicted.High*resolution {
				found = append(found, fmt.Sprintf("%s: stretched by %.3f, past high, %.3f",
					about, v.seen.stretch, v.predicted.High))
			}

			regret := fmt.Sprintf("%s: throughput %.3f, stretch %.3f, p95 of latency %.2f (%s, predicted %+v), noticed after "+
				"%d minutes", about, v.seen.throughput, v.seen.stretch, v.seen.waits.latency, r.arrivals, v.latency, v.seen.delay)
			if way == strictly && v.seen.regret {
				found = append(found, regret)
			}

			if way == byDefault {
				given++

				if v.seen.regret {
					regrets++

					switch {
					case v.seen.noticed():
					case v.seen.noticeable():
						found = append(found, regret)
					default:
						unseen++
					}
				}
			}
		}
	}

	if unseen > 1 && float64(unseen) > maxUnseen*float64(given) {
		found = append(found, fmt.Sprintf("%d regrets of %d recommended workloads at p95 of latency alone were not noticed; "+
			"expected %.1f %% at most", unseen, given, 100*maxUnseen))
	}

	if regrets > 1 && float64(regrets) > maxRegrets*float64(given) {
		found = append(found, fmt.Sprintf("%d regrets of %d recommended workloads; expected %.0f %% at most",
			regrets, given, 100*maxRegrets))
	}

	return found
}
