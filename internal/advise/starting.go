package advise

import "time"

// starting is the start of the container that holds a device, or of a process in it.
type starting struct {
	open bool // it has been watched since its beginning, and has not ended
	lost bool // a part of it was not seen: what was, counts with the last one
	// goesOn says that its processes had freed their memory, and go on: they have not started.
	goesOn bool

	// The workload that it belongs to, whether that has counted it, and its number among the starts of its
	// kind. Its peak may still grow after that if it was the size of a context.
	of      *workload
	counted bool
	number  int32
	// template is the hash of the pod template that it is a start of; 0 without one.
	template uint32

	// again is set if the container had started before, or may have. mayBeFirst says that it only may have:
	// then this may be its own start. earlier is what the processes of the same start have used, before
	// this one.
	again, mayBeFirst bool
	earlier           earlierProcesses

	began time.Time // when it took memory first
	late  float64   // MiB in use when we first saw it, if that may not have been its beginning; else 0

	// Uses of memory in MiB: the largest, the last, and the one when memory last grew.
	peak, used, level float64
	grown             time.Time // when memory last grew

	loading loading
}

// earlierProcesses are uses of memory, in MiB, of the processes with which a container has started so far:
// the largest one, the weights of a model, and the largest one while they were loaded. began is when the
// first one took memory; zero if there was none. The last one used used at its end; up is set if we saw
// it come up from its beginning. shown is the largest use of those of which we saw that.
type earlierProcesses struct {
	peak, weights, load, used, shown float64
	began                            time.Time
	up                               bool
}

// largest returns the largest use of memory in a start, in MiB.
func (s *starting) largest() float64 { return max(s.peak, s.earlier.peak) }

// levelAtEnd returns the use of memory at the end of a start, in MiB. A process that has nothing but a
// context does not show it if others came before.
func (s *starting) levelAtEnd() float64 {
	if s.peak <= contextMemory {
		return max(s.used, s.earlier.used)
	}

	return s.used
}

// weights returns loading.weights of all processes of a start. If one shows weights and has grown to as much
// as those before it, and no further, these were the same server, which had ended before its start was
// complete.
func (s *starting) weights() (level, load float64) {
	level, load = s.loading.weights()
	isAlike := min(s.peak, s.earlier.peak) >= flatShare*max(s.peak, s.earlier.peak)

	if level > 0 && s.earlier.weights == 0 && isAlike {
		return level, load
	}

	return max(level, s.earlier.weights), max(load, s.earlier.load)
}

// asEarlier returns the processes of a start for the next process of the container. Without a plateau of
// weights, all that it used may have been needed to load them.
func (s *starting) asEarlier(now time.Time) earlierProcesses {
	level, load := s.loading.weights()
	if level == 0 {
		load = s.peak
	}

	e := &s.earlier
	up := s.cameUp(now) && !s.lost && !s.goesOn && s.peak >= loadedFrom*s.late
	shown := e.shown

	if up {
		shown = max(shown, s.peak)
	}

	return earlierProcesses{
		peak:    max(e.peak, s.peak),
		weights: max(e.weights, level),
		load:    max(e.load, load),
		used:    s.levelAtEnd(),
		shown:   shown,
		began:   s.firstBegan(),
		up:      up,
	}
}

// countEarlier counts a start of processes that have ended, if the last one had come up and they were
// complete: no other one has followed.
func (s *starting) countEarlier(now time.Time) {
	if !s.earlier.up {
		return
	}

	if s.isComplete(s.earlier.shown, now) {
		s.count()
	} else {
		s.raise(s.of)
	}
}

// isComplete reports whether a start that ends early has used about as much as its workload does between
// starts, by the largest use of the processes that came up, in MiB. One that has not, such as a pod that is
// deleted before it loads, shows no need. If we do not know what the workload uses, a context shows none
// either, unless there was nothing else for as long as we wait for more.
func (s *starting) isComplete(shown float64, now time.Time) bool {
	days := s.of.sums(now)
	if days.Settled == 0 && shown <= contextMemory {
		return days.Memory <= contextMemory && now.Sub(s.of.First) >= settledAtContext
	}

	return shown >= fallenShare*float64(days.Settled)
}

// firstBegan returns when the first process of a start took memory.
func (s *starting) firstBegan() time.Time {
	if !s.earlier.began.IsZero() {
		return s.earlier.began
	}

	return s.began
}

// follow adds a reading of memory, in MiB. Once memory has settled, it counts the start and ends it.
func (s *starting) follow(used float64, now time.Time) {
	s.loading.follow(used, now)

	if s.peak <= unusedMemory {
		s.began = now
	}

	if used > s.level*growthStep {
		s.level = used
		s.grown = now
	}

	s.peak = max(s.peak, used)
	s.used = used

	flatFor := now.Sub(s.grown)
	switch {
	case s.peak <= unusedMemory && s.earlier.up && now.Sub(s.earlier.began) >= settledAfter:
		s.countEarlier(now)
		*s = starting{open: true, began: now, grown: now, again: true}
	case s.peak <= unusedMemory, s.peak < loadedFrom*s.late: // we do not know that anything has started
	case s.peak <= contextMemory:
		if flatFor >= settledAtContext && !s.counted {
			s.count()
		}
	case flatFor >= settledAfter:
		s.count()
		s.open = false
	}
}

// isUnderWay reports whether a start is under way, as far as we know: not while what we first saw at the size
// of a context may be a small workload that started long ago.
func (s *starting) isUnderWay() bool { return s.open && s.peak >= loadedFrom*s.late }

// isWhole reports whether the start of a container is under way of which nothing was missed so far.
func (s *starting) isWhole() bool { return s.isUnderWay() && !s.again && !s.lost && !s.goesOn }

// raise notes what a start of a workload has used so far that we cannot follow to its end, with the last one
// that was counted: the next one may need as much. of is the workload, or a copy.
func (s *starting) raise(of *workload) {
	if !s.open || of == nil || s.largest() <= unusedMemory {
		return
	}

	level := of.Starts.placeFor(s).raise(s.number, s)
	of.Starts.findVersion(s.template).raise(float32(s.largest()), max(level, float32(s.levelAtEnd())), 0)

	if s.mayBeFirst {
		of.Starts.Containers.raise(0, s)
	}
}

// count counts the start, or updates it if that was done before.
func (s *starting) count() {
	s.counted = true

	switch last := s.of.Starts.placeFor(s); {
	case s.lost, s.goesOn:
		s.raise(s.of)
	case s.number == 0 || last.Seen-s.number >= keptStarts:
		s.number = s.of.Starts.add(s)
	default:
		at := last.slotOf(s.number)
		raised := last.Peaks[at]
		last.set(at, s)
		last.Peaks[at] = max(last.Peaks[at], raised)
	}

	if s.mayBeFirst {
		s.of.Starts.Containers.raise(0, s)
	}
}

// cameUp reports whether a container or process that has ended had come up: if its memory had fallen, or
// had not grown for half of its life, as the memory of a short job has not. Memory that still grows after a
// day is that of the work.
func (s *starting) cameUp(now time.Time) bool {
	const notZero = 1 // of a container that came and went in one reading both times are 0

	return s.counted || s.used < fallenShare*s.peak ||
		now.Sub(s.grown) >= max(now.Sub(s.began)/2, notZero) ||
		now.Sub(s.began) >= settledAtContext
}
