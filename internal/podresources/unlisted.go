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
	// endedPods are the UIDs of pods that were listed and have ended, with the version of the
	// checkpoint then. If a static pod is created again it has the same UID, but the kubelet writes
	// a new version.
	endedPods map[string]uint64
}

type unlistedDevice struct {
	since     time.Time // when it was first seen
	listCount uint64    // of the ledger at that time
	dismissed bool      // an operator has confirmed that it is free
	// alive is whether we know that its pod runs: the kubelet lists the pod with other devices, or
	// the API server has it.
	alive    bool
	pod      gpu.PodName     // while alive
	metadata gpu.PodMetadata // of the pod, once known
}

// recordEnd records the pod of a holding that has ended: the checkpoint may still have the holding
// for a while.
func (u *unlistedDevices) recordEnd(h *holding, version uint64) {
	if h.Holder.PodUID == "" {
		return
	}

	if u.endedPods == nil {
		u.endedPods = map[string]uint64{}
	}

	u.endedPods[h.Holder.PodUID] = version
}

// hasEnded reports whether the pod with a UID was listed and has ended.
func (u *unlistedDevices) hasEnded(uid string, version uint64) bool {
	at, ended := u.endedPods[uid]
	return ended && (isAPIUID(uid) || at == version)
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

// compareWithLedger updates the devices: those of the checkpoint without those that the ledger has.
func (u *unlistedDevices) compareWithLedger(g *ledger, now time.Time) {
	if g.checkpoint == nil || len(g.checkpoint.devices) == 0 {
		u.byDevice = nil
		u.endedPods = nil

		return
	}

	held, listed, owned := u.indexLedger(g)
	devices := make(map[checkpointDevice]*unlistedDevice, len(u.byDevice))
	uids := map[string]bool{}

	for _, d := range g.checkpoint.devices {
		uids[d.uid] = true
		withoutUID := d // as the ledger has it if it does not know the pod's UID
		withoutUID.uid = ""

		if held[d] || held[withoutUID] || u.hasEnded(d.uid, g.checkpoint.version) ||
			owned[pluginDevice{d.resource, d.id}] {
			continue
		}

		device := u.byDevice[d]
		if device == nil {
			device = &unlistedDevice{since: now, listCount: g.listCount}
		}

		device.pod, device.alive = listed[d.uid]
		if !device.alive && g.metadata != nil {
			if isAPIUID(d.uid) && g.metadata.PodGone("", "", d.uid, device.since) {
				continue
			}

			device.pod.Namespace, device.pod.Name, device.alive = g.metadata.PodByUID(d.uid)
		}

		device.dismissed = device.dismissed && !device.alive
		if device.alive && g.metadata != nil {
			meta, ok := g.metadata.PodMetadata(device.pod.Namespace, device.pod.Name, device.since)
			if ok && meta.UID == d.uid {
				device.metadata = meta
			}
		}

		devices[d] = device
	}

	u.byDevice = devices
	for uid := range u.endedPods {
		if _, again := listed[uid]; again || !uids[uid] {
			delete(u.endedPods, uid)
		}
	}
}

// indexLedger returns the devices of the ledger's holdings, the listed pods by UID, and the listed
// devices of plugins. Listed devices that the checkpoint does not have for their containers are not
// among owned: their pods have ended, and other pods may have them.
func (u *unlistedDevices) indexLedger(
	g *ledger,
) (held map[checkpointDevice]bool, listed map[string]gpu.PodName,
	owned map[pluginDevice]bool) {
	held = map[checkpointDevice]bool{}
	listed = map[string]gpu.PodName{}
	owned = map[pluginDevice]bool{}

	for n := range g.holdings {
		h := &g.holdings[n]
		if h.Holder.PodUID != "" || !h.dismissed {
			held[checkpointDevice{h.Holder.PodUID, h.Holder.Name, h.Holder.Resource, h.ID}] = true
		}

		if !h.missingSince.IsZero() {
			continue
		}

		if h.Holder.PodUID != "" {
			listed[h.Holder.PodUID] = h.podName()
		}

		if h.fromPlugin() && (g.checkpoint.err != nil || len(g.checkpoint.podUIDs(h)) > 0) {
			owned[h.pluginDevice()] = true
		}
	}

	return held, listed, owned
}

// isAPIUID reports whether a UID is from the API server. A static pod has a hash instead, and the
// API server may not know it while it runs.
func isAPIUID(uid string) bool { return strings.Contains(uid, "-") }

// listAssignments returns the devices as assignments, in no order. If the list is settled, a pod
// that we know to run holds its devices; all other assignments are unconfirmed. read is when the
// checkpoint was read.
func (u *unlistedDevices) listAssignments(settled bool, read time.Time) []gpu.Assignment {
	var list []gpu.Assignment

	for d, device := range u.byDevice {
		parsed, ok := parseDeviceID(d.id)
		if device.dismissed || !ok {
			continue
		}

		a := gpu.Assignment{
			ID:              d.id,
			Device:          parsed.ref,
			FirstListNumber: device.listCount,
			LastListed:      read,
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
