package advise

import (
	"hash/fnv"
	"slices"
)

// A new version of a pod can need more for its start than those before it: its controller gives its pods
// another hash of the pod template.

// keptTemplates is of how many pod templates we know that a start was seen: a workload has two while it is
// rolled out, or some more if a label makes one of several owners.
const keptTemplates = 8

// startedTemplate is what starts of a pod template have needed that were seen.
type startedTemplate struct {
	Hash uint32 // 0 if there is none
	// Seen is how many starts of containers had been seen with the last one of this template.
	Seen int32
	// Peak is the largest use of memory in its starts, Level what was used when that one had ended, in MiB.
	Peak, Level float32
}

// hashOf returns a hash of the version of a pod template; 0 of the empty one.
func hashOf(template string) uint32 {
	if template == "" {
		return 0
	}

	h := fnv.New32a()
	h.Write([]byte(template))

	return max(1, h.Sum32())
}

// requireTemplates makes the starts of a workload unseen while a pod runs of whose template none was seen:
// another version of the pod can need more than those before it. Of a template that runs, what its starts
// needed counts, also once starts of others have taken their places. Whether a pod still runs we do not know
// of a device that has not been read for long.
func (a *Advisor) requireTemplates(w *workload, e *Evidence) {
	settled := float64(w.sums(a.now).Settled)

	for _, d := range a.order {
		isRead := d.memoryRead.IsZero() || a.now.Sub(d.memoryRead) <= forgetDeviceAfter
		if d.workload != w || !isRead {
			continue
		}

		switch seen := w.Starts.findTemplate(d.template); {
		case seen == nil && d.template != 0 && !d.start.isWhole():
			e.newVersion = e.newVersion || e.Starts > 0
			e.Starts = 0
		case seen != nil && w.Starts.Containers.Seen-seen.Seen >= keptStarts:
			e.StartMemory = max(e.StartMemory, float64(seen.Peak)*(1<<20))
			e.MemoryBytes = max(e.MemoryBytes, e.StartMemory)
			e.startNeed = max(e.startNeed, needOf(seen.Peak, seen.Level, settled)*(1<<20))
		}
	}
}

// noteTemplate notes what a start of a pod template needed, in place of the template of which none was seen
// for the longest time.
func (s *starts) noteTemplate(started *starting) {
	if started.template == 0 {
		return
	}

	at := slices.IndexFunc(s.Templates[:], func(t startedTemplate) bool { return t.Hash == started.template })
	noted := startedTemplate{Hash: started.template}

	if at < 0 {
		at = keptTemplates - 1
	} else {
		noted = s.Templates[at]
	}

	noted.Seen = s.Containers.Seen

	if peak := float32(started.largest()); peak >= noted.Peak {
		noted.Peak = peak
		noted.Level = float32(started.levelAtEnd())
	}

	copy(s.Templates[1:at+1], s.Templates[:at])
	s.Templates[0] = noted
}

// findTemplate returns what is known of a pod template by its hash; nil if no start of it was seen.
func (s *starts) findTemplate(hash uint32) *startedTemplate {
	for i := range s.Templates {
		if t := &s.Templates[i]; t.Hash == hash && hash != 0 {
			return t
		}
	}

	return nil
}
