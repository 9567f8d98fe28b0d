// Package history keeps the last 15 minutes of a node in memory, so that the status page and migctl
// top can draw them without a Prometheus. After a restart it begins anew.
package history

import (
	"math"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Span is how far the history reaches back. Step is the time that one point stands for.
const (
	Span = 15 * time.Minute
	Step = 5 * time.Second
)

const (
	points = int(Span / Step)
	// maxTracks bounds the memory to 1.4 MiB. A node with 16 GPUs of 7 instances each, all of them
	// split, has 240 devices: the rest is for destroyed instances that we still draw.
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

// History keeps a ring of points for each device. The number of a point is its Unix time divided by
// Step. It is safe for concurrent use.
type History struct {
	longest time.Duration // see New

	mu       sync.Mutex
	since    time.Time // of the first Snapshot; zero before it
	newest   int64     // the newest point
	previous int64     // the point of the Snapshots before newest
	fillFrom int64     // the first reading of newest also fills the points from here on
	tracks   map[gpu.DeviceID]*track
	unused   []*track // tracks of devices that are gone, for new devices
	marks    []Mark   // the oldest first
	last     *gpu.Snapshot
}

// track has the points of one device: point n is at index n % points. NaN is an absent value.
type track struct {
	values    [quantities][points]float32
	counts    [quantities]float32 // how many values the newest point is the mean of
	lastPoint int64               // the last point in which the device existed
	name      name
}

// name says which device a track is of, even if the device is gone.
type name struct {
	index     int
	profile   string
	placement gpu.Opt[gpu.Placement]
}

// New returns an empty History. If two Snapshots are at most longest apart, the later one stands
// for the time between them; if they are further apart, there is a gap.
func New(longest time.Duration) *History {
	return &History{longest: longest, tracks: make(map[gpu.DeviceID]*track)}
}

// Observe adds a Snapshot. Its cost does not grow with the age of the history, and it allocates
// only for new devices and events.
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
// the points that we have lie in the future, and we begin anew.
func (h *History) moveTo(now time.Time) {
	number := now.UnixNano() / int64(Step)
	if h.since.IsZero() || number < h.newest-1 {
		clear(h.tracks)
		h.marks = nil
		h.unused = nil
		h.since = now
		h.newest = number
		h.previous = number
		h.fillFrom = number

		return
	}

	if number <= h.newest {
		return
	}

	// The points from firstNew on still have the values of an earlier turn of the ring.
	firstNew := max(h.newest+1, number-int64(points)+1)

	h.fillFrom = number
	if time.Duration(number-h.newest)*Step <= h.longest {
		h.fillFrom = firstNew
	}

	h.previous = h.newest
	h.newest = number

	for id, t := range h.tracks {
		if number-t.lastPoint >= int64(points) {
			delete(h.tracks, id)
			h.unused = append(h.unused, t)

			continue
		}

		for n := firstNew; n <= number; n++ {
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
		return // a GPU without a handle, which has no readings
	}

	t := h.tracks[id]
	if t == nil {
		if t = h.newTrack(); t == nil {
			return // there are too many devices
		}

		h.tracks[id] = t
	}

	to := pointRange{h.newest, h.newest}
	if t.lastPoint >= h.previous { // the device existed already
		to.first = h.fillFrom
	}

	t.lastPoint = h.newest
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

// pointRange is the points that a reading stands for; last is the newest point.
type pointRange struct{ first, last int64 }

// add adds a value to the mean of the newest point, to.last. The first value of that point also
// becomes the value of the points from to.first on.
func (t *track) add(to pointRange, q quantity, value gpu.Opt[float64]) {
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

func (t *track) addBytes(to pointRange, value gpu.Opt[uint64]) {
	if v, ok := value.Get(); ok {
		t.add(to, memoryUsed, gpu.Some(float64(v)))
	}
}

// newTrack returns a track without values; nil if there are maxTracks devices and none is gone.
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

// takeUnused returns a track of a device that is gone, or a new one. If there are maxTracks
// already, it takes the track of the device that has been gone for longest; it returns nil if none
// is gone.
func (h *History) takeUnused() *track {
	if last := len(h.unused) - 1; last >= 0 {
		t := h.unused[last]
		h.unused = h.unused[:last]

		return t
	}

	if len(h.tracks) < maxTracks {
		return new(track)
	}

	var gone gpu.DeviceID // zero, which no track has, if all devices exist

	oldest := h.newest
	for id, t := range h.tracks {
		if t.lastPoint < oldest {
			gone = id
			oldest = t.lastPoint
		}
	}

	t := h.tracks[gone]
	delete(h.tracks, gone)

	return t
}
