package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/server"
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

// TestReleaseWithoutAnswer: a request that is not answered in time is not withdrawn, and its answer
// does not say that nothing was changed; one that ended with the last poll has its own answer.
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

// TestReleaseStillOpen: if the GPU is open, or may be, no answer says that it is released; the problem
// says why, what to do, and whether the other GPUs are read meanwhile.
func TestReleaseStillOpen(t *testing.T) {
	why := errors.New("it is not known which GPUs this process has open")

	for _, c := range []struct {
		answer     nvmlsource.Released
		unreadable bool
	}{
		{nvmlsource.Released{StillOpen: why}, false},
		{nvmlsource.Released{StillOpen: why, Closed: gpu.ErrLibraryClosed}, true},
	} {
		queue := queuedReleases{make(chan chan nvmlsource.Released, 1)}
		r := newGPUReleaser(queue, func(context.Context) error {
			(<-queue.requests) <- c.answer
			return nil
		})

		done, err := r.Release(t.Context(), "GPU-a")
		if done != nil {
			t.Errorf("released: %+v", done)
		}

		expectProblem(t, err, api.InProgress, http.StatusConflict)
		cmptest.HasTexts(t, err.Error(), "GPU-a", why.Error(), "do not reset or unbind", "tries again", "restart")
		cmptest.Equal(t, "says that no GPU is read", strings.Contains(err.Error(), "no GPU of this node is read"),
			c.unreadable)
	}
}

// TestReleasesTakeTurns: a request waits for the one under way, and is withdrawn if that does not
// end.
func TestReleasesTakeTurns(t *testing.T) {
	queue := queuedReleases{make(chan chan nvmlsource.Released, 2)}
	polling := make(chan struct{})
	goOn := make(chan struct{})
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

// TestSocketOfAnotherProcess: a socket that another process listens on is not served, and does not
// end the program or change its exit code.
func TestSocketOfAnotherProcess(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "release.sock")

	other, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	warned := warnings{first: make(chan struct{})}
	s := &releaseServer{
		logger:  log.NewLogfmtLogger(&warned),
		ready:   make(chan struct{}),
		options: server.Options{Socket: socket, Releaser: newGPUReleaser(nil, nil), Now: time.Now},
	}
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	<-warned.first
	cancel()

	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}

	if err := s.run(ctx); err != nil { // it is stopped as it starts
		t.Errorf("run when stopped: %v", err)
	}
}

// warnings is a log that closes first with its first line.
type warnings struct {
	once  sync.Once
	first chan struct{}
}

func (w *warnings) Write(line []byte) (int, error) {
	w.once.Do(func() { close(w.first) })
	return len(line), nil
}

// lingeringDCGM is an embedded DCGM with a call that does not return.
type lingeringDCGM struct{}

func (lingeringDCGM) Release(ctx context.Context) (func(), error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestRefusedReleaseKeepsReading: while a release waits for DCGM, and after it was refused, all
// GPUs are read.
func TestRefusedReleaseKeepsReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startInProcess(t, "--sim.scenario="+costedBench(t, "{}"))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		x.node.dcgm.end = lingeringDCGM{}.Release

		refused := make(chan error, 1)
		go func() {
			_, err := x.releaser.Release(t.Context(), x.poller.Current().GPUs[0].UUID)
			refused <- err
		}()

		for range 60 {
			time.Sleep(200 * time.Millisecond)
			synctest.Wait()

			for _, g := range x.poller.Current().GPUs {
				if age := x.poller.Current().Time.Sub(g.LastRead); !g.Up || age > 2*time.Second {
					t.Fatalf("GPU %d: up %t, read %s ago, %v", g.Index, g.Up, age, g.Errors)
				}
			}
		}

		err := <-refused
		expectProblem(t, err, api.Busy, http.StatusConflict)

		if !strings.Contains(err.Error(), "end the embedded DCGM") {
			t.Error(err)
		}
	})
}

// TestReleaseWhileReadingsAreLong: a release does not wait for the end of readings that take half a
// minute each.
func TestReleaseWhileReadingsAreLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startInProcess(t, "--sim.scenario="+costedBench(t, everyCall("150ms")))
		time.Sleep(90 * time.Second)
		synctest.Wait()

		began := time.Now()

		done, err := x.releaser.Release(t.Context(), x.poller.Current().GPUs[1].UUID)
		if err != nil || !done.Released {
			t.Fatalf("%+v, %v", done, err)
		}

		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
