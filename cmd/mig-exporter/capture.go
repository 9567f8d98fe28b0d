package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"github.com/prometheus/common/version"

	"github.com/mig-exporter/mig-exporter/internal/capture"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/poll"
)

// CaptureConfig is the configuration of the command capture.
type CaptureConfig struct {
	Output         string // "-" is standard output
	Polls          int
	KeepIdentities bool
}

// The default and the largest number of polls in a recording. The program keeps them all in memory.
const (
	defaultCapturePolls = 3
	maxCapturePolls     = 1000
)

// runCapture polls the node and writes the answers of its driver to a file. It also writes a
// recording if the driver is missing or does not match its library.
func runCapture(ctx context.Context, cfg *Config, logger log.Logger, out io.Writer) error {
	if err := checkOutput(&cfg.Capture); err != nil {
		return err
	}

	node, err := openDriver(&cfg.Driver, logger)
	if err != nil {
		return err
	}
	defer node.close()
	recorder := capture.NewRecorder(node.library, node.now())
	opts := node.sourceOptions(&cfg.Profiling, &cfg.Metrics)
	opts.ProcessUtilization = true
	run := pollRun{
		command: commandCapture,
		cfg:     &cfg.Poll,
		node:    node,
		polls:   cfg.Capture.Polls,
		extras:  allExtras(),
		begin:   recorder.Next,
	}

	last, err := run.poll(ctx, recorder.Library(), opts)
	if err != nil {
		return err
	}

	recording := recorder.Recording(
		node.hostname,
		strings.TrimSpace("mig-exporter "+version.Version),
		node.processesHidden != nil,
	)
	if !cfg.Capture.KeepIdentities {
		recording = recording.Pseudonymize()
	}

	data, err := recording.Bytes()
	if err != nil {
		return err
	}

	if err := writeOutput(&cfg.Capture, data, out); err != nil {
		return err
	}

	found := 0
	if last != nil {
		found = len(last.GPUs)
	}

	identities := "pseudonyms"
	if cfg.Capture.KeepIdentities {
		identities = "kept"
	}

	level.Info(logger).Log(
		"msg", "wrote the capture",
		"output", cfg.Capture.Output,
		"bytes", len(data),
		"gpus", found,
		"polls", len(recording.Recorded.Polls),
		"identities", identities,
	)

	return nil
}

// allExtras returns all extra readings: a capture also has what is off by default elsewhere.
func allExtras() gpu.Extras {
	return gpu.Extras{Media: true, InstanceECC: true, InstancePCIe: true, Fabric: true}
}

// pollRun is a number of polls that a command makes.
type pollRun struct {
	command string // for messages
	cfg     *PollConfig
	node    *node
	polls   int // how many
	extras  gpu.Extras
	// begin begins each poll but the first: it calls move, which moves the node's clock and returns
	// the time of the poll.
	begin func(move func() (time.Time, error)) error
	// isPending reports whether a Snapshot lacks readings of the poll at last, the last of the polls,
	// which another poll may have. We then continue to poll, for at most --poll.timeout. nil: never.
	isPending func(s *gpu.Snapshot, last time.Time) bool
	lastPoll  time.Time // when the last of the polls was
}

// poll makes the polls and returns the last Snapshot; nil if not even the first poll was completed.
func (r *pollRun) poll(
	ctx context.Context, library nvmlsource.Library, read nvmlsource.Options,
) (*gpu.Snapshot, error) {
	logger := read.Logger
	source := nvmlsource.New(library, read)
	defer closeSource(source, logger)

	opts := r.node.pollOptions(r.cfg)
	followSource(&opts, r.cfg, source)
	opts.Interval = 0 // pollRepeatedly asks for each poll
	opts.Extras = r.extras
	poller := poll.New(source, opts)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	loop := make(chan error, 1)
	go func() { loop <- poller.Run(ctx) }()

	err := r.pollRepeatedly(ctx, poller, opts.Timeout)
	cancel()
	loopErr := <-loop

	if errors.Is(loopErr, gpu.ErrVersionMismatch) {
		level.Warn(logger).Log(
			"msg", "driver does not match its library",
			"command", r.command,
			"err", loopErr,
		)

		return poller.Current(), nil
	}

	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.command, err)
	}

	last := poller.Current()
	if last != nil && len(last.Sources) > 0 && last.Sources[0].Err != nil {
		level.Warn(logger).Log(
			"msg", "driver does not answer",
			"command", r.command,
			"err", last.Sources[0].Err,
		)
	}

	return last, nil
}

