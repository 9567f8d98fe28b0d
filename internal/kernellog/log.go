// Package kernellog reads the XIDs that the NVIDIA driver prints to the kernel's log. The driver
// sends no event for some of them: those that GSP reports itself, and those of a GPU on which no
// program runs.
package kernellog

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// maxRecord is longer than any record of Linux (CONSOLE_EXT_LOG_MAX, 8 KiB).
	maxRecord = 16 << 10
	// maxLines bounds the XIDs that wait for Take. Further ones count as lost.
	maxLines = 4096
	// maxSkipped bounds how many records in a row may be too long to read.
	maxSkipped = 100
	// retryEvery is the time between two attempts to open a log that we cannot read.
	retryEvery = 30 * time.Second
)

// Options configure a Log.
type Options struct {
	Open   func() (Device, error)
	Now    func() time.Time
	Uptime func() time.Duration // since the kernel's boot
}

// Log follows the kernel's log on a goroutine of its own. It is safe for concurrent use.
type Log struct {
	opts Options
	quit chan struct{}
	done chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex
	device Device          // nil while we cannot read the log
	err    error           // why we cannot read it
	closed bool            // Close was called
	lastUp time.Time       // when we could last read it; zero if never
	lines  []gpu.LoggedXID // for Take
	lost   bool            // we have missed records since the last Take

	startedAt time.Duration // the kernel's uptime when Start was called

	// Start owns these, and then the goroutine.
	started  bool   // Start has read what it could: other records are new, or could not be read then
	next     uint64 // the sequence number that we expect next
	caughtUp bool   // we have once read the log to its end
	repeats  repeats
}

// Start reads what the log has, and follows it until Close. If it cannot read the log, it tries
// again every retryEvery; State has the reason.
func Start(opts Options) *Log {
	l := &Log{
		opts:      opts,
		quit:      make(chan struct{}),
		done:      make(chan struct{}),
		startedAt: opts.Uptime(),
	}
	err := l.openAndRead()
	l.started = true

	if err != nil {
		l.closeDevice(err)
	}

	go l.run(err == nil)

	return l
}

// Close ends the goroutine and waits for it.
func (l *Log) Close() {
	l.mu.Lock()
	l.closed = true
	device := l.device
	l.mu.Unlock()

	close(l.quit)

	if device != nil {
		_ = device.Close() // ends a Read under way
	}

	<-l.done
}

// Take returns the XIDs since the last call, in the order of the log, and whether we have missed
// records since then. Of several lines from before Start with the same GPU and XID, it returns the
// last.
func (l *Log) Take() (lines []gpu.LoggedXID, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	lines = l.lines
	lost = l.lost
	l.lines = nil
	l.lost = false

	return lines, lost
}

// State returns whether we can read the log now.
func (l *Log) State() gpu.SourceState {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.device != nil {
		l.lastUp = l.opts.Now()
	}

	return gpu.SourceState{
		Name:        gpu.SourceKernelLog,
		Up:          l.device != nil,
		LastSuccess: l.lastUp,
		Err:         l.err,
	}
}

// run follows the log until Close. open is whether Start could open and read it.
func (l *Log) run(open bool) {
	defer close(l.done)

	for {
		if open && !l.closeDevice(l.readRecords(true)) {
			return
		}

		retry := time.NewTimer(retryEvery)
		select {
		case <-l.quit:
			retry.Stop()
			return
		case <-retry.C:
		}

		err := l.openAndRead()

		open = err == nil
		if !open && !l.closeDevice(err) {
			return
		}
	}
}

// openAndRead opens the log and reads what it has.
func (l *Log) openAndRead() error {
	if err := l.open(); err != nil {
		return err
	}

	if err := l.readRecords(false); !errors.Is(err, syscall.EAGAIN) {
		return err
	}

	l.caughtUp = true

	return nil
}

// open opens the device, unless the Log is closed.
func (l *Log) open() error {
	device, err := l.opts.Open()
	if err != nil {
		return fmt.Errorf("open the kernel's log: %w", err)
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	if l.closed {
		_ = device.Close() // nothing was written
		return io.ErrClosedPipe
	}

	l.device = device
	l.err = nil
	l.lastUp = l.opts.Now()

	return nil
}

// closeDevice closes the device after a failure, and reports whether to go on: false after Close.
func (l *Log) closeDevice(failure error) (goOn bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.device != nil && !l.closed {
		_ = l.device.Close() // nothing was written
	}

	l.device = nil
	l.err = failure

	return !l.closed
}

// readRecords reads records until reading fails, and returns why. At the end of the log it waits
// for more, or returns syscall.EAGAIN if wait is not set.
func (l *Log) readRecords(wait bool) error {
	buffer := make([]byte, maxRecord)
	skipped := 0

	for {
		n, err := l.device.Read(buffer, wait) // without mu: only this goroutine sets device
		switch {
		case errors.Is(err, syscall.EPIPE): // the kernel overwrote records; addRecord sees the gap in their numbers
		case errors.Is(err, syscall.EINVAL) && skipped < maxSkipped:
			skipped++
		case errors.Is(err, syscall.EAGAIN):
			return err
		case err != nil:
			return fmt.Errorf("read the kernel's log: %w", err)
		case n == 0:
			return fmt.Errorf("read the kernel's log: %w", io.ErrUnexpectedEOF)
		default:
			skipped = 0
			l.addRecord(string(buffer[:n]), wait)
		}
	}
}

// addRecord adds the XID of a record, if it has one. live is whether we waited for the record, so
// that the kernel has printed it just now.
func (l *Log) addRecord(record string, live bool) {
	h, text, ok := splitRecord(record)
	if !ok || h.sequence < l.next { // after we open the log again, it begins with its oldest record
		return
	}

	// We do not report a gap between records from before Start as a loss.
	isAfterStart := l.caughtUp || l.started && h.uptime >= l.startedAt
	missed := isAfterStart && h.sequence > l.next
	l.next = h.sequence + 1

	l.mu.Lock()
	defer l.mu.Unlock()

	l.lost = l.lost || missed

	found, ok := h.parseXID(text)
	if !ok {
		return
	}

	x := gpu.LoggedXID{
		PCI:         found.pci,
		Instance:    found.instance,
		Compute:     found.compute,
		XID:         found.xid,
		Time:        l.opts.Now(),
		BeforeStart: !live && (!l.started || h.uptime < l.startedAt),
	}
	if !live {
		x.Time = x.Time.Add(-max(0, l.opts.Uptime()-h.uptime))
	}

	switch {
	case x.BeforeStart:
		l.addOld(x)
	case l.repeats.isRepeat(&found, x.Time):
	case len(l.lines) >= maxLines:
		l.lost = true
	default:
		l.lines = append(l.lines, x)
	}
}

// addOld adds an XID from before Start, and drops an earlier one of the same GPU and XID. It keeps
// XIDs with and without an instance apart. The caller holds mu.
func (l *Log) addOld(x gpu.LoggedXID) {
	l.lines = slices.DeleteFunc(l.lines, func(known gpu.LoggedXID) bool {
		return known.BeforeStart && known.PCI == x.PCI && known.XID == x.XID &&
			known.Instance.Present() == x.Instance.Present()
	})
	l.lines = append(l.lines, x)
}
