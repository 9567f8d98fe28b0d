package fleet

import (
	"context"
	"math"
	"slices"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// history is what is known of a GPU in the window. Means are NaN where there is no sample.
type history struct {
	start time.Time // of the window
	place string    // cluster and node
	// By step of five minutes.
	busy, sms, bandwidth []float32
	held                 []bool
	holders              []uint8        // how many: 0, 1, or 2 for more
	namespaces           map[string]int // steps that each held it
	memory               []float64      // by hour, in bytes; NaN where there is no sample

	total              float64
	nvlink             float64             // the largest rate in bytes per second; NaN if it is unknown
	media              map[string]mediaUse // by engine
	mig, shared, multi bool
}

// mediaUse is what is known of the media engines of a kind.
type mediaUse struct {
	most float64 // largest use
	seen float64 // share of the scrapes that have it
}

func newHistory(start time.Time, window time.Duration) *history {
	steps := int(window / step)
	h := &history{
		start: start, held: make([]bool, steps), holders: make([]uint8, steps), namespaces: map[string]int{},
		nvlink: math.NaN(), media: map[string]mediaUse{},
		memory: make([]float64, int(window/hour)),
	}
	h.busy, h.sms, h.bandwidth = unknownMeans(steps), unknownMeans(steps), unknownMeans(steps)
	for i := range h.memory {
		h.memory[i] = math.NaN()
	}
	return h
}

// unknownMeans returns means of which none is known.
func unknownMeans(steps int) []float32 {
	means := make([]float32, steps)
	for i := range means {
		means[i] = float32(math.NaN())
	}
	return means
}

// askGPUs asks for the history of GPUs of one exporter and judges them.
func (s *survey) askGPUs(ctx context.Context, gpus []*device) error {
	a := &asking{survey: s, ctx: ctx, dialect: gpus[0].dialect, gpus: map[string]*history{}, selectors: s.selectors(gpus)}
	for _, g := range gpus {
		g.history = newHistory(s.end.Add(-s.options.Window), s.options.Window)
		g.history.place = g.cluster + "/" + g.node
		a.gpus[g.uuid] = g.history
	}
	a.askFacts()
	a.askMeans(gpus)
	if a.err != nil {
		return a.err
	}
	for _, g := range gpus {
		g.answer, g.history = s.summarize(g), nil
	}
	return nil
}

// asking fills in the history of some GPUs. After an error it asks no more.
type asking struct {
	survey    *survey
	ctx       context.Context
	dialect   *dialect
	gpus      map[string]*history
	selectors string
	err       error
}

// facts evaluates an expression at the end of the window.
func (a *asking) facts(template string, set func(*history, *model.Sample)) {
	if a.err != nil || template == "" {
		return
	}
	var rows model.Vector
	rows, a.err = a.survey.client.vector(a.ctx, render(template, a.selectors, a.survey.options.Window, ""), a.survey.end)
	for _, row := range rows {
		if h := a.gpus[string(row.Metric[a.dialect.uuid])]; h != nil {
			set(h, row)
		}
	}
}

func (a *asking) askFacts() {
	a.facts(a.dialect.mig, func(h *history, _ *model.Sample) { h.mig = true })
	a.facts(a.dialect.total, func(h *history, row *model.Sample) { h.total = float64(row.Value) })
	a.facts(a.dialect.nvlink, func(h *history, row *model.Sample) { h.nvlink = float64(row.Value) })
	a.facts(a.dialect.media, func(h *history, row *model.Sample) {
		engine := string(row.Metric["engine"])
		h.media[engine] = mediaUse{most: float64(row.Value), seen: h.media[engine].seen}
	})
	a.facts(a.dialect.mediaSeen, func(h *history, row *model.Sample) {
		engine := string(row.Metric["engine"])
		h.media[engine] = mediaUse{most: h.media[engine].most, seen: float64(row.Value)}
	})
}

// series evaluates an expression about GPUs at the steps of a range. set gets the index of a step.
func (a *asking) series(
	template string, gpus []*device, r v1.Range, set func(h *history, at int, labels model.Metric, value float64),
) {
	if a.err != nil || len(gpus) == 0 {
		return
	}
	var rows model.Matrix
	rows, a.err = a.survey.client.matrix(a.ctx, render(template, a.survey.selectors(gpus), a.survey.options.Window, ""), r)
	count := int(r.End.Sub(r.Start)/r.Step) + 1
	for _, row := range rows {
		h := a.gpus[string(row.Metric[a.dialect.uuid])]
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

func (a *asking) askMeans(gpus []*device) {
	steps := a.survey.steps()
	a.means(a.dialect.busy, gpus, func(h *history) []float32 { return h.busy })
	a.means(a.dialect.utilization, unlike(gpus, (*history).isComplete), func(h *history) []float32 { return h.busy })
	a.means(a.dialect.sms, gpus, func(h *history) []float32 { return h.sms })
	a.means(a.dialect.bandwidth, gpus, func(h *history) []float32 { return h.bandwidth })
	all := holdings{}
	for _, held := range a.dialect.held {
		a.series(held, gpus, steps, all.add)
	}
	all.finish(a.gpus)
	if a.dialect.used != "" {
		a.series(a.dialect.used, unlike(gpus, (*history).isHeld), steps,
			func(h *history, at int, _ model.Metric, _ float64) { h.held[at] = true })
	}
	a.series(a.dialect.memory, gpus, a.survey.hours(), func(h *history, at int, _ model.Metric, v float64) {
		h.memory[at] = v
	})
}

// means fills in what is not known yet of a mean of GPUs. Series are not aggregated by the server, which would take it
// longer than all the rest. A GPU with several of them in a step, as when its pod or its exporter is replaced, is asked
// for again: a mean of means would not weigh them by their samples.
func (a *asking) means(of measure, gpus []*device, known func(*history) []float32) {
	steps := a.survey.steps()
	count := int(a.survey.options.Window / step)
	found, several := map[*history][]float32{}, map[*history]bool{}
	add := func(h *history, at int, _ model.Metric, v float64) {
		if found[h] == nil {
			found[h] = unknownMeans(count)
		}
		several[h] = several[h] || !isNaN(found[h][at])
		found[h][at] = float32(min(max(v, 0), 1))
	}
	a.series(of.perSeries(), gpus, steps, add)
	again := unlike(gpus, func(h *history) bool { return !several[h] })
	for _, g := range again {
		delete(found, g.history)
	}
	a.series(of.perGPU(a.dialect.uuid), again, steps, add)
	for h, means := range found {
		for at, v := range means {
			if into := known(h); isNaN(into[at]) {
				into[at] = v
			}
		}
	}
}

// unlike returns the GPUs for which something does not hold.
func unlike(gpus []*device, holds func(*history) bool) []*device {
	var list []*device
	for _, g := range gpus {
		if !holds(g.history) {
			list = append(list, g)
		}
	}
	return list
}

// isComplete reports whether busy time is known of every step.
func (h *history) isComplete() bool { return !slices.ContainsFunc(h.busy, isNaN) }

// isSeen reports whether busy time was ever read.
func (h *history) isSeen() bool {
	return slices.ContainsFunc(h.busy, func(v float32) bool { return !isNaN(v) })
}

// isHeld reports whether anything ever held the GPU.
func (h *history) isHeld() bool { return slices.Contains(h.held, true) }

func isNaN(v float32) bool { return v != v }
