package truth

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// scenarioWriter writes generated nodes as scenarios of the full simulator, with a trace for what
// changes over time.
type scenarioWriter struct {
	t                          *testing.T
	dir                        string
	from, to                   int // minutes of the workloads; the scenario begins with the first
	gpus, loads, pods, running strings.Builder
	traces                     int
	memory                     func(work *workload, minute int) float64 // in use, in GiB
}

// wholeScenario returns a node on whole GPUs as a scenario of some minutes.
func wholeScenario(t *testing.T, n *node, minutes int) *sim.Scenario {
	t.Helper()
	w := &scenarioWriter{t: t, dir: t.TempDir(), to: minutes, memory: (*workload).takes}

	for i, work := range n.gpus {
		sharing := ""
		if work != nil && work.shared {
			sharing = ", sharing: {kind: mps, replicas: 2}"
		}

		fmt.Fprintf(&w.gpus, "  - {model: %q%s}\n", n.model.Name, sharing)

		switch {
		case work == nil: // held until the pods of several GPUs have theirs
			fmt.Fprintf(&w.pods, "  - {name: blocker-%d, resource: nvidia.com/gpu, device: %q, for: 1s}\n", i, fmt.Sprint(i))
		case i == 0 || n.gpus[i-1] != work:
			w.addWorkload(work, i, "nvidia.com/gpu", fmt.Sprint(i), linkBytes(&n.model))
		}
	}

	return w.parse(n)
}

// slicedScenario returns the scenario of sliced, from a minute of the workloads on.
func slicedScenario(t *testing.T, n *node, slices []slice, from, minutes int) *sim.Scenario {
	t.Helper()
	w := &scenarioWriter{t: t, dir: t.TempDir(), from: from, to: from + minutes}

	for k, s := range slices {
		w.memory = func(work *workload, minute int) float64 {
			if bytes, alive := s.uses(minute); work.says != nil && alive {
				return float64(bytes) / gib
			}

			return work.needMoved(minute, from)
		}
		at := s.profile.Placements[0].Start
		fmt.Fprintf(&w.gpus, "  - {model: %q, mig: true, layout: [%s@%d]}\n", n.model.Name, s.profile.Name, at)
		resource := "nvidia.com/mig-" + strings.ReplaceAll(s.profile.Name, "+", ".")
		w.addWorkload(s.work, s.index, resource, fmt.Sprintf("%d/%s@%d", k, s.profile.Name, at), linkBytes(&n.model))
	}

	return w.parse(n)
}

func (w *scenarioWriter) parse(n *node) *sim.Scenario {
	w.t.Helper()

	text := fmt.Sprintf("version: 1\nnode: {hostname: %s}\ngpus:\n%sworkloads:\n%spods:\n%s",
		n.name, w.gpus.String(), w.loads.String(), w.pods.String())
	if w.running.Len() > 0 {
		text += "processes:\n" + w.running.String()
	}

	s, err := sim.Parse(filepath.Join(w.dir, n.name+".yaml"), []byte(text))
	if err != nil {
		w.t.Fatal(err)
	}

	return s
}

// addWorkload adds the pods of a workload. Its first kernels are those of its pods. A workload of a
// scenario has no others later: those that it changes to are of processes of the host, which run
// while the pod's do not.
func (w *scenarioWriter) addWorkload(work *workload, index int, resource, device string, link float64) {
	w.t.Helper()

	if len(work.states) > 1 && work.lifetime > 0 {
		w.t.Fatalf("%s: short-lived pods that change their kernels cannot be written as a scenario", work.kind)
	}

	for minute := w.from; minute < w.to; {
		running, number := work.runs(minute)

		until := minute + 1
		for until < w.to {
			if now, of := work.runs(until); now != running || of != number {
				break
			}

			until++
		}

		if running {
			w.addPod(work, index, number, minute, until, resource, device, link)
		}

		minute = until
	}

	for state := 1; state < len(work.states); state++ {
		name := stateName(index, state)
		w.addLoad(name, work, state, w.from, w.to, link)
		fmt.Fprintf(&w.running, "  - {device: %q, workload: %s}\n", device, name)
	}
}

