package nvmlsource_test

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// laterJob begins after 20 s and ends after 40 s.
const laterJob = `
workloads: [{name: job, memory: 2GiB, sm: 4}]
processes: [{device: "0/3g.20gb@0/0", workload: job, at: 20s, for: 20s}]`

const computeList, graphicsList, mpsList = "GetComputeRunningProcesses", "GetGraphicsRunningProcesses",
	"GetMPSComputeRunningProcesses"

// quiet reads a GPU as the loop does where an allocator says who holds it, and nothing has changed.
func (n *node) quiet(id gpu.UUID, cues gpu.ReadCues) (g gpu.GPU, calls map[string]int) {
	n.t.Helper()
	n.awaitEvents()
	n.spy.taken()

	g, err := n.source.ReadWith(id, cues)
	if err != nil || len(g.Errors) > 0 {
		n.t.Fatalf("errors %v, %v", g.Errors, err)
	}

	return g, n.spy.taken()
}

// Processes are listed with the slow tier, every 15 s, and in the reading that sees the memory go
// to or from zero.
func TestProcessesAreListedWhenTheyMayHaveChanged(t *testing.T) {
	n := newNode(t, "", twoCIs+laterJob)
	id := n.discover()[0]
	n.quiet(id, gpu.ReadCues{})

	for second := 1; second <= 60; second++ {
		n.advance(time.Second)
		g, calls := n.quiet(id, gpu.ReadCues{})

		due := second%15 == 0

		running := second >= 20 && second < 40
		if second == 20 || second == 40 {
			due = true
		}

		if listed := calls[computeList] == 1; listed != due {
			t.Errorf("after %d s processes are listed: %t", second, listed)
		}

		if got := len(g.Readings.Processes.Or(nil)) == 1; got != running {
			t.Errorf("after %d s a process is seen: %t", second, got)
		}

		if calls[graphicsList] != 0 {
			t.Errorf("after %d s a GPU that cannot draw is asked for graphics", second)
		}
	}
}

// The lists are read at once if the caller asks.
func TestProcessesAreListedOnACue(t *testing.T) {
	n := newNode(t, "", twoCIs)
	id := n.discover()[0]
	n.quiet(id, gpu.ReadCues{})

	for _, tt := range []struct {
		cues         gpu.ReadCues
		compute, mps int
	}{
		{gpu.ReadCues{}, 0, 0},
		{gpu.ReadCues{Changed: true}, 1, 0},
		{gpu.ReadCues{Asked: true}, 1, 1},
		{gpu.ReadCues{MPS: true}, 0, 0},
		{gpu.ReadCues{Changed: true, MPS: true}, 1, 1},
		{gpu.ReadCues{FollowMemory: true}, 0, 0}, // no memory has moved
	} {
		n.advance(time.Second)

		_, calls := n.quiet(id, tt.cues)
		if calls[computeList] != tt.compute || calls[mpsList] != tt.mps {
			t.Errorf("%+v: %d lists of processes and %d of MPS clients, want %d and %d", tt.cues, calls[computeList],
				calls[mpsList], tt.compute, tt.mps)
		}
	}
}

// On a bare server the processes are the holders: their lists follow every move of the memory.
func TestProcessesAreListedAsMemoryMovesOnABareServer(t *testing.T) {
	n := newNode(t, "", `  - {model: A100-40GB}
workloads: [{name: job, memory: {steps: [{at: 0s, value: 1GiB}, {at: 1s, value: 2GiB}, {at: 2s, value: 3GiB}, {at: 3s, value: 4GiB}]}, sm: 4}]
processes: [{device: "0", workload: job}]`)
	id := n.discover()[0]
	n.quiet(id, gpu.ReadCues{})

	for _, bare := range []bool{true, false, true} {
		n.advance(time.Second)
		_, calls := n.quiet(id, gpu.ReadCues{FollowMemory: bare})
		cmptest.Equal(t, "the lists are read", calls[computeList] == 1, bare)
	}
}

// While the driver reports changes, the tree is scanned with the slow tier only, and its compute
// instances are not listed again.
func TestTreeIsScannedWhenItMayHaveChanged(t *testing.T) {
	n := newNode(t, "", twoCIs)
	id := n.discover()[0]
	n.quiet(id, gpu.ReadCues{})
	n.quiet(id, gpu.ReadCues{}) // the first reading found that events are delivered, after its scan

	for second := 1; second <= 45; second++ {
		n.advance(time.Second)

		_, calls := n.quiet(id, gpu.ReadCues{})
		if scanned := calls["GetGpuInstances"] > 0; scanned != (second%15 == 0) {
			t.Errorf("after %d s the tree is scanned: %t", second, scanned)
		}

		if lists := calls["Instance.GetComputeInstances"]; lists != 0 {
			t.Errorf("after %d s compute instances are listed %d times", second, lists)
		}
	}
}

