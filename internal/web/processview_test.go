package web

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// listedFixture is a node with processes of which all is known, whatever may be served of them.
func listedFixture(detail gpu.ProcessDetail) *gpu.Snapshot {
	snap := nodeFixture()
	snap.Processes = detail
	snap.GPUs = []gpu.GPU{wholeGPU(0), splitGPU(1), freeGPU(2)}
	snap.GPUs[0].Readings.Processes = gpu.Some([]gpu.Process{
		{PID: 4711, MemoryBytes: gpu.Some[uint64](3 * gib), Job: "90210", Name: "<script>x</script>", User: "ada"},
		{PID: 4712, Graphics: true, Name: "Xorg", User: "0"},
	})
	snap.GPUs[1].Readings.Processes = gpu.Some([]gpu.Process{
		{PID: 4713, MPS: true, Instance: gpu.Some(gpu.InstanceID(1)), Compute: gpu.Some(gpu.ComputeID(0)),
			Container: gpu.Container{Namespace: "vision", Pod: "resnet-0", Name: "main"}},
	})

	return snap
}

// TestProcesses: the page, the JSON and the stream have processes only as far as they may be
// served.
func TestProcesses(t *testing.T) {
	for _, detail := range []gpu.ProcessDetail{"", gpu.ProcessesOff, gpu.ProcessNames, gpu.ProcessUsers} {
		h := testHandler(Options{State: true}, publish(listedFixture(detail)), nil, prometheus.NewRegistry())
		page := get(h, "/").Body.String()
		text := get(h, "/api/v1/node").Body.String()
		what := fmt.Sprintf("%q", detail)

		var doc nodedoc.Document
		if err := json.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}

		if !detail.ListsProcesses() {
			cmptest.LacksTexts(t, text, `"processList"`, `"processDetail"`, "4711", "Xorg", "ada")
			cmptest.LacksTexts(t, page, "4711", "Xorg", ">ada<")

			continue
		}

		user := func(name string) string {
			if detail == gpu.ProcessUsers {
				return name
			}

			return ""
		}
		cmptest.Equal(t, what, doc.Node.ProcessDetail, detail)
		cmptest.Equal(t, what, doc.GPUs[0].ProcessList, []nodedoc.Process{
			{PID: 4711, Type: "compute", Name: "<script>x</script>", User: user("ada"),
				MemoryUsedBytes: gpu.Some[uint64](3 * gib), Job: "90210"},
			{PID: 4712, Type: "graphics", Name: "Xorg", User: user("0")},
		})
		cmptest.Equal(t, what, doc.GPUs[1].ProcessList, []nodedoc.Process{
			{PID: 4713, Type: "mps", GPUInstance: gpu.Some(gpu.InstanceID(1)), ComputeInstance: gpu.Some(gpu.ComputeID(0)),
				Namespace: "vision", Pod: "resnet-0", Container: "main"},
		})
		cmptest.Equal(t, what, len(doc.GPUs[2].ProcessList), 0)
		cmptest.HasTexts(t, page, "2 processes", `scope="row">4711</th>`, "<td>&lt;script&gt;x&lt;/script&gt;</td>",
			"<td>3 GiB</td>", "<td>job 90210</td>", "<td>GI 1 CI 0</td>", "<td>vision/resnet-0</td>", "1 process<")

		if users := strings.Contains(page, "<td>ada</td>"); users != (detail == gpu.ProcessUsers) {
			t.Errorf("%s: the page has users: %v", what, users)
		}
	}
}

// TestProcessesAreBounded: the document has no more processes than are described, and the page says
// how many it lacks.
func TestProcessesAreBounded(t *testing.T) {
	snap := listedFixture(gpu.ProcessNames)
	snap.GPUs[0].Readings.Processes = gpu.Some(make([]gpu.Process, gpu.MaxProcesses+7))
	h := testHandler(Options{State: true}, publish(snap), nil, prometheus.NewRegistry())

	cmptest.Equal(t, "processes", len(nodedoc.New(snap).GPUs[0].ProcessList), gpu.MaxProcesses)
	cmptest.HasTexts(t, get(h, "/").Body.String(), "263 processes", "7 more are in no list")
}

// TestProcessesInAnotherNamespace: what the driver doesn't list is unknown, and the page says why.
func TestProcessesInAnotherNamespace(t *testing.T) {
	for _, detail := range []gpu.ProcessDetail{gpu.ProcessesOff, gpu.ProcessUsers} {
		snap := listedFixture(detail)
		snap.GPUs = snap.GPUs[:1]
		g := &snap.GPUs[0]
		g.Readings.Processes = gpu.None[[]gpu.Process]()
		g.Errors = []gpu.ReadError{{Reading: gpu.ReadingProcesses, Err: fmt.Errorf("x: %w", gpu.ErrPIDNamespace)}}
		h := testHandler(Options{State: true}, publish(snap), nil, prometheus.NewRegistry())
		page := get(h, "/").Body.String()

		if says := strings.Contains(page, "Processes unknown: another PID namespace"); says != detail.ListsProcesses() {
			t.Errorf("%s: the page says why: %v", detail, says)
		}

		text := get(h, "/api/v1/node").Body.String()
		cmptest.HasTexts(t, text, `"reason":"pid_namespace"`)
		cmptest.LacksTexts(t, text, `"processList"`)
	}
}
