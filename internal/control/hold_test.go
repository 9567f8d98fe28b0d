package control

import (
	"testing"
	"testing/synctest"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestRebuildAfterAcceptedHang: a stuck operation is accepted once its call has returned. What is changed from then on
// is not the operation's.
func TestRebuildAfterAcceptedHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		w.after = func(_ int, _ mig.Step) error {
			w.hung = gpu1
			return gpu.ErrTimeout
		}
		op := e.applied(t, second(two3g))
		cmptest.Equal(t, "state of the operation", op.State, api.Stuck)
		w.after, w.hung = nil, ""
		if _, err := e.Accept(t.Context(), everything, op.ID); err != nil {
			t.Fatal(err)
		}
		settleOwn()

		w.look()
		plan, err := e.Plan(t.Context(), everything, second(two3g))
		if err != nil {
			t.Fatal(err)
		}
		w.rebuild(gpu1)
		_, err = e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
		isProblem(t, err, api.StalePlan)
	})
}
