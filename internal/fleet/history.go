package fleet

import (
	"context"
	"math"
	"slices"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// history is what Prometheus knows of a GPU in the window.
type history struct {
	start time.Time // of the window
	place string    // cluster and node

	// By step of five minutes. Means are NaN without a sample.
	busy, sms, bandwidth []float32
	held                 []bool
	holders              []uint8 // number of holders with a name: 0, 1, or 2 for several
	nameless             []nameless

	memory     []float64 // largest use by hour of the clock, see hourOf, in bytes; NaN without a sample
	memoryRead readings
	// leastMemory is the smallest use by hour, in bytes, if memory may be a reservation; NaN otherwise.
	leastMemory []float64

	// pods has in how many steps each pod held it, by keys with an empty cluster. A holder that is
	// no pod has an empty key.
	pods       map[podKey]int
	namespaces map[string]int // in how many steps each namespace held it
	job        string         // what shows that a pod that held it is part of a job, see jobOf

	total float64 // memory in bytes; 0 if it is unknown
	// nvlink is the largest rate that was read, of both directions or of one, in bytes per second; NaN if
	// none was.
	nvlink     float64
	nvlinkRead readings                // of the traffic in both directions
	media      map[string]*mediaUse    // by engine; only of engines whose use was read
	engines    map[string]*engineSteps // by engine; only of engines that were used
	mig        bool                    // MIG mode was on at some time
	shared     bool                    // it had several holders at once
	multi      bool                    // a holder had several GPUs at once
	advice     advice
	last       *lastHolder // nil if nothing with a name held it
	arrived    bool        // the last holder came within the window
	// stayed says that it, or a pod that may be of its owner, came within the window, and held the GPU for
	// an hour.
	stayed bool
}

// nameless says whether something without a name held a GPU in a step in which nothing with a name
// did.
type nameless uint8

const (
	namelessNone nameless = iota
	namelessHolds
	namelessUnknown
)

// engineSteps is the use of the media engines of a kind in each step, as a share of all of them: 0 if
// they were not used or we don't know.
type engineSteps struct {
	mean, most []float32
}

// readings says in which steps the history has a reading.
type readings struct {
	complete bool   // in each step that has anything of the GPU
	steps    []bool // else in these
}

func (r *readings) has(at int) bool { return r.complete || r.steps[at] }

func (r *readings) add(at int) { r.steps[at] = true }

// mediaUse is what we know of the media engines of a kind.
type mediaUse struct {
	most float64 // largest use
	read readings
}

func newHistory(start time.Time, window time.Duration) *history {
	steps := int(window / step)
	h := &history{
		start:      start,
		held:       make([]bool, steps),
		holders:    make([]uint8, steps),
		nameless:   make([]nameless, steps),
		namespaces: map[string]int{},
		pods:       map[podKey]int{},
		nvlink:     math.NaN(),
		nvlinkRead: readings{steps: make([]bool, steps)},
		media:      map[string]*mediaUse{},
		engines:    map[string]*engineSteps{},
		memoryRead: readings{steps: make([]bool, steps)},
	}

	h.memory = make([]float64, h.hourOf(steps-1)+1)
	h.leastMemory = make([]float64, len(h.memory))

	h.busy = unknownMeans(steps)
	h.sms = unknownMeans(steps)
	h.bandwidth = unknownMeans(steps)

	for i := range h.memory {
		h.memory[i] = math.NaN()
		h.leastMemory[i] = math.NaN()
	}

	return h
}

// hourOf returns in which hour a step lies, counted from the one in which the window begins. They are hours
// of the clock: VictoriaMetrics, and Thanos behind its query frontend, move the times of a query to multiples
// of its step.
//
// https://docs.victoriametrics.com/victoriametrics/readme/#prometheus-querying-api-enhancements
// https://thanos.io/tip/components/query-frontend.md/
func (h *history) hourOf(at int) int { return (h.stepsBefore() + at) / stepsPerHour }

// stepsBefore returns how many steps lie between the beginning of the window's first hour and the window.
func (h *history) stepsBefore() int { return int(h.start.Sub(h.start.Truncate(hour)) / step) }

// unknownMeans returns a NaN for each step.
func unknownMeans(steps int) []float32 {
	means := make([]float32, steps)
	for i := range means {
		means[i] = float32(math.NaN())
	}

	return means
}

// queryGPUs queries the history of GPUs of one exporter and judges them.
func (a *analysis) queryGPUs(ctx context.Context, gpus []*fleetGPU) error {
	q := &querier{
		analysis:  a,
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

	a.judgeAll(gpus)

	for _, g := range gpus {
		g.history = nil // it is large
	}

	return nil
}

// querier fills in the history of some GPUs. After an error it queries no more.
type querier struct {
	analysis  *analysis
	ctx       context.Context
	dialect   *dialect
	gpus      map[string]*history // by UUID
	selectors string              // label matchers for these GPUs
	err       error
}

// facts evaluates an expression at the end of the window, and calls set for each GPU that has a
// result.
func (q *querier) facts(template string, set func(*history, *model.Sample)) {
	if q.err != nil || template == "" {
		return
	}

	var rows model.Vector

	rows, q.err = q.analysis.client.vector(
		q.ctx,
		render(template, q.selectors, q.analysis.options.Window, ""),
		q.analysis.end,
	)
	for _, row := range rows {
		if h := q.gpus[string(row.Metric[q.dialect.uuid])]; h != nil {
			set(h, row)
		}
	}
}

func (q *querier) queryFacts() {
	q.queryAdvice()
	q.facts(q.dialect.mig, func(h *history, _ *model.Sample) { h.mig = true })
	q.facts(q.dialect.total, func(h *history, row *model.Sample) { h.total = float64(row.Value) })
	q.facts(q.dialect.nvlink, func(h *history, row *model.Sample) { h.nvlink = float64(row.Value) })
	q.facts(q.dialect.nvlinkRead.complete, func(h *history, _ *model.Sample) { h.nvlinkRead.complete = true })
	q.facts(q.dialect.memoryRead.complete, func(h *history, _ *model.Sample) { h.memoryRead.complete = true })
	q.facts(q.dialect.media, func(h *history, row *model.Sample) {
		h.mediaOf(row.Metric["engine"]).most = float64(row.Value)
	})
	q.facts(q.dialect.mediaRead.complete, func(h *history, row *model.Sample) {
		h.mediaOf(row.Metric["engine"]).read.complete = true
	})
}

// mediaOf returns the use of the media engines of a kind.
func (h *history) mediaOf(engine model.LabelValue) *mediaUse {
	m := h.media[string(engine)]
	if m == nil {
		m = &mediaUse{read: readings{steps: make([]bool, len(h.held))}}
		h.media[string(engine)] = m
	}

	return m
}

// series evaluates an expression about GPUs at the steps of a range. set gets the index of a step.
func (q *querier) series(
	template string,
	gpus []*fleetGPU,
	r v1.Range,
	set func(h *history, at int, labels model.Metric, value float64),
) {
	q.eachSeries(template, gpus, r, func(h *history, labels model.Metric) func(at int, value float64) {
		return func(at int, value float64) { set(h, at, labels, value) }
	})
}

// eachSeries is series for what is worked out once for the labels of a series: begin returns what gets
// the values of one.
func (q *querier) eachSeries(
	template string,
	gpus []*fleetGPU,
	r v1.Range,
	begin func(h *history, labels model.Metric) func(at int, value float64),
) {
	if q.err != nil || template == "" || len(gpus) == 0 {
		return
	}

	var rows model.Matrix
	rows, q.err = q.analysis.client.matrix(
		q.ctx,
		render(template, q.analysis.selectors(gpus), q.analysis.options.Window, ""),
		r,
	)
	count := int(r.End.Sub(r.Start)/r.Step) + 1

	for _, row := range rows {
		h := q.gpus[string(row.Metric[q.dialect.uuid])]
		if h == nil {
			continue
		}

		set := begin(h, row.Metric)

		for _, p := range row.Values {
			at := int(p.Timestamp.Sub(model.TimeFromUnixNano(r.Start.UnixNano())) / r.Step)
			if at >= 0 && at < count && !math.IsNaN(float64(p.Value)) {
				set(at, float64(p.Value))
			}
		}
	}
}

func (q *querier) queryMeans(gpus []*fleetGPU) {
	steps := q.analysis.steps()
	busyOf := func(h *history) []float32 { return h.busy }
	q.means(q.dialect.busy, gpus, busyOf)
	q.means(q.dialect.utilization, without(gpus, (*history).isComplete), busyOf)
	q.means(q.dialect.sms, gpus, func(h *history) []float32 { return h.sms })
	q.means(q.dialect.bandwidth, gpus, func(h *history) []float32 { return h.bandwidth })
	q.queryEngines(gpus)
	q.queryReadings(gpus)

	all := heldByHolder{}
	for _, held := range q.dialect.held {
		q.eachSeries(held, gpus, steps, all.add)
	}

	all.finish(q.gpus)
	q.queryNameless(gpus)
	all.findStarts()

	q.byHour(q.dialect.memory, gpus, func(h *history) []float64 { return h.memory })
	q.byHour(q.dialect.leastMemory, without(gpus, func(h *history) bool { return !h.mayReserve() }),
		func(h *history) []float64 { return h.leastMemory })
}

// byHour queries a value of each hour of the clock. That of the last hour is the value of the hour up to the
// end of the window.
func (q *querier) byHour(template string, gpus []*fleetGPU, valuesOf func(*history) []float64) {
	hours := q.analysis.hours()
	set := func(h *history, at int, _ model.Metric, v float64) { valuesOf(h)[at] = v }

	if !hours.Start.After(hours.End) {
		q.series(template, gpus, hours, set)
	}

	if end := q.analysis.end; hours.End.Before(end) {
		setLast := func(h *history, _ int, labels model.Metric, v float64) { set(h, len(h.memory)-1, labels, v) }
		q.series(template, gpus, v1.Range{Start: end, End: end, Step: step}, setLast)
	}
}

// mayReserve reports whether so much memory is used that it may be a fraction of the GPU that an
// inference server reserves.
func (h *history) mayReserve() bool {
	return !h.mig && maxMemory(h.memory) >= advise.ReservedShare*h.total
}

// queryReadings queries in which steps the history has readings, of the GPUs of which not every scrape
// has them: for most GPUs all have them, or none.
func (q *querier) queryReadings(gpus []*fleetGPU) {
	q.series(
		q.dialect.nvlinkRead.steps,
		without(gpus, func(h *history) bool { return h.nvlinkRead.complete || math.IsNaN(h.nvlink) }),
		q.analysis.steps(),
		func(h *history, at int, _ model.Metric, _ float64) { h.nvlinkRead.add(at) },
	)

	q.series(
		q.dialect.memoryRead.steps,
		without(gpus, func(h *history) bool { return h.memoryRead.complete }),
		q.analysis.steps(),
		func(h *history, at int, _ model.Metric, _ float64) { h.memoryRead.add(at) },
	)
	q.series(
		q.dialect.mediaRead.steps,
		without(gpus, (*history).isMediaComplete),
		q.analysis.steps(),
		func(h *history, at int, labels model.Metric, _ float64) { h.mediaOf(labels["engine"]).read.add(at) },
	)
}

// isMediaComplete reports whether each scrape has the use of all media engines that any scrape has.
func (h *history) isMediaComplete() bool {
	for _, m := range h.media {
		if !m.read.complete {
			return false
		}
	}

	return true
}

// queryNameless queries whether anything holds the GPUs in the steps in which nothing with a name
// does.
func (q *querier) queryNameless(gpus []*fleetGPU) {
	partly := without(gpus, (*history).isNamedThroughout)
	for _, g := range partly {
		for at, count := range g.history.holders {
			if count == 0 {
				g.history.nameless[at] = namelessUnknown
			}
		}
	}

	for _, template := range q.dialect.holding {
		q.series(template, partly, q.analysis.steps(), func(h *history, at int, _ model.Metric, v float64) {
			switch {
			case h.holders[at] > 0:
			case v > 0:
				h.nameless[at] = namelessHolds
				h.held[at] = true
			case h.nameless[at] == namelessUnknown:
				h.nameless[at] = namelessNone
			}
		})
	}
}

// queryEngines queries the use of media engines, of the GPUs that use any.
func (q *querier) queryEngines(gpus []*fleetGPU) {
	using := without(gpus, func(h *history) bool { return !h.usesMedia() })

	for _, query := range []struct {
		template string
		values   func(*engineSteps) []float32 // to fill in
	}{
		{q.dialect.engines, func(e *engineSteps) []float32 { return e.mean }},
		{q.dialect.enginesMost, func(e *engineSteps) []float32 { return e.most }},
	} {
		q.series(
			query.template,
			using,
			q.analysis.steps(),
			func(h *history, at int, labels model.Metric, v float64) {
				steps := query.values(h.engineOf(string(labels["engine"])))
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

// means queries the means of a measure. It fills them in where the means that meansOf returns are
// NaN. First it queries each series: for the server to aggregate them takes longer than all the
// rest. If a GPU has several series in a step, since its pod or its exporter was replaced, means
// queries that GPU's mean over all of them.
func (q *querier) means(m measure, gpus []*fleetGPU, meansOf func(*history) []float32) {
	steps := q.analysis.steps()
	count := int(q.analysis.options.Window / step)
	found := map[*history][]float32{}
	hasSeveral := map[*history]bool{}
	add := func(h *history, at int, _ model.Metric, v float64) {
		if found[h] == nil {
			found[h] = unknownMeans(count)
		}

		hasSeveral[h] = hasSeveral[h] || !isNaN(found[h][at])
		found[h][at] = float32(min(max(v, 0), 1))
	}
	q.series(m.perSeries(), gpus, steps, add)

	again := without(gpus, func(h *history) bool { return !hasSeveral[h] })
	for _, g := range again {
		delete(found, g.history)
	}

	q.series(m.perGPU(q.dialect.uuid), again, steps, add)

	for h, means := range found {
		for at, v := range means {
			if into := meansOf(h); isNaN(into[at]) {
				into[at] = v
			}
		}
	}
}

// without returns the GPUs whose histories do not match.
func without(gpus []*fleetGPU, matches func(*history) bool) []*fleetGPU {
	var list []*fleetGPU

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

// isNamedThroughout reports whether something with a name held the GPU in each step with a sample.
func (h *history) isNamedThroughout() bool {
	for at, count := range h.holders {
		if count == 0 && !isNaN(h.busy[at]) {
			return false
		}
	}

	return true
}

func isNaN(v float32) bool { return v != v }
