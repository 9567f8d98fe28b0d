package truth

import (
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// record is what is kept of a workload.
type record struct {
	name, kind, mix, model string
	// start is how its pods start, startSeen whether one did while it was observed.
	start     string
	startSeen bool
	// foreseeable is false if a new version came after the advice: nothing that was observed shows it.
	foreseeable bool
	// all and past say whether the oracles, that knows all and that knows what could be observed, have a slice for it.
	all, past bool
	flaps     int
	verdicts  [ways]verdict
	reason    string // why nothing is recommended by default
}

// verdict is what came of one way's advice.
type verdict struct {
	given                      bool
	profile                    string
	outOfMemory, engineMissing bool
	seen, hidden               effect
	predicted                  advise.Stretch // at p95
	// all and past say whether the oracles agree that the profile does.
	all, past bool
}

// effect is what a slice did to a workload.
type effect struct {
	throughput, stretch, worstHour float64
	engines                        float64 // throughput by media engines alone
	regret                         bool
	// delay is the time in minutes from the first loss to the advice to grow; -1 if there was no such advice. grew says
	// that there was.
	delay int
	grew  bool
}

// record sums up what was measured of a workload.
func (s *subject) record(n *node) record {
	r := record{
		name: fmt.Sprintf("%s GPU %d", n.name, s.gpu), kind: s.work.kind, mix: s.work.mix, model: n.model.Name,
		start: s.work.start.name, startSeen: s.work.startSeen(),
		foreseeable: s.work.changes == 0, flaps: s.flaps, all: s.best(s.knowsAll) != nil, past: s.best(s.knowsPast) != nil,
		reason: string(s.report[byDefault].Reason),
	}
	for way, c := range s.answers {
		if c == nil {
			continue
		}
		v := verdict{
			given: true, profile: c.profile.Name,
			outOfMemory: s.next.outOfMemory(c.profile), engineMissing: lacks(c.profile, s.next.media),
			all: s.work.cuttable() && s.knowsAll(c), past: s.work.cuttable() && s.knowsPast(c),
			seen: c.real.effect(-1), hidden: c.hidden.effect(-1),
		}
		if way != naively {
			v.predicted = s.report[way].Predicted.StretchP95
			v.seen, v.hidden = c.real.effect(s.noticed[way][0]), c.hidden.effect(s.noticed[way][1])
		}
		r.verdicts[way] = v
	}
	return r
}

// effect sums up an outcome, with the minute of the advice to grow.
func (o *outcome) effect(noticed int) effect {
	e := effect{
		throughput: o.throughput(), stretch: o.stretch.quantile(0.95), worstHour: o.worstHour,
		regret: o.regret(), delay: -1, grew: noticed >= 0,
	}
	e.engines = 1
	if o.allWork > 0 {
		e.engines = o.engineWork / o.allWork
	}
	if e.grew && o.began() >= 0 {
		e.delay = max(0, noticed-o.began())
	}
	return e
}

// dies reports whether the workload ran out of memory or lacked an engine.
func (v *verdict) dies() bool { return v.outOfMemory || v.engineMissing }

// The limits. Figures are bounded by the resolution of the distributions, half a percent.
const (
	maxRegrets   = 0.01
	noticeWithin = 60
	resolution   = 1.006
)

// violations returns which limits do not hold.
func violations(records []record) []string {
	var found []string
	given, regrets := 0, 0
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
			regret := fmt.Sprintf("%s: throughput %.3f, stretch %.3f, noticed after %d minutes",
				about, v.seen.throughput, v.seen.stretch, v.seen.delay)
			if way == strictly && v.seen.regret {
				found = append(found, regret)
			}
			if way == byDefault {
				given++
				if v.seen.regret {
					regrets++
					if v.seen.delay < 0 || v.seen.delay > noticeWithin {
						found = append(found, regret)
					}
				}
			}
		}
	}
	if float64(regrets) > maxRegrets*float64(given) {
		found = append(found, fmt.Sprintf("%d regrets of %d recommended workloads; expected %.0f %% at most",
			regrets, given, 100*maxRegrets))
	}
	return found
}
