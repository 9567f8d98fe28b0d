package advise

import (
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// We never move a pod of a job with several pods to a slice: the others wait for it in each step, and
// libraries such as NCCL refuse several ranks on one GPU. Labels and owners show such jobs, and so does
// traffic in step, see jobtraffic.go. Busy time in step does not: the replicas behind a load balancer are
// busy together, and are the best candidates for slices.

// findJob returns a sentence on the job that a whole GPU works on together with others; "" if it does
// not. The pod's annotation overrides labels, owner and traffic, but not that the pod holds several GPUs.
func (a *Advisor) findJob(s *gpu.Snapshot, g *gpu.GPU, d *device, held gpuCounts) string {
	if held.hasSeveral(g) {
		return "the pod holds several GPUs: slices cannot exchange data directly"
	}

	if said, ok := hintsOf(g.Holders).MultiGPU.Get(); ok {
		return annotatedJob(said)
	}

	if text := describedJob(g.Holders); text != "" {
		return text
	}

	if !isRecent(d.workload.InStep, a.now) {
		return ""
	}

	with := "another GPU"

	at := slices.IndexFunc(s.GPUs, func(g gpu.GPU) bool { return g.UUID == d.inStepWith })
	if at >= 0 {
		with = fmt.Sprintf("GPU %d", s.GPUs[at].Index)
	}

	text := fmt.Sprintf(
		"what it exchanges over PCIe was in step with %s, by more than their load explains: they work on "+
			"one job, and slices cannot exchange data directly",
		with,
	)
	if len(g.Holders) == 0 {
		return text // there is no pod to annotate
	}

	return text + ". " + jobRemedy
}

// findJobOfInstance is findJob for a GPU instance, which has no traffic of its own.
func findJobOfInstance(holders []gpu.Holder) string {
	if said, ok := hintsOf(holders).MultiGPU.Get(); ok {
		return annotatedJob(said)
	}

	return describedJob(holders)
}

// describedJob returns a sentence on the job that the pods' labels or owners show; "" if they show none.
// Labels are asked first: they may say that the job has a single pod.
func describedJob(holders []gpu.Holder) string {
	if text := labeledJob(holders); text != "" {
		return text
	}

	at := slices.IndexFunc(holders, func(h gpu.Holder) bool {
		return h.Group.Name == "" && gpu.OwnsJob(h.Workload)
	})
	if at < 0 {
		return ""
	}

	return unknownSizeText("owner " + holders[at].Workload)
}

// unknownSizeText returns the sentence on a job of which we don't know how many pods it has. by is the
// label or the owner that shows it.
func unknownSizeText(by string) string {
	return fmt.Sprintf(
		"the pod is part of a job, by its %s, and how many pods that has is not known here: others "+
			"would wait for it, and slices cannot exchange data directly. %s",
		by,
		jobRemedy,
	)
}

// annotatedJob returns the sentence on a job by the pod's annotation; "" if it says that there is none.
func annotatedJob(said bool) string {
	if !said {
		return ""
	}

	return "the pod is part of a job on several GPUs, by its annotation mig-exporter.io/multi-gpu: " +
		"slices cannot exchange data directly"
}

// labeledJob returns a sentence on the job that the pods' labels name; "" if they name none, or a job of
// a single pod.
func labeledJob(holders []gpu.Holder) string {
	at := slices.IndexFunc(holders, func(h gpu.Holder) bool { return h.Group.MayHaveOthers() })
	if at < 0 {
		return ""
	}

	group := &holders[at].Group
	if group.Size > 1 {
		return fmt.Sprintf(
			"the pod is one of %d or more of a job, by its label %s: the others would wait for it, and "+
				"slices cannot exchange data directly",
			group.Size,
			group.Label,
		)
	}

	return unknownSizeText("label " + group.Label)
}

// jobRemedy says what to do if a pod that looks like a part of a job is not.
const jobRemedy = "If its pods do not work together, annotate them with mig-exporter.io/multi-gpu: \"false\""
