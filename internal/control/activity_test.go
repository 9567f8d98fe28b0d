package control

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestAnInstanceWithoutReadingsIsNotIdle: a Snapshot between two polls shows an instance that is new since, and nothing
// of what runs on it; the same holds for a GPU instance that has a new compute instance.
func TestAnInstanceWithoutReadingsIsNotIdle(t *testing.T) {
	read := time.Unix(100, 0)
	g := mig.GPULayout{Facts: gpu.Facts{UUID: "GPU-a"}, Instances: []mig.Instance{{ID: 1}}}
	holds := func(since time.Time, check activityCheck, computes ...gpu.ComputeInstance) int {
		u := &usage{holds: map[unit][]api.Hold{}}
		polled := gpu.GPU{Facts: g.Facts, Up: true, LastRead: read,
			Instances: []gpu.GPUInstance{{ID: 1, Up: true, Since: since, ComputeInstances: computes}}}
		(&Engine{}).addActivity(u, g, &polled, read.Add(time.Second), check)
		return len(u.holds[unit{gpu: g.UUID, instance: 1}])
	}
	cmptest.Equal(t, "holds of an instance that was read", holds(read, allActivity), 0)
	cmptest.Equal(t, "holds of an instance that was not", holds(read.Add(time.Second), allActivity), 1)
	before, later := gpu.ComputeInstance{Since: read}, gpu.ComputeInstance{ID: 1, Since: read.Add(time.Second)}
	cmptest.Equal(t, "holds with a compute instance that was read", holds(read, allActivity, before), 0)
	cmptest.Equal(t, "holds with one that was not", holds(read, allActivity, before, later), 1)
	cmptest.Equal(t, "holds of the operation's own", holds(read.Add(time.Second), seenActivity), 0)
}
