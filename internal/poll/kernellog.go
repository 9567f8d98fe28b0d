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
	// State returns whether we can read the log now.
	State() gpu.SourceState
}

// logState is what the loop keeps of the kernel's log.
type logState struct {
	state   gpu.SourceState
	waiting []gpu.LoggedXID  // lines that are younger than logDelay, or whose GPU we do not know yet
	warned  []gpu.PCIAddress // GPUs of which warnOfUnknownGPU has warned
}

// readKernelLog counts the XIDs of the kernel's log that are older than logDelay. now is when the
// cycle began. We have handled the driver's events from before that time; later events wait for the
// end of the cycle, and later lines of the log wait, too.
func (p *Poller) readKernelLog(now time.Time) {
	if p.opts.KernelLog == nil {
		return
	}

	lines, lost := p.opts.KernelLog.Take()
	p.log.state = p.opts.KernelLog.State()

	if lost {
		p.countLost("lost lines of the kernel's log; XIDs may be missing from the counts", now)
	}

	present := p.opts.Now() // later than now: the cycle has read the GPUs since
	p.log.waiting = append(p.log.waiting, lines...)
	p.log.waiting = slices.DeleteFunc(p.log.waiting, func(x gpu.LoggedXID) bool {
		clockSetBack := x.Time.After(present)
		if !x.BeforeStart && !clockSetBack && now.Sub(x.Time) < logDelay {
			return false
		}

		t := p.findByAddress(x.PCI)
		if t == nil {
			p.warnOfUnknownGPU(x)
			return false // the driver may list it later
		}

		t.recordLogged(p, x)

		return true
	})
	p.boundWaiting(now)
}

// boundWaiting forgets the oldest lines if too many wait, and counts the loss. Lines of GPUs that
// we have never read go first.
func (p *Poller) boundWaiting(now time.Time) {
	excess := len(p.log.waiting) - maxWaiting
	if excess <= 0 {
		return
	}

	p.countLost(
		"too many lines of the kernel's log wait for their GPUs; XIDs will be missing from the counts",
		now,
	)

	p.log.waiting = slices.DeleteFunc(p.log.waiting, func(x gpu.LoggedXID) bool {
		if excess == 0 || p.findByAddress(x.PCI) != nil {
			return false
		}

		excess--

		return true
	})
	p.log.waiting = slices.Delete(p.log.waiting, 0, excess)
}

// unlistedXIDs returns the last waiting line about each XID of a GPU that we have never read,
// ordered by address and XID.
func (p *Poller) unlistedXIDs() (list []gpu.LoggedXID) {
	for _, x := range p.log.waiting {
		if p.findByAddress(x.PCI) != nil { // the line is only too young
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

// findByAddress returns the GPU at a PCI address; nil if we have read none there. If several were
// there, one after the other, it returns the one that we have read last.
func (p *Poller) findByAddress(want gpu.PCIAddress) *trackedGPU {
	var found *trackedGPU

	for _, t := range p.gpus {
		address, ok := gpu.ParsePCIAddress(t.last.PCIBusID)
		if ok && address == want && (found == nil || t.receivedAt.After(found.receivedAt)) {
			found = t
		}
	}

	return found
}

// warnOfUnknownGPU logs, once for each GPU, that the log has XIDs of a GPU that we have not read.
// They wait until we have.
func (p *Poller) warnOfUnknownGPU(x gpu.LoggedXID) {
	if len(p.gpus) == 0 || slices.Contains(p.log.warned, x.PCI) || len(p.log.warned) >= maxWaiting {
		return
	}

	p.log.warned = append(p.log.warned, x.PCI)
	level.Warn(p.opts.Logger).Log(
		"msg", "the kernel's log has an XID of a GPU that has not been read",
		"pci", x.PCI,
		"xid", x.XID,
	)
}

// recordLogged counts an XID of the kernel's log. If the XID is from before we first saw the GPU,
// it does not count: recordLogged only sets when the XID last occurred. It does so for the GPU,
// since an instance that the line names may be another one now.
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
	if xid.PerChannel && t.firstSeen.Sub(x.Time) <= burstGap { // later reports may be of the same burst
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
