package advise

import (
	"cmp"
	"fmt"
)

// IsUnknown reports whether a reason says that something is not known of the workload, so that a slice may
// do for it.
func (r Reason) IsUnknown() bool {
	switch r {
	case ReasonLittleEvidence, ReasonLowCoverage, ReasonHoldersUnknown, ReasonNoActivity, ReasonNoBusyTime,
		ReasonMemoryUnread, ReasonNVLinkUnread, ReasonGraphicsUnread, ReasonPreallocated, ReasonStartUnseen:
		return true
	}

	return false
}

// explainReason returns a sentence on why a device is kept, or why a slice is too small.
func explainReason(r *Recommendation, o Options) string {
	e := r.Evidence
	if e == nil {
		e = &Evidence{}
	}

	if r.Action == ActionIdle && e.MediaUnread {
		return "no kernel ran; its media engines cannot be read, or were not all of the time: it may have used them"
	}

	switch r.Reason {
	case ReasonMultiGPU:
		return cmp.Or(r.job, fixedText(r.Reason))
	case ReasonHoldersUnknown:
		return r.unheld
	case ReasonNotUp:
		return r.down
	case ReasonLittleEvidence:
		return fmt.Sprintf(
			"observed for %.1f h; expected %.1f h or more",
			e.ObservedHours,
			o.MinEvidence.Hours(),
		)
	case ReasonLowCoverage:
		return fmt.Sprintf(
			"observed for %.1f %% of the time that it was held; expected %.0f %% or more",
			100*e.CoverageRatio,
			100*minCoverage,
		)
	case ReasonPreallocated:
		if e.Server != nil && e.Server.reserves {
			return e.Server.explain()
		}

		taken := fmt.Sprintf("%.1f GiB were taken at the start and stayed", e.MemoryBytes/(1<<30))

		return taken + ": the framework takes its memory in advance, and what it needs cannot be seen. " +
			preallocatedRemedy
	case ReasonMemory:
		return fmt.Sprintf("needs %.1f GiB with headroom and growth; no smaller profile has that",
			needBytes(e, o.Headroom)/(1<<30))
	case ReasonStretch, ReasonLatency, ReasonThroughput:
		return explainTime(r)
	case ReasonMedia:
		if r.Action == ActionGrow {
			return "all media engines of a kind were busy for ten minutes: " + e.describeMedia()
		}

		return e.explainMedia()
	case ReasonSaturated:
		return "busy all the time for ten minutes, on all its SMs or with kernels that " +
			"take longer than on the whole GPU"
	case ReasonBandwidth:
		return "draws all its memory bandwidth for ten minutes"
	case ReasonStartUnseen:
		return explainStart(e)
	case ReasonMemoryFull:
		if e.Server != nil && e.Server.full {
			return "the cache of its inference server has been full for ten minutes, and " +
				"requests wait, by its own word"
		}

		return fmt.Sprintf("%.1f GiB are in use, less than 5 %% are free", e.MemoryBytes/(1<<30))
	}

	return fixedText(r.Reason)
}

// fixedText returns the sentence on a reason without numbers; "" if there is none.
func fixedText(reason Reason) string {
	switch reason {
	case ReasonOptedOut:
		return "the pod's annotation mig-exporter.io/rightsizing is off"
	case ReasonNoMIG:
		return "the GPU does not support MIG, or the driver does not report its profiles"
	case ReasonShared:
		return "several containers share the device; what each of them needs cannot be told apart"
	case ReasonMultiGPU:
		return "the pod holds several GPUs, or is one of several of a job: slices cannot exchange data directly"
	case ReasonModePending:
		return "MIG mode is pending: it needs a reset of the GPU, which ends everything on it. Once " +
			"the GPU was emptied and reset, or the pending mode is off, there is an answer again"
	case ReasonNVLink:
		return "data was exchanged over NVLink, which slices do not have"
	case ReasonNVLinkUnread:
		return "the traffic over NVLink could not be read for some of the time: data may have been exchanged " +
			"with another GPU, and slices have no NVLink"
	case ReasonGraphics:
		return "a graphics process ran, which a slice does not support"
	case ReasonGraphicsUnread:
		return "the GPU can draw, and its processes could not be read for some of the time: " +
			"a graphics process may have run"
	case ReasonNoActivity:
		return noActivityText
	case ReasonNoBusyTime:
		return "no kernel ran on it: how far a slice would stretch its requests is " +
			"unknown, and strictly that is no slice"
	case ReasonMemoryUnread:
		return "the use of memory could not be read for some of the time: what the workload needs is not known"
	case ReasonMedia:
		return "more media engines were used than any smaller profile has to spare"
	case ReasonStretch, ReasonLatency, ReasonThroughput, ReasonBusy:
		return timeText(reason)
	case ReasonSingleStrategy:
		return "the device plugin's single strategy gives all GPUs one profile, and none fits every pod of the node"
	case ReasonNoGain:
		return "a slice would do, and " + NoGainText
	}

	return ""
}

// explainTime returns a sentence on work that takes too long: on its slice, or on any that it could get.
func explainTime(r *Recommendation) string {
	switch {
	case r.Action != ActionGrow:
		if r.Reason == ReasonStretch && r.Instance.Present() {
			return "kernels take longer than on the whole GPU already"
		}

		return timeText(r.Reason)
	case r.Reason == ReasonStretch:
		return "kernels take longer than on the whole GPU, by more than the limit, for ten minutes"
	case r.Reason == ReasonLatency:
		return "requests wait for each other, and take longer than on the whole GPU by more than the limit"
	}

	return "requests take longer than on the whole GPU, and clients that wait for their answers send fewer"
}

// timeText returns the sentence on work that would take too long in any slice.
func timeText(reason Reason) string {
	switch reason {
	case ReasonStretch:
		return "kernels fill more of the GPU than any slice has: they would take too long"
	case ReasonLatency:
		return "requests would wait too long for each other in a slice, in the busiest hour"
	case ReasonThroughput:
		return "in a slice each request or step would take longer, and clients that wait for their answers, or a " +
			"job that does one step after the other, would do too little"
	}

	return "a slice could not keep up at busy times"
}
