package nvmlsource_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

const hiddenWork = `version: 1
node: {pidNamespace: NAMESPACE, kubernetes: false}
gpus:
- {model: A100-40GB}
- {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "1g.5gb@0"]}
workloads: [{name: w, memory: 4GiB, sm: 20}]
processes: [{gpu: 0, workload: w}, {device: "1/3g.20gb@4", workload: w}]
`

// TestProcessesOutsideTheHostsPIDNamespace: neither a list nor a count is concluded from what the
// driver says, and no list is asked for, also where each MIG device has its own.
func TestProcessesOutsideTheHostsPIDNamespace(t *testing.T) {
	for _, rights := range []string{"container", "container, privileged: false"} {
		n := startNode(t, strings.Replace(hiddenWork, "NAMESPACE", rights, 1))

		ids := n.discover()
		for range 2 {
			n.advance(time.Second)
			n.spy.taken()

			for _, id := range ids {
				g := n.read(id)
				cmptest.Equal(t, rights+": the list is known", g.Readings.Processes.Present(), false)

				if err := errorOf(g.Errors, gpu.ReadingProcesses); !errors.Is(err, gpu.ErrPIDNamespace) {
					t.Errorf("%s: error %v, want %v", rights, err, gpu.ErrPIDNamespace)
				}

				for i := range g.Instances {
					gi := &g.Instances[i]
					cmptest.Equal(t, rights+": the instance's count is known", gi.Processes.Present(), false)
					cmptest.Equal(t, rights+": the instance is up", gi.Up, true)
					cmptest.Equal(t, rights+": the compute instance is up", gi.ComputeInstances[0].Up, true)
					cmptest.Equal(t, rights+": its count is known", gi.ComputeInstances[0].Processes.Present(), false)
				}
			}

			for call, times := range n.spy.taken() {
				if strings.Contains(call, "Process") {
					t.Errorf("%s: %d calls of %s, want none", rights, times, call)
				}
			}
		}

		if said := strings.Count(n.logged.String(), "processes are not known"); said != 1 {
			t.Errorf("%s: said %d times that processes are not known:\n%s", rights, said, n.logged)
		}
	}
}

// TestHiddenProcessesAreCountedOnce: what cannot change is one error of a GPU, not one of each
// reading.
func TestHiddenProcessesAreCountedOnce(t *testing.T) {
	n := startNode(t, strings.Replace(hiddenWork, "NAMESPACE", "container", 1))
	id := n.discover()[0]
	fresh := 0

	for range 40 {
		n.advance(time.Second)

		for _, e := range n.read(id).Errors {
			if e.Reading == gpu.ReadingProcesses && !e.Remembered {
				fresh++
			}
		}
	}

	cmptest.Equal(t, "errors in 40 readings", fresh, 1)
}

// TestActuatorSaysThatProcessesMayBeHidden: what the driver lists runs on the GPU, whatever it
// leaves out. Drivers before 535.113.01 list all processes everywhere.
func TestActuatorSaysThatProcessesMayBeHidden(t *testing.T) {
	for namespace, listed := range map[string]int{"container": 0, "host": 1} {
		n := startNode(t, strings.Replace(hiddenWork, "NAMESPACE", namespace, 1))
		source := nvmlsource.New(n.spy, nvmlsource.Options{
			Now: n.Now, ProcessesHidden: gpu.ErrPIDNamespace, Logger: log.NewNopLogger(),
		})

		inventory, err := source.Discover()
		if err != nil {
			t.Fatal(err)
		}

		for _, known := range inventory.GPUs {
			list, err := source.Actuator().Processes(t.Context(), known.UUID)
			if len(list) != listed || !errors.Is(err, gpu.ErrPIDNamespace) {
				t.Errorf("a driver that lists those of the %s: %+v, %v; want %d, and that there may be others", namespace, list,
					err, listed)
			}
		}

		if err := source.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
