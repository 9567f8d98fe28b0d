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
	metadata gpu.PodMetadata // of the pod, once known
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

// compareWithLedger sets the devices to those of the checkpoint that the ledger does not have.
func (u *unlistedDevices) compareWithLedger(l *ledger, now time.Time) {
	if l.checkpoint == nil || len(l.checkpoint.devices) == 0 {
		u.byDevice = nil
		u.endedPods = nil

		return
	}

	held, listedPods, owned := u.indexLedger(l)
	devices := make(map[checkpointDevice]*unlistedDevice, len(u.byDevice))
	uidsInCheckpoint := map[string]bool{}

	for _, d := range l.checkpoint.devices {
		uidsInCheckpoint[d.uid] = true
		withoutUID := d // the ledger has it like this if it does not know the pod's UID
		withoutUID.uid = ""

		if held[d] || held[withoutUID] || u.hasEnded(d.uid, l.checkpoint.version) ||
			owned[pluginDevice{d.resource, d.id}] {
			continue
		}

		device := u.byDevice[d]
		if device == nil {
			device = &unlistedDevice{since: now, listNumber: l.listCount}
		}

		device.pod, device.alive = listedPods[d.uid]
		if !device.alive && l.metadata != nil {
			if isAPIUID(d.uid) && l.metadata.PodGone("", "", d.uid, device.since) {
				continue
			}

			device.pod.Namespace, device.pod.Name, device.alive = l.metadata.PodByUID(d.uid)
		}

		device.dismissed = device.dismissed && !device.alive
		if device.alive && l.metadata != nil {
			meta, ok := l.metadata.PodMetadata(device.pod.Namespace, device.pod.Name, device.since)
			if ok && meta.UID == d.uid {
				device.metadata = meta
			}
		}

		devices[d] = device
	}

	u.byDevice = devices
	for uid := range u.endedPods {
		if _, listedAgain := listedPods[uid]; listedAgain || !uidsInCheckpoint[uid] {
			delete(u.endedPods, uid)
		}
	}
}

// indexLedger returns the devices of the ledger's holdings, the listed pods by UID, and the listed
// devices of device plugins. If the checkpoint does not have a listed device for its container, the
// device is not in owned: the pod has ended, and another pod may have it.
func (u *unlistedDevices) indexLedger(l *ledger) (
	held map[checkpointDevice]bool,
	listedPods map[string]gpu.PodName,
	owned map[pluginDevice]bool,
) {
	held = map[checkpointDevice]bool{}
	listedPods = map[string]gpu.PodName{}
	owned = map[pluginDevice]bool{}

	for n := range l.holdings {
		h := &l.holdings[n]
		if h.Holder.PodUID != "" || !h.dismissed {
			held[checkpointDevice{h.Holder.PodUID, h.Holder.Name, h.Holder.Resource, h.ID}] = true
		}

		if !h.isListed() {
			continue
		}

		if h.Holder.PodUID != "" {
			listedPods[h.Holder.PodUID] = h.podName()
		}

		if h.fromPlugin() && (l.checkpoint.err != nil || len(l.checkpoint.podUIDs(h)) > 0) {
			owned[h.pluginDevice()] = true
		}
	}

	return held, listedPods, owned
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
				PodUID:      d.uid,
				Workload:    device.metadata.Workload,
				Labels:      device.metadata.Labels,
				Rightsizing: device.metadata.Rightsizing,
				Group:       device.metadata.Group,
				Resource:    d.resource,
				Sharing:     parsed.sharing,
				Replica:     parsed.replica,
			},
		}
		switch {
		case device.alive && settled:
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
