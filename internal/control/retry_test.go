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

// TestAccept: an operation that cannot be rolled back can be accepted with the current layout: the
// layout stays as it is, and the node is in order again, also after a restart.
func TestAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, op := survives(t, api.Degraded, func(w *world) {
			w.before = func(n int, _ mig.Step) error {
				if n >= 4 {
					return gpu.ErrDriver
				}

				return nil
			}
		})
		was := w.drawLayout()
		_, err := e.Accept(t.Context(), Actor{Name: "uid:7", Rights: Rights{Read: true, Plan: true}}, op.ID)
		isProblem(t, err, api.Forbidden)
		w.hung = gpu0
		_, err = e.Accept(t.Context(), everything, op.ID)
		isProblem(t, err, api.StuckNode)
		w.hung = ""
		w.before = nil

		got, err := e.Accept(t.Context(), everything, op.ID)
		if err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, "state of the operation", got.State, api.Accepted)
		cmptest.Equal(t, "got.GPUs[0].State", got.GPUs[0].State, api.Accepted)
		wantText(t, "got.Warnings", strings.Join(got.Warnings, "\n"), "accepted")
		_, err = e.Accept(t.Context(), everything, op.ID)
		isProblem(t, err, api.BadSpec)

		for _, engine := range []*Engine{e, w.engine(t, nil)} {
			if engine.State() != idle || w.drawLayout() != was {
				t.Errorf("state %s, layout\n%s\nwas\n%s", engine.State(), w.drawLayout(), was)
			}
		}

		if op := e.applied(t, mixed()); op.State != api.Succeeded {
			t.Errorf("the next operation is %s", op.State)
		}
	})
}

// A stuck operation goes on by itself when the driver call has returned, and not before.
func TestUnstick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, op := survives(t, api.Stuck, func(w *world) {
			w.before = func(_ int, s mig.Step) error {
				w.before = nil
				w.hung = s.GPU

				return gpu.ErrTimeout
			}
		})
		e.retryDegraded(t.Context())
		e.drive(t)

		if e.State() != stuck {
			t.Fatalf("the call hangs, and the state is %s", e.State())
		}

		w.hung = ""
		e.retryDegraded(t.Context())
		e.drive(t)

		if now := e.now(t, op.ID); now.State != api.Failed || e.State() != idle {
			t.Errorf("operation %s, state %s", now.State, e.State())
		}

		w.sound(t, e, mixedBefore, mixedBefore)
	})
}

// The plan says what force cannot do.
func TestForceDoesNotEndProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		g := w.gpu(gpu0)
		i := g.Instances[0]
		w.processes[gpu0] = []gpu.Process{{PID: 4711, Instance: gpu.Some(i.ID), Compute: gpu.Some(i.ComputeInstances[0].ID)}}
		w.look()

		plan, err := e.Plan(t.Context(), everything, api.PlanRequest{
			Spec:  api.Spec{GPUs: []api.Selector{"0"}, Devices: map[string]api.DeviceRequest{}},
			Force: []string{string(i.ComputeInstances[0].UUID)},
		})
		if err != nil {
			t.Fatal(err)
		}

		if text := strings.Join(plan.Warnings, "\n"); !strings.Contains(text, "4711") ||
			!strings.Contains(text, string(i.ComputeInstances[0].UUID)) {
			t.Errorf("warnings %q", text)
		}
	})
}
