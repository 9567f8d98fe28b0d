package main

import (
	"math"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/control/store"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/rightsizing"
)

// openRightsizing adds right-sizing to the exporter. Its Snapshots are an interval apart. nodeNamed
// says whether the node's name is its name at the API server.
func (x *exporter) openRightsizing(cfg *AdviseConfig, interval time.Duration, nodeNamed bool) {
	published := func(*advise.Report) {}
	if s, ok := x.node.kind.(simulation); ok {
		published = s.evaluation.recordPredictions
	}

	loop := rightsizing.New(rightsizing.Options{
		Advise:     cfg.options(interval * x.node.speed),
		StateDir:   cfg.StateDir,
		WriteFile:  store.WriteFile,
		IsNodeName: nodeNamed,
		Published:  published,
		Logger:     log.With(x.logger, "component", "rightsizing"),
	})
	x.node.parts = append(x.node.parts, loop.Run)
	x.node.observers = append(x.node.observers, loop.Observe)
	x.recommendations = loop.Report
	x.advice = func() []collector.Advice { return adviceOf(loop.Last()) }
	x.flush = loop.Flush
}

// adviceOf returns the recommendations that metrics show; none before the first report.
func adviceOf(report *advise.Report) []collector.Advice {
	if report == nil {
		return nil
	}

	var list []collector.Advice

	for i := range report.Devices {
		d := &report.Devices[i]

		a := collector.Advice{
			GPU:       d.GPU,
			Instance:  d.Instance,
			Placement: d.Placement,
			Profile:   d.Recommended,
		}
		if d.Pod != nil {
			a.Holder = gpu.Container{
				Namespace: d.Pod.Namespace,
				Pod:       d.Pod.Name,
				Name:      d.Pod.Container,
			}
		}

		if d.Instance.Present() {
			// Metrics show at once that a slice is too small or idle; that a smaller one would do, only
			// when that is no longer provisional (ChangesSlice).
			if d.ChangesSlice() || d.Action == advise.ActionIdle {
				a.Action = string(d.Action)
				list = append(list, a)
			}

			continue
		}

		if d.Candidate() {
			a.Action = string(d.Action)
			a.Reclaimable = gpu.Some(d.Reclaimable)
			a.Figure = d.Predicted.Decided.Figure
			a.Deciding = gpu.Some(d.Predicted.Decided.Ratio)

			if d.Gain != nil {
				a.FreedGPUs = gpu.Some(d.Gain.FreedGPUs)
			}

			if stretch := d.Predicted.StretchP95; stretch != (advise.Stretch{}) {
				a.StretchLow, a.StretchHigh = roundedRatio(stretch.Low), roundedRatio(stretch.High)
			}

			if latency := d.Predicted.Latency; latency != (advise.Latency{}) {
				a.LatencyLow, a.LatencyHigh = roundedRatio(latency.Low), roundedRatio(latency.High)
			}
		} else if a.Rejected = rejection(d); a.Rejected == "" {
			continue
		}

		// In the first hour a confidence of 0 only means that there is little evidence yet.
		if d.Confidence > 0 || d.Evidence != nil && d.Evidence.ObservedHours >= 1 {
			a.Confidence = gpu.Some(d.Confidence)
		}

		list = append(list, a)
	}

	return list
}

// roundedRatio rounds to as many digits as the report has: a value that changes less often costs
// Prometheus less.
func roundedRatio(x float64) gpu.Opt[float64] { return gpu.Some(math.Round(x*1000) / 1000) }

// rejection returns why a whole GPU is not a candidate for slices, as metrics show it; empty if it is
// too early to say.
func rejection(d *advise.Recommendation) string {
	switch {
	case d.Action == advise.ActionSlice:
		return string(d.WhyNotFinal())
	case d.Reason == advise.ReasonNoMIG,
		d.Reason == advise.ReasonLittleEvidence,
		d.Reason == advise.ReasonHoldersUnknown:
		return ""
	}

	return string(d.Reason)
}
