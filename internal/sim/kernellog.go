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

// kernelLog is the log of the node's kernel, with records in the format of /dev/kmsg.
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

// OpenKernelLog opens the kernel's log. The caller closes the reader. The error is
// gpu.ErrNoPermission if the scenario does not let this process read the log.
func (n *Node) OpenKernelLog() (*LogReader, error) {
	if !n.scenario.Node.KernelLog {
		return nil, fmt.Errorf("simulated log of the kernel: %w", gpu.ErrNoPermission)
	}

	r := &LogReader{node: n, closed: make(chan struct{}), arrived: make(chan struct{})}
	n.lockAndCatchUp()
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

// take returns the next record; empty if there is none. Like read(2) it returns EPIPE once if
// records were overwritten before r read them.
func (r *LogReader) take() (string, error) {
	r.node.lockAndCatchUp()
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
	arrived, wake, ready := r.beginWait()
	if ready {
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

// beginWait returns what to wait for, like Subscription.next; ready is true if there is a record by
// now.
func (r *LogReader) beginWait() (arrived <-chan struct{}, wake time.Duration, ready bool) {
	n := r.node
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	if r.isBehind() {
		return nil, 0, true
	}

	r.waiting = true
	n.wakeWaiters()

	if at, planned := n.nextChange(); planned {
		wake, _ = n.clock.realTimeTo(at) // 0 for a stepped clock
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
	r.node.wakeWaiters()

	return nil
}

// isBusy reports whether any reader has records left to read, or still handles one: it does not wait
// in Read. The caller holds n.mu.
func (k *kernelLog) isBusy() bool {
	return slices.ContainsFunc(k.readers, func(r *LogReader) bool {
		return !r.waiting || r.isBehind()
	})
}

// clear removes all records, as a reboot does. Numbers and times go on, because our readers, unlike
// real ones, outlive the reboot.
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

	const warning = 4 // the record's priority: level warning, facility 0 (kernel)
	kernel.records = append(
		kernel.records,
		fmt.Sprintf("%d,%d,%d,-;%s\n", warning, kernel.first+len(kernel.records),
			n.sinceStart().Microseconds(), text),
	)

	for _, r := range kernel.readers {
		r.waiting = false
		close(r.arrived)
		r.arrived = make(chan struct{})
	}
}

// printXID prints an XID as the driver does (open-gpu-kernel-modules 595.45.04,
// src/nvidia/src/kernel/gpu/rc/kernel_rc.c, krcReportXid_IMPL). An XID of an application names a
// process, if one runs there.
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
		if application && f.strikes(t) {
			fmt.Fprintf(&line, "pid=%d, name=simulated, ", t.proc.pid)
			break
		}
	}

	line.WriteString(gpu.XIDName(f.XID))
	n.print(line.String())
}

// strikes reports whether a task runs where an XID is reported.
func (f *FaultSpec) strikes(t *task) bool {
	id, ok := f.Instance.Get()
	return !ok || t.on.instance != nil && t.on.instance.ID == id
}
