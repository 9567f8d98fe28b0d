package podresources

import (
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// unlistedDevices are the devices that the checkpoint has and the kubelet does not list: those of init containers, of
// pods that a restarting kubelet does not list yet, and of pods that have ended.
type unlistedDevices struct {
	byDevice map[checkpointDevice]*unlistedDevice
	// endedPods are the UIDs of pods that were listed and have ended, with the version of the checkpoint then. A static
	// pod that is created again has the same UID; the checkpoint is rewritten for it.
	endedPods map[string]uint64
}

type unlistedDevice struct {
	since     time.Time // when it was first seen
	listCount uint64    // of the ledger at that time
	dismissed bool      // an operator has confirmed that it is free
	// pod is the pod of the UID if it is known to run: the kubelet lists it with other devices, or the API server has
	// it.
	pod      gpu.PodName
	alive    bool
	metadata gpu.PodMetadata // of the pod, once known
}

// recordEnd records a holding that has ended: the checkpoint may have it for a while.
func (u *unlistedDevices) recordEnd(h *holding, version uint64) {
	if h.Holder.PodUID == "" {
		return
	}

	if u.endedPods == nil {
		u.endedPods = map[string]uint64{}
	}

	u.endedPods[h.Holder.PodUID] = version
}

// hasEnded reports whether the pod of a UID was listed and has ended.
func (u *unlistedDevices) hasEnded(uid string, version uint64) bool {
	at, ended := u.endedPods[uid]
	return ended && (isAPIUID(uid) || at == version)
}

// dismissDevice records that an operator confirmed that a device, which only the checkpoint has, is free.
func (u *unlistedDevices) dismissDevice(a *gpu.Assignment) {
	for d, device := range u.byDevice {
		if d.uid == a.Holder.PodUID && d.container == a.Holder.Name &&
			d.resource == a.Holder.Resource &&
			d.id == a.ID {
			device.dismissed = true
		}
	}
}

// compareWithLedger updates the devices from the checkpoint and the holdings of the ledger.
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
		byUID := d
		byName := d

		byName.uid = ""
		if held[byUID] || held[byName] || u.hasEnded(d.uid, g.checkpoint.version) ||
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

// indexLedger returns the devices of the ledger's holdings, the listed pods by UID, and the devices of plugins that are
// listed as held. It leaves out the latter if the checkpoint no longer has the pod: the pod has ended, and the device
// may be another's.
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

// isAPIUID reports whether a UID is from the API server. That of a static pod is not: the API server may not know the
// pod while it runs.
func isAPIUID(uid string) bool { return strings.Contains(uid, "-") }

// listAssignments returns the devices as assignments, in no order. With a settled list, a pod that is known to run
// holds its devices; all others are unconfirmed. read is when the checkpoint was read.
func (u *unlistedDevices) listAssignments(settled bool, read time.Time) []gpu.Assignment {
	var list []gpu.Assignment

	for d, device := range u.byDevice {
		parsed, ok := parseDeviceID(d.id)
		if device.dismissed || !ok {
			continue
		}

		a := gpu.Assignment{
			ID:     d.id,
			Device: parsed.ref,
			Seen:   device.listCount,
			Listed: read,
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
			a.Holder.Unconfirmed = "only the kubelet's checkpoint has it: for an init container, or for a pod that has ended"
		default:
			a.Holder.Unconfirmed = "the kubelet's checkpoint has it, its list does not yet"
		}

		list = append(list, a)
	}

	return list
}
