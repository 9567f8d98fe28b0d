package podresources

import (
	"slices"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// pollGap is the least time between two lists that count as two: a kubelet that restarts takes its pods in one by one.
const pollGap = time.Second

// quiet is for how long no new pod may have appeared in the list before it is settled.
const quiet = 2 * time.Second

// freeFor is how long an operator's confirmation that a device is free counts.
const freeFor = 10 * time.Minute

// maxMissing bounds the missing holdings that are remembered, against a kubelet that lists other devices every time.
const maxMissing = 50_000

// holding is an assignment that the kubelet has listed.
type holding struct {
	entry
	// missing is when the kubelet was first seen not to list it; zero while it does.
	missing time.Time
	// lacking is when a settled list first lacked it; zero before.
	lacking time.Time
	// stored is set once the checkpoint has had it. version is that of the checkpoint when it went missing.
	stored  bool
	version uint64
	// dismissed is set once an operator has said that it holds nothing although it is unconfirmed.
	dismissed bool
	// admin reports whether its claim is for administrative access, if that is known.
	admin gpu.Opt[bool]
}

// ledger remembers who holds which device, because the kubelet forgets it for a while. A listed holding is a fact; one that
// is listed no longer is unconfirmed until a proof shows that it is over. It is not safe for concurrent use.
type ledger struct {
	metadata   Metadata                   // nil: the API server is not asked
	running    func(*gpu.Assignment) bool // nil: processes are not looked at
	checkpoint *checkpoint                // nil: it is not read
	logger     log.Logger

	settlement settlement
	round      uint64
	held       []holding // by compareAssignments
	settled    bool      // the last list was
	heard      time.Time // when the kubelet was last asked with success; zero before
	overflow   bool      // more went missing than is remembered
	unreadable []gpu.Assignment
	epoch      uint64          // grows with every restart of the kubelet
	free       []gpu.DeviceRef // confirmed by an operator in this epoch
	freeUntil  time.Time
	pods       pods
	unlisted   unlisted
}

// restart notes that another kubelet listens on the socket. Holdings survive it; that a list lacked one says nothing any more.
func (g *ledger) restart(now time.Time) {
	g.settlement.restart(now)
	g.epoch++
	g.settled, g.free = false, nil
	for n := range g.held {
		g.held[n].lacking = time.Time{}
	}
}

// update takes a list in that was asked for at now. linked says that the checkpoint did not change while the kubelet answered:
// then both tell of the same pods.
func (g *ledger) update(l *listing, linked bool, now time.Time) {
	g.round++
	settled := g.settlement.observe(l.pods, g.isStatic, now)
	before := g.held
	g.held = make([]holding, 0, len(l.entries))
	missing := 0
	miss := func(h holding) {
		if missing < maxMissing && g.outlasts(&h, l, settled, now) {
			g.held = append(g.held, h)
			missing++
		}
	}
	for n := range l.entries {
		h := holding{entry: l.entries[n]}
		for len(before) > 0 && compareAssignments(&before[0].Assignment, &h.Assignment) < 0 {
			miss(before[0])
			before = before[1:]
		}
		h.Seen, h.Listed = g.round, now
		if len(before) > 0 && compareAssignments(&before[0].Assignment, &h.Assignment) == 0 {
			h.inherit(&before[0])
			before = before[1:]
		}
		g.held = append(g.held, h)
	}
	for _, h := range before {
		miss(h)
	}
	g.overflow = missing == maxMissing || g.overflow && !settled
	g.settled, g.heard, g.unreadable = settled, now, l.unreadable
	if g.incomplete(nil, now) == "" || now.After(g.freeUntil) {
		g.free = nil // the list says so itself, or a device may have been given out since
	}
	g.linkCheckpoint(linked)
	g.pods.update(g.held, g.round, now)
	g.unlisted.update(g, now)
}

// inherit takes over what was known of the same holding before.
func (h *holding) inherit(before *holding) {
	h.Seen, h.Holder.PodUID, h.stored, h.admin = before.Seen, before.Holder.PodUID, before.stored, before.admin
	h.dismissed = before.dismissed && before.missing.IsZero() && !h.admin.Present()
}

// expire marks all holdings as missing: the kubelet has not answered for so long that its last list is no evidence any more.
func (g *ledger) expire(now time.Time) {
	var nothing listing
	before := g.held
	g.settled, g.held = false, g.held[:0]
	for _, h := range before {
		if g.outlasts(&h, &nothing, false, now) {
			g.held = append(g.held, h)
		}
	}
}

func (h *holding) goMissing(c *checkpoint, now time.Time) {
	if h.missing.IsZero() {
		h.missing, h.version = now, c.currentVersion()
	}
}

// outlasts marks a holding that a list lacks as missing, and reports whether it may hold its device all the same.
func (g *ledger) outlasts(h *holding, l *listing, settled bool, now time.Time) bool {
	proof := ""
	if h.missing.IsZero() && settled && g.settled {
		proof = "left a settled list"
	}
	h.goMissing(g.checkpoint, now)
	if settled && h.lacking.IsZero() {
		h.lacking = now
	}
	if proof == "" {
		if proof = g.proofOfEnd(h, l, settled, now); proof == "" {
			return true
		}
	}
	if g.isRunning(&h.Assignment) {
		return true // a live process overrules every proof
	}
	level.Debug(g.logger).Log("msg", "container holds a device no longer", "namespace", h.Holder.Namespace, "pod", h.Holder.Pod,
		"container", h.Holder.Name, "id", h.ID, "proof", proof)
	g.unlisted.end(h, g.checkpoint.currentVersion())
	return false
}

// proofOfEnd returns what shows that a missing holding is over; empty if nothing does.
func (g *ledger) proofOfEnd(h *holding, l *listing, settled bool, now time.Time) string {
	switch {
	case settled && now.Sub(h.lacking) >= pollGap && !g.checkpoint.has(h):
		return "two settled lists lack it"
	case h.fromPlugin() && l.givesToAnother(h):
		return "the device is listed for another pod"
	case h.stored && g.checkpoint.rewrittenWithout(h):
		return "the checkpoint was rewritten without it"
	case g.metadata != nil && isAPIUID(g.pods.uid(h)) && g.metadata.PodGone(h.Holder.Namespace, h.Holder.Pod, g.pods.uid(h), h.missing):
		return "the API server has no such pod"
	}
	return ""
}

// givesToAnother reports whether the device of a holding is listed for another pod.
func (l *listing) givesToAnother(h *holding) bool {
	if l.owners == nil {
		l.owners = make(map[pluginDevice]podName, len(l.entries))
		for n := range l.entries {
			if e := &l.entries[n]; e.fromPlugin() {
				l.owners[e.pluginDevice()] = e.pod()
			}
		}
	}
	owner, listed := l.owners[h.pluginDevice()]
	return listed && owner != h.pod()
}

// isStatic reports whether a pod is known to be a static one, by the UID that the API server tells of its mirror.
func (g *ledger) isStatic(pod podName) bool {
	if g.metadata == nil {
		return false
	}
	meta, ok := g.metadata.PodMetadata(pod.namespace, pod.name, time.Time{})
	return ok && !isAPIUID(meta.UID)
}

// linkCheckpoint takes the UIDs of pods from the checkpoint, which has no names.
func (g *ledger) linkCheckpoint(linked bool) {
	if g.checkpoint == nil || !linked {
		return
	}
	for n := range g.held {
		h := &g.held[n]
		if uids := g.checkpoint.uids(h); h.missing.IsZero() && len(uids) == 1 {
			h.Holder.PodUID, h.stored = uids[0], true
		}
	}
}

// confirmFree records that an operator confirmed devices to be free, and unconfirmed holdings to hold nothing. It reports whether
// the kubelet is still that of the epoch in which they were seen. What has been confirmed since by others is left as it is.
func (g *ledger) confirmFree(epoch uint64, devices []gpu.DeviceRef, unconfirmed []gpu.Assignment, now time.Time) bool {
	if epoch != g.epoch {
		return false
	}
	for _, d := range devices {
		if !slices.Contains(g.free, d) {
			g.free = append(g.free, d)
		}
	}
	g.freeUntil = now.Add(freeFor)
	for n := range unconfirmed {
		a := &unconfirmed[n]
		for k := range g.held {
			h := &g.held[k]
			if known := h.missing.IsZero() && (h.claim == gpu.ClaimDevice{} || h.admin.Present()); !known && compareAssignments(&h.Assignment, a) == 0 {
				h.dismissed = true
			}
		}
		g.unlisted.dismiss(a)
	}
	return true
}
