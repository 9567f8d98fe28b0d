package control

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestAnInstanceWithoutReadingsIsNotIdle: a Snapshot between two polls shows an instance that is
// new since, and nothing of what runs on it; the same holds for a GPU instance that has a new
// compute instance.
func TestAnInstanceWithoutReadingsIsNotIdle(t *testing.T) {
	read := time.Unix(100, 0)
	g := mig.GPULayout{Facts: gpu.Facts{UUID: "GPU-a"}, Instances: []mig.Instance{{ID: 1}}}
	holds := func(since time.Time, check activityCheck, computeInstances ...gpu.ComputeInstance) int {
		u := &usage{holds: map[holdKey][]api.Hold{}}
		polled := gpu.GPU{Facts: g.Facts, Device: gpu.Device{Up: true}, LastRead: read,
			Instances: []gpu.GPUInstance{{ID: 1, Device: gpu.Device{Up: true}, Since: since, ComputeInstances: computeInstances}}}
		(&Engine{}).addActivity(u, g, &polled, read.Add(time.Second), check)

		return len(u.holds[holdKey{gpu: g.UUID, instance: 1}])
	}
	cmptest.Equal(t, "holds of an instance that was read", holds(read, allActivity), 0)
	cmptest.Equal(t, "holds of an instance that was not", holds(read.Add(time.Second), allActivity), 1)
	before := gpu.ComputeInstance{Since: read}
	later := gpu.ComputeInstance{ID: 1, Since: read.Add(time.Second)}
	cmptest.Equal(t, "holds with a compute instance that was read", holds(read, allActivity, before), 0)
	cmptest.Equal(t, "holds with one that was not", holds(read, allActivity, before, later), 1)
	cmptest.Equal(t, "holds of the operation's own", holds(read.Add(time.Second), seenActivity), 0)
}

// usesSinceOldReadings are ways in which the 7g can be in use that an old reading does not show.
func usesSinceOldReadings() map[string]use {
	return map[string]use{
		"activity since a reading of seconds ago": {func(w *world) {
			w.age(gpu1, 5*time.Second)
			w.whenRead = func() { w.snapshot.GPUs[1].Instances[0].Activity.SM = gpu.Some(0.01) }
		}, api.HoldActivity},
		"activity was last read long ago": {func(w *world) {
			w.age(gpu1, 2*time.Minute)
			w.whenRead = func() { w.age(gpu1, 2*time.Minute) } // the reading does not end in time
		}, api.HoldUnknown},
	}
}

func (w *world) PollGPUs(context.Context, ...gpu.UUID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look()

	if w.whenRead != nil {
		w.whenRead()
	}

	return nil
}

// age makes the last reading of a GPU older, as if calls of the driver were dear.
func (w *world) age(id gpu.UUID, by time.Duration) {
	s := w.snapshot
	s.Pace.Fast = gpu.TierPace{Configured: time.Second, Now: 5 * time.Second}
	at := slices.IndexFunc(s.GPUs, func(g gpu.GPU) bool { return g.UUID == id })
	s.GPUs[at].LastRead = s.Time.Add(-by)
}

// TestHoldsWhateverTheGeneration: the driver knows no generations. A hold is found on an instance
// that it lists, whatever generation the last Snapshot has it in.
func TestHoldsWhateverTheGeneration(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)
	polled := &w.snapshot.GPUs[1].Instances[0]
	polled.Generation = 4
	polled.Activity.SM = gpu.Some(0.5)
	polled.Jobs = []string{"4242"}
	w.processes[gpu1] = []gpu.Process{{PID: 9, Instance: gpu.Some(polled.ID)}}
	w.give(gpu.DeviceRef{GPU: gpu1, Instance: gpu.Some(polled.ID)})

	u, err := e.collectUsage(t.Context(), func(gpu.Facts) bool { return true })
	if err != nil {
		t.Fatal(err)
	}

	var kinds []api.HoldKind
	for _, h := range u.holds[holdKey{gpu: gpu1, instance: polled.ID}] {
		kinds = append(kinds, h.Kind)
	}

	slices.Sort(kinds)
	cmptest.Equal(t, "holds", kinds, []api.HoldKind{api.HoldActivity, api.HoldJob, api.HoldPod, api.HoldProcess})
}
