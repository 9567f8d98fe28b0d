package main

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// queuedReleases takes requests, and answers none by itself.
type queuedReleases struct{ requests chan chan nvmlsource.Released }

func (q queuedReleases) Release(gpu.UUID, gpu.ReleaseCause) <-chan nvmlsource.Released {
	return q.queue()
}

func (q queuedReleases) Reacquire(gpu.UUID) <-chan nvmlsource.Released { return q.queue() }

func (q queuedReleases) queue() <-chan nvmlsource.Released {
	answer := make(chan nvmlsource.Released, 1)
	q.requests <- answer
	return answer
}

func expectProblem(t *testing.T, err error, kind api.ProblemType, status int) {
	t.Helper()
	var p *api.Problem
	if !errors.As(err, &p) {
		t.Fatalf("expected a problem, got %v", err)
	}
	cmptest.Equal(t, "problem", p.Type, kind)
	cmptest.Equal(t, "status", p.Status, status)
}

// TestReleaseWithoutAnswer: a request that is not answered in time is not withdrawn, and its answer does not say that
// nothing was changed; one that ended with the last poll has its own answer.
func TestReleaseWithoutAnswer(t *testing.T) {
	queue := queuedReleases{make(chan chan nvmlsource.Released, 1)}
	hung := newGPUReleaser(queue, func(context.Context) error { return context.DeadlineExceeded })
	_, err := hung.Release(t.Context(), "GPU-a")
	expectProblem(t, err, api.InProgress, http.StatusConflict)
	<-queue.requests

	late := newGPUReleaser(queue, func(context.Context) error {
		(<-queue.requests) <- nvmlsource.Released{}
		return context.DeadlineExceeded
	})
	done, err := late.Release(t.Context(), "GPU-a")
	if err != nil || !done.Released {
		t.Errorf("%+v, %v", done, err)
	}

	refused := newGPUReleaser(queue, func(context.Context) error {
		(<-queue.requests) <- nvmlsource.Released{Err: errors.New("a call hangs")}
		return nil
	})
	_, err = refused.Reacquire(t.Context(), "GPU-a")
	expectProblem(t, err, api.Busy, http.StatusConflict)
}

// TestReleasesTakeTurns: a request waits for the one under way, and is withdrawn if that does not end.
func TestReleasesTakeTurns(t *testing.T) {
	queue := queuedReleases{make(chan chan nvmlsource.Released, 2)}
	polling, goOn := make(chan struct{}), make(chan struct{})
	r := newGPUReleaser(queue, func(context.Context) error {
		polling <- struct{}{}
		<-goOn
		(<-queue.requests) <- nvmlsource.Released{}
		return nil
	})
	first := make(chan error, 1)
	go func() {
		_, err := r.Release(t.Context(), "GPU-a")
		first <- err
	}()
	<-polling

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.Reacquire(ended, "GPU-a")
	expectProblem(t, err, api.Busy, http.StatusConflict)
	cmptest.Equal(t, "requests", len(queue.requests), 1)

	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
}