// errFirstPoll is what pollRepeatedly returns from the function that begins a poll: it only waits for
// the first poll and makes no other.
var errFirstPoll = errors.New("the first poll is done")

// pollRepeatedly makes the polls, an interval apart, and more of them while isPending. If the clock is
// stepped, it moves the clock and does not wait.
func (r *pollRun) pollRepeatedly(
	ctx context.Context,
	poller *poll.Poller,
	timeout time.Duration,
) error {
	// Run makes the first poll by itself.
	err := poller.Poll(ctx, func() error { return errFirstPoll })
	if !errors.Is(err, errFirstPoll) {
		return err
	}

	var ticks <-chan time.Time

	if !r.node.stepped {
		ticker := time.NewTicker(r.cfg.Interval)
		defer ticker.Stop()
		ticks = ticker.C
	}

	for range r.polls - 1 {
		if err := r.pollNext(ctx, poller, ticks); err != nil {
			return err
		}
	}

	r.lastPoll = poller.Current().Time
	for r.isPending != nil && r.isPending(poller.Current(), r.lastPoll) &&
		poller.Current().Time.Sub(r.lastPoll) <= timeout {
		if err := r.pollNext(ctx, poller, ticks); err != nil {
			return err
		}
	}

	return nil
}

// pollNext waits for the next tick, unless ticks is nil, and polls.
func (r *pollRun) pollNext(ctx context.Context, poller *poll.Poller, ticks <-chan time.Time) error {
	if ticks != nil {
		select {
		case <-ticks:
		case <-ctx.Done():
			return ctx.Err()
		}
	}

	return poller.Poll(ctx, func() error {
		return r.begin(func() (time.Time, error) { return r.node.moveToNextPoll(ctx, r.cfg.Interval) })
	})
}

// moveToNextPoll moves a stepped clock and a recording on to the next poll, and returns its time.
func (n *node) moveToNextPoll(ctx context.Context, interval time.Duration) (time.Time, error) {
	if clock, ok := n.kind.(movableClock); ok && n.stepped {
		if err := clock.Advance(interval); err != nil {
			return n.now(), err
		}

		clock.AwaitHandled(ctx)
	}

	n.polled()

	return n.now(), nil
}

// checkOutput returns the error with which writeOutput would fail, so that the user gets it before
// the capture.
func checkOutput(c *CaptureConfig) error {
	if c.Output == "-" {
		return nil
	}

	switch info, err := os.Lstat(c.Output); {
	case errors.Is(err, fs.ErrNotExist):
		info, err := os.Stat(filepath.Dir(c.Output))
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is no directory", filepath.Dir(c.Output))
		}

		if err != nil {
			return fmt.Errorf("--output=%s: %w", c.Output, err)
		}

		return nil
	case err != nil:
		return fmt.Errorf("--output=%s: %w", c.Output, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf(
			"--output=%s: is no regular file; expected a new name, or - for standard output",
			c.Output,
		)
	}

	return fmt.Errorf(
		"--output=%s: is there already; expected a new name, or remove the file",
		c.Output,
	)
}

// writeOutput writes the output. It writes a file under a temporary name and renames it when it is
// complete.
func writeOutput(c *CaptureConfig, data []byte, out io.Writer) error {
	if c.Output == "-" {
		_, err := out.Write(data)
		return err
	}

	if err := checkOutput(c); err != nil { // it may have appeared meanwhile
		return err
	}

	f, err := os.CreateTemp(filepath.Dir(c.Output), "."+filepath.Base(c.Output)+".*")
	if err != nil {
		return fmt.Errorf("--output=%s: %w", c.Output, err)
	}
	defer os.Remove(f.Name()) // fails, as it should, if we have renamed the file

	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}

	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), c.Output)
	}

	if err != nil {
		return fmt.Errorf("--output=%s: %w", c.Output, err)
	}

	return nil
}
