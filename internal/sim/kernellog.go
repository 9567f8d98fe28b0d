package sim

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// maxRecords bounds the records of the kernel's log; the oldest are overwritten.
const maxRecords = 1024

// kernelLog is the log of the node's kernel, in the form in which /dev/kmsg has it.
type kernelLog struct {
	records []string
	first   int // the sequence number of the oldest record
	readers []*LogReader
}

// LogReader reads the kernel's log from its oldest record on. One goroutine at a time may call
// Read.
type LogReader struct {
	node   *Node
	closed chan struct{}

	// The node's mu guards the rest.
	next    int           // the sequence number of the next record to read
	waiting bool          // a caller is in Read and has found no record
	arrived chan struct{} // closed and replaced by every record
}

// OpenKernelLog opens the log. The caller closes it. It fails if the scenario gives this process no
// right to read it.
func (n *Node) OpenKernelLog() (*LogReader, error) {
	if !n.scenario.Node.KernelLog {
		return nil, fmt.Errorf("simulated log of the kernel: %w", gpu.ErrNoPermission)
	}

	r := &LogReader{node: n, closed: make(chan struct{}), arrived: make(chan struct{})}
	n.lock()
	defer n.mu.Unlock()

	r.next = n.kernel.first
	n.kernel.readers = append(n.kernel.readers, r)

	return r, nil
}

// Uptime returns how long the node has run, by the clock of its kernel's log.
func (n *Node) Uptime() time.Duration { return n.clock.Now().Sub(n.start) }

// Read reads one record like read(2) from /dev/kmsg. If there is none it waits, or returns EAGAIN
// unless wait is set.
func (r *LogReader) Read(p []byte, wait bool) (int, error) {
	for {
		record, err := r.take()
		if err != nil || record != "" {
			return copy(p, record), err
		}

		if !wait {
			return 0, syscall.EAGAIN
		}

		if err := r.pause(); err != nil {
			return 0, err
		}
	}
}

// take returns the next record, empty if there is none.
func (r *LogReader) take() (string, error) {
	r.node.lock()
	defer r.node.mu.Unlock()

	kernel := &r.node.kernel
	if r.next < kernel.first {
		r.next = kernel.first
		return "", syscall.EPIPE
	}

	if r.next-kernel.first == len(kernel.records) {
		return "", nil
	}

	r.next++

	return kernel.records[r.next-1-kernel.first], nil
}

// pause waits until there may be a record.
func (r *LogReader) pause() error {
	arrived, wake, ok := r.beginWait()
	if ok {
		return nil
	}

	var due <-chan time.Time

	if wake > 0 {
		timer := time.NewTimer(wake)
		defer timer.Stop()
		due = timer.C
	}

	select {
	case <-r.node.closed:
		return ErrClosed
	case <-r.closed:
		return os.ErrClosed
	case <-arrived:
	case <-due:
	}

	return nil
}

// beginWait returns what to wait for, as Subscription.next does; ok is true if there is a record by
// now.
func (r *LogReader) beginWait() (arrived <-chan struct{}, wake time.Duration, ok bool) {
	n := r.node
	n.lock()
	defer n.mu.Unlock()

	if r.isBehind() {
		return nil, 0, true
	}

	r.waiting = true
	n.wakeSettle()

	if at, planned := n.nextChange(); planned {
		if d, moves := n.clock.until(at); moves {
			wake = d
		}
	}

	return r.arrived, wake, false
}

// isBehind reports whether there is a record that r has not read. The caller holds n.mu.
func (r *LogReader) isBehind() bool {
	kernel := &r.node.kernel
	return r.next-kernel.first != len(kernel.records)
}

// Close ends the reader and a call of Read. It must be called once.
func (r *LogReader) Close() error {
	close(r.closed)
	r.node.mu.Lock()
	defer r.node.mu.Unlock()

	r.node.kernel.readers = slices.DeleteFunc(r.node.kernel.readers, func(o *LogReader) bool {
		return o == r
	})
	r.node.wakeSettle()

	return nil
}

// isBusy reports whether a reader has not read all records, or is at work on one. The caller holds
// n.mu.
func (k *kernelLog) isBusy() bool {
	return slices.ContainsFunc(k.readers, func(r *LogReader) bool {
		return !r.waiting || r.isBehind()
	})
}

// clear removes all records, like a reboot. Numbers and times go on, for readers that outlive it.
func (k *kernelLog) clear() {
	k.first += len(k.records)
	k.records = nil
}

// print adds a record of the kernel. The caller holds n.mu.
func (n *Node) print(text string) {
	kernel := &n.kernel
	if len(kernel.records) == maxRecords {
		kernel.records = slices.Delete(kernel.records, 0, 1)
		kernel.first++
	}

	const warning = 4 // its level; the facility is 0
	kernel.records = append(
		kernel.records,
		fmt.Sprintf("%d,%d,%d,-;%s\n", warning, kernel.first+len(kernel.records),
			n.at.Sub(n.start).Microseconds(), text),
	)

	for _, r := range kernel.readers {
		r.waiting = false
		close(r.arrived)
		r.arrived = make(chan struct{})
	}
}

// printXID prints an XID as the driver does (open-gpu-kernel-modules 595.45.04,
// src/nvidia/src/kernel/gpu/rc/kernel_rc.c, krcReportXid_IMPL), with the process that has it, if
// there is one.
func (n *Node) printXID(f *FaultSpec) {
	g := n.gpus[f.GPU.Or(0)]
	var line strings.Builder
	domain, bus := pciBus(g.index, g.model.arch)
	fmt.Fprintf(&line, "NVRM: Xid (PCI:%04x:%02x:00", domain, bus)

	if id, ok := f.Instance.Get(); ok {
		fmt.Fprintf(&line, " GPU-I:%02d", id)
	}

	if id, ok := f.Compute.Get(); ok && f.Instance.Present() {
		fmt.Fprintf(&line, " GPU-CI:%02d", id)
	}

	fmt.Fprintf(&line, "): %d, ", f.XID)

	application := gpu.XIDByNumber(f.XID).Scope == gpu.XIDOfApplication
	for _, t := range g.tasks {
		if application && f.concerns(t) {
			fmt.Fprintf(&line, "pid=%d, name=simulated, ", t.proc.pid)
			break
		}
	}

	line.WriteString(gpu.XIDName(f.XID))
	n.print(line.String())
}

// concerns reports whether a task runs where an XID is reported.
func (f *FaultSpec) concerns(t *task) bool {
	id, ok := f.Instance.Get()
	return !ok || t.on.instance != nil && t.on.instance.ID == id
}
