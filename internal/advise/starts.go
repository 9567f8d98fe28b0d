package advise

import (
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A start is the time in which a new container, or a new process, takes its memory. It can need
// more than ever after: weights are loaded in 32 bits and then halved, an engine is built with
// large work spaces. A move to a slice starts the container again, so what a start needed is needed
// there, however long ago it was.

const (
	// contextMemory is the memory in MiB that the contexts of a process without data take at most.
	// Memory that falls to it shows that the process has ended.
	contextMemory = 1 << 10
	// unusedMemory is what a device without any process shows at most, in MiB.
	unusedMemory = 100

	// A start is seen once memory has fallen below fallenShare of its largest, or has not grown by
	// growthStep for settledAfter: for settledAtContext if it never passed the size of a context.
	// One that was first seen with no more than that may be of a small workload that has settled,
	// unless its memory grows to loadedFrom times as much.
	fallenShare      = 0.9
	loadedFrom       = 4
	growthStep       = 1.01
	settledAfter     = time.Hour
	settledAtContext = 24 * time.Hour

	// keptStarts is how many starts of a workload count.
	keptStarts = 5
	// upWithin is how long a container in a slice may hold no memory before it counts as one that
	// did not come up.
	upWithin = 30 * time.Minute
)

// starts are the starts of a workload that were seen from their beginning. The zero value means
// that none was seen.
type starts struct {
	Seen int32
	// Peaks are the largest uses of memory of the last ones, in MiB; start number n is at n modulo
	// keptStarts.
	Peaks [keptStarts]float32
	// Levels are the uses of memory when these had ended, in MiB.
	Levels [keptStarts]float32
	// Least is the smallest use of memory since the last one, in MiB, outside of starts; 0 if there
	// was no such time.
	Least float32
	// Again counts the processes that came up and that another one of the same container followed
	// within an hour, as in a notebook. Short counts the pods that ended while their memory grew,
	// as jobs may.
	Again, Short int32
	// Loads are what the starts have shown of weights; nil if none has shown anything.
	Loads *loads
}

// add counts a start.
func (s *starts) add(peak, level float64, l *loading) {
	at := s.Seen % keptStarts
	s.Peaks[at] = float32(peak)
	s.Levels[at] = float32(level)
	s.Least = 0
	s.Seen++
	s.addLoad(at, l)
}

// raise raises the peak of the last start, which has not quite ended, and follows its level.
func (s *starts) raise(peak, level float64, l *loading) {
	at := (s.Seen - 1) % keptStarts
	s.Peaks[at] = max(s.Peaks[at], float32(peak))
	s.Levels[at] = float32(level)
	s.addLoad(at, l)
}

// addLoad notes what a start has shown of weights.
func (s *starts) addLoad(at int32, l *loading) {
	weights, peak := l.weights()
	if s.Loads == nil && peak > 0 {
		s.Loads = &loads{}
	}

	if s.Loads != nil {
		s.Loads.Weights[at] = float32(weights)
		s.Loads.Peaks[at] = float32(peak)
	}
}

// need returns the memory in MiB that a start needs now. settled is what is in use between starts: if
// it has grown since the last starts ended, the next start needs as much more.
func (s *starts) need(settled float64) float64 {
	most := 0.

	for i, peak := range s.Peaks {
		if peak > 0 {
			most = max(most, float64(peak)+max(0, settled-float64(s.Levels[i])))
		}
	}

	return most
}

// peak returns the largest use of memory in the last starts, in MiB.
func (s *starts) peak() float64 { return float64(slices.Max(s.Peaks[:])) }

// starting is the start of the container that holds a device.
type starting struct {
	open bool // it has been watched since its beginning, and has not ended
	// the workload has it; its peak may still grow, as when an engine is built in several rounds
	counted bool
	of      *starts   // of the workload that counts it
	late    float64   // memory in MiB when it was first seen, if it may not be the beginning; 0 if it is
	began   time.Time // when it took memory first
	peak    float64   // largest use of memory, in MiB
	used    float64   // last use of memory
	level   float64   // use of memory when it last grew
	grown   time.Time // when that was
	loading loading
}

// follow adds a reading of memory, in MiB, and ends the start if it shows that.
func (s *starting) follow(used float64, now time.Time, of *starts) {
	s.giveTo(of)
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

	if s.counted {
		of.raise(s.peak, used, &s.loading)
	}

	settled := now.Sub(s.grown)
	switch {
	case s.peak <= unusedMemory, s.peak < loadedFrom*s.late: // nothing is known to have started yet
	case s.peak <= contextMemory:
		s.count(settled >= settledAtContext, of)
	case settled >= settledAfter:
		s.count(true, of)
		s.open = false
	default:
		s.count(used < fallenShare*s.peak, of)
	}
}

// giveTo makes a start belong to a workload. A container becomes another workload once we know its
// owner or label, or once it shares its device. That workload has not counted the start yet.
func (s *starting) giveTo(of *starts) {
	if s.of != of {
		s.of = of
		s.counted = false
	}
}

func (s *starting) count(isSeen bool, of *starts) {
	if isSeen && !s.counted {
		s.counted = true
		of.add(s.peak, s.used, &s.loading)
	}
}

// end ends the start of a container that has gone, and reports whether it came up: its memory had
// not grown for half of its life, as the memory of a short job has not. A start that failed does
// not count, since we do not know its need.
func (s *starting) end(now time.Time, of *starts) bool {
	s.giveTo(of)
	up := s.counted || now.Sub(s.grown) >= max(now.Sub(s.began)/2, 1)
	s.count(up && s.peak >= loadedFrom*s.late, of)
	s.open = false

	return up
}

// maxPIDs is how many processes of a device are remembered. With more of them, a restart shows in
// memory alone.
const maxPIDs = 16

// processes are the processes that were last seen on a device.
type processes struct {
	count int
	pids  [maxPIDs]uint32
}

// replace remembers the processes of a device and reports whether none of them was there before,
// while others were. Hidden processes replace nothing.
func (p *processes) replace(list []gpu.Process, of gpu.Opt[gpu.InstanceID]) bool {
	var now processes
	survives := false

	for i := range list {
		if list[i].Instance != of && of.Present() {
			continue
		}

		survives = survives || slices.Contains(p.pids[:min(p.count, maxPIDs)], list[i].PID)
		if now.count < maxPIDs {
			now.pids[now.count] = list[i].PID
		}

		now.count++
	}

	if now.count == 0 {
		return false
	}

	replaced := !survives && p.count > 0 && max(p.count, now.count) <= maxPIDs
	*p = now

	return replaced
}

// isWatched reports whether the memory of a device was read so lately that nothing was missed
// since.
func (a *Advisor) isWatched(d *device) bool {
	return !d.memoryRead.IsZero() && a.now.Sub(d.memoryRead) <= a.options.MaxGap
}

// sawArrival reports whether the container that holds a device from now on came while the device
// was watched. If memory was in use before anything was known to hold it, the container is older
// than our knowledge of it.
func (a *Advisor) sawArrival(d *device) bool {
	if !a.isWatched(d) {
		return false
	}

	used, known := d.used.Get()

	return d.arrived || d.holder.Pod != "" || d.holder.Job != "" || !known || used <= contextMemory
}

// isSameContainer reports whether two holders of a device, one after the other, are one container
// or job of which more or less is known.
func (h *holderID) isSameContainer(before *holderID) bool {
	if h.Job != "" || before.Job != "" {
		return h.Job == before.Job && h.Container == before.Container
	}

	return h.Pod != "" && h.Container == before.Container &&
		(h.UID == before.UID || h.UID == "" || before.UID == "")
}

// followMemory follows the start of what holds a device, by its memory and its processes.
func (a *Advisor) followMemory(
	d *device,
	memory gpu.Opt[uint64],
	list []gpu.Process,
	of gpu.Opt[gpu.InstanceID],
) {
	bytes, ok := memory.Get()
	if !ok {
		return
	}

	used := float64(bytes) / (1 << 20)
	watched := a.isWatched(d)
	before, known := d.used.Get()

	d.used = gpu.Some(used)
	d.memoryRead = a.now

	if d.workload == nil {
		return
	}

	isNew := d.processes.replace(list, of) && watched
	switch {
	case isNew, known && hasEnded(before, used):
		d.endStart(a.now, true)
		d.beginStart(a.now)
	case used <= contextMemory && !known:
		d.beginStart(a.now)

		if !watched && used > unusedMemory {
			d.start.late = used
		}
	case !watched:
		d.start.open = false // its peak may have been missed
		if known {
			d.up = time.Time{}
			d.empty = time.Time{} // else they are from before a restart of the exporter
		}
	}

	if d.start.open {
		d.start.follow(used, a.now, &d.workload.Starts)
	} else {
		of := &d.workload.Starts
		of.Least = lesser(of.Least, float32(used))
	}

	d.followUp(used, a.now)
}

// hasEnded reports whether memory fell from one reading to the next as it does when a process has
// ended: to nothing, or by most of it to the size of the next process's context.
func hasEnded(before, now float64) bool {
	return before > unusedMemory && (now <= unusedMemory || now <= contextMemory && now <= before/4)
}

// followUp keeps since when a container has held memory, or none.
func (d *device) followUp(used float64, now time.Time) {
	if used <= unusedMemory {
		d.up = time.Time{}
		if d.empty.IsZero() {
			d.empty = now
		}

		return
	}

	d.empty = time.Time{}
	if d.up.IsZero() {
		d.up = now
	}

	if now.Sub(d.up) >= settledAfter {
		d.ended = endings{}
	}
}

// beginStart begins a start.
func (d *device) beginStart(now time.Time) {
	d.start = starting{open: true, began: now, grown: now}
	d.up = time.Time{}
}

// endStart ends the start of a container that has gone, or of its process if another one is to
// follow in it. One that has taken no memory has started nothing.
func (d *device) endStart(now time.Time, again bool) {
	if !d.start.open || d.workload == nil || d.start.peak <= unusedMemory {
		return
	}

	if d.ended.of != d.workload {
		d.ended = endings{of: d.workload}
	}

	of := &d.workload.Starts
	up := d.start.end(now, of)

	switch {
	case again && up:
		d.ended.again++
		of.Again++
	case again:
		d.ended.killed++
	case !up:
		d.ended.short++
		of.Short++
	}
}

// change gives a device to another holder, or to none.
func (a *Advisor) change(d *device, id holderID) {
	d.closeHour(a.now)
	next := device{id: d.id, seen: a.now, since: a.now, holder: id, memoryRead: d.memoryRead}
	next.ended = d.ended

	if id.isSameContainer(&d.holder) {
		next.start = d.start
		next.processes = d.processes
		next.used = d.used
		next.up = d.up
		next.empty = d.empty
		next.idle = d.idle
		*d = next

		return
	}

	if a.isWatched(d) {
		d.endStart(a.now, false)
		next.ended = d.ended
	}

	if a.sawArrival(d) {
		next.beginStart(a.now)
	} else {
		next.used = d.used
	}

	*d = next
}

// withStart returns the answer to show: no move is recommended while it is not known what a start
// needs. The answer by the rest of the evidence is kept, so that it counts as soon as a start is
// seen.
func withStart(decided answer, e *Evidence) answer {
	if e.Starts == 0 && (decided.Action == ActionSlice || decided.Action == ActionShrink) {
		return answer{Action: ActionKeep, Reason: ReasonStartUnseen}
	}

	return decided
}

// explainStart returns a sentence on a workload of which no start was seen, with what to do about
// it.
func explainStart(e *Evidence) string {
	if e.MemoryBytes <= unusedMemory<<20 {
		return "it holds no memory: what it needs is known once it has loaded its work while it is observed"
	}

	return fmt.Sprintf(
		"it holds %.1f GiB, and was not observed when it started, which can need more. %s",
		e.MemoryBytes/(1<<30),
		startRemedy,
	)
}

// startRemedy is how to make the need of a start visible.
const startRemedy = "Restart one replica while it is observed: there is an answer once its " +
	"memory has fallen by a tenth or has not grown for an hour"
