package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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
	forward := checkBeforeDestroy(mig.DestroyCompute, false)
	back := checkBeforeDestroy(mig.DestroyCompute, true)
	holds := func(since time.Time, check pollCheck, computeInstances ...gpu.ComputeInstance) int {
		u := &usage{holds: map[holdKey][]api.Hold{}}
		polled := gpu.GPU{Facts: g.Facts, Device: gpu.Device{Up: true}, LastRead: read,
			Instances: []gpu.GPUInstance{{ID: 1, Device: gpu.Device{Up: true}, Since: since, ComputeInstances: computeInstances}}}
		(&Engine{}).addActivity(u, g, &polled, read.Add(time.Second), check)

		return len(u.holds[holdKey{gpu: g.UUID, instance: 1}])
	}
	cmptest.Equal(t, "holds of an instance that was read", holds(read, forward), 0)
	cmptest.Equal(t, "holds of an instance that was not", holds(read.Add(time.Second), forward), 1)
	before := gpu.ComputeInstance{Since: read}
	later := gpu.ComputeInstance{ID: 1, Since: read.Add(time.Second)}
	cmptest.Equal(t, "holds with a compute instance that was read", holds(read, forward, before), 0)
	cmptest.Equal(t, "holds with one that was not", holds(read, forward, before, later), 1)
	cmptest.Equal(t, "holds of the operation's own", holds(read.Add(time.Second), back), 0)
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

// TestUnknownJobsHoldTheirDevice: a device whose batch jobs are unknown is busy, for one reason, and the others
// are not.
func TestUnknownJobsHoldTheirDevice(t *testing.T) {
	const down = "batch jobs: their source does not answer"
	const unread = "batch jobs: they have not been read yet"

	for about, c := range map[string]struct {
		change        func(w *world)
		first, second []string // holds of unknown jobs on the two instances of GPU 0
	}{
		"of one instance": {func(w *world) {
			w.snapshot.Sources = []gpu.SourceState{{Name: gpu.SourceJobs, Err: gpu.ErrUnavailable}}
			w.snapshot.GPUs[0].Instances[1].JobsUnknown = true
		}, nil, []string{down}},
		"of a new instance": {func(w *world) {
			w.snapshot.Sources = []gpu.SourceState{{Name: gpu.SourceJobs, Up: true}}
			w.snapshot.GPUs[0].Instances[1].JobsUnknown = true
		}, nil, []string{unread}},
		"of an instance that was not polled": {func(w *world) {
			w.snapshot.Sources = []gpu.SourceState{{Name: gpu.SourceJobs, Up: true}}
			w.snapshot.GPUs[0].Instances = w.snapshot.GPUs[0].Instances[:1]
		}, nil, []string{unread}},
		"of all, as their first call has not ended": {func(w *world) {
			w.snapshot.GPUs[0].JobsUnknown = true
			w.snapshot.GPUs[0].Instances[0].JobsUnknown = true
			w.snapshot.GPUs[0].Instances[1].JobsUnknown = true
		}, []string{unread}, []string{unread}},
		"of another GPU": {func(w *world) {
			w.snapshot.Sources = []gpu.SourceState{{Name: gpu.SourceJobs, Err: gpu.ErrUnavailable}}
			w.snapshot.GPUs[1].JobsUnknown = true
		}, nil, nil},
		"of parts of a GPU that a job has": {func(w *world) {
			w.snapshot.GPUs[0].Jobs = []string{"16"}
			w.snapshot.GPUs[0].Instances[0].JobsUnknown = true
			w.snapshot.GPUs[0].Instances[1].JobsUnknown = true
		}, nil, nil}, // the job holds them
	} {
		w := newWorld(t)
		e := w.engine(t, nil)
		c.change(w)

		u, err := e.collectUsage(t.Context(), func(gpu.Facts) bool { return true })
		if err != nil {
			t.Fatal(err)
		}

		for n, want := range [][]string{c.first, c.second} {
			var got []string

			for _, h := range u.holds[holdKey{gpu: gpu0, instance: gpu.InstanceID(n + 1)}] {
				if strings.HasPrefix(h.What, "batch jobs") {
					got = append(got, h.What)
				}
			}

			cmptest.Equal(t, fmt.Sprintf("%s: holds on instance %d", about, n+1), got, want)
		}
	}
}

// TestJobsThatBecomeUnknown: an operation destroys nothing that a batch job may have got since its plan. Its own
// instances are so new that their jobs are never known: that does not keep it from rolling back.
func TestJobsThatBecomeUnknown(t *testing.T) {
	forget := func(w *world) {
		w.look()

		for i := range w.snapshot.GPUs[1].Instances {
			w.snapshot.GPUs[1].Instances[i].JobsUnknown = true
		}
	}

	synctest.Test(t, func(t *testing.T) {
		w, e, op := survives(t, api.RolledBack, func(w *world) {
			w.after = func(_ int, s mig.Step) error {
				if s.Op == mig.DestroyCompute && s.GPU == gpu1 {
					forget(w)
				}

				return nil
			}
		})
		w.sound(t, e, mixedBefore, mixedBefore)
		cmptest.Equal(t, "problem", op.Error.Type, api.Busy)

		w, e, op = survives(t, api.RolledBack, func(w *world) {
			created := 0
			w.before = func(_ int, s mig.Step) error {
				if s.Op != mig.CreateInstance || s.GPU != gpu1 {
					return nil
				}

				if created++; created != 2 {
					return nil
				}

				forget(w)

				return gpu.ErrInsufficientResources
			}
		})
		w.sound(t, e, mixedBefore, mixedBefore)
		cmptest.Equal(t, "problem", op.Error.Type, api.DriverFailed)
	})
}
