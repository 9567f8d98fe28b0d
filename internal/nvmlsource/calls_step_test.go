package nvmlsource_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

const (
	stepsBegin = "<!-- driver calls of a step: go test ./internal/nvmlsource -run TestDocs -update -->\n"
	stepsEnd   = "<!-- end of driver calls of a step -->\n"
	mostCalls  = 150 // at most these a step makes, with what is asked before it and what its event brings about
)

// stepBench is a GPU of the bench with two idle slices and five that are in use.
type stepBench struct {
	*bench
	gpu      gpu.UUID
	expected []mig.Instance
	idle     []mig.Step // that create the idle GPU instances
	table    strings.Builder
}

func newStepBench(t *testing.T, fault string) *stepBench {
	t.Helper()
	b := &stepBench{bench: newBench(t, func(scenario string) string {
		lines := strings.Split(strings.TrimSpace(scenario), "\n")
		pods := slices.Index(lines, "pods:")

		return strings.Join(slices.Concat(lines[:pods], []string{fault}, lines[pods:len(lines)-2]), "\n")
	})}
	b.poll(0)
	list := b.layouts()
	g := list[len(list)-1]
	b.gpu = g.UUID
	b.expected = g.Instances

	processes, err := b.source.Actuator().Processes(t.Context(), g.UUID)
	if err != nil || len(processes) != 5 {
		t.Fatalf("%d processes, %v", len(processes), err)
	}

	for _, i := range g.Instances {
		if !slices.ContainsFunc(processes, func(p gpu.Process) bool { return p.Instance == gpu.Some(i.ID) }) {
			b.idle = append(b.idle, mig.Step{Op: mig.CreateInstance, GPU: g.UUID, ProfileID: i.ProfileID, Profile: i.Profile,
				Placement: i.Placement})
		}
	}

	return b
}

func (b *stepBench) layouts(only ...gpu.UUID) []mig.GPULayout {
	b.t.Helper()

	list, failed, err := b.source.Actuator().Layouts(b.t.Context(), only...)
	if err != nil || len(failed) > 0 {
		b.t.Fatal(failed, err)
	}

	return list
}

// count counts the driver calls of f.
func (b *stepBench) count(f func()) int {
	b.t.Helper()
	b.calls.taken()
	counted := b.source.DriverCalls()
	f()

	total := 0
	for _, times := range b.calls.taken() {
		total += times
	}

	if counted = b.source.DriverCalls() - counted; uint64(total) != counted {
		b.t.Errorf("%d calls were made, %d were counted", total, counted)
	}

	return total
}

// step counts the calls of a step on an idle slice, those before a destruction for what runs on the
// GPU, and those after the event of a change for the new layout. With a name they are a row of the
// table.
func (b *stepBench) step(name string, op mig.StepOp, slice int, want error) {
	b.t.Helper()
	s := b.idle[slice]

	s.Op = op
	if op == mig.CreateCompute || op == mig.DestroyCompute {
		s.Compute = gpu.Some(gpu.Placement{Size: 1})
	}

	processes := 0
	if op == mig.DestroyCompute || op == mig.DestroyInstance {
		processes = b.count(func() {
			if _, err := b.source.Actuator().Processes(b.t.Context(), b.gpu); err != nil {
				b.t.Fatal(err)
			}
		})
	}

	own := b.count(func() {
		out, err := b.source.Actuator().PerformStep(b.t.Context(), s, b.expected)
		if !errors.Is(err, want) || !out.Read {
			b.t.Fatalf("%s: %+v, %v; want %v", op, out, err, want)
		}

		b.expected = out.Instances
	})

	woken := 0
	if want == nil {
		woken = b.count(b.readLayout)
	}

	if all := processes + own + woken; all > mostCalls {
		b.t.Errorf("%s %s: %d driver calls", op, name, all)
	}

	if name != "" {
		fmt.Fprintf(&b.table, "| %s | %s |\n", name, counts(processes, own, woken, processes+own+woken))
	}
}

// readLayout reads the layout of the GPU as the loop does after an event, which has to find the
// expected instances.
func (b *stepBench) readLayout() {
	b.t.Helper()

	g, whole, err := b.source.ReadLayout(b.gpu, gpu.ReadCues{Asked: true})
	if err != nil || whole || len(g.Errors) > 0 || len(g.Instances) != len(b.expected) {
		b.t.Fatalf("%d instances, want %d; whole %v, errors %v, %v", len(g.Instances), len(b.expected), whole, g.Errors, err)
	}
}

// tableOfSteps is the table of docs/performance.md: each kind of step, and what makes some of them
// dearer.
func tableOfSteps(t *testing.T) string {
	b := newStepBench(t, "  - {gpu: 7, kind: change-fails, on: destroy-ci, error: in-use, after: 1}")
	b.table.WriteString("| step | what runs on the GPU | the step | after its event | all |\n|---|--:|--:|--:|--:|\n")
	b.step("destroy a compute instance", mig.DestroyCompute, 0, nil)
	b.step("destroy a GPU instance", mig.DestroyInstance, 0, nil)
	b.step("create a GPU instance", mig.CreateInstance, 0, nil)
	b.step("create a compute instance", mig.CreateCompute, 0, nil)
	b.step("destroy a compute instance that is in use", mig.DestroyCompute, 0, gpu.ErrInUse)
	b.expected = b.expected[1:]
	b.step("destroy a compute instance; the GPU has another layout than expected", mig.DestroyCompute, 0,
		mig.ErrLayoutChanged)
	one := b.count(func() { b.layouts(b.gpu) })
	all := b.count(func() { b.layouts() })
	fmt.Fprintf(&b.table, "| read the layout of one GPU | | | | %d |\n| read the layouts of all eight | | | | %d |\n", one,
		all)

	return b.table.String()
}

// What the driver creates elsewhere is read twice. The profiles that a GPU offers are read anew
// from time to time, and not by a step. Both together are still few calls.
func TestDearSteps(t *testing.T) {
	for _, op := range []mig.StepOp{mig.CreateInstance, mig.CreateCompute} {
		b := newStepBench(t, "  - {gpu: 7, kind: create-elsewhere, on: create-gi}")
		b.step("", mig.DestroyCompute, 0, nil)
		b.step("", mig.DestroyCompute, 1, nil)

		if op == mig.CreateInstance {
			b.step("", mig.DestroyInstance, 0, nil)
			b.step("", mig.DestroyInstance, 1, nil)
			b.step("", op, 0, mig.ErrNotAsAsked)
		}

		b.poll(time.Hour)
		b.step("", op, 0, nil)
	}
}
