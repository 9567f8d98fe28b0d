package poll

import (
	"cmp"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// logDelay is how old a line of the kernel's log must be before we count it. By then we have
	// the driver's event about the same XID, which may name the instance if the line does not.
	logDelay = time.Second
	// maxWaiting bounds the lines that wait for their GPUs.
	maxWaiting = 1024
)

// KernelLog reads the XIDs that the driver prints to the kernel's log. Its methods do not block.
type KernelLog interface {
	// Take returns the XIDs since the last call, and whether some of them may have been lost.
	Take() (lines []gpu.LoggedXID, lost bool)
	// State returns whether the log is read now.
	State() gpu.SourceState
}

// logState is the loop's state of the kernel's log.
type logState struct {
	state     gpu.SourceState
	waiting   []gpu.LoggedXID  // lines that are too young, or whose GPU we do not know yet
	strangers []gpu.PCIAddress // of GPUs that the driver does not list and that we have warned of
}

// readKernelLog counts the XIDs of the kernel's log that are older than logDelay. now is when the
// cycle began: we have handled the driver's events of before, while later ones wait, and so do
// lines of that time.
func (p *Poller) readKernelLog(now time.Time) {
	if p.opts.KernelLog == nil {
		return
	}

	lines, lost := p.opts.KernelLog.Take()
	p.log.state = p.opts.KernelLog.State()

	if lost {
		p.countLost("lost lines of the kernel's log; XIDs may be missing from the counts", now)
	}

	later := p.opts.Now() // the cycle has read the GPUs since
	p.log.waiting = append(p.log.waiting, lines...)
	p.log.waiting = slices.DeleteFunc(p.log.waiting, func(x gpu.LoggedXID) bool {
		isOfFuture := x.Time.After(later) // the clock was set back
		if !x.BeforeStart && !isOfFuture && now.Sub(x.Time) < logDelay {
			return false
		}

		t := p.findByAddress(x.PCI)
		if t == nil {
			p.warnOfStranger(x)
			return false // the driver may list it later
		}

		t.recordLogged(p, x)

		return true
	})
	p.boundWaiting(now)
}

// boundWaiting forgets the oldest lines if too many wait, first those of GPUs that we have never
// read, and counts the loss.
func (p *Poller) boundWaiting(now time.Time) {
	more := len(p.log.waiting) - maxWaiting
	if more <= 0 {
		return
	}

	p.countLost(
		"too many lines of the kernel's log wait for their GPUs; XIDs will be missing from the counts",
		now,
	)

	p.log.waiting = slices.DeleteFunc(p.log.waiting, func(x gpu.LoggedXID) bool {
		if more == 0 || p.findByAddress(x.PCI) != nil {
			return false
		}

		more--

		return true
	})
	p.log.waiting = slices.Delete(p.log.waiting, 0, more)
}

// unlistedXIDs returns the last waiting line about each XID of a GPU that we have never read,
// ordered by address and XID.
func (p *Poller) unlistedXIDs() (list []gpu.LoggedXID) {
	for _, x := range p.log.waiting {
		if p.findByAddress(x.PCI) != nil { // it is only too young
			continue
		}

		i, found := slices.BinarySearchFunc(list, x, func(a, b gpu.LoggedXID) int {
			return cmp.Or(a.PCI.Compare(b.PCI), cmp.Compare(a.XID, b.XID))
		})
		switch {
		case !found:
			list = slices.Insert(list, i, x)
		case x.Time.After(list[i].Time):
			list[i] = x
		}
	}

	return list
}

// findByAddress returns the GPU that we have read last at a PCI address; nil if there was none.
func (p *Poller) findByAddress(at gpu.PCIAddress) *trackedGPU {
	var found *trackedGPU

	for _, t := range p.gpus {
		address, ok := gpu.ParsePCIAddress(t.last.PCIBusID)
		if ok && address == at && (found == nil || t.receivedAt.After(found.receivedAt)) {
			found = t
		}
	}

	return found
}

// warnOfStranger logs once that there are XIDs of a GPU that we have not read. They wait until we
// have.
func (p *Poller) warnOfStranger(x gpu.LoggedXID) {
	if len(p.gpus) == 0 || slices.Contains(p.log.strangers, x.PCI) ||
		len(p.log.strangers) >= maxWaiting {
		return
	}

	p.log.strangers = append(p.log.strangers, x.PCI)
	level.Warn(p.opts.Logger).Log(
		"msg", "the kernel's log has an XID of a GPU that has not been read",
		"pci", x.PCI,
		"xid", x.XID,
	)
}

// recordLogged counts an XID of the kernel's log. If it is from before we first saw the GPU, it
// only sets the time of the last XID: the counts begin later, and an instance that the line names
// may be another one now.
func (t *trackedGPU) recordLogged(p *Poller, x gpu.LoggedXID) {
	e := gpu.Event{
		Kind:     gpu.EventXID,
		GPU:      t.last.UUID,
		Instance: x.Instance,
		Compute:  x.Compute,
		XID:      x.XID,
		Logged:   true,
		Time:     x.Time,
	}
	if !x.BeforeStart && !x.Time.Before(t.firstSeen) {
		p.recordXID(t, e)
		return
	}

	xid := gpu.XIDByNumber(x.XID)
	if xid.PerChannel && t.firstSeen.Sub(x.Time) <= burstGap { // its burst may go on
		t.incidents.recordBefore(&e, p.opts.Now())
	}

	t.totals.XIDErrors = setLastXID(t.totals.XIDErrors, &e, t.firstSeen)
	if xid.Scope == gpu.XIDOfGPU || !x.Instance.Present() {
		t.totals.GPUXIDs = setLastXID(t.totals.GPUXIDs, &e, t.firstSeen)
	}
}

// xidsAreKnown reports whether a count of 0 means that the GPU had no XID: the driver reports XIDs,
// or we read the kernel's log, which would show them.
func (p *Poller) xidsAreKnown(t *trackedGPU) bool {
	if !t.last.NoXIDs {
		return true
	}

	_, ok := gpu.ParsePCIAddress(t.last.PCIBusID)

	return ok && p.log.state.Up
}
