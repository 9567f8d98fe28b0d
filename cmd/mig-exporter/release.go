package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/server"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// opening returns what the source needs to release GPUs of this node and open them again.
func (x *exporter) opening() nvmlsource.Opening {
	o := x.node.opening
	o.Pause = x.pauseOthers

	return o
}

// pauseOthers keeps partition control from beginning operations, and ends an embedded DCGM, because it
// has the GPUs open, too. resume resumes partition control, and DCGM if all GPUs may be opened.
func (x *exporter) pauseOthers(ctx context.Context) (resume func(all bool), err error) {
	release, err := x.holdOperations(ctx)
	if err != nil {
		return nil, err
	}

	resumeProfiler, err := x.node.dcgm.end(ctx)
	if err != nil {
		release()
		return nil, fmt.Errorf("end the embedded DCGM, which uses the GPUs, too: %w", err)
	}

	release = sync.OnceFunc(release)
	resumeProfiler = sync.OnceFunc(resumeProfiler)

	return func(all bool) {
		release()

		if all {
			resumeProfiler()
		}
	}, nil
}

// gpuReleaser asks the source to release GPUs. The source does so in the next poll.
type gpuReleaser struct {
	source releaseSource
	poll   func(context.Context) error
	// turn holds a value while a request is under way: only one runs at a time, so that each
	// answer is about its own change.
	turn chan struct{}
}

// releaseSource is the part of nvmlsource.Source that releases GPUs.
type releaseSource interface {
	Release(id gpu.UUID, cause gpu.ReleaseCause) <-chan nvmlsource.Released
	Reacquire(id gpu.UUID) <-chan nvmlsource.Released
}

func newGPUReleaser(source releaseSource, poll func(context.Context) error) *gpuReleaser {
	return &gpuReleaser{source: source, poll: poll, turn: make(chan struct{}, 1)}
}

// servedReleaser returns nil for a node whose GPUs cannot be released.
func (x *exporter) servedReleaser() server.Releaser {
	if x.node.opening.OpenMinors == nil {
		return nil
	}

	return x.releaser
}

func (r *gpuReleaser) Release(ctx context.Context, id gpu.UUID) (*api.Release, error) {
	return r.change(ctx, id, true, func() <-chan nvmlsource.Released {
		return r.source.Release(id, gpu.ReleasedByOperator)
	})
}

func (r *gpuReleaser) Reacquire(ctx context.Context, id gpu.UUID) (*api.Release, error) {
	return r.change(
		ctx,
		id,
		false,
		func() <-chan nvmlsource.Released { return r.source.Reacquire(id) },
	)
}

// change makes a request once no other is under way, and returns its result. released says what the
// request asks for.
func (r *gpuReleaser) change(ctx context.Context, id gpu.UUID, released bool,
	request func() <-chan nvmlsource.Released) (*api.Release, error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, refusedRelease(
			errors.New("another release or reacquisition has not ended in time"),
		)
	}

	defer func() { <-r.turn }()

	result, err := r.await(ctx, request())
	if err != nil {
		return nil, unansweredRelease(id, err)
	}

	if result.Err != nil {
		return nil, refusedRelease(result.Err)
	}

	if result.StillOpen != nil {
		return nil, unfinishedRelease(id, result)
	}

	document := &api.Release{
		APIVersion: api.Version,
		GPU:        id,
		Released:   released,
		Seconds:    result.Took.Seconds(),
	}
	if result.Closed != nil {
		document.Closed = result.Closed.Error()
	}

	return document, nil
}

// releasePollEvery is how long we wait between polls while a request waits for other uses of the GPUs
// to end.
const releasePollEvery = 200 * time.Millisecond

// await polls until a request is answered. If a poll fails, it returns the error; a later poll can
// still carry out the request.
func (r *gpuReleaser) await(
	ctx context.Context,
	answer <-chan nvmlsource.Released,
) (nvmlsource.Released, error) {
	for {
		err := r.poll(ctx)

		select {
		case result := <-answer:
			return result, nil
		default:
		}

		if err != nil {
			return nvmlsource.Released{}, err
		}

		select {
		case result := <-answer:
			return result, nil
		case <-time.After(releasePollEvery):
		}
	}
}

