package nvmlsource_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"

	"github.com/go-kit/log"
)

// costedSource reads a GPU in two instances whose calls of the driver take time, by the clock of a
// test's bubble.
func costedSource(t *testing.T, costs string, hangsAfter time.Duration) (*nvmlsource.Source, gpu.UUID) {
	t.Helper()

	s, err := sim.Parse("costed.yaml", []byte(`
version: 1
node: {kubernetes: false}
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@0", "3g.20gb@4"]}]
driverCosts: `+costs+"\n"))
	if err != nil {
		t.Fatal(err)
	}

	n, err := sim.New(s, sim.NewClock(sim.ClockReal))
	if err != nil {
		t.Fatal(err)
	}

	source := nvmlsource.New(simnvml.New(n), nvmlsource.Options{
		Now: n.Now, HangsAfter: hangsAfter, LongReading: 5 * time.Second, Logger: log.NewNopLogger(),
	})
	t.Cleanup(func() {
		if err := source.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}

		n.Close()
	})

	inventory, err := source.Discover()
	if err != nil {
		t.Fatal(err)
	}

	return source, inventory.GPUs[0].UUID
}

func read(t *testing.T, s *nvmlsource.Source, id gpu.UUID, cues gpu.ReadCues) {
	t.Helper()

	if _, err := s.ReadWith(id, cues); err != nil {
		t.Fatal(err)
	}
}

// Each tier costs what its own calls take. The first reading, which asks for everything once,
// counts for none.
func TestReadCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const power, limit = "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit" // of the fast and the slow tier
		source, id := costedSource(t, "{"+power+": 10ms, "+limit+": 20ms, nvmlGpmSampleGet: 1s}", 0)
		read(t, source, id, gpu.ReadCues{})
		cmptest.Equal(t, "costs of the first reading", source.ReadCosts(), gpu.ReadCosts{})

		began := time.Now()
		for time.Since(began) < 31*time.Second {
			time.Sleep(time.Second)
			read(t, source, id, gpu.ReadCues{})
		}

		costs := source.ReadCosts()
		cmptest.Equal(t, "readings of the slow tier", costs.Slow.Readings, 2)
		cmptest.Equal(t, "cost of the slow tier", costs.Slow.Took, 40*time.Millisecond)
		cmptest.Equal(t, "cost of a poll", costs.Fast.Took, time.Duration(costs.Fast.Readings)*10*time.Millisecond)
	})
}

// The caller can make the slow tier due less often.
func TestSlowTierFollowsTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, id := costedSource(t, "{}", 0)
		for range 122 {
			read(t, source, id, gpu.ReadCues{SlowEvery: time.Minute})
			time.Sleep(time.Second)
		}

		cmptest.Equal(t, "readings of the slow tier", source.ReadCosts().Slow.Readings, 2)
	})
}

// A call that hangs for long says nothing of what readings cost.
func TestHungCallsCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, id := costedSource(t, "{nvmlDeviceGetPowerUsage: 5s, nvmlDeviceGetTemperature: 4s}", 5*time.Second)
		read(t, source, id, gpu.ReadCues{})
		read(t, source, id, gpu.ReadCues{})
		cmptest.Equal(t, "cost of a poll", source.ReadCosts().Fast.Took, 4*time.Second)
	})
}

// A reading that lasts longer than readings are ever apart is made as often whatever the pace, so
// it is no reason for one. Its slow tier is.
func TestLongReadingsCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = "nvmlDeviceGetEnforcedPowerLimit" // of the slow tier
		source, id := costedSource(t, "{nvmlDeviceGetPowerUsage: 3s, nvmlDeviceGetTemperature: 3s, "+limit+": 10s}", 0)
		read(t, source, id, gpu.ReadCues{})
		time.Sleep(15 * time.Second)
		read(t, source, id, gpu.ReadCues{})
		cmptest.Equal(t, "costs", source.ReadCosts(), gpu.ReadCosts{Slow: gpu.TierCost{Readings: 1, Took: 10 * time.Second}})
	})
}

// Progress is when the last call of a GPU's reading began: it moves while one of many calls is
// under way.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, id := costedSource(t, "{unknown: 100ms}", 0)
		cmptest.Equal(t, "progress before the first reading", source.Progress(id).IsZero(), true)
		cmptest.Equal(t, "progress of no GPU", source.Progress("GPU-none").IsZero(), true)

		began := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			read(t, source, id, gpu.ReadCues{})
		}()

		for ticks := 0; !isClosed(done); ticks++ {
			time.Sleep(time.Second)
			synctest.Wait()
			// A list of compute instances is one call here and nine of the library.
			if since := time.Since(source.Progress(id)); since > time.Second && !isClosed(done) {
				t.Errorf("%d s into the reading its last call is %s old", ticks+1, since)
			}
		}

		cmptest.Equal(t, "the reading takes long", time.Since(began) > 5*time.Second, true)
		last := source.Progress(id)
		time.Sleep(time.Minute)
		cmptest.Equal(t, "progress after the reading", source.Progress(id), last)
	})
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
