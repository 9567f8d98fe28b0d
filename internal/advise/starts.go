package advise

import (
	"fmt"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A start is the time in which a new container, or a new process, takes its memory. It can need more
// than the container ever uses later: frameworks load weights in 32 bits and then halve them, or build
// an engine in large work spaces. A move to a slice starts the container again, so the slice must have
// what a start needed, however long ago that was.

const (
	// contextMemory is the memory in MiB that the contexts of a process without data take at most.
	// Memory that falls to it shows that the process has ended, unless that is still listed.
	contextMemory = 1 << 10
	// unusedMemory is what a device without any process shows at most, in MiB.
	unusedMemory = 100

	// A start has shown its need once memory has not grown by growthStep for settledAfter. If it never passed
	// contextMemory, nothing but a context may have been loaded so far, and we wait for settledAtContext. One
	// that ends before has shown it if memory had fallen below fallenShare of its largest, or had not grown
	// for long, and was fallenShare of what the workload uses between starts.
	fallenShare      = 0.9
	growthStep       = 1.01
	settledAfter     = time.Hour
	settledAtContext = 24 * time.Hour
	// If a device has contextMemory or less when we first see it, this may be a start, or a small
	// workload that started long ago. Memory that grows to loadedFrom times as much shows a start.
	loadedFrom = 4

	// upWithin is how long a container in a slice may hold no memory before it counts as one that
	// did not come up.
	upWithin = 30 * time.Minute
)

// ownStart makes the start on a device belong to what holds the device. A container becomes another workload
// once we learn its owner or label, or once it shares its device. The other workload has not counted the
// start yet.
func (d *device) ownStart() {
	d.start.template = d.template

	if s := &d.start; s.of != d.workload {
		s.of = d.workload
		s.counted = false
		s.number = 0
	}
}

// isWatched reports whether the memory of a device was read so lately that nothing was missed
// since.
func (a *Advisor) isWatched(d *device) bool {
	return !d.memoryRead.IsZero() && a.now.Sub(d.memoryRead) <= a.options.MaxGap
}

// sawArrival reports whether the container that holds a device from now on came while the device was
// watched. Of one that was not described at first, the first reading of it decides. If we knew of no other
// container before, the device must have been free: else this one may have come earlier.
func (a *Advisor) sawArrival(d *device, id *holderID) bool {
	if !a.isWatched(d) {
		return false
	}

	if id.isSamePod(&d.awaited) {
		return d.arrived
	}

	return d.isNamed() || d.wasFree && d.used.Or(0) <= contextMemory
}

// isSamePod reports whether two holders can be the same container of the same pod: its UID may be unknown.
func (h *holderID) isSamePod(before *holderID) bool {
	return h.Pod != "" && h.Container == before.Container &&
		(h.UID == before.UID || h.UID == "" || before.UID == "")
}

// isSameContainer reports whether two holders of a device, one after the other, are one container or
// job that we now know more or less of: its UID, for example.
func (h *holderID) isSameContainer(before *holderID) bool {
	if h.Job != "" || before.Job != "" {
		return h.Job == before.Job && h.Container == before.Container
	}

	return h.isSamePod(before)
}

// followMemory follows the start of what holds a device, by its memory and its processes, of the GPU instance
// if one is given. isFree says that nothing can have been given the device.
func (a *Advisor) followMemory(
	d *device, g *gpu.GPU, memory gpu.Opt[uint64], instance gpu.Opt[gpu.InstanceID], isFree bool,
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

	d.wasFree = d.wasFree && watched
	if d.workload == nil || d.awaitsHolder {
		d.wasFree = d.wasFree || isFree
		return
	}

	replaced, survive := d.processes.replace(g.Readings.Processes, instance)
	restarted := replaced && watched
	emptied := known && watched && before > unusedMemory && used <= unusedMemory

	// A process may free its memory by itself, down to its context. Then it has not ended.
	if restarted || emptied {
		d.noteEnd(a.now)
	}

	switch {
	case !watched:
		d.loseStart(used, known, replaced, a.now)
	case restarted, known && hasEnded(before, used):
		d.endStart(a.now, true, survive)
		d.beginAgain(a.now, survive)
	}

	if d.start.open {
		d.ownStart()
		d.start.follow(used, a.now)
	}

	if d.isBetweenStarts(a.now) {
		starts := &d.workload.Starts
		starts.Least = smallerKnown(starts.Least, float32(used))
	}

	d.trackUp(used, a.now)
}

// loseStart notes that a device was not watched until now: we may have missed the peak of a start. If memory
// is that of a context now, what it holds may be at its beginning. replaced says that other processes run
// now. What a device without a reading before knows is from a checkpoint, and holds.
func (d *device) loseStart(used float64, known, replaced bool, now time.Time) {
	isLost := d.start.lost || used > contextMemory
	if known {
		isLost = d.isLosable(now) || replaced && used > contextMemory
		d.up = time.Time{}
		d.empty = time.Time{}
	}

	d.ownStart()
	d.start.raise(d.workload)
	d.start.open = false

	d.start = starting{}
	if used <= contextMemory {
		d.beginLate(used, now)
	}

	d.start.lost = isLost
}

// beginLate begins a start of what holds a device from now on, and may have come earlier, if it uses no more
// memory, in MiB, than a context.
func (d *device) beginLate(used float64, now time.Time) {
	d.beginStart(now)
	d.start.again = d.isNamed()
	d.start.mayBeFirst = d.start.again

	if used > unusedMemory {
		d.start.late = used
	}
}

// isLosable reports whether a start is under way, or was lost and may still be, of which a part is missed if
// the device is not watched from now on.
func (d *device) isLosable(now time.Time) bool {
	return d.start.open && d.start.largest() > unusedMemory || d.start.lost && !d.hasBeenUp(now)
}

// isBetweenStarts reports whether no start is under way, as far as we know. One that was lost may be, until
// its container has been up for an hour.
func (d *device) isBetweenStarts(now time.Time) bool {
	return !d.start.isUnderWay() && (!d.start.lost || d.hasBeenUp(now))
}

// hasEnded reports whether memory fell from one reading to the next as it does when a process has
// ended: to nothing, or by most of it to the size of the next process's context.
func hasEnded(before, now float64) bool {
	return before > unusedMemory && (now <= unusedMemory || now <= contextMemory && now <= before/4)
}

// trackUp keeps since when a container has held memory, or held none. One that is up for an hour has
// ended the row of failed starts.
func (d *device) trackUp(used float64, now time.Time) {
	if used <= unusedMemory {
		d.up = time.Time{}
		if d.empty.IsZero() {
			d.empty = now
		}

		d.noteEmpty()

		return
	}

	d.empty = time.Time{}
	if d.up.IsZero() {
		d.up = now
	}

	if d.hasBeenUp(now) {
		d.noteKilled()
		d.ended = endings{}
		d.workload.HasBeenUp = true
	}
}

// hasBeenUp reports whether a container has held memory for so long that it has come up.
func (d *device) hasBeenUp(now time.Time) bool {
	return !d.up.IsZero() && now.Sub(d.up) >= settledAfter
}

// beginStart begins a start.
func (d *device) beginStart(now time.Time) {
	d.start = starting{open: true, began: now, grown: now}
}

// isStarting reports whether a process that ends is a part of a longer start: until one process has been up
// for an hour, all that a container or a batch job runs in an hour is one start. See beginAgain, too.
func (d *device) isStarting(now time.Time) bool {
	return d.isNamed() && !d.hasBeenUp(now) && now.Sub(d.start.firstBegan()) < settledAfter
}

// isNamed reports whether a container or a batch job holds a device, and not just processes.
func (d *device) isNamed() bool { return d.holder.Pod != "" || d.holder.Job != "" }

// beginAgain begins the start of a process that takes the place of others, or of those that survive with
// little memory. Without a container or a batch job, it is the start of another program.
func (d *device) beginAgain(now time.Time, survive bool) {
	before := d.start
	isPart := d.isNamed() && before.peak > unusedMemory && !before.counted && !d.hasBeenUp(now)
	isLost := d.isNamed() && before.lost && !before.counted && !d.hasBeenUp(now)

	d.beginStart(now)
	d.start.lost = isLost
	d.up = time.Time{}

	switch s := &d.start; {
	case isPart:
		s.again = before.again
		s.mayBeFirst = before.mayBeFirst
		s.earlier = before.asEarlier(now)

		if survive { // they began when they did before
			s.goesOn = before.goesOn

			if before.peak < loadedFrom*before.late {
				s.late = before.late
			}
		}
	case before.peak > unusedMemory || !before.open:
		s.again = d.isNamed()
		s.mayBeFirst = isLost
		s.goesOn = survive
	default: // nothing took memory since the process before that
		s.again = before.again
		s.mayBeFirst = before.mayBeFirst
		s.earlier = before.earlier
	}
}

// endStart ends the start of a container that has gone or, if again is set, of a process that another
// one replaces in the same container, or that survives and has freed its memory. We do not count one that
// failed, since we do not know its need, nor a process that is a part of a longer start.
func (d *device) endStart(now time.Time, again, survive bool) {
	s := &d.start
	if !s.open || d.workload == nil {
		return
	}

	d.ownStart()

	if s.peak <= unusedMemory { // it has started nothing
		if !again {
			s.countEarlier(now)
		}

		return
	}

	up := s.cameUp(now)
	isPart := again && d.isStarting(now)
	isNews := !s.counted || s.peak > contextMemory // what idled at a context's size counts once

	switch {
	case isPart || !isNews || s.peak < loadedFrom*s.late:
	case s.peak <= contextMemory && !s.earlier.began.IsZero(): // it has loaded nothing
		s.countEarlier(now)
	case up && s.isComplete(max(s.peak, s.earlier.shown), now):
		s.count()
	case d.hasBeenUp(now):
		s.raise(s.of)
	}

	s.open = false

	if !survive {
		d.noteEnding(up, again, now)
	}
}

// noteEnding notes how a start ended: whether it had come up, and whether another process follows in the same
// container.
func (d *device) noteEnding(up, again bool, now time.Time) {
	if d.ended.of != d.workload {
		d.ended = endings{of: d.workload}
	}

	starts := &d.workload.Starts

	switch {
	case d.start.late > 0: // we have not seen its beginning
	case d.hasBeenUp(now): // memory that still grew shows no failed start, see noteEnd
	case again && up:
		d.ended.again++
		starts.RunsAgain = true
	case again:
		d.ended.killed++
	case up:
		d.noteKilled()
	default:
		d.ended.short++
		starts.EndsShort = true
	}
}

// changeHolder gives a device to another holder, or to none.
func (a *Advisor) changeHolder(d *device, id holderID) {
	next := device{
		id:         d.id,
		seen:       a.now,
		since:      a.now,
		holder:     id,
		template:   hashOf(id.Template),
		memoryRead: d.memoryRead,
		hasNVLink:  d.hasNVLink,
		ended:      d.ended,
	}

	if id.Processes {
		next.wasFree = d.wasFree && a.isWatched(d) // of their container we may learn later
	}

	if id.isSameContainer(&d.holder) {
		d.closeHour(a.now)

		next.start = d.start
		next.processes = d.processes
		next.used = d.used
		next.up = d.up
		next.empty = d.empty
		next.ends = d.ends
		next.idle = d.idle
		next.came = d.came
		*d = next

		return
	}

	a.endHolder(d)
	next.ended = d.ended

	switch used := d.used.Or(0); {
	case a.sawArrival(d, &id):
		next.came = a.now
		next.beginStart(a.now)
	case !a.isWatched(d): // see loseStart
	case used <= contextMemory:
		next.used = d.used
		next.beginLate(used, a.now)
	default:
		next.used = d.used
		next.start.lost = true
	}

	*d = next
}

// endHolder ends what holds a device: it has left the device, or the device has gone.
func (a *Advisor) endHolder(d *device) {
	d.closeHour(a.now)

	if a.isWatched(d) {
		d.endStart(a.now, false, false)
	} else {
		d.start.raise(d.workload)
	}
}

// requireStart returns the answer to show: we recommend no move until we know what a start needs.
// workload.Answer is not changed, so that it counts as soon as we have seen a start.
func requireStart(decided answer, e *Evidence) answer {
	if e.Starts == 0 && (decided.Action == ActionSlice || decided.Action == ActionShrink) {
		return answer{Action: ActionKeep, Reason: ReasonStartUnseen}
	}

	return decided
}

// explainStart returns a sentence on a workload whose starts we have not seen, with what to do about it.
func explainStart(e *Evidence) string {
	if e.MemoryBytes <= unusedMemory<<20 {
		return "it holds no memory: what it needs is known once it has loaded its work while it is observed"
	}

	unseen := "was not observed when it started"
	if e.newVersion {
		unseen = "runs a pod of a version that was not observed when it started"
	}

	return fmt.Sprintf("it holds %.1f GiB, and %s, which can need more. %s",
		e.MemoryBytes/(1<<30), unseen, startRemedy)
}

// startRemedy is how to make the need of a start visible.
const startRemedy = "Restart one replica while it is observed: there is an answer once its " +
	"memory has not grown for an hour"
