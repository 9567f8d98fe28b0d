package migctl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// nodeView is a node's document, and what we derive from it to draw it.
type nodeView struct {
	doc     nodedoc.Document
	kubelet bool // see nodedoc.Document.HasKubelet
}

func newNodeView(n nodedoc.Document) *nodeView {
	return &nodeView{doc: n, kubelet: n.HasKubelet()}
}

// deviceUse is the use of a device, and whether it is held.
type deviceUse struct {
	nodedoc.Use
	state nodedoc.UseState
}

func isUnconfirmed(h *nodedoc.Holder) bool { return !h.Confirmed.Or(true) }

// containerName returns the name of a container, with its pod and namespace.
func containerName(namespace, pod, container string) string {
	t := namespace + "/" + pod
	if container != "" {
		t += " (" + container + ")"
	}

	return t
}

// users names the users of the device: pods and jobs, or else its processes.
func (u deviceUse) users() []string {
	var all []string

	for i := range u.Holders {
		h := &u.Holders[i]

		t := u.unconfirmedMark(i) + h.Namespace + "/" + h.Pod
		if !slices.Contains(all, t) {
			all = append(all, t)
		}
	}

	for _, j := range u.Jobs {
		all = append(all, "job "+j)
	}

	if n := u.Processes.Or(0); len(all) == 0 && n > 0 {
		all = append(all, nodedoc.Count(n, "process", "processes"))
	}

	return all
}

// confirmedFree is the summary of a device that counts as free only because an operator has confirmed
// it.
const confirmedFree = "free (confirmed)"

// summary describes the use of the device in one cell.
func (u deviceUse) summary() string {
	switch all := u.users(); {
	case len(all) > 0:
		return strings.Join(all, ", ")
	case u.state == nodedoc.Free && u.ConfirmedFree:
		return confirmedFree
	}

	return string(u.state)
}

// podNames names the pods without their namespaces.
func (u deviceUse) podNames() string {
	var all []string
	for i := range u.Holders {
		if t := u.unconfirmedMark(i) + u.Holders[i].Pod; !slices.Contains(all, t) {
			all = append(all, t)
		}
	}

	return strings.Join(all, ", ")
}

// unconfirmedMark returns the mark before the pod of holder i: "? ", or nothing if a container of the
// pod certainly holds the device. It comes before the name, because the end of a cell can be cut off.
func (u deviceUse) unconfirmedMark(i int) string {
	h := &u.Holders[i]
	if slices.ContainsFunc(u.Holders, func(o nodedoc.Holder) bool {
		return o.Namespace == h.Namespace && o.Pod == h.Pod &&
			!isUnconfirmed(&o)
	}) {
		return ""
	}

	return "? "
}

// hasUnconfirmed reports whether the drawing shows a pod with unconfirmedMark.
func (v *nodeView) hasUnconfirmed() bool {
	return v.showsUse(func(u deviceUse) bool {
		return slices.ContainsFunc(u.users(), func(t string) bool {
			return strings.HasPrefix(t, "? ")
		})
	})
}

// showsUse reports whether the drawing shows a device whose use matches.
func (v *nodeView) showsUse(matches func(deviceUse) bool) bool {
	return slices.ContainsFunc(v.doc.GPUs, func(g nodedoc.GPU) bool {
		return !isMIG(&g) && matches(v.gpuUse(&g)) ||
			slices.ContainsFunc(g.GPUInstances, func(i nodedoc.Instance) bool {
				return matches(v.instanceUse(&i)) ||
					slices.ContainsFunc(i.ComputeInstances, func(c nodedoc.ComputeInstance) bool {
						return matches(v.computeUse(&i, &c))
					})
			})
	})
}

// gpuUse returns the use of a GPU. Its state includes those of its instances.
func (v *nodeView) gpuUse(g *nodedoc.GPU) deviceUse {
	return deviceUse{g.Use, g.Evidence(v.kubelet).State()}
}

func (v *nodeView) computeUse(i *nodedoc.Instance, c *nodedoc.ComputeInstance) deviceUse {
	return deviceUse{c.Use, c.Evidence(i, v.kubelet).State()}
}

// instanceUse returns the use of a GPU instance, together with that of its compute instances.
func (v *nodeView) instanceUse(i *nodedoc.Instance) deviceUse {
	use := deviceUse{i.Use, i.Evidence(v.kubelet).State()}
	use.Holders = slices.Clone(use.Holders)

	for j := range i.ComputeInstances {
		c := &i.ComputeInstances[j]
		use.Holders = append(use.Holders, c.Holders...)

		if c.Processes.Or(0) > use.Processes.Or(0) {
			use.Processes = c.Processes
		}
	}

	return use
}

// isMIG reports whether the GPU is in MIG mode, or still has instances.
func isMIG(g *nodedoc.GPU) bool { return g.MIGMode.Current == "enabled" || len(g.GPUInstances) > 0 }

// isWhole reports whether a GPU instance has one compute instance of all its slices.
func isWhole(inst *nodedoc.Instance) bool {
	all := inst.ComputeInstances
	return len(all) == 1 && (all[0].Profile == inst.Profile || all[0].Profile == "")
}

// axisOf returns the placement axis of a GPU.
func axisOf(g *nodedoc.GPU) nodedoc.Axis {
	axis := nodedoc.Axis{
		Units:    nodedoc.AxisUnits(gpu.SliceCount{}, g.Profiles),
		Profiles: g.Profiles,
	}
	if g.Capacity != nil {
		axis.Units = nodedoc.AxisUnits(g.Capacity.MemorySlices, g.Profiles)
		axis.Available = g.Capacity.Profiles
	}

	return axis
}

// sameGPU reports whether word is a GPU's index, UUID or PCI bus id.
func sameGPU(word string, g *nodedoc.GPU) bool {
	return word == fmt.Sprint(g.Index) || strings.EqualFold(word, string(g.UUID)) ||
		g.PCIBusID != "" && strings.EqualFold(shortBusID(word), shortBusID(g.PCIBusID))
}

// shortBusID drops a domain that is 0: "00000000:65:00.0" and "0000:65:00.0" are "65:00.0".
func shortBusID(id string) string {
	domain, rest, ok := strings.Cut(id, ":")
	if ok && strings.Contains(rest, ":") && strings.Trim(domain, "0") == "" {
		return rest
	}

	return id
}

// chooseGPUs returns the GPUs that words name, in the node's order; without words, all of them.
func chooseGPUs(words []string, node *nodedoc.Document) ([]nodedoc.GPU, error) {
	gpus := node.GPUs
	if len(words) == 0 || slices.Contains(words, "all") {
		return gpus, nil
	}

	words, err := completeUUIDs(words, uuidsOf(gpus))
	if err != nil {
		return nil, err
	}

	for _, w := range words {
		if !slices.ContainsFunc(gpus, func(g nodedoc.GPU) bool { return sameGPU(w, &g) }) {
			if why := unreadText(node); why != "" {
				return nil, fmt.Errorf("no GPU %q is known yet: %s", w, why)
			}

			return nil, usageError{
				fmt.Sprintf(
					"this node has no GPU %q: name it by index, UUID or PCI bus id; migctl get "+
						"lists %s",
					w,
					nodedoc.Count(len(gpus), "GPU", "GPUs"),
				),
			}
		}
	}

	return slices.DeleteFunc(slices.Clone(gpus), func(g nodedoc.GPU) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return sameGPU(w, &g) })
	}), nil
}
