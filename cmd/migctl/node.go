package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The part of /api/v1/node that migctl shows. Keys that it does not know are left alone: a newer server may have more.

type nodeState struct {
	Time time.Time `json:"time"`
	Node nodeHost  `json:"node"`
	GPUs []nodeGPU `json:"gpus"`
}

type nodeHost struct {
	Hostname      string       `json:"hostname"`
	DriverVersion string       `json:"driverVersion"`
	Sources       []nodeSource `json:"sources"`
	HungCalls     int          `json:"hungCalls"`
	Unmatched     unmatched    `json:"unmatchedDevices"`
	// HoldersIncomplete says why a device without a holder may be held all the same.
	HoldersIncomplete string `json:"holdersIncomplete"`
}

// unmatched are the device ids that containers were given and that name no device of the node.
type unmatched []unmatchedDevice

type unmatchedDevice struct {
	ID       string `json:"id"`
	Resource string `json:"resource"`
	nodeHolder
}

// UnmarshalJSON reads a list. Older servers have a count there, of which nothing can be shown.
func (u *unmatched) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '[' {
		return nil
	}
	return json.Unmarshal(data, (*[]unmatchedDevice)(u))
}

type nodeSource struct {
	Name        string    `json:"name"`
	Up          bool      `json:"up"`
	Stale       bool      `json:"stale"`
	LastSuccess time.Time `json:"lastSuccess"`
	Error       string    `json:"error"`
}

type nodeGPU struct {
	Index    int           `json:"index"`
	UUID     gpu.UUID      `json:"uuid"`
	Name     string        `json:"name"`
	Up       bool          `json:"up"`
	LastRead time.Time     `json:"lastRead"`
	PCIBusID string        `json:"pciBusId"`
	Mode     nodeMode      `json:"migMode"`
	Memory   gpu.Memory    `json:"memory"`
	Power    nodePower     `json:"power"`
	Activity gpu.Activity  `json:"activity"`
	Capacity *nodeCapacity `json:"capacity"`
	Profiles []gpu.Profile `json:"profiles"`
	nodeUse
	Errors    []nodeError    `json:"errors"`
	Instances []nodeInstance `json:"gpuInstances"`
}

type nodeMode struct {
	Current string `json:"current"`
	Pending string `json:"pending"`
}

type nodePower struct {
	Watts gpu.Opt[float64] `json:"watts"`
}

type nodeCapacity struct {
	Memory   gpu.SliceCount        `json:"memorySlices"`
	Profiles []gpu.ProfileCapacity `json:"profiles"`
}

