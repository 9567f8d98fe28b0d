package fleet

import (
	"context"
	"math"
	"slices"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// history is what Prometheus knows of a GPU in the window. Means are NaN without a sample.
type history struct {
	start time.Time // of the window
	place string    // cluster and node
	// By step of five minutes.
	busy, sms, bandwidth []float32
	held                 []bool
	holders              []uint8 // how many: 0, 1, or 2 for more
	// that held it, without their cluster; holders that are no pod have no name
	pods       map[podKey]bool
	namespaces map[string]int // steps that each held it
	memory     []float64      // by hour, in bytes; NaN if there is no sample

	total              float64
	nvlink             float64             // the largest rate in bytes per second; NaN if it is unknown
	media              map[string]mediaUse // by engine
	engines            map[string]*engineSteps
	mig, shared, multi bool
	told               bool // the exporter knew whether anything held it
	advised            advised
	job                string // what shows that a pod that held it is part of a job; empty if nothing does
	// owner owns the pod that holds the GPU at the end of the window, until the step ownedUntil;
	// empty if there is none, or it is unknown.
	owner      string
	ownedUntil int
	// arrived is set if the last holder came within the window, stayed if some holder came within
	// it and had the GPU for an hour.
	arrived, stayed bool
}

// engineSteps says how busy the media engines of a kind were in each step, as a share of all of
// them; 0 if they were not used or we don't know.
type engineSteps struct {
	mean, most []float32
}

// mediaUse is what we know of the media engines of a kind.
type mediaUse struct {
	most float64 // largest use
	seen float64 // share of the scrapes that have it
}

func newHistory(start time.Time, window time.Duration) *history {
	steps := int(window / step)
	h := &history{
		start:      start,
		held:       make([]bool, steps),
		holders:    make([]uint8, steps),
		namespaces: map[string]int{},
		pods:       map[podKey]bool{},
		nvlink:     math.NaN(),
		media:      map[string]mediaUse{},
		engines:    map[string]*engineSteps{},
		memory:     make([]float64, int(window/hour)),
	}

	h.busy = unknownMeans(steps)
	h.sms = unknownMeans(steps)
	h.bandwidth = unknownMeans(steps)

	for i := range h.memory {
		h.memory[i] = math.NaN()
	}

	return h
}

// unknownMeans returns a NaN for each step.
func unknownMeans(steps int) []float32 {
	means := make([]float32, steps)
	for i := range means {
		means[i] = float32(math.NaN())
	}

	return means
}

// queryGPUs queries the history of GPUs of one exporter and judges them.
func (a *analysis) queryGPUs(ctx context.Context, gpus []*device) error {
	q := &querier{
		of:        a,
		ctx:       ctx,
		dialect:   gpus[0].dialect,
		gpus:      map[string]*history{},
		selectors: a.selectors(gpus),
	}
	for _, g := range gpus {
		g.history = newHistory(a.end.Add(-a.options.Window), a.options.Window)
		g.history.place = g.cluster + "/" + g.node
		q.gpus[g.uuid] = g.history
	}

	q.queryFacts()
	q.queryMeans(gpus)

	if q.err != nil {
		return q.err
	}

	for _, g := range gpus {
		g.answer = a.summarize(g)
		g.history = nil
	}

	return nil
}

// querier fills in the history of some GPUs. After an error it queries no more.
type querier struct {
	of        *analysis
	ctx       context.Context
	dialect   *dialect
	gpus      map[string]*history
	selectors string
	err       error
}

// facts evaluates an expression at the end of the window, and calls set for each GPU that has a
// result.
func (q *querier) facts(template string, set func(*history, *model.Sample)) {
	if q.err != nil || template == "" {
		return
	}

	var rows model.Vector

	rows, q.err = q.of.client.vector(
		q.ctx,
		render(template, q.selectors, q.of.options.Window, ""),
		q.of.end,
	)
	for _, row := range rows {
		if h := q.gpus[string(row.Metric[q.dialect.uuid])]; h != nil {
			set(h, row)
		}
	}
}

func (q *querier) queryFacts() {
	q.facts(q.dialect.told, func(h *history, _ *model.Sample) { h.told = true })
	q.queryAdvice()
	q.facts(q.dialect.mig, func(h *history, _ *model.Sample) { h.mig = true })
	q.facts(q.dialect.total, func(h *history, row *model.Sample) { h.total = float64(row.Value) })
	q.facts(q.dialect.nvlink, func(h *history, row *model.Sample) { h.nvlink = float64(row.Value) })
	q.facts(q.dialect.media, func(h *history, row *model.Sample) {
		engine := string(row.Metric["engine"])
		h.media[engine] = mediaUse{most: float64(row.Value), seen: h.media[engine].seen}
	})
	q.facts(q.dialect.mediaSeen, func(h *history, row *model.Sample) {
		engine := string(row.Metric["engine"])
		h.media[engine] = mediaUse{most: h.media[engine].most, seen: float64(row.Value)}
	})
}

// series evaluates an expression about GPUs at the steps of a range. set gets the index of a step.
func (q *querier) series(
	template string,
	gpus []*device,
	r v1.Range,
	set func(h *history, at int, labels model.Metric, value float64),
) {
	if q.err != nil || len(gpus) == 0 {
		return
	}

	var rows model.Matrix
	rows, q.err = q.of.client.matrix(
		q.ctx,
		render(template, q.of.selectors(gpus), q.of.options.Window, ""),
		r,
	)
	count := int(r.End.Sub(r.Start)/r.Step) + 1

	for _, row := range rows {
		h := q.gpus[string(row.Metric[q.dialect.uuid])]
		if h == nil {
			continue
		}

		for _, p := range row.Values {
			at := int(p.Timestamp.Sub(model.TimeFromUnixNano(r.Start.UnixNano())) / r.Step)
			if at >= 0 && at < count && !math.IsNaN(float64(p.Value)) {
				set(h, at, row.Metric, float64(p.Value))
			}
		}
	}
}

func (q *querier) queryMeans(gpus []*device) {
	steps := q.of.steps()
	q.means(q.dialect.busy, gpus, func(h *history) []float32 { return h.busy })
	q.means(
		q.dialect.utilization,
		unlike(gpus, (*history).isComplete),
		func(h *history) []float32 { return h.busy },
	)
	q.means(q.dialect.sms, gpus, func(h *history) []float32 { return h.sms })
	q.means(q.dialect.bandwidth, gpus, func(h *history) []float32 { return h.bandwidth })
	q.queryEngines(gpus)

	all := holdings{}
	for _, held := range q.dialect.held {
		q.series(held, gpus, steps, all.add)
	}

	all.finish(q.gpus)
	all.findStarts()

	if q.dialect.used != "" {
		q.series(q.dialect.used, unlike(gpus, (*history).isHeld), steps,
			func(h *history, at int, _ model.Metric, _ float64) { h.held[at] = true })
	}

	q.series(
		q.dialect.memory,
		gpus,
		q.of.hours(),
		func(h *history, at int, _ model.Metric, v float64) {
			h.memory[at] = v
		},
	)
}

// queryEngines queries how many media engines the GPUs use that use any.
func (q *querier) queryEngines(gpus []*device) {
	using := unlike(gpus, func(h *history) bool { return !h.usesMedia() })

	for _, of := range []struct {
		template string
		values   func(*engineSteps) []float32
	}{
		{q.dialect.engines, func(e *engineSteps) []float32 { return e.mean }},
		{q.dialect.enginesMost, func(e *engineSteps) []float32 { return e.most }},
	} {
		q.series(
			of.template,
			using,
			q.of.steps(),
			func(h *history, at int, labels model.Metric, v float64) {
				steps := of.values(h.engineOf(string(labels["engine"])))
				steps[at] = max(steps[at], float32(min(v, 1)))
			},
		)
	}
}

// usesMedia reports whether any media engine was used.
func (h *history) usesMedia() bool {
	for _, m := range h.media {
		if m.most > 0 {
			return true
		}
	}

	return false
}

// engineOf returns the steps of the media engines of a kind.
func (h *history) engineOf(name string) *engineSteps {
	e := h.engines[name]
	if e == nil {
		e = &engineSteps{make([]float32, len(h.busy)), make([]float32, len(h.busy))}
		h.engines[name] = e
	}

	return e
}

// means queries a mean and fills it in where the slice that known returns has NaN. First it queries
// each series, since the server would take longer to aggregate them than for all the rest. If a GPU
// has several series in a step, as after its pod or its exporter was replaced, it queries that
// GPU's mean over all samples.
func (q *querier) means(of measure, gpus []*device, known func(*history) []float32) {
	steps := q.of.steps()
	count := int(q.of.options.Window / step)
	found := map[*history][]float32{}
	several := map[*history]bool{}
	add := func(h *history, at int, _ model.Metric, v float64) {
		if found[h] == nil {
			found[h] = unknownMeans(count)
		}

		several[h] = several[h] || !isNaN(found[h][at])
		found[h][at] = float32(min(max(v, 0), 1))
	}
	q.series(of.perSeries(), gpus, steps, add)

	again := unlike(gpus, func(h *history) bool { return !several[h] })
	for _, g := range again {
		delete(found, g.history)
	}

	q.series(of.perGPU(q.dialect.uuid), again, steps, add)

	for h, means := range found {
		for at, v := range means {
			if into := known(h); isNaN(into[at]) {
				into[at] = v
			}
		}
	}
}

// unlike returns the GPUs whose histories do not match.
func unlike(gpus []*device, matches func(*history) bool) []*device {
	var list []*device

	for _, g := range gpus {
		if !matches(g.history) {
			list = append(list, g)
		}
	}

	return list
}

// isComplete reports whether every step has a busy time.
func (h *history) isComplete() bool { return !slices.ContainsFunc(h.busy, isNaN) }

// isSeen reports whether busy time was ever read.
func (h *history) isSeen() bool {
	return slices.ContainsFunc(h.busy, func(v float32) bool { return !isNaN(v) })
}

// isHeld reports whether anything ever held the GPU.
func (h *history) isHeld() bool { return slices.Contains(h.held, true) }

func isNaN(v float32) bool { return v != v }
