package control

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestRequestsBesideHang: a GPU begins to hang, which neither a reading nor a poll has found yet.
// Requests that concern the other GPU wait only shortly for it.
func TestRequestsBesideHang(t *testing.T) {
	soon := api.PlanRequest{Spec: api.Spec{GPUs: []api.Selector{"1"}, Devices: two3g}}

	for name, request := range map[string]func(t *testing.T, e *Engine) error{
		"plan": func(t *testing.T, e *Engine) error {
			plan, err := e.Plan(t.Context(), everything, soon)
			if err == nil && len(plan.Warnings) > 0 {
				t.Errorf("warnings of a plan that is not about GPU 0: %q", plan.Warnings)
			}

			return err
		},
		"plan for a name that no GPU has": func(t *testing.T, e *Engine) error {
			unknown := api.PlanRequest{Spec: api.Spec{GPUs: []api.Selector{"1", "7"}, Devices: two3g}}
			_, err := e.Plan(t.Context(), everything, unknown)
			p := isProblem(t, err, api.Unavailable)
			wantText(t, "p.Detail", p.Detail, `no GPU of this node is "7"`)
			wantText(t, "p.Detail", p.Detail, string(gpu0)+" cannot be read")

			return nil
		},
		"mode": func(t *testing.T, e *Engine) error {
			_, err := e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{Enabled: true})
			return err
		},
		"layouts": func(t *testing.T, e *Engine) error {
			_, err := e.Layouts(t.Context())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				e := w.engine(t, nil)
				w.silent = gpu0
				began := time.Now()

				if err := request(t, e); err != nil {
					t.Error(err)
				}

				if took := time.Since(began); took > answerTime {
					t.Errorf("it took %s", took)
				}

				time.Sleep(e.o.CallTimeout) // until all calls are given up
			})
		})
	}
}

// TestOperationBesideHang: a plan can be applied, and the operation rolled back, while another GPU
// begins to hang.
func TestOperationBesideHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)

		plan, err := e.Plan(t.Context(), everything, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		w.silent = gpu0
		began := time.Now()

		op, err := e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
		if err != nil {
			t.Fatal(err)
		}

		if took := time.Since(began); took > answerTime {
			t.Errorf("the start took %s", took)
		}

		e.drive(t)
		cmptest.Equal(t, "state of the operation", e.now(t, op.ID).State, api.Succeeded)

		w.hung = ""
		began = time.Now()

		if _, err := e.Rollback(t.Context(), everything, op.ID); err != nil {
			t.Fatal(err)
		}

		if took := time.Since(began); took > answerTime {
			t.Errorf("the start of the rollback took %s", took)
		}

		e.drive(t)
		time.Sleep(e.o.CallTimeout) // until all calls are given up
	})
}

// TestPlanForSilentGPU: a GPU that the plan is about has the time that a call may take. One that
// has not answered the last poll has not, and is never planned for.
func TestPlanForSilentGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		w.silent = gpu1
		began := time.Now()
		_, err := e.Plan(t.Context(), everything, second(two3g))
		isProblem(t, err, api.Unavailable)
		cmptest.Equal(t, "time that a GPU has that was up", time.Since(began), e.o.CallTimeout)

		w.hung = ""
		w.look()
		began = time.Now()
		_, err = e.Plan(t.Context(), everything, second(two3g))
		isProblem(t, err, api.Unavailable)
		cmptest.Equal(t, "time that a GPU has that was not", time.Since(began), answerTime)
		time.Sleep(e.o.CallTimeout) // until all calls are given up
	})
}

// TestRequestsReadOnlyTheirGPUs: a plan for named GPUs, and its operation, read no other GPU. A
// plan that names what is not there, in the last Snapshot or on its GPUs, reads all before it says
// so.
func TestRequestsReadOnlyTheirGPUs(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)
	w.asked = nil
	e.applied(t, second(two3g))

	for _, only := range w.asked {
		cmptest.Equal(t, "GPUs asked for", only, []gpu.UUID{gpu1})
	}

	if len(w.asked) < 2 {
		t.Errorf("%d readings, want those of the plan and of the operation", len(w.asked))
	}

	elsewhere := second(two3g)

	elsewhere.Force = []string{string(w.gpu(gpu0).Instances[0].ComputeInstances[0].UUID)}
	if _, err := e.Plan(t.Context(), everything, elsewhere); err != nil {
		t.Errorf("a plan whose force names an instance of another GPU: %v", err)
	}

	whole := w.snapshot
	for name, change := range map[string]func(s *gpu.Snapshot){
		"is not in the last Snapshot": func(s *gpu.Snapshot) { s.GPUs = s.GPUs[:1] },
		"was down at the last poll":   func(s *gpu.Snapshot) { s.GPUs[1].Up = false },
		"had another index":           func(s *gpu.Snapshot) { s.GPUs[0].Index, s.GPUs[1].Index = 1, 0 },
	} {
		s := *whole
		s.GPUs = slices.Clone(whole.GPUs)
		change(&s)
		w.snapshot = &s

		plan, err := e.Plan(t.Context(), everything, second(two3g))
		if err != nil {
			t.Errorf("a GPU that %s: %v", name, err)
			continue
		}

		cmptest.Equal(t, "GPUs of the plan", gpusOfPlan(plan), []gpu.UUID{gpu1})
	}
}
