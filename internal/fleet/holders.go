package fleet

import (
	"cmp"
	"strings"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// heldGPU says in which steps one holder, a pod or a job, had one GPU.
type heldGPU struct {
	gpu   *history
	pod   podKey // without its cluster; empty if a batch job holds it
	steps []bool
	owner string // owner of the pod, "vision/Deployment/resnet"; empty if we don't know it
	isJob bool   // it ends when its work is done
}

// heldByHolder has, for each holder by its place and name, the GPUs that it had.
type heldByHolder map[string][]*heldGPU

// add returns a function that notes that the holder that the labels name had a GPU in a step. If
// Prometheus scrapes without honor_labels, the pod is in labels that begin with exported_.
func (all heldByHolder) add(h *history, labels model.Metric) func(at int, _ float64) {
	namespace := labels["namespace"]
	pod := labels["pod"]

	if labels["exported_pod"] != "" {
		namespace = labels["exported_namespace"]
		pod = labels["exported_pod"]
	}

	job := labels["hpc_job"]
	if job != "" {
		namespace = ""
		pod = ""
	}

	if sharing := labels["sharing"]; sharing != "" && sharing != "exclusive" {
		h.shared = true
	}

	held := all.of(h, strings.Join([]string{h.place, string(namespace), string(pod), string(job)}, "/"))

	if workload := labels["workload"]; workload != "" && pod != "" {
		held.owner = string(namespace + "/" + workload)
	}

	held.pod = podKey{namespace: string(namespace), pod: string(pod)}
	held.isJob = held.isJob || job != "" || advise.EndsByItself(string(labels["workload"]))
	h.job = cmp.Or(h.job, jobOf(labels))
	h.pods[held.pod] += 0 // also if all steps count already

	return func(at int, _ float64) {
		h.held[at] = true

		if !held.steps[at] {
			held.steps[at] = true
			h.pods[held.pod]++
			h.holders[at] = min(h.holders[at]+1, 2)
			h.namespaces[string(namespace)]++
		}
	}
}

// of returns what is known of a holder, by its place and name, and one GPU.
func (all heldByHolder) of(h *history, name string) *heldGPU {
	for _, known := range all[name] {
		if known.gpu == h {
			return known
		}
	}

	held := &heldGPU{gpu: h, steps: make([]bool, len(h.held))}
	all[name] = append(all[name], held)

	return held
}

// If two holders had a GPU in the same step, one may have followed the other. Only if that lasts
// longer did they hold it at the same time.
const (
	minTogether = 2 // steps in which a holder had several GPUs
	minShared   = 3 // successive steps in which a GPU had several holders
)

// finish fills in multi and shared of the GPUs' histories.
func (all heldByHolder) finish(gpus map[string]*history) {
	for _, list := range all {
		if len(list) < 2 {
			continue
		}

		together := 0

		for at := range list[0].steps {
			count := 0

			for _, h := range list {
				if h.steps[at] {
					count++
				}
			}

			if count > 1 {
				together++
			}
		}

		for _, h := range list {
			h.gpu.multi = h.gpu.multi || together >= minTogether
		}
	}

	for _, h := range gpus {
		run := 0
		for _, count := range h.holders {
			if run++; count < 2 {
				run = 0
			}

			h.shared = h.shared || run >= minShared
		}
	}
}
