package advise

import "slices"

// keptStarts is how many starts of a kind count.
const keptStarts = 5

// starts are the starts of a workload. The zero value means that none was seen.
type starts struct {
	Containers lastStarts
	// Processes are those that came once their container was up; nil if there are none. However often a
	// process is replaced, a move repeats the start of the container: so that has a place of its own.
	Processes *lastStarts
	// Least is the smallest use of memory since the last start ended, in MiB; 0 if none has ended
	// since then.
	Least float32
	// RunsAgain says that processes came up that another process of the same container followed within an
	// hour, as in a notebook. EndsShort says that pods ended while their memory grew, as jobs may.
	RunsAgain, EndsShort bool
	// Versions are the last versions of the pod of which a start was seen, the last one first.
	Versions [keptVersions]version
	// SinceProcess counts the starts of containers since the last one of a process.
	SinceProcess uint8
}

// lastStarts are the last starts of a kind that were seen from their beginning. What others have used until
// we lost them counts with these, see raise.
type lastStarts struct {
	Seen int32
	// Peaks are the largest uses of memory in the last starts, in MiB. Start number n, from 1 on, is at
	// n-1 modulo keptStarts.
	Peaks [keptStarts]float32
	// Levels are the uses of memory when these starts had ended, in MiB.
	Levels [keptStarts]float32
	// Templates are the hashes of their pod templates; 0 of a pod without one.
	Templates [keptStarts]uint32
	// Loads are what the starts have shown of weights; nil if they have shown nothing.
	Loads *loads
}

// set notes a start in a slot.
func (l *lastStarts) set(at int, started *starting) {
	l.Templates[at] = started.template
	l.Peaks[at] = float32(started.largest())
	l.Levels[at] = float32(started.levelAtEnd())

	weights, load := started.weights()
	if l.Loads == nil && load > 0 {
		l.Loads = &loads{}
	}

	if l.Loads != nil {
		l.Loads.Weights[at] = float32(weights)
		l.Loads.Peaks[at] = float32(load)
	}
}

// raise notes what a start has used, with the one of a number, or with the last one if that has gone, and
// returns what is used after that.
func (l *lastStarts) raise(number int32, started *starting) (level float32) {
	at := l.slotOf(0)
	if l.Seen-number < keptStarts {
		at = l.slotOf(number)
	}

	if more := float32(started.largest()) - l.Peaks[at]; more > 0 {
		l.Peaks[at] += more
		l.Levels[at] = max(l.Levels[at], min(float32(started.levelAtEnd()), l.Levels[at]+more))
	}

	return l.Levels[at]
}

// slotOf returns the slot of a start by its number; that of the last start for 0. Before any start has
// counted, that is the slot which the others leave free for the longest time.
func (l *lastStarts) slotOf(number int32) int {
	if number == 0 {
		number = l.Seen
	}

	return (int(number) + keptStarts - 1) % keptStarts
}

// add counts a start, in place of the oldest one of its kind, and returns its number.
func (s *starts) add(started *starting) (number int32) {
	s.Least = 0
	s.noteVersion(started.template, started.again)

	if !started.again {
		if s.SinceProcess++; s.SinceProcess >= keptStarts {
			s.dropProcesses(started.template)
		}
	}

	l := s.placeFor(started)
	l.Seen++

	at := l.slotOf(0)
	s.keepStart(l, at, started.template)
	l.set(at, started)

	return l.Seen
}

// dropProcesses drops the starts of processes for one of a container with a pod template.
func (s *starts) dropProcesses(template uint32) {
	if s.Processes == nil {
		return
	}

	for at, hash := range s.Processes.Templates {
		if hash != template {
			s.findVersion(hash).raise(s.Processes.Peaks[at], s.Processes.Levels[at], 0)
		}
	}

	s.Processes = nil
}

// placeFor returns the starts to which one is to be added, or raised: those of its kind.
func (s *starts) placeFor(started *starting) *lastStarts {
	if !started.again {
		return &s.Containers
	}

	if s.SinceProcess = 0; s.Processes == nil {
		s.Processes = &lastStarts{}
	}

	return s.Processes
}

// kinds returns the starts of all kinds that there are.
func (s *starts) kinds() []*lastStarts {
	if s.Processes == nil {
		return []*lastStarts{&s.Containers}
	}

	return []*lastStarts{&s.Containers, s.Processes}
}

// seen returns how many starts were seen.
func (s *starts) seen() int {
	n := 0
	for _, l := range s.kinds() {
		n += int(l.Seen)
	}

	return n
}

// need returns the memory in MiB that a start needs now. settled is the use of memory between starts:
// if that has grown since a start ended, the next one needs as much more.
func (s *starts) need(settled float64) float64 {
	most := 0.

	for _, l := range s.kinds() {
		for i, peak := range l.Peaks {
			if peak > 0 {
				most = max(most, needOf(peak, l.Levels[i], settled))
			}
		}
	}

	return most
}

// needOf returns the memory in MiB that a start needs now which needed peak when level was used after it.
func needOf(peak, level float32, settled float64) float64 {
	return float64(peak) + max(0, settled-float64(level))
}

// peak returns the largest use of memory in the last starts, in MiB.
func (s *starts) peak() float64 {
	most := float32(0)
	for _, l := range s.kinds() {
		most = max(most, slices.Max(l.Peaks[:]))
	}

	return float64(most)
}

// forgetLoads forgets what the starts have shown of weights.
func (s *starts) forgetLoads() {
	for _, l := range s.kinds() {
		l.Loads = nil
	}
}

// copy returns a copy that shares nothing.
func (s *starts) copy() starts {
	c := *s
	c.Processes = copyOf(c.Processes)

	for _, l := range c.kinds() {
		l.Loads = copyOf(l.Loads)
	}

	return c
}