// podLoadName is what a scenario calls what a pod does, stateName what the workload does with its
// later kernels.
func podLoadName(index, number int) string { return fmt.Sprintf("gpu-%d-%d", index, number) }
func stateName(index, state int) string    { return fmt.Sprintf("gpu-%d-state-%d", index, state) }

// loadName is what a scenario calls what the workload of a GPU does in a minute.
func loadName(index int, work *workload, minute int) string {
	if state := work.stateOf(minute); state > 0 {
		return stateName(index, state)
	}

	_, number := work.runs(minute)

	return podLoadName(index, number)
}

func (w *scenarioWriter) addPod(work *workload, index, number, from, until int, resource, device string, link float64) {
	name := podLoadName(index, number)
	w.addLoad(name, work, 0, from, until, link)

	for _, h := range work.newHolders(index, number) {
		fmt.Fprintf(&w.pods, "  - {namespace: %s, name: %s, owner: %q, container: %s, resource: %s, ",
			h.Namespace, h.Pod, h.Workload, h.Name, resource)

		if work.pods > 1 {
			fmt.Fprintf(&w.pods, "count: %d, ", work.pods)
		} else {
			fmt.Fprintf(&w.pods, "device: %q, ", device)
		}

		if h.Workload == work.newHolders(index, number)[0].Workload {
			fmt.Fprintf(&w.pods, "workload: %s, ", name)
		}

		fmt.Fprintf(&w.pods, "at: %dm, for: %dm}\n", from-w.from, until-from)
	}
}

// addLoad adds what a workload does with the kernels of one state in some minutes. Memory and media
// engines are those of the first.
func (w *scenarioWriter) addLoad(name string, work *workload, state, from, until int, link float64) {
	var phases []string
	for _, p := range work.states[state] {
		phases = append(phases, fmt.Sprintf("{share: %v, width: %v, bandwidth: %v}", p.Share, p.Width, p.Bandwidth))
	}

	busy := func(minute int) float64 {
		if work.stateOf(minute) != state {
			return 0
		}

		return work.demand(minute).Busy
	}
	fmt.Fprintf(&w.loads, "  - name: %s\n    phases: [%s]\n", name, strings.Join(phases, ", "))

	if q := work.demand(from).Requests; q.Given() { // it does the same in all minutes
		fmt.Fprintf(&w.loads, "    requests: {concurrency: %d, gpu: %s, host: %s}\n", q.Concurrency, q.GPU, q.Host)
	} else {
		fmt.Fprintf(&w.loads, "    busy: %s\n",
			w.trace(from, until, func(minute int) string { return fmt.Sprint(busy(minute)) }))
	}

	if work.pcie > 0 {
		fmt.Fprintf(&w.loads, "    pcie: %s\n", w.trace(from, until, func(minute int) string {
			return fmt.Sprintf("%.0fB", work.pcie*busy(minute)*link/2)
		}))
	}

	if work.nvlink > 0 {
		fmt.Fprintf(&w.loads, "    nvlink: %s\n", w.trace(from, until, func(minute int) string {
			return fmt.Sprintf("%.0fB", work.nvlink*busy(minute))
		}))
	}

	if state > 0 {
		return
	}

	fmt.Fprintf(&w.loads, "    memory: %s\n", w.trace(from, until, func(minute int) string {
		return fmt.Sprintf("%.0fB", w.memory(work, minute)*gib)
	}))

	for kind, key := range [4]string{"encoder", "decoder", "jpeg", "ofa"} {
		if work.media[kind] > 0 {
			fmt.Fprintf(&w.loads, "    %s: %s\n", key, w.trace(from, until, func(minute int) string {
				return fmt.Sprint(work.uses(minute)[kind])
			}))
		}
	}
}

// trace writes the values of some minutes, and returns what a scenario calls them.
func (w *scenarioWriter) trace(from, until int, value func(minute int) string) string {
	w.t.Helper()
	var lines strings.Builder

	last := ""
	for minute := from; minute < until; minute++ {
		if now := value(minute); now != last {
			fmt.Fprintf(&lines, "%d,%s\n", (minute-from)*60, now)
			last = now
		}
	}

	w.traces++

	name := fmt.Sprintf("trace-%d.csv", w.traces)
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(lines.String()), 0o600); err != nil {
		w.t.Fatal(err)
	}

	return "{trace: " + name + "}"
}
