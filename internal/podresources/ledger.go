package podresources

import (
	"slices"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// listGap is the least time between two lists that count separately: a restarting kubelet adds its
// pods one by one.
const listGap = time.Second

// freeFor is how long an operator's confirmation that a device is free is valid.
const freeFor = 10 * time.Minute

// maxMissing bounds the missing holdings that we keep, in case a kubelet lists different devices
// every time.
const maxMissing = 50_000

// holding is an assignment that the kubelet has listed.
type holding struct {
	listedDevice
	// missingSince is when a list first lacked it; zero while it is listed.
	missingSince time.Time
	// lackedBySettled is when a settled list first lacked it; zero before.
	lackedBySettled time.Time
	// inCheckpoint is set once the checkpoint has had it. checkpointVersion is the version when it
	// went missing.
	inCheckpoint      bool
	checkpointVersion uint64
	// dismissed is set once an operator has confirmed that, although unconfirmed, it has ended.
	dismissed bool
	// admin is whether its claim is for administrative access; absent until we know.
	admin gpu.Opt[bool]
}

// ledger keeps the holdings of devices, because a restarting kubelet forgets them for a while. A
// listed holding is certain; one that is no longer listed is unconfirmed until something proves its
// end. It is not safe for concurrent use.
type ledger struct {
	metadata   Metadata                   // nil: we do not ask the API server
	running    func(*gpu.Assignment) bool // nil: we do not look at processes
	checkpoint *checkpoint                // nil: we do not read it
	live       func() *liveContainers     // returns the containers with a process; nil: we do not look for them
	logger     log.Logger

	seenLive *liveContainers // the result of live for this list; nil before we need it

	completeness completeness
	listCount    uint64
	holdings     []holding // by compareAssignments
	settled      bool      // the last list was
	lastAnswer   time.Time // when the last successful call began; zero before
	overflow     bool      // maxMissing holdings are missing, or even more were
	unreadable   []gpu.Assignment
	epoch        uint64          // grows with every restart of the kubelet
	free         []gpu.DeviceRef // confirmed by an operator in this epoch
	freeUntil    time.Time
	pods         podStates
	unlisted     unlistedDevices
}

// resetForRestart begins a new epoch: another kubelet listens on the socket. Holdings stay, but we
// forget which settled lists lacked them and what an operator confirmed.
func (g *ledger) resetForRestart(now time.Time) {
	g.completeness.reset(now)
	g.epoch++

	g.settled = false
	g.free = nil

	for n := range g.holdings {
		g.holdings[n].lackedBySettled = time.Time{}
		g.holdings[n].dismissed = false
	}

	for _, device := range g.unlisted.byDevice {
		device.dismissed = false
	}
}

// recordList records a list that we requested at now. linked says that the checkpoint did not
// change while the kubelet answered, so that both have the same pods.
func (g *ledger) recordList(l *listing, linked bool, now time.Time) {
	g.listCount++
	g.seenLive = nil
	settled := g.settle(l, now)
	before := g.holdings
	g.holdings = make([]holding, 0, len(l.entries))
	missing := 0

	miss := func(h holding) {
		if missing < maxMissing && g.keepMissing(&h, l, settled, now) {
			g.holdings = append(g.holdings, h)
			missing++
		}
	}

	// Merge the old holdings and the list, which are both sorted.
	for n := range l.entries {
		h := holding{listedDevice: l.entries[n]}
		for len(before) > 0 && compareAssignments(&before[0].Assignment, &h.Assignment) < 0 {
			miss(before[0])
			before = before[1:]
		}

		h.FirstListNumber = g.listCount
		h.LastListed = now

		if len(before) > 0 && compareAssignments(&before[0].Assignment, &h.Assignment) == 0 {
			h.inheritState(&before[0])
			before = before[1:]
		}

		g.holdings = append(g.holdings, h)
	}

	for _, h := range before {
		miss(h)
	}

	g.overflow = missing == maxMissing || g.overflow && !settled

	g.settled = settled
	g.lastAnswer = now
	g.unreadable = l.unreadable

	if g.incompleteReason(nil, now) == "" || now.After(g.freeUntil) {
		g.free = nil // the list is complete, or a device may have been assigned since
	}

	g.copyPodUIDs(linked)
	g.pods.updateStates(g.holdings, g.listCount, now)
	g.unlisted.compareWithLedger(g, now)
}

// inheritState copies the state of the same holding in the list before.
func (h *holding) inheritState(before *holding) {
	h.FirstListNumber = before.FirstListNumber
	h.Holder.PodUID = before.Holder.PodUID
	h.inCheckpoint = before.inCheckpoint
	h.admin = before.admin
	h.dismissed = before.dismissed && before.missingSince.IsZero() && !h.admin.Present()
}

// markAllMissing marks all holdings as missing: the kubelet's last list is too old to count.
func (g *ledger) markAllMissing(now time.Time) {
	var nothing listing
	g.seenLive = nil
	before := g.holdings

	g.settled = false
	g.holdings = g.holdings[:0]

	for _, h := range before {
		if g.keepMissing(&h, &nothing, false, now) {
			g.holdings = append(g.holdings, h)
		}
	}
}

func (h *holding) markMissing(c *checkpoint, now time.Time) {
	if h.missingSince.IsZero() {
		h.missingSince = now
		h.checkpointVersion = c.currentVersion()
	}
}

// keepMissing marks a holding that a list lacks as missing, and reports whether it may still hold
// its device.
func (g *ledger) keepMissing(h *holding, l *listing, settled bool, now time.Time) bool {
	// A settled list has all pods of the node, and the kubelet has not restarted since: what leaves it
	// has ended. The API server may have its pod for longer: a container can end before its pod does.
	proof := ""
	if h.missingSince.IsZero() && settled && g.settled {
		proof = "left a settled list"
	}

	h.markMissing(g.checkpoint, now)

	if settled && h.lackedBySettled.IsZero() {
		h.lackedBySettled = now
	}

	if proof == "" {
		if proof = g.proofOfEnd(h, l, settled, now); proof == "" {
			return true
		}
	}

	if g.isRunning(&h.Assignment) || g.hasLiveContainer(h, l) {
		return true // we see that it runs: the proof is wrong
	}

	level.Debug(g.logger).Log(
		"msg", "container no longer holds a device",
		"namespace", h.Holder.Namespace,
		"pod", h.Holder.Pod,
		"container", h.Holder.Name,
		"id", h.ID,
		"proof", proof,
	)
	g.unlisted.recordEnd(h, g.checkpoint.currentVersion())

	return false
}

// proofOfEnd returns the proof that a missing holding has ended which did not leave a settled list;
// empty if there is none. While the API server has the pod, a list or a checkpoint without the
// holding is no proof.
func (g *ledger) proofOfEnd(h *holding, l *listing, settled bool, now time.Time) string {
	if h.fromPlugin() && l.givesToAnother(h) {
		return "the device is listed for another pod"
	}

	if g.metadata != nil {
		uid := g.pods.podUID(h)
		if g.isAPIPod(h.podName(), uid) &&
			g.metadata.PodGone(h.Holder.Namespace, h.Holder.Pod, uid, h.missingSince) {
			return "the API server has no such pod"
		}

		if _, _, bound := g.metadata.PodByUID(uid); bound {
			return ""
		}
	}

	if h.inCheckpoint && g.checkpoint.rewrittenWithout(h) {
		return "the checkpoint was rewritten without it"
	}

	if settled && now.Sub(h.lackedBySettled) >= listGap && !g.checkpoint.hasDevice(h) {
		return "two settled lists lack it"
	}

	return ""
}

// isAPIPod reports whether we know, by its UID or else by its name, that a pod comes from the API
// server. A static pod does not, and the API server may not know it.
func (g *ledger) isAPIPod(pod gpu.PodName, uid string) bool {
	if uid != "" {
		return isAPIUID(uid)
	}

	return len(g.completeness.nodes) > 0 && !g.completeness.isNamedAfterNode(pod)
}

// givesToAnother reports whether the list has the device of a holding for another pod.
func (l *listing) givesToAnother(h *holding) bool {
	if l.deviceOwners == nil {
		l.deviceOwners = make(map[pluginDevice]gpu.PodName, len(l.entries))
		for n := range l.entries {
			if e := &l.entries[n]; e.fromPlugin() {
				l.deviceOwners[e.pluginDevice()] = e.podName()
			}
		}
	}

	owner, listed := l.deviceOwners[h.pluginDevice()]

	return listed && owner != h.podName()
}

// isStatic reports whether a pod is static, by the UID of its mirror pod in the API server; false
// if we do not know.
func (g *ledger) isStatic(pod gpu.PodName) bool {
	if g.metadata == nil {
		return false
	}

	meta, ok := g.metadata.PodMetadata(pod.Namespace, pod.Name, time.Time{})

	return ok && !isAPIUID(meta.UID)
}

// copyPodUIDs sets the pod UIDs of listed holdings from the checkpoint, if only one pod fits: it
// has container names, but no pod names.
func (g *ledger) copyPodUIDs(linked bool) {
	if g.checkpoint == nil || !linked {
		return
	}

	for n := range g.holdings {
		h := &g.holdings[n]
		if uids := g.checkpoint.podUIDs(h); h.missingSince.IsZero() && len(uids) == 1 {
			h.Holder.PodUID = uids[0]
			h.inCheckpoint = true
		}
	}
}

// confirmFree records that an operator confirmed that devices are free and unconfirmed holdings
// have ended. It returns false if the kubelet has restarted since the epoch in which the operator
// saw them. A holding that has been confirmed by a list or a claim since stays.
func (g *ledger) confirmFree(
	epoch uint64,
	devices []gpu.DeviceRef,
	unconfirmed []gpu.Assignment,
	now time.Time,
) bool {
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

		for k := range g.holdings {
			h := &g.holdings[k]

			confirmed := h.missingSince.IsZero() &&
				(h.claim == gpu.ClaimDevice{} || h.admin.Present())
			if !confirmed && compareAssignments(&h.Assignment, a) == 0 {
				h.dismissed = true
			}
		}

		g.unlisted.dismissDevice(a)
	}

	return true
}
