package podresources

import (
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// unlistedDevices are the devices that the checkpoint has and the kubelet does not list. They
// belong to init containers, to pods that a restarting kubelet does not list yet, and to pods that
// have ended.
type unlistedDevices struct {
	byDevice map[checkpointDevice]*unlistedDevice
	// endedPods are the UIDs of pods that were listed and have ended, each with the version that
	// the checkpoint had then. If a static pod is created again it has the same UID, but the
	// kubelet writes a new version.
	endedPods map[string]uint64
}

type unlistedDevice struct {
	since      time.Time // when we first saw it in the checkpoint, and not in the kubelet's list
	listNumber uint64    // of the last list at that time
	dismissed  bool      // an operator has confirmed that it is free
	// alive is whether we know that its pod runs: the kubelet lists the pod with other devices, or
	// the API server has it.
	alive    bool
	pod      gpu.PodName     // empty if not alive
	metadata gpu.PodMetadata // what the API server says of the pod, once known
}

// recordEnd records that a holding of a pod has ended: the checkpoint may still have it for a
// while.
func (u *unlistedDevices) recordEnd(h *holding, version uint64) {
	if h.Holder.PodUID == "" {
		return
	}

	if u.endedPods == nil {
		u.endedPods = map[string]uint64{}
	}

	u.endedPods[h.Holder.PodUID] = version
}

// hasEnded reports whether the pod with a UID was listed and has ended. version is the present
// version of the checkpoint.
func (u *unlistedDevices) hasEnded(uid string, version uint64) bool {
	endVersion, ended := u.endedPods[uid]
	return ended && (isAPIUID(uid) || endVersion == version)
}

// dismissDevice records that an operator confirmed that a device, which only the checkpoint has, is
// free.
func (u *unlistedDevices) dismissDevice(a *gpu.Assignment) {
	for d, device := range u.byDevice {
		if d.uid == a.Holder.PodUID && d.container == a.Holder.Name &&
			d.resource == a.Holder.Resource &&
			d.id == a.ID {
			device.dismissed = true
		}
	}
}

// compareWithLedger updates the devices: they become those of the checkpoint that the ledger does not
// have.
func (u *unlistedDevices) compareWithLedger(l *ledger, now time.Time) {
	if l.checkpoint == nil || len(l.checkpoint.devices) == 0 {
		u.byDevice = nil
		u.endedPods = nil

		return
	}

	index := indexLedger(l)
	devices := make(map[checkpointDevice]*unlistedDevice, len(u.byDevice))
	uidsInCheckpoint := map[string]bool{}

	for _, d := range l.checkpoint.devices {
		uidsInCheckpoint[d.uid] = true

		if index.has(d) || u.hasEnded(d.uid, l.checkpoint.version) {
			continue
		}

		device := u.byDevice[d]
		if device == nil {
			device = &unlistedDevice{since: now, listNumber: l.listCount}
		}

		if device.findPod(d.uid, index.podByUID, l.metadata) {
			devices[d] = device
		}
	}

	u.byDevice = devices

	// Forget the end of a pod once the checkpoint has the pod no more, or the kubelet lists it again.
	for uid := range u.endedPods {
		if _, listedAgain := index.podByUID[uid]; listedAgain || !uidsInCheckpoint[uid] {
			delete(u.endedPods, uid)
		}
	}
}

// findPod updates what we know of the device's pod: from the kubelet's list or else from the API
// server, which metadata asks unless it is nil. It returns false if the pod is gone, so that the device
// is free.
func (d *unlistedDevice) findPod(uid string, listed map[string]gpu.PodName, metadata Metadata) bool {
	d.pod, d.alive = listed[uid]
	if !d.alive && metadata != nil {
		if isAPIUID(uid) && metadata.PodGone("", "", uid, d.since) {
			return false
		}

		d.pod.Namespace, d.pod.Name, d.alive = metadata.PodByUID(uid)
	}

	// The operator was wrong about a device whose pod runs.
	d.dismissed = d.dismissed && !d.alive

	if d.alive && metadata != nil {
		meta, ok := metadata.PodMetadata(d.pod.Namespace, d.pod.Name, d.since)
		if ok && meta.UID == uid {
			d.metadata = meta
		}
	}

	return true
}

// ledgerIndex finds what a ledger knows of the checkpoint's devices.
type ledgerIndex struct {
	holdings map[checkpointDevice]bool // all holdings; without a UID if we don't know the pod's
	podByUID map[string]gpu.PodName    // the pods that the kubelet lists
	// listed has the devices of device plugins that the kubelet lists for a container. It lacks a
	// device that the checkpoint does not have for that container: the listed pod has ended, and the
	// pod in the checkpoint has the device now.
	listed map[pluginDevice]bool
}

// has reports whether the ledger already accounts for a device of the checkpoint.
func (x *ledgerIndex) has(d checkpointDevice) bool {
	withoutUID := d
	withoutUID.uid = ""

	return x.holdings[d] || x.holdings[withoutUID] || x.listed[pluginDevice{d.resource, d.id}]
}

// indexLedger returns the index of a ledger that has a checkpoint.
func indexLedger(l *ledger) *ledgerIndex {
	x := &ledgerIndex{
		holdings: map[checkpointDevice]bool{},
		podByUID: map[string]gpu.PodName{},
		listed:   map[pluginDevice]bool{},
	}

	for n := range l.holdings {
		h := &l.holdings[n]

		// Without a UID a holding stands for the device in any pod. Once an operator has dismissed it,
		// it must not hide the device of another pod.
		if h.Holder.PodUID != "" || !h.dismissed {
			x.holdings[checkpointDevice{h.Holder.PodUID, h.Holder.Name, h.Holder.Resource, h.ID}] = true
		}

		if !h.isListed() {
			continue
		}

		if h.Holder.PodUID != "" {
			x.podByUID[h.Holder.PodUID] = h.podName()
		}

		if h.fromPlugin() && (l.checkpoint.err != nil || len(l.checkpoint.podUIDs(h)) > 0) {
			x.listed[h.pluginDevice()] = true
		}
	}

	return x
}

// isAPIUID reports whether a UID is from the API server. A static pod has a hash instead, and the
// API server may not know it while it runs.
func isAPIUID(uid string) bool { return strings.Contains(uid, "-") }

// listAssignments returns the devices as assignments, in no order. If the kubelet's list is
// settled, a pod that we know to run holds its devices; all other assignments are unconfirmed.
// readAt is when we read the checkpoint.
func (u *unlistedDevices) listAssignments(settled bool, readAt time.Time) []gpu.Assignment {
	var list []gpu.Assignment

	for d, device := range u.byDevice {
		parsed, ok := parseDeviceID(d.id)
		if device.dismissed || !ok {
			continue
		}

		a := gpu.Assignment{
			ID:              d.id,
			Device:          parsed.ref,
			FirstListNumber: device.listNumber,
			LastListed:      readAt,
			Holder: gpu.Holder{
				Container: gpu.Container{
					Namespace: device.pod.Namespace,
					Pod:       device.pod.Name,
					Name:      d.container,
				},
				PodUID:   d.uid,
				Resource: d.resource,
				Sharing:  parsed.sharing,
				Replica:  parsed.replica,
			},
		}
		describe(&a.Holder, &device.metadata)

		switch {
		case device.alive && settled: // certain
		case settled:
			a.Holder.Unconfirmed = "only the kubelet's checkpoint has it: for an init " +
				"container, or for a pod that has ended"
		default:
			a.Holder.Unconfirmed = "the kubelet's checkpoint has it, its list does not yet"
		}

		list = append(list, a)
	}

	return list
}