// refusedRelease returns the answer for a client whose request was refused.
func refusedRelease(err error) *api.Problem {
	if p := (*api.Problem)(nil); errors.As(err, &p) {
		return p
	}

	return &api.Problem{
		Type:   api.Busy,
		Title:  "Nothing was changed",
		Status: http.StatusConflict,
		Detail: err.Error(),
	}
}

// unansweredRelease returns the answer for a client whose request may still be carried out.
func unansweredRelease(id gpu.UUID, err error) *api.Problem {
	return &api.Problem{
		Type:   api.InProgress,
		Title:  "Still being carried out",
		Status: http.StatusConflict,
		Detail: fmt.Sprintf(
			"GPU %s: the request was not answered in time (%v), and is not withdrawn: mig-exporter "+
				"carries it out or refuses it once the driver's calls return",
			id,
			err,
		),
	}
}

// unfinishedRelease returns the answer for a client whose GPU is open, or may be. It must not get an
// api.Release: it would unbind the GPU.
func unfinishedRelease(id gpu.UUID, result nvmlsource.Released) *api.Problem {
	unread := ""
	if result.Closed != nil {
		unread = "; no GPU of this node is read meanwhile"
	}

	return &api.Problem{
		Type:   api.InProgress,
		Title:  "Still being carried out",
		Status: http.StatusConflict,
		Detail: fmt.Sprintf(
			"GPU %s is listed as released, but mig-exporter may have it open: %v; mig-exporter tries again: "+
				"do not reset or unbind the GPU until a repeated request succeeds%s; if none does, restart "+
				"mig-exporter, which opens all GPUs, and release the GPU again",
			id,
			result.StillOpen,
			unread,
		),
	}
}

const (
	// autoSocket is the default of --release.socket: defaultReleaseSocket on a machine, and none on a
	// simulated node, because one machine can have many of those.
	autoSocket           = "auto"
	defaultReleaseSocket = "/run/mig-exporter/release.sock"
)

// releaseSocket returns the path of the socket for releases of GPUs; empty: there is none.
func releaseSocket(configured string, simulated bool) string {
	switch {
	case configured != autoSocket:
		return configured
	case simulated:
		return ""
	}

	return defaultReleaseSocket
}

// releaseServer serves releases of GPUs on a socket of its own, with or without partition control.
type releaseServer struct {
	options server.Options
	ready   chan struct{} // closed once we listen on the socket
	logger  log.Logger
}

func newReleaseServer(socket string, x *exporter) *releaseServer {
	return &releaseServer{
		logger: x.logger,
		ready:  make(chan struct{}),
		options: server.Options{
			Socket:          socket,
			Releaser:        x.servedReleaser(),
			Current:         x.poller.Current,
			Audit:           x.audit,
			ShutdownTimeout: shutdownTimeout,
			Now:             time.Now,
		},
	}
}

// run serves until ctx ends. If the socket cannot be used, it tries again.
func (s *releaseServer) run(ctx context.Context) error {
	if s.options.Socket == "" || s.options.Releaser == nil {
		<-ctx.Done()
		return nil
	}

	warned := "" // the error in the last warning
	listens := false
	listening := sync.OnceFunc(func() { close(s.ready) })
	s.options.Ready = func([]net.Addr) {
		warned = ""
		listens = true
		listening()
	}

	for {
		err := server.ServeReleases(ctx, s.options, s.logger)
		if listens && ctx.Err() != nil {
			return err // an error of the shutdown
		}

		listens = false

		if err != nil && ctx.Err() == nil && err.Error() != warned {
			warned = err.Error()
			level.Warn(s.logger).Log(
				"msg", "GPUs cannot be released by migctl; trying again",
				"err", err,
			)
		}

		if retry.Sleep(ctx, retryServing) != nil {
			return nil //nolint:nilerr // the program stops
		}
	}
}
