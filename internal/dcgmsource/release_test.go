package dcgmsource

import (
	"context"
	"errors"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestRelease: while a MIG mode changes, nothing of the engine's is held, and afterwards all of it
// is created again.
func TestRelease(t *testing.T) {
	h := mixed(t)
	h.after(5)

	resume, err := h.source.Release(context.Background())
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "closed sessions", h.engine.closed, 1)
	cmptest.Equal(t, "groups left", len(h.engine.groups), 0)
	cmptest.Equal(t, "field groups left", len(h.engine.fields), 0)

	if _, err := h.ask(); !errors.Is(err, gpu.ErrUnavailable) || h.engine.sessions != 1 {
		t.Errorf("released: %v, %d sessions", err, h.engine.sessions)
	}

	again, err := h.source.Release(context.Background())
	if err != nil {
		t.Fatal(err)
	}

	again()
	again()

	if _, err := h.ask(); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("the first release is not resumed yet: %v", err)
	}

	resume()

	if got := h.after(5)[uuidA]; len(got.Instances) != 2 || h.engine.sessions != 2 {
		t.Errorf("resumed: %+v, %d sessions", got, h.engine.sessions)
	}
}

func TestReleaseDoesNotHang(t *testing.T) {
	h := mixed(t)
	h.after(2)
	inside := make(chan struct{})
	leave := make(chan struct{})
	h.engine.fail = func(op string, _ []Entity) error {
		if op == "hierarchy" {
			close(inside)
			<-leave
			h.engine.fail = nil
		}

		return nil
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = h.ask()
	}()
	<-inside
	ctx, cancel := context.WithCancel(context.Background())
	cancel()

	if _, err := h.source.Release(ctx); !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("%v, want gpu.ErrTimeout", err)
	}

	close(leave)
	<-asked

	if _, err := h.source.Release(context.Background()); err != nil {
		t.Error(err)
	}
}
