package fleet

import (
	"fmt"
	"maps"
	"math"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// stay is a time, in steps, for which a pod or a batch job had a GPU.
type stay struct {
	holder   string
	owner    string // "Deployment/a", or batch; empty if it is unknown
	from, to int
}

const (
	dayOfSteps  = 24 * stepsPerHour
	weekOfSteps = 7 * dayOfSteps
	batch       = "batch"
)

// stayed returns a narrow GPU that something with a name held for some stays, and no more.
func stayed(o Options, stays []stay, change func(*history)) *fleetGPU {
	d := narrow(o)
	h := d.history
	h.arrived = false
	h.stayed = false
	clear(h.held)
	clear(h.namespaces)

	if change != nil {
		change(h)
	}

	all := heldByHolder{}

	for _, s := range stays {
		labels := model.Metric{"namespace": "ml", "pod": model.LabelValue(s.holder), "workload": model.LabelValue(s.owner)}
		if s.owner == batch {
			labels = model.Metric{"hpc_job": model.LabelValue(s.holder)}
		}

		for at := s.from; at < s.to; at++ {
			all.add(h, labels)(at, 1)
		}
	}

	all.finish(map[string]*history{d.uuid: h})
	all.findStarts()

	return d
}

// daily returns stays of a CronJob's pods, for some steps of each day up to its end, and of a Deployment
// in the rest of the time, if it has a name.
func daily(steps int, deployment string) []stay {
	var list []stay

	for day := range 7 {
		end := (day + 1) * dayOfSteps
		list = append(list, stay{fmt.Sprintf("c-%d", day), "CronJob/c", end - steps, end})

		if deployment != "" {
			list = append(list, stay{"a-1", deployment, max(6, day*dayOfSteps), end - steps})
		}
	}

	return append(list, stay{"c-first", "CronJob/c", 3, 6})
}

// holds makes something without a name hold a GPU.
func holds(from, to int) func(*history) {
	return func(h *history) {
		for at := from; at < to; at++ {
			h.nameless[at] = namelessHolds
			h.held[at] = true
		}
	}
}

// lastHolderCase is a history and its answer: action, reason and profile.
type lastHolderCase struct {
	stays  []stay
	change func(*history)
	want   string
}

const (
	finalSlice  = "slice  1g.10gb"
	provisional = finalSlice + " provisional"
	tooLittle   = "keep little-evidence "
	notStarted  = "keep start-unseen "
)

// knownOwners are histories that have the owners of pods.
func knownOwners() map[string]lastHolderCase {
	const a, b = "Deployment/a", "Deployment/b"

	return map[string]lastHolderCase{
		"one Deployment": {[]stay{{"a-1", a, 6, weekOfSteps}}, nil, finalSlice},
		"its next pod, for ten minutes": {
			[]stay{{"a-1", a, 6, weekOfSteps - 2}, {"a-2", a, weekOfSteps - 2, weekOfSteps}}, nil, finalSlice,
		},
		"another one for ten minutes": {
			[]stay{{"a-1", a, 6, weekOfSteps - 2}, {"b-1", b, weekOfSteps - 2, weekOfSteps}}, nil, tooLittle,
		},
		"another one in the last step of the first": {
			[]stay{{"a-1", a, 6, weekOfSteps}, {"b-1", b, weekOfSteps - 1, weekOfSteps}}, nil, tooLittle,
		},
		"another one for 23 hours": {
			[]stay{{"a-1", a, 6, weekOfSteps - 276}, {"b-1", b, weekOfSteps - 276, weekOfSteps}}, nil, tooLittle,
		},
		"another one for two days": {
			[]stay{{"a-1", a, 6, 5 * dayOfSteps}, {"b-1", b, 5 * dayOfSteps, weekOfSteps}}, nil, provisional,
		},
		"another one for ten minutes, and two days before": {[]stay{
			{"b-1", b, 6, 2 * dayOfSteps}, {"a-1", a, 2 * dayOfSteps, weekOfSteps - 2}, {"b-2", b, weekOfSteps - 2, weekOfSteps},
		}, nil, provisional},
		"another one for ten minutes, and five days before": {[]stay{
			{"b-1", b, 6, 5 * dayOfSteps}, {"a-1", a, 5 * dayOfSteps, weekOfSteps - 2}, {"b-2", b, weekOfSteps - 2, weekOfSteps},
		}, nil, finalSlice},
		"another one after a gap": {
			[]stay{{"a-1", a, 6, weekOfSteps - 14}, {"b-1", b, weekOfSteps - 2, weekOfSteps}},
			func(h *history) { h.busy[weekOfSteps-3] = float32(math.NaN()) }, tooLittle,
		},
		"the jobs of a CronJob":            {daily(60, ""), nil, finalSlice},
		"the jobs of a CronJob and others": {daily(60, a), nil, finalSlice},
		"too few of them, and others":      {daily(36, a), nil, tooLittle},
	}
}

// unknownOwners are histories that lack some owners, or names.
func unknownOwners() map[string]lastHolderCase {
	return map[string]lastHolderCase{
		"one pod":                  {[]stay{{"a", "", 6, weekOfSteps}}, nil, finalSlice},
		"another, for ten minutes": {[]stay{{"a", "", 6, weekOfSteps - 2}, {"b", "", weekOfSteps - 2, weekOfSteps}}, nil, provisional},
		"another, for two days":    {[]stay{{"a", "", 6, 5 * dayOfSteps}, {"b", "", 5 * dayOfSteps, weekOfSteps}}, nil, finalSlice},

		"only the first owner is unknown": {
			[]stay{{"a", "", 6, weekOfSteps - 2}, {"b", "Deployment/b", weekOfSteps - 2, weekOfSteps}}, nil, provisional,
		},
		"only the last owner is unknown": {
			[]stay{{"a", "Deployment/a", 6, weekOfSteps - 2}, {"b", "", weekOfSteps - 2, weekOfSteps}}, nil, provisional,
		},
		"another batch job for ten minutes": {
			[]stay{{"4711", batch, 6, weekOfSteps - 2}, {"4712", batch, weekOfSteps - 2, weekOfSteps}}, nil, provisional,
		},

		"processes alone": {nil, holds(6, weekOfSteps), finalSlice},
		"processes after a pod, for an hour": {
			[]stay{{"a-1", "Deployment/a", 6, weekOfSteps - 12}}, holds(weekOfSteps-12, weekOfSteps), provisional,
		},
		"processes after a pod, for two days": {
			[]stay{{"a-1", "Deployment/a", 6, 5 * dayOfSteps}}, holds(5*dayOfSteps, weekOfSteps), finalSlice,
		},
		"processes before a pod of ten minutes": {
			[]stay{{"a-1", "Deployment/a", weekOfSteps - 2, weekOfSteps}}, holds(6, weekOfSteps-2), provisional,
		},
	}
}

// TestLastHolderNeedsEvidence: an answer is for the workload that had the GPU last. What another one did
// there before is not enough for it; what pods of its owner did is.
func TestLastHolderNeedsEvidence(t *testing.T) {
	all := knownOwners()
	maps.Copy(all, unknownOwners())

	for about, c := range all {
		o := weekly()
		g := judgeOne(analysisOf(o), stayed(o, c.stays, c.change))

		got := fmt.Sprintf("%s %s %s", g.Action, g.Reason, g.Profile)
		if g.Provisional {
			got += " provisional"
		}

		cmptest.Equal(t, about+": "+g.Explanation, got, c.want)
	}

	o := weekly()
	g := judgeOne(analysisOf(o), stayed(o, knownOwners()["another one for ten minutes"].stays, nil))
	cmptest.Equal(t, "explanation", g.Explanation,
		"ml/Deployment/b, which had it last, was observed on it for 0.2 h; expected 24.0 h or more")
}

// TestStartOfAnotherOwner: a start of one owner's pod does not say what another one needs, whether a pod
// that stayed shows it or memory.
func TestStartOfAnotherOwner(t *testing.T) {
	for owner, want := range map[string]string{"Deployment/a": provisional, "Deployment/b": notStarted} {
		o := weekly()
		o.Advise.MinEvidence = 10 * time.Minute
		stays := []stay{{"a-1", "Deployment/a", 12, weekOfSteps - 2}, {"b-1", owner, weekOfSteps - 2, weekOfSteps}}
		d := stayed(o, stays, func(h *history) { h.memory[1] = 600 << 20 })
		g := judgeOne(analysisOf(o), d)

		got := fmt.Sprintf("%s %s %s", g.Action, g.Reason, g.Profile)
		if g.Provisional {
			got += " provisional"
		}

		cmptest.Equal(t, owner, got, want)
	}
}

// TestLastJob: a job is one however it is known and wherever the window ends, and its busy time is that of
// its own runs.
func TestLastJob(t *testing.T) {
	for about, c := range map[string]struct {
		stays []stay
		want  lastHolder
	}{
		"batch jobs":              {[]stay{{"41", batch, 0, weekOfSteps}}, lastHolder{isJob: true, busy: 0.1}},
		"a job that ended":        {[]stay{{"a-1", "Job/a", 0, weekOfSteps - 30}}, lastHolder{isJob: true, busy: 0.1}},
		"a service":               {[]stay{{"a-1", "Deployment/a", 0, weekOfSteps}}, lastHolder{busy: 0.1}},
		"a job beside a service":  {daily(5*stepsPerHour, "Deployment/a"), lastHolder{isJob: true, busy: 0.9}},
		"a service after its job": {[]stay{{"c-1", "CronJob/c", 0, 600}, {"a-1", "Deployment/a", 600, weekOfSteps}}, lastHolder{busy: 0.1}},
	} {
		h := stayed(weekly(), c.stays, func(h *history) {
			for at := range h.busy {
				h.busy[at] = 0.1
				if about == "a job beside a service" && at%dayOfSteps >= dayOfSteps-5*stepsPerHour {
					h.busy[at] = 0.9
				}
			}
		}).history

		cmptest.Equal(t, about, h.last.isJob, c.want.isJob)

		if math.Abs(h.last.busy-c.want.busy) > 0.05 {
			t.Errorf("%s: busy for %.2f, want %.2f", about, h.last.busy, c.want.busy)
		}
	}
}