type nodeError struct {
	Reading string `json:"reading"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// nodeUse is who has a device.
type nodeUse struct {
	Processes gpu.Opt[int]  `json:"processes"`
	Allocated gpu.Opt[bool] `json:"allocated"`
	// ConfirmedFree says that the device is free by an operator's confirmation alone.
	ConfirmedFree bool         `json:"confirmedFree"`
	Holders       []nodeHolder `json:"holders"`
	Jobs          []string     `json:"jobs"`
	// listed is set if the node has a kubelet: what is not said to be allocated or free is unknown then.
	listed bool
}

type nodeHolder struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	// Confirmed is false if it is not known whether the container holds the device, and absent otherwise. Reason says why.
	Confirmed gpu.Opt[bool] `json:"confirmed"`
	Reason    string        `json:"unconfirmedReason"`
}

func (h *nodeHolder) unconfirmed() bool { return !h.Confirmed.Or(true) }

// name is the container's, with its pod and namespace.
func (h *nodeHolder) name() string {
	t := h.Namespace + "/" + h.Pod
	if h.Container != "" {
		t += " (" + h.Container + ")"
	}
	return t
}

type nodeInstance struct {
	ID            gpu.InstanceID         `json:"id"`
	Profile       string                 `json:"profile"`
	ProfileID     gpu.Opt[uint32]        `json:"profileId"`
	Placement     gpu.Opt[gpu.Placement] `json:"placement"`
	ComputeSlices gpu.Opt[int]           `json:"computeSlices"`
	SMs           gpu.Opt[int]           `json:"sms"`
	Up            bool                   `json:"up"`
	Memory        gpu.Memory             `json:"memory"`
	Activity      gpu.Activity           `json:"activity"`
	nodeUse
	Errors   []nodeError   `json:"errors"`
	Computes []nodeCompute `json:"computeInstances"`
}

type nodeCompute struct {
	ID            gpu.ComputeID          `json:"id"`
	UUID          gpu.MIGUUID            `json:"uuid"`
	Profile       string                 `json:"profile"`
	Placement     gpu.Opt[gpu.Placement] `json:"placement"`
	ComputeSlices gpu.Opt[int]           `json:"computeSlices"`
	SMs           gpu.Opt[int]           `json:"sms"`
	Up            bool                   `json:"up"`
	Activity      gpu.Activity           `json:"activity"`
	nodeUse
	Errors []nodeError `json:"errors"`
}

// texts name everybody who has the device: pods, jobs, or else its processes.
func (u *nodeUse) texts() []string {
	var all []string
	for i := range u.Holders {
		if t := u.mark(i) + u.Holders[i].Namespace + "/" + u.Holders[i].Pod; !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	for _, j := range u.Jobs {
		all = append(all, "job "+j)
	}
	if n := u.Processes.Or(0); len(all) == 0 && n > 0 {
		all = append(all, plural(n, "process", "processes"))
	}
	return all
}

// confirmedIdle is the use of a device that is free by an operator's confirmation alone.
const confirmedIdle = "idle (confirmed)"

// use is who has the device, in one cell.
func (u *nodeUse) use() string {
	switch all := u.texts(); {
	case len(all) > 0:
		return strings.Join(all, ", ")
	case u.Allocated.Or(false):
		return "allocated"
	case u.listed && !u.Allocated.Present():
		return "unknown"
	case u.ConfirmedFree:
		return confirmedIdle
	case u.Allocated.Present() || u.Processes.Present():
		return "idle"
	}
	return "unknown"
}

// pods names the pods without their namespaces.
func (u *nodeUse) pods() string {
	var all []string
	for i := range u.Holders {
		if t := u.mark(i) + u.Holders[i].Pod; !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return strings.Join(all, ", ")
}

// mark comes before the pod of a holder if no container of the pod is known to hold the device. It comes first, since what
// follows may be cut.
func (u *nodeUse) mark(i int) string {
	h := &u.Holders[i]
	if slices.ContainsFunc(u.Holders, func(o nodeHolder) bool { return o.Namespace == h.Namespace && o.Pod == h.Pod && !o.unconfirmed() }) {
		return ""
	}
	return "? "
}

// unconfirmed reports whether the drawing of the node has a pod with a mark.
func (n *nodeState) unconfirmed() bool {
	return n.shows(func(u *nodeUse) bool {
		return slices.ContainsFunc(u.texts(), func(t string) bool { return strings.HasPrefix(t, "? ") })
	})
}

// shows reports whether the drawing of the node has a use of a kind.
func (n *nodeState) shows(kind func(*nodeUse) bool) bool {
	return slices.ContainsFunc(n.GPUs, func(g nodeGPU) bool {
		return !g.isMIG() && kind(&g.nodeUse) || slices.ContainsFunc(g.Instances, func(i nodeInstance) bool {
			use := i.whole()
			return kind(&use) || slices.ContainsFunc(i.Computes, func(c nodeCompute) bool { return kind(&c.nodeUse) })
		})
	})
}

// whole is who has a GPU instance or a part of it.
func (i *nodeInstance) whole() nodeUse {
	use := i.nodeUse
	use.Holders = slices.Clone(use.Holders)
	for j := range i.Computes {
		c := &i.Computes[j]
		use.Holders = append(use.Holders, c.Holders...)
		if c.Allocated.Or(false) || c.listed && !c.Allocated.Present() && !use.Allocated.Or(false) {
			use.Allocated = c.Allocated
		}
		if c.Processes.Or(0) > use.Processes.Or(0) {
			use.Processes = c.Processes
		}
	}
	return use
}

func (u *nodeUse) inUse() bool { return len(u.texts()) > 0 || u.Allocated.Or(false) }

// markListed marks the uses of a node that has a kubelet: one whose list is not complete, or that tells of any device whether
// it is allocated.
func (n *nodeState) markListed() {
	all := n.uses()
	listed := n.Node.HoldersIncomplete != "" || slices.ContainsFunc(all, func(u *nodeUse) bool { return u.Allocated.Present() })
	for _, u := range all {
		u.listed = listed
	}
}

// uses are those of all devices.
func (n *nodeState) uses() []*nodeUse {
	var all []*nodeUse
	for i := range n.GPUs {
		g := &n.GPUs[i]
		all = append(all, &g.nodeUse)
		for j := range g.Instances {
			all = append(all, &g.Instances[j].nodeUse)
			for k := range g.Instances[j].Computes {
				all = append(all, &g.Instances[j].Computes[k].nodeUse)
			}
		}
	}
	return all
}

// isMIG tells whether the GPU is in MIG mode, or still has instances.
func (g *nodeGPU) isMIG() bool { return g.Mode.Current == "enabled" || len(g.Instances) > 0 }

// axis is the length of the placement axis in memory slices, 0 where nothing tells it.
func (g *nodeGPU) axis() int {
	units := 0
	if g.Capacity != nil {
		units = g.Capacity.Memory.Used + g.Capacity.Memory.Free + g.Capacity.Memory.Stranded
	}
	if units > 0 {
		return units
	}
	for _, p := range g.Profiles {
		for _, place := range p.Placements {
			units = max(units, place.End())
		}
	}
	return units
}

// usable marks the units that a profile which can still be created would cover; nil where no placements are known.
func (g *nodeGPU) usable(units int) []bool {
	exhausted := map[string]bool{}
	if g.Capacity != nil {
		for _, p := range g.Capacity.Profiles {
			exhausted[p.Name] = p.Available == 0
		}
	}
	var usable []bool
	for _, p := range g.Profiles {
		if len(p.Placements) > 0 && usable == nil {
			usable = make([]bool, units)
		}
		for _, place := range p.Placements {
			if exhausted[p.Name] || place.End() > units || g.occupied(place) {
				continue
			}
			for u := place.Start; u < place.End(); u++ {
				usable[u] = true
			}
		}
	}
	return usable
}

func (g *nodeGPU) occupied(place gpu.Placement) bool {
	return slices.ContainsFunc(g.Instances, func(i nodeInstance) bool {
		at, ok := i.Placement.Get()
		return ok && at.Overlaps(place)
	})
}

// sameGPU tells whether an operator's word names a GPU: its index, UUID or PCI bus id.
func sameGPU(word string, g *nodeGPU) bool {
	return word == fmt.Sprint(g.Index) || strings.EqualFold(word, string(g.UUID)) ||
		g.PCIBusID != "" && strings.EqualFold(shortBusID(word), shortBusID(g.PCIBusID))
}

// shortBusID drops a domain of zeros, which is written with four digits, with eight or not at all.
func shortBusID(id string) string {
	if domain, rest, ok := strings.Cut(id, ":"); ok && strings.Contains(rest, ":") && strings.Trim(domain, "0") == "" {
		return rest
	}
	return id
}

// chooseGPUs finds the GPUs that an operator names, in the node's order; no words are all of them.
func chooseGPUs(words []string, gpus []nodeGPU) ([]nodeGPU, error) {
	if len(words) == 0 || slices.Contains(words, "all") {
		return gpus, nil
	}
	for _, w := range words {
		if !slices.ContainsFunc(gpus, func(g nodeGPU) bool { return sameGPU(w, &g) }) {
			return nil, usageError{fmt.Sprintf("this node has no GPU %q: name it by index, UUID or PCI bus id; migctl get lists %s",
				w, plural(len(gpus), "GPU", "GPUs"))}
		}
	}
	return slices.DeleteFunc(slices.Clone(gpus), func(g nodeGPU) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return sameGPU(w, &g) })
	}), nil
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
