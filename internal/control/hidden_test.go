package control

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// hideProcesses has the driver list no process, as outside of the host's PID namespace, and the
// poll report it.
func (w *world) hideProcesses() {
	w.processErr = gpu.ErrPIDNamespace
	for i := range w.snapshot.GPUs {
		w.snapshot.GPUs[i].Errors = append(w.snapshot.GPUs[i].Errors,
			gpu.ReadError{Reading: gpu.ReadingProcesses, Err: gpu.ErrPIDNamespace, Remembered: true})
	}
}

// TestOpenFilesStandInForHiddenProcesses: where the host's /proc shows who has the GPU open, an
// instance is not busy for ever because the driver does not list the processes. The plan says so.
func TestOpenFilesStandInForHiddenProcesses(t *testing.T) {
	w := newWorld(t)
	w.hideProcesses()
	e := w.engine(t, nil)

	plan, err := e.Plan(t.Context(), everything, second(two3g))
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "warnings of GPU 1", countTexts(plan.Warnings, "does not list all processes on GPU 1"), 1)

	for name, use := range map[string]func(){
		"an open file": func() {
			w.asking = func(gpu.UUID) ([]Handle, error) { return []Handle{{PID: 9, Command: "python3"}}, nil }
		},
		"files that cannot be listed": func() {
			w.asking = func(gpu.UUID) ([]Handle, error) { return nil, gpu.ErrPIDNamespace }
		},
		"a process that is listed nevertheless": func() { w.processes[gpu1] = []gpu.Process{{PID: 9}} },
	} {
		w.asking = nil
		w.processes[gpu1] = nil
		use()

		if _, err = e.Plan(t.Context(), everything, second(two3g)); err == nil {
			t.Errorf("%s: the instance is not busy", name)
			continue
		}

		isProblem(t, err, api.Infeasible)
	}
}

// TestWithoutOpenFilesHiddenProcessesAreBusy: an empty list is no reason to destroy anything; an
// operator who names the instance may, and the plan says what the driver does if something runs on
// it.
func TestWithoutOpenFilesHiddenProcessesAreBusy(t *testing.T) {
	w := newWorld(t)
	w.hideProcesses()
	e := w.engine(t, func(o *Options) { o.Handles = nil })
	_, err := e.Plan(t.Context(), everything, second(two3g))
	p := isProblem(t, err, api.Infeasible)
	want := api.Hold{Kind: api.HoldUnknown, What: "processes: " + gpu.ErrPIDNamespace.Error()}
	cmptest.Equal(t, "holders", p.Blocking[0].Holders, []api.Hold{want})

	plan, err := e.Plan(t.Context(), everything, second(two3g, sevenG))
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "warnings", countTexts(plan.Warnings, "what runs on "+sevenG+" is not known"), 1)
}

// TestTheDriverProtectsHiddenProcesses: a process that neither check has seen keeps its instance,
// and all is as before.
func TestTheDriverProtectsHiddenProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := survives(t, api.RolledBack, func(w *world) {
			w.hideProcesses()
			w.before = always(mig.DestroyCompute, gpu1, gpu.ErrInUse)
		})
		cmptest.Equal(t, "layout", w.drawLayout(), newWorld(t).drawLayout())
	})
}

// countTexts counts the entries of a list that have a text.
func countTexts(list []string, text string) int {
	n := 0

	for _, entry := range list {
		if strings.Contains(entry, text) {
			n++
		}
	}

	return n
}