// Every reading scans while changes may go unreported, without exclusive calls, and sees a change
// at once.
func TestTreeIsScannedEachTimeWithoutReports(t *testing.T) {
	for name, prepare := range map[string]func(*node){
		"not registered": func(n *node) { n.withoutReports() },
		"without the rights that the driver filters events by": func(n *node) {
			n.spy.set("GetMemoryInfo", nvml.ERROR_NOT_SUPPORTED)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "", oneHalf)
			prepare(n)
			id := n.discover()[0]

			before := n.read(id)
			for range 3 {
				n.advance(time.Second)

				if _, calls := n.quiet(id, gpu.ReadCues{}); calls["GetGpuInstances"] == 0 ||
					calls["MIG.GetUUID"] == 0 || calls[computeList] != 0 || calls["Instance.GetComputeInstances"] != 0 {
					t.Errorf("calls %v, want a scan without exclusive calls", calls)
				}
			}

			repartitionTo(t, n, before.Instances[0].ID, "2g.10gb@0")
			n.advance(time.Second)
			g, _ := n.quiet(id, gpu.ReadCues{})
			cmptest.Equal(t, "the profile in the next reading", g.Instances[0].Profile, "2g.10gb")
		})
	}
}

// A change that is reported is seen by the next reading, and one that the driver keeps to itself by
// the scan of the slow tier; then the reports are not relied on until several came.
func TestChangesThatAreNotReportedEndTheTrust(t *testing.T) {
	n := newNode(t, "", oneHalf)
	id := n.discover()[0]
	gi := n.read(id).Instances[0].ID
	n.advance(time.Second)
	n.quiet(id, gpu.ReadCues{})

	profiles := []string{"2g.10gb@0", "7g.40gb@0"}
	change := func(i int, after time.Duration) {
		t.Helper()
		repartitionTo(t, n, gi, profiles[i%2])
		n.advance(after)
		g, _ := n.quiet(id, gpu.ReadCues{})
		gi = g.Instances[0].ID
		cmptest.Equal(t, "the profile after a change", g.Instances[0].Profile+"@0", profiles[i%2])
	}
	expectScan := func(when string, want bool) {
		t.Helper()
		n.advance(time.Second)
		_, calls := n.quiet(id, gpu.ReadCues{})
		cmptest.Equal(t, when+": the tree is scanned", calls["GetGpuInstances"] > 0, want)
	}

	n.spy.deaf.Store(true)
	change(0, 15*time.Second)
	n.spy.deaf.Store(false)
	expectScan("after a change that was not reported", true)

	for i := range 3 {
		change(i+1, time.Second)
		expectScan("after another report", i < 2)
	}
}

// A report that does not say of which GPU it is may be of any.
func TestReportsOfUnknownGPUs(t *testing.T) {
	n := newNode(t, "", oneHalf)
	id := n.discover()[0]
	gi := n.read(id).Instances[0].ID
	n.advance(time.Second)
	n.quiet(id, gpu.ReadCues{})

	n.spy.strangers.Store(true)
	n.replaceCompute(gi, 3, 0) // looks as the one before
	n.advance(time.Second)
	_, calls := n.quiet(id, gpu.ReadCues{})
	cmptest.Equal(t, "the next reading scans the tree", calls["GetGpuInstances"] > 0, true)
}

// A report that comes after the scan that has found its change was late, not missed.
func TestLateReportsAreTrusted(t *testing.T) {
	n := newNode(t, "", oneHalf)
	id := n.discover()[0]
	gi := n.read(id).Instances[0].ID
	n.advance(time.Second)
	n.quiet(id, gpu.ReadCues{})

	n.spy.deaf.Store(true)
	repartitionTo(t, n, gi, "2g.10gb@0")
	n.advance(15 * time.Second)
	g, _ := n.quiet(id, gpu.ReadCues{})
	n.spy.deaf.Store(false)
	repartitionTo(t, n, g.Instances[0].ID, "7g.40gb@0") // has the report of the change before
	n.advance(time.Second)
	n.quiet(id, gpu.ReadCues{})

	n.advance(time.Second)
	_, calls := n.quiet(id, gpu.ReadCues{})
	cmptest.Equal(t, "the tree is scanned", calls["GetGpuInstances"] > 0, false)
}

// A caller that asks for what there is now gets it, also before the report of a change has been
// received.
func TestTreeIsScannedWhenAsked(t *testing.T) {
	n := newNode(t, "", oneHalf)
	id := n.discover()[0]
	n.read(id)
	n.advance(time.Second)
	n.quiet(id, gpu.ReadCues{})

	n.spy.deaf.Store(true)
	_, err := n.CreateGPUInstance(0, 19, gpu.Some(6))
	must(t, err)
	n.advance(time.Second)
	g, _ := n.quiet(id, gpu.ReadCues{Asked: true})
	cmptest.Equal(t, "how many instances", len(g.Instances), 2)
}

// A handle that fails makes the reading scan.
func TestAFailingHandleMakesTheReadingScan(t *testing.T) {
	n := newNode(t, "", oneHalf)
	id := n.discover()[0]
	before := n.read(id)
	n.advance(time.Second)
	n.quiet(id, gpu.ReadCues{})

	n.spy.deaf.Store(true)
	repartitionTo(t, n, before.Instances[0].ID, "7g.40gb@0") // has another id
	n.advance(time.Second)

	g, calls := n.quiet(id, gpu.ReadCues{})
	if calls["GetGpuInstances"] == 0 || g.Instances[0].Profile != "7g.40gb" {
		t.Errorf("calls %v, instances %+v", calls, g.Instances)
	}
}
