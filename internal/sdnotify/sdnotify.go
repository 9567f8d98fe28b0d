// Package sdnotify reports to systemd that the program is ready, reloads its files, stops, and that
// its loop is alive. It does nothing unless systemd started the program as a service of
// Type=notify.
package sdnotify

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// pingsPerWatchdog is how often we reset the watchdog within its timeout, so that one late ping does
// no harm.
const pingsPerWatchdog = 3

// Options say when the program is ready, and how we know that it is alive.
type Options struct {
	// Listening is closed once the program accepts connections.
	Listening <-chan struct{}
	// AskLoop returns nil as soon as the program's loop has answered, or an error once its context
	// has ended. It may block for any time.
	AskLoop func(context.Context) error
	// AnswerWithin is the time after which a loop that has not answered counts as stuck. It must be
	// longer than anything that the loop may wait for.
	AnswerWithin time.Duration
	Logger       log.Logger
}

// Notifier sends the notifications. Its methods are safe for concurrent use.
type Notifier struct {
	opts   Options
	ready  atomic.Bool
	failed atomic.Bool // a notification could not be sent, and we have logged that
}

// New returns a Notifier that has sent nothing yet.
func New(opts Options) *Notifier { return &Notifier{opts: opts} }

// Run sends READY=1 once the program listens. As long as the loop answers, it then resets the
// watchdog, if the service has one. When ctx ends, it sends STOPPING=1 and returns nil. It does not
// wait for the loop before READY=1: the loop's first cycle may last longer than the service's start
// timeout.
func (n *Notifier) Run(ctx context.Context) error {
	defer n.send(daemon.SdNotifyStopping)

	select {
	case <-n.opts.Listening:
	case <-ctx.Done():
		return nil
	}

	n.ready.Store(true)
	n.send(daemon.SdNotifyReady)

	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		level.Warn(n.opts.Logger).Log("msg", "cannot reset the watchdog of systemd", "err", err)
	}

	if watchdog > 0 {
		n.resetWatchdog(ctx, watchdog/pingsPerWatchdog)
	}

	<-ctx.Done()

	return nil
}

// resetWatchdog asks the loop at every interval, unless it owes an answer, and sends WATCHDOG=1,
// unless it has owed one for longer than AnswerWithin. It returns when ctx ends.
func (n *Notifier) resetWatchdog(ctx context.Context, interval time.Duration) {
	var asking sync.WaitGroup
	defer asking.Wait()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	answers := make(chan struct{}, 1)
	var askedAt time.Time // zero: the loop owes no answer
	stuck := false

	for {
		select {
		case <-ctx.Done():
			return
		case <-answers:
			askedAt = time.Time{}
			stuck = false
		case now := <-ticker.C:
			if askedAt.IsZero() {
				askedAt = now
				asking.Go(func() {
					if n.opts.AskLoop(ctx) == nil {
						answers <- struct{}{}
					}
				})
			}

			if now.Sub(askedAt) <= n.opts.AnswerWithin {
				n.send(daemon.SdNotifyWatchdog)
			} else if !stuck {
				stuck = true
				level.Error(n.opts.Logger).Log(
					"msg", "poll loop is stuck; systemd's watchdog is no longer reset",
					"asked", askedAt.UTC().Format(time.RFC3339),
				)
			}
		}
	}
}

// Reloading sends RELOADING=1. When the program has reloaded, call done, which sends READY=1 again. A
// Notifier that is nil or not ready yet sends nothing.
func (n *Notifier) Reloading() (done func()) {
	if n == nil || !n.ready.Load() {
		return func() {}
	}

	n.send(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())

	return func() { n.send(daemon.SdNotifyReady) }
}

// send sends one notification. It logs only the first error.
func (n *Notifier) send(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil && !n.failed.Swap(true) {
		level.Warn(n.opts.Logger).Log("msg", "systemd cannot be notified", "err", err)
	}
}
