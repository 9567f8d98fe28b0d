// Package history keeps the last 15 minutes of a node in memory: what the status page and migctl
// top draw without a Prometheus. It survives no restart.
package history

import (
	"math"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Span is how far the history reaches back, and Step the time that one point of it stands for.
const (
	Span = 15 * time.Minute
	Step = 5 * time.Second
)

const (
	points = int(Span / Step)
	// maxTracks bounds the memory to 1.4 MiB. A node of 16 GPUs in 7 instances each, all of them
	// split, has 240 devices: the rest is for instances that were destroyed and are still drawn.
	maxTracks = 640
	maxMarks  = 256
)

// quantity is one of the values that a track keeps.
type quantity int

const (
	memoryUsed quantity = iota // bytes
	smActivity                 // 0-1
	power                      // watts; an estimate for a part of a GPU
	quantities
)

// History is a ring of points for each device. It is safe for concurrent use.
type History struct {
	longest time.Duration

	mu     sync.Mutex
	since  time.Time // of the first Snapshot that is kept; zero before it
	newest int64     // number of the newest point: Unix time / Step
	before int64     // number of the point before it that had a Snapshot
	from   int64     // number of the oldest point that the newest readings stand for
	tracks map[gpu.DeviceID]*track
	unused []*track // of devices that are gone; new devices take them
	marks  []Mark   // the oldest first
	last   *gpu.Snapshot
}

// track has the points of one device, point n of all devices at n % points. NaN is a value that is
// absent.
type track struct {
	values [quantities][points]float32
	counts [quantities]float32 // values of the newest point so far: it is their mean
	seen   int64               // number of the last point in which the device existed
	name   name
}

// name is what a reader needs to know of a device that may be gone.
type name struct {
	index     int
	profile   string
	placement gpu.Opt[gpu.Placement]
}

// New returns a History that has nothing yet. Of two Snapshots that are no more than longest apart,
// the later one stands for the time between them; after a longer time there is a gap.
func New(longest time.Duration) *History {
	return &History{longest: longest, tracks: make(map[gpu.DeviceID]*track)}
}

// Observe adds a Snapshot. It takes no longer for an old history than for a new one, and allocates
// only for devices and events that are new.
func (h *History) Observe(s *gpu.Snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.moveTo(s.Time)

	for i := range s.GPUs {
		for d := range s.GPUs[i].DistinctDevices() {
			h.addDevice(d)
		}
	}

	h.addMarks(s)
	h.last = s
}

// moveTo makes the point of a time the newest one. If the clock was set back by more than a point,
// what we have lies in the future and cannot be drawn beside what comes: we begin anew.
func (h *History) moveTo(now time.Time) {
	number := now.UnixNano() / int64(Step)
	if h.since.IsZero() || number < h.newest-1 {
		clear(h.tracks)
		h.marks = nil
		h.unused = nil
		h.since = now
		h.newest = number
		h.before = number
		h.from = number

		return
	}

	if number <= h.newest {
		return
	}

	oldest := max(h.newest+1, number-int64(points)+1)

	h.from = number
	if time.Duration(number-h.newest)*Step <= h.longest {
		h.from = oldest
	}

	h.before = h.newest
	h.newest = number

	for id, t := range h.tracks {
		if number-t.seen >= int64(points) {
			delete(h.tracks, id)
			h.unused = append(h.unused, t)

			continue
		}

		for n := oldest; n <= number; n++ {
			t.clearPoint(n)
		}

		t.counts = [quantities]float32{}
	}
}

func (t *track) clearPoint(number int64) {
	for q := range t.values {
		t.values[q][number%int64(points)] = float32(math.NaN())
	}
}

// addDevice adds the readings of a device to the newest point.
func (h *History) addDevice(d gpu.Visit) {
	id := d.ID()
	if id == (gpu.DeviceID{}) {
		return // a GPU without a handle has no readings either
	}

	t := h.tracks[id]
	if t == nil {
		if t = h.newTrack(); t == nil {
			return
		}

		h.tracks[id] = t
	}

	to := span{h.newest, h.newest}
	if t.seen >= h.before {
		to.first = h.from
	}

	t.seen = h.newest
	t.name.index = d.GPU.Index

	switch {
	case d.Compute != nil:
		t.name.profile = d.Compute.Profile
		t.name.placement = d.Compute.Placement
		t.add(to, power, d.Compute.PowerWatts)
	case d.Instance != nil:
		t.name.profile = d.Instance.Profile
		t.name.placement = d.Instance.Placement
		t.add(to, power, d.Instance.PowerWatts)
		t.addBytes(to, d.Instance.Memory.Used)
	default:
		t.add(to, power, d.GPU.Readings.PowerWatts)
		t.addBytes(to, d.GPU.Readings.Memory.Used)
	}

	t.add(to, smActivity, d.Activity.SM)
}

// span is the points that a reading stands for, the newest one the last.
type span struct{ first, last int64 }

// add takes a value into the mean of the newest point. The first value of it stands for the points
// before, too.
func (t *track) add(to span, q quantity, value gpu.Opt[float64]) {
	v, ok := value.Get()
	if !ok {
		return
	}

	t.counts[q]++
	if t.counts[q] == 1 {
		for n := to.first; n <= to.last; n++ {
			t.values[q][n%int64(points)] = float32(v)
		}

		return
	}

	mean := &t.values[q][to.last%int64(points)]
	*mean += (float32(v) - *mean) / t.counts[q]
}

func (t *track) addBytes(to span, value gpu.Opt[uint64]) {
	if v, ok := value.Get(); ok {
		t.add(to, memoryUsed, gpu.Some(float64(v)))
	}
}

// newTrack returns a track without values. If there are as many as there may be, it takes the one
// of the device that has been gone for longest, and returns nil if none is gone.
func (h *History) newTrack() *track {
	t := h.takeUnused()
	if t == nil {
		return nil
	}

	for n := range int64(points) {
		t.clearPoint(n)
	}

	t.counts = [quantities]float32{}

	return t
}

func (h *History) takeUnused() *track {
	if last := len(h.unused) - 1; last >= 0 {
		t := h.unused[last]
		h.unused = h.unused[:last]

		return t
	}

	if len(h.tracks) < maxTracks {
		return new(track)
	}

	var gone gpu.DeviceID

	seen := h.newest
	for id, t := range h.tracks {
		if t.seen < seen {
			gone = id
			seen = t.seen
		}
	}

	t := h.tracks[gone]
	delete(h.tracks, gone)

	return t
}
