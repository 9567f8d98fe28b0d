package main

import (
	"encoding/json"
	"net/http"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// evaluation compares what processes achieve on a simulated node with what right-sizing predicted. It
// answers GET /-/sim/truth, which migctl evaluate shows. No metric has any of it.
type evaluation struct {
	node *sim.Node
	name string // the node's name

	mu        sync.Mutex
	tally     sim.Tally
	predicted map[workloadName]*sim.Prediction
}

// workloadName names a workload, whichever device it runs on. The owner of a bare pod is the pod
// itself: "Pod/NAME".
type workloadName struct {
	namespace, owner, container string
}

func newEvaluation(node *sim.Node) *evaluation {
	return &evaluation{
		node:      node,
		name:      node.Scenario().Node.Hostname,
		predicted: map[workloadName]*sim.Prediction{},
	}
}

// addOutcomes adds what the processes of the node achieve now.
func (e *evaluation) addOutcomes() {
	now := e.node.Now()
	truth := e.node.Truth()
	e.mu.Lock()
	defer e.mu.Unlock()

	e.tally.Add(now, truth)
}

// recordPredictions keeps what a report predicts for workloads that it recommends a slice for.
func (e *evaluation) recordPredictions(report *advise.Report) {
	e.mu.Lock()
	defer e.mu.Unlock()

	for i := range report.Devices {
		d := &report.Devices[i]
		if d.Action != advise.ActionSlice || d.Predicted == nil || d.Workload == nil {
			continue
		}

		stretch := d.Predicted.StretchP95
		latency := d.Predicted.Latency
		e.predicted[workloadName{d.Workload.Namespace, d.Workload.Owner, d.Workload.Container}] = &sim.Prediction{
			Time:          report.Time,
			Profile:       d.Recommended,
			Throughput:    d.Predicted.ThroughputRatio,
			LatencyLow:    latency.Low,
			LatencyFigure: latency.Figure,
			LatencyHigh:   latency.High,
			Low:           stretch.Low,
			Middle:        stretch.Expected,
			High:          stretch.High,
		}
	}
}

// ServeHTTP implements http.Handler.
func (e *evaluation) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()

	document := sim.Evaluation{
		APIVersion: "mig-exporter/v1",
		Time:       e.node.Now(),
		Node:       e.name,
		Processes:  e.tally.Outcomes(),
	}
	for i := range document.Processes {
		p := &document.Processes[i]

		owner := p.Owner
		if owner == "" {
			owner = "Pod/" + p.Pod
		}

		p.Predicted = e.predicted[workloadName{p.Namespace, owner, p.Container}]
	}

	e.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")

	if err := json.NewEncoder(w).Encode(document); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
