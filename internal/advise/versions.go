package advise

import (
	"hash/fnv"
	"slices"
)

// A new version of a pod can need more for its start than those before it: its controller gives its pods
// another hash of the pod template.

// keptVersions is of how many versions of a pod we know that a start was seen: a workload has two while it
// is rolled out, or some more if a label makes one of several owners.
const keptVersions = 8

// version is a version of a pod of which a start was seen.
type version struct {
	Hash uint32 // 0 if there is none
	// Peak is the largest use of memory in those of its last starts that starts of other versions have pushed
	// out, or that were lost, Level what was used at its end, in MiB; 0 if there is none.
	Peak, Level float32
	Since       uint8 // how many starts of it were seen since
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

// requireVersions makes the starts of a workload unseen while a pod runs of whose version none was seen. Of a
// version that runs, what its last starts needed counts, also once starts of others have pushed them out.
// Whether a pod still runs we do not know of a device that has not been read for long.
func (a *Advisor) requireVersions(w *workload, e *Evidence) {
	settled := float64(w.sums(a.now).Settled)

	for _, d := range a.order {
		isRead := d.memoryRead.IsZero() || a.now.Sub(d.memoryRead) <= forgetDeviceAfter
		if d.workload != w || !isRead || d.template == 0 {
			continue
		}

		switch v := w.Starts.findVersion(d.template); {
		case v == nil && !d.start.isWhole():
			e.newVersion = e.newVersion || e.Starts > 0
			e.Starts = 0
		case v != nil && v.Peak > 0:
			e.StartMemory = max(e.StartMemory, float64(v.Peak)*(1<<20))
			e.MemoryBytes = max(e.MemoryBytes, e.StartMemory)
			e.startNeed = max(e.startNeed, needOf(v.Peak, v.Level, settled)*(1<<20))
		}
	}
}

// noteVersion notes that a start of a version was seen, in place of the version of which none was seen for
// the longest time. Starts of processes, see starting.again, push out none of containers.
func (s *starts) noteVersion(hash uint32, again bool) {
	if hash == 0 {
		return
	}

	noted := version{Hash: hash}

	at := slices.IndexFunc(s.Versions[:], func(v version) bool { return v.Hash == hash })
	if at < 0 {
		at = keptVersions - 1
	} else if noted = s.Versions[at]; noted.Peak > 0 && !again {
		noted.Since++
	}

	if noted.Since >= keptStarts {
		noted = version{Hash: hash}
	}

	copy(s.Versions[1:at+1], s.Versions[:at])
	s.Versions[0] = noted
}

// keepStart keeps what the oldest start of a kind needed, in a slot, with its version if it is still among
// the last ones of that: one of the version by takes its place.
func (s *starts) keepStart(l *lastStarts, at int, by uint32) {
	hash := l.Templates[at]
	newer := -1 // without itself

	for _, other := range append(l.Templates[:], by) {
		if other == hash {
			newer++
		}
	}

	if newer < keptStarts {
		s.findVersion(hash).raise(l.Peaks[at], l.Levels[at], newer)
	}
}

// raise notes what a start of a version needed after which so many newer ones were seen; v is nil if no
// start of it was seen.
func (v *version) raise(peak, level float32, newer int) {
	if v == nil {
		return
	}

	v.Since = uint8(newer)

	if peak >= v.Peak {
		v.Peak = peak
		v.Level = level
	}
}

// findVersion returns what is known of a version by its hash; nil if no start of it was seen.
func (s *starts) findVersion(hash uint32) *version {
	for i := range s.Versions {
		if v := &s.Versions[i]; v.Hash == hash && hash != 0 {
			return v
		}
	}

	return nil
}
