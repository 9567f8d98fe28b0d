package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// opening is what the source needs to let go of GPUs of this node.
func (x *exporter) opening() nvmlsource.Opening {
	o := x.node.opening
	o.Pause = x.pauseOthers

	return o
}

// pauseOthers keeps partition control from beginning operations, and ends an embedded DCGM, which
// uses NVML, too. That one is resumed once all GPUs may be opened.
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

// gpuReleaser has the source let go of GPUs, which the poll loop carries out.
type gpuReleaser struct {
	source releaseSource
	poll   func(context.Context) error
	// turn is held by the request under way, so that none is answered by what another has changed.
	turn chan struct{}
}

// releaseSource is the part of nvmlsource.Source that lets go of GPUs.
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

// change makes a request once no other is under way, and returns what became of it.
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

// releasePollEvery is how often we poll while a request waits for other uses of the GPUs to end.
const releasePollEvery = 200 * time.Millisecond

// await polls until a request is answered. The error is why the poll loop does not go on; it may
// still carry the request out.
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

// refusedRelease tells a client why a GPU is not released, or not opened again.
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

// unansweredRelease tells a client that it is not known what becomes of a request.
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

// autoSocket is --release.socket's default: on a machine defaultReleaseSocket, and none on a
// simulated node, of which there may be many on one machine.
const (
	autoSocket           = "auto"
	defaultReleaseSocket = "/run/mig-exporter/release.sock"
)

// releaseSocket returns the path of the socket on which GPUs are released; empty is none.
func releaseSocket(configured string, simulated bool) string {
	switch {
	case configured != autoSocket:
		return configured
	case simulated:
		return ""
	}

	return defaultReleaseSocket
}

// releaseServer serves releases of GPUs on a socket of its own, which is there without partition
// control.
type releaseServer struct {
	options server.Options
	ready   chan struct{} // closed once the socket is there
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

// run serves until ctx ends. A socket that cannot be used does not end the program; it is tried
// again.
func (s *releaseServer) run(ctx context.Context) error {
	if s.options.Socket == "" || s.options.Releaser == nil {
		<-ctx.Done()
		return nil
	}

	told := ""
	listens := false
	listening := sync.OnceFunc(func() { close(s.ready) })
	s.options.Ready = func([]net.Addr) {
		told = ""
		listens = true
		listening()
	}

	for {
		err := server.ServeReleases(ctx, s.options, s.logger)
		if listens && ctx.Err() != nil {
			return err // of the shutdown
		}

		listens = false

		if err != nil && ctx.Err() == nil && err.Error() != told {
			told = err.Error()
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

// logAudit writes the audit log to the program's log.
type logAudit struct{ logger log.Logger }

func (a logAudit) Write(line []byte) (int, error) {
	entry := json.RawMessage(line)

	err := level.Info(a.logger).Log("msg", "audit", "entry", string(entry[:len(entry)-1]))
	if err != nil {
		return 0, err
	}

	return len(line), nil
}

// listOpenMinors lists the minor numbers of the GPUs whose device nodes are among the open files of
// a folder of /proc.
func listOpenMinors(files string) ([]int, error) {
	entries, err := os.ReadDir(files)
	if err != nil {
		return nil, err
	}

	node := regexp.MustCompile(`/nvidia([0-9]+)( \(deleted\))?$`)
	var minors []int

	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(files, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // it was closed meanwhile
		}

		if err != nil {
			return nil, err
		}

		found := node.FindStringSubmatch(target)
		if found == nil {
			continue
		}

		minor, err := strconv.Atoi(found[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", target, err)
		}

		minors = append(minors, minor)
	}

	slices.Sort(minors)

	return slices.Compact(minors), nil
}

// describeMIGRights is readMIGRights in one text.
func describeMIGRights(proc, dev string) string {
	monitor, config := readMIGRights(proc, dev)
	return fmt.Sprint("monitor ", monitor.Or(false), ", config ", config.Or(false))
}

func (s simulation) boundGPUs() ([]string, error) {
	var list []string
	for _, index := range s.BoundGPUs() {
		list = append(list, s.BusID(index))
	}

	return list, nil
}

func (s simulation) openMinors() ([]int, error) {
	var list []int
	for _, index := range s.OpenGPUs() {
		list = append(list, s.Minor(index))
	}

	return list, nil
}
