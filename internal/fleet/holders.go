package fleet

import (
	"cmp"
	"strings"

	"github.com/prometheus/common/model"
)

// holding is what held a GPU, and in which steps.
type holding struct {
	gpu   *history
	steps []bool
	owner string // of a pod, "vision/Deployment/resnet"; empty if unknown
}

// holdings are what held some GPUs, by node and the holder's name.
type holdings map[string][]*holding

// add notes that a GPU was held in a step by what the labels name. Without honor_labels the labels
// of a pod are called exported_.
func (all holdings) add(h *history, at int, labels model.Metric, _ float64) {
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

	name := strings.Join([]string{h.place, string(namespace), string(pod), string(job)}, "/")
	var of *holding

	for _, known := range all[name] {
		if known.gpu == h {
			of = known
		}
	}

	if of == nil {
		of = &holding{gpu: h, steps: make([]bool, len(h.held))}
		all[name] = append(all[name], of)
	}

	if workload := labels["workload"]; workload != "" && pod != "" {
		of.owner = string(namespace + "/" + workload)
	}

	h.job = cmp.Or(h.job, jobOf(labels))
	h.held[at] = true
	h.pods[podKey{namespace: string(namespace), pod: string(pod)}] = true

	if !of.steps[at] {
		of.steps[at] = true
		h.holders[at] = min(h.holders[at]+1, 2)
		h.namespaces[string(namespace)]++
	}
}

// In a step one holder may have followed another one. Only what lasts longer counts as holding at
// the same time.
const (
	minTogether = 2 // steps in which a holder had several GPUs
	minShared   = 3 // successive steps in which a GPU had several holders
)

// finish finds the holders with several GPUs and the GPUs with several holders.
func (all holdings) finish(gpus map[string]*history) {
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

	all.findOwners()

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

// findOwners fills in the owners of what holds the GPUs at the end of the window.
func (all holdings) findOwners() {
	for _, list := range all {
		for _, one := range list {
			h := one.gpu
			last := lastTrue(one.steps)

			later := last > h.ownedUntil || last == h.ownedUntil && one.owner > h.owner
			if last >= len(one.steps)-stepsPerHour && later {
				h.owner = one.owner
				h.ownedUntil = last
			}
		}
	}
}
