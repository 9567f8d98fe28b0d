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
	// maxSkipped bounds the records in a row that are too long to be read.
	maxSkipped = 100
	// retryEvery is the time between two attempts to open a log that cannot be read.
	retryEvery = 30 * time.Second
)

// Options configure a Log.
type Options struct {
	Open   func() (Device, error)
	Now    func() time.Time
	Uptime func() time.Duration // since the kernel's boot, by the clock of its log
}

// Log follows the kernel's log on a goroutine of its own. It is safe for concurrent use.
type Log struct {
	opts Options
	quit chan struct{}
	done chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex
	device Device // nil while the log cannot be read
	err    error  // why not
	closed bool
	lastUp time.Time       // when it was last known to be readable; zero if it never was
	lines  []gpu.LoggedXID // for Take
	lost   bool            // since the last Take

	startedAt time.Duration // the kernel's uptime at the start

	// Owned by Start, and then by the goroutine.
	started  bool   // Start has read what it could: the rest is new, or could not be read then
	next     uint64 // the sequence number after that of the last record
	caughtUp bool   // the log was read to its end
	repeats  repeats
}

// Start reads what the log has, and follows it until Close. If it cannot read the log it tries
// again every 30 seconds; State has the reason.
func Start(opts Options) *Log {
	l := &Log{
		opts:      opts,
		quit:      make(chan struct{}),
		done:      make(chan struct{}),
		startedAt: opts.Uptime(),
	}
	failure := l.begin()
	l.started = true

	if failure != nil {
		l.drop(failure)
	}

	go l.run(failure == nil)

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

// Take returns the XIDs since the last call, in their order, and whether we have missed records
// since then. It returns those from before the start once for each GPU and XID, with the time of
// the last.
func (l *Log) Take() (lines []gpu.LoggedXID, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	lines = l.lines
	lost = l.lost
	l.lines = nil
	l.lost = false

	return lines, lost
}

// State returns whether the log is read now.
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

// run follows the log until Close. open is whether begin succeeded.
func (l *Log) run(open bool) {
	defer close(l.done)

	for {
		if open && !l.drop(l.readRecords(true)) {
			return
		}

		retry := time.NewTimer(retryEvery)
		select {
		case <-l.quit:
			retry.Stop()
			return
		case <-retry.C:
		}

		failure := l.begin()

		open = failure == nil
		if !open && !l.drop(failure) {
			return
		}
	}
}

// begin opens the log and reads what it has.
func (l *Log) begin() error {
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
		_ = device.Close() // it was only read
		return io.ErrClosedPipe
	}

	l.device = device
	l.err = nil
	l.lastUp = l.opts.Now()

	return nil
}

// drop closes the device after a failure. It returns false if the Log was closed.
func (l *Log) drop(failure error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.device != nil && !l.closed {
		_ = l.device.Close() // it was only read
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
// that it was printed just now.
func (l *Log) addRecord(record string, live bool) {
	h, text, ok := splitRecord(record)
	if !ok || h.sequence < l.next { // a log that is opened again begins with its oldest record
		return
	}

	// A gap between records from before the start loses nothing that we report, even if we read
	// them only later.
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

// addOld adds an XID from before the start, and drops an earlier one of the same GPU and number.
// The caller holds mu.
func (l *Log) addOld(x gpu.LoggedXID) {
	l.lines = slices.DeleteFunc(l.lines, func(known gpu.LoggedXID) bool {
		return known.BeforeStart && known.PCI == x.PCI && known.XID == x.XID &&
			known.Instance.Present() == x.Instance.Present()
	})
	l.lines = append(l.lines, x)
}
