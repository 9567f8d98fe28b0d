package podresources

import (
	"slices"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// listGap is the least time between two lists that prove more than one of them would. A restarting
// kubelet adds its pods one by one, so that lists in quick succession may lack the same pods.
const listGap = time.Second

// freeFor is how long an operator's confirmation that a device is free is valid.
const freeFor = 10 * time.Minute

// maxMissing bounds how many missing holdings we keep, in case a kubelet lists different devices
// every time.
const maxMissing = 50_000

// holding is an assignment that the kubelet has listed.
type holding struct {
	listedDevice
	// missingSince is when a list first lacked the holding, or the last list became too old to count;
	// zero while the last list has the holding and is not too old.
	missingSince time.Time
	// missingSettledSince is when a settled list first lacked the holding; zero before.
	missingSettledSince time.Time
	// inCheckpoint is set once the checkpoint has had the holding. checkpointVersion is the
	// checkpoint's version when the holding went missing.
	inCheckpoint      bool
	checkpointVersion uint64
	// dismissed is set if an operator has confirmed that the unconfirmed holding has ended.
	dismissed bool
	// admin is whether the claim is for administrative access; absent until we know.
	admin gpu.Opt[bool]
}

// isListed reports whether the kubelet's last list has the holding, and is not too old to count.
func (h *holding) isListed() bool { return h.missingSince.IsZero() }

// isCertain reports whether the holding is listed and holds its device. A listed claim is certain
// only once we know whether it is for administrative access.
func (h *holding) isCertain() bool {
	return h.isListed() && (h.fromPlugin() || h.admin.Present())
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

	cachedLive *liveContainers // the result of live for this list; nil before we need it

	completeness completeness
	listCount    uint64           // the number of the last list; the first is 1
	holdings     []holding        // ordered by compareAssignments
	settled      bool             // the last list was settled
	lastAnswer   time.Time        // when the last successful call began; zero before
	overflow     bool             // we may have dropped holdings because more than maxMissing are missing
	unreadable   []gpu.Assignment // see listing.unreadable, of the last list
	epoch        uint64           // grows with every restart of the kubelet
	free         []gpu.DeviceRef  // confirmed by an operator in this epoch
	freeUntil    time.Time        // until when free counts
	pods         podStates
	unlisted     unlistedDevices
}

// resetForRestart begins a new epoch: another kubelet listens on the socket. Holdings stay, but we
// forget which settled lists lacked them and what an operator confirmed.
func (l *ledger) resetForRestart(now time.Time) {
	l.completeness.reset(now)
	l.epoch++

	l.settled = false
	l.free = nil

	for n := range l.holdings {
		l.holdings[n].missingSettledSince = time.Time{}
		l.holdings[n].dismissed = false
	}

	for _, device := range l.unlisted.byDevice {
		device.dismissed = false
	}
}

// recordList records a list that we requested at now. checkpointMatches says that the checkpoint
// did not change while the kubelet answered, so that both have the same pods.
func (l *ledger) recordList(list *listing, checkpointMatches bool, now time.Time) {
	l.listCount++
	l.cachedLive = nil
	settled := l.checkSettled(list, now)

	before := l.holdings
	l.holdings = make([]holding, 0, len(list.entries))
	missing := 0 // how many holdings we keep that the list lacks

	keepIfNotEnded := func(h holding) {
		if missing < maxMissing && l.updateMissing(&h, list, settled, now) {
			l.holdings = append(l.holdings, h)
			missing++
		}
	}

	// Merge the old holdings and the list, which are both sorted.
	for n := range list.entries {
		h := holding{listedDevice: list.entries[n]}
		h.FirstListNumber = l.listCount
		h.LastListed = now

		for len(before) > 0 && compareAssignments(&before[0].Assignment, &h.Assignment) < 0 {
			keepIfNotEnded(before[0])
			before = before[1:]
		}

		if len(before) > 0 && compareAssignments(&before[0].Assignment, &h.Assignment) == 0 {
			h.inheritState(&before[0])
			before = before[1:]
		}

		l.holdings = append(l.holdings, h)
	}

	for _, h := range before {
		keepIfNotEnded(h)
	}

	// We may have dropped a holding that goes on. A settled list shows all of them again.
	l.overflow = missing == maxMissing || l.overflow && !settled

	l.settled = settled
	l.lastAnswer = now
	l.unreadable = list.unreadable

	// Drop the operator's confirmation when the list shows all holders, or when it is too old. We pass
	// no error, since the kubelet has just answered.
	if l.incompleteReason(nil, now) == "" || now.After(l.freeUntil) {
		l.free = nil
	}

	if checkpointMatches {
		l.copyPodUIDs()
	}

	l.pods.updateStates(l.holdings, l.listCount, now)
	l.unlisted.compareWithLedger(l, now)
}

// inheritState copies the state that the same holding had before this list.
func (h *holding) inheritState(before *holding) {
	h.FirstListNumber = before.FirstListNumber
	h.Holder.PodUID = before.Holder.PodUID
	h.inCheckpoint = before.inCheckpoint
	h.admin = before.admin

	// If the holding was missing, the list proves the operator wrong: the dismissal ends. It stays only
	// for a claim that was listed before, and of which we still do not know whether it is for
	// administrative access.
	h.dismissed = before.dismissed && before.isListed() && !before.isCertain()
}

// markAllMissing marks all holdings as missing: the kubelet's last list is too old to count.
func (l *ledger) markAllMissing(now time.Time) {
	var empty listing
	l.cachedLive = nil
	l.settled = false

	before := l.holdings
	l.holdings = l.holdings[:0] // filters in place: we write no further than we have read

	for _, h := range before {
		if l.updateMissing(&h, &empty, false, now) {
			l.holdings = append(l.holdings, h)
		}
	}
}

// updateMissing updates a holding that the list lacks, and reports whether we keep it: the
// container may still hold its device.
func (l *ledger) updateMissing(h *holding, list *listing, settled bool, now time.Time) (keep bool) {
	// A settled list has all pods of the node, and the kubelet has not restarted since: a container
	// that leaves the list has ended, even while the API server still has its pod.
	leftSettledList := h.isListed() && l.settled && settled

	if h.isListed() {
		h.missingSince = now
		h.checkpointVersion = l.checkpoint.currentVersion()
	}

	if settled && h.missingSettledSince.IsZero() {
		h.missingSettledSince = now
	}

	proof := "left a settled list"
	if !leftSettledList {
		proof = l.proofOfEnd(h, list, settled, now)
	}

	if proof == "" {
		return true
	}

	if l.isRunning(&h.Assignment) || l.hasLiveContainer(h, list) {
		return true // we see that it runs: the proof is wrong
	}

	level.Debug(l.logger).Log(
		"msg", "container no longer holds a device",
		"namespace", h.Holder.Namespace,
		"pod", h.Holder.Pod,
		"container", h.Holder.Name,
		"id", h.ID,
		"proof", proof,
	)
	l.unlisted.recordEnd(h, l.checkpoint.currentVersion())

	return false
}

// proofOfEnd returns why a missing holding must have ended although it did not leave a settled
// list; empty if nothing proves that. While the API server has the pod, its absence in lists or the
// checkpoint proves nothing.
func (l *ledger) proofOfEnd(h *holding, list *listing, settled bool, now time.Time) string {
	if h.fromPlugin() && list.givesToAnother(h) {
		return "the device is listed for another pod"
	}

	if l.metadata != nil {
		uid := l.pods.podUID(h)
		if l.isAPIPod(h.podName(), uid) &&
			l.metadata.PodGone(h.Holder.Namespace, h.Holder.Pod, uid, h.missingSince) {
			return "the API server has no such pod"
		}

		if _, _, bound := l.metadata.PodByUID(uid); bound {
			return ""
		}
	}

	if h.inCheckpoint && l.checkpoint.rewrittenWithout(h) {
		return "the checkpoint was rewritten without it"
	}

	if settled && now.Sub(h.missingSettledSince) >= listGap && !l.checkpoint.hasDevice(h) {
		return "two settled lists lack it"
	}

	return ""
}

// isAPIPod reports whether we know, by its UID or else by its name, that a pod comes from the API
// server. A static pod comes from a file on the node, and the API server may not know it.
func (l *ledger) isAPIPod(pod gpu.PodName, uid string) bool {
	if uid != "" {
		return isAPIUID(uid)
	}

	return len(l.completeness.nodes) > 0 && !l.completeness.isNamedAfterNode(pod)
}

// givesToAnother reports whether the list has the device of a holding for another pod.
func (list *listing) givesToAnother(h *holding) bool {
	if list.deviceOwners == nil {
		list.deviceOwners = make(map[pluginDevice]gpu.PodName, len(list.entries))
		for n := range list.entries {
			if e := &list.entries[n]; e.fromPlugin() {
				list.deviceOwners[e.pluginDevice()] = e.podName()
			}
		}
	}

	owner, listed := list.deviceOwners[h.pluginDevice()]

	return listed && owner != h.podName()
}

// isStatic reports whether the UID of a pod in the API server shows that it is the mirror of a
// static pod; false if we do not know.
func (l *ledger) isStatic(pod gpu.PodName) bool {
	if l.metadata == nil {
		return false
	}

	meta, ok := l.metadata.PodMetadata(pod.Namespace, pod.Name, time.Time{})

	return ok && !isAPIUID(meta.UID)
}

// copyPodUIDs sets the pod UIDs of listed holdings from the checkpoint. The checkpoint has
// container names but no pod names: we take a UID only if just one pod of the checkpoint fits.
func (l *ledger) copyPodUIDs() {
	if l.checkpoint == nil {
		return
	}

	for n := range l.holdings {
		h := &l.holdings[n]
		if uids := l.checkpoint.podUIDs(h); h.isListed() && len(uids) == 1 {
			h.Holder.PodUID = uids[0]
			h.inCheckpoint = true
		}
	}
}

// confirmFree records that an operator confirmed that devices are free and that unconfirmed
// holdings have ended. It keeps a holding that a list or a claim has made certain since. It returns
// false if the kubelet has restarted since the epoch in which the operator saw them.
func (l *ledger) confirmFree(
	epoch uint64,
	devices []gpu.DeviceRef,
	unconfirmed []gpu.Assignment,
	now time.Time,
) bool {
	if epoch != l.epoch {
		return false
	}

	for _, d := range devices {
		if !slices.Contains(l.free, d) {
			l.free = append(l.free, d)
		}
	}

	l.freeUntil = now.Add(freeFor)

	for n := range unconfirmed {
		a := &unconfirmed[n]

		for k := range l.holdings {
			h := &l.holdings[k]

			if !h.isCertain() && compareAssignments(&h.Assignment, a) == 0 {
				h.dismissed = true
			}
		}

		l.unlisted.dismissDevice(a)
	}

	return true
}
