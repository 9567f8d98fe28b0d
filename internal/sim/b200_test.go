package sim

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestB200AsCaptured: a B200 of a published capture (gpu-operator issue 2155), three 2g.45gb and a
// 1g.23gb: their ids and places, what the driver uses of them, and no power with MIG on.
func TestB200AsCaptured(t *testing.T) {
	n := start(t, `version: 1
node: {kubernetes: false}
gpus:
  - {model: B200, mig: true, layout: ["2g.45gb@0", "2g.45gb@2", "2g.45gb@4", "1g.23gb@6"]}
  - {model: B200}
`)
	s := state(t, n, 0)
	type instance struct {
		id           gpu.InstanceID
		placement    string
		sms, jpegs   int
		copies       int
		decoders     int
		mebibytes    uint64
		mebibytesNow uint64
	}
	var got []instance

	for _, i := range s.Instances {
		e := i.Profile.Engines.Or(gpu.Engines{})
		got = append(got, instance{i.ID, i.Placement.String(), i.Profile.SMs, e.JPEG, e.Copy, e.Decoder,
			i.Profile.MemoryBytes >> 20, i.MemoryUsed >> 20})
	}

	want := []instance{
		{3, "0:2", 36, 2, 4, 2, 45312, 31}, {4, "2:2", 36, 2, 4, 2, 45312, 31}, {5, "4:2", 36, 2, 4, 2, 45312, 31},
		{13, "6:1", 18, 1, 2, 1, 22528, 13},
	}
	if len(got) != len(want) {
		t.Fatalf("instances %+v, want %+v", got, want)
	}

	for i := range want {
		if got[i] != want[i] {
			t.Errorf("instance %+v, want %+v", got[i], want[i])
		}
	}

	cmptest.Equal(t, "MiB in use", s.MemoryUsed>>20, uint64(107))
	cmptest.Equal(t, "MiB", s.MemoryTotal>>20, uint64(183359))
	cmptest.Equal(t, "limit", s.LimitWatts, 1000.0)
	cmptest.Equal(t, "power with MIG on", s.ReportedWatts, gpu.None[float64]())

	whole := state(t, n, 1)
	cmptest.Equal(t, "power without MIG", whole.ReportedWatts, gpu.Some(whole.Watts))
}
