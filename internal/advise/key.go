package advise

import (
	"cmp"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Key identifies a workload on a kind of device, over the pods and devices that come and go.
type Key struct {
	Namespace string `json:"namespace,omitempty"`
	// Owner is what runs the workload:
	//   - "Deployment/resnet": the pod's owner
	//   - "label/<value>": a label of the pod names its workload
	//   - "Pod/<name>": the pod has no owner that we know
	//   - "batch/<name>": a job of a batch scheduler
	//   - "processes/<GPU UUID>": processes of no container and no job
	//   - "tenants/<GPU UUID>": all workloads on the GPU instances of a GPU together; it is never in
	//     a Report
	Owner     string `json:"owner"`
	Container string `json:"container,omitempty"`
	// Shared is set if several containers hold the device: the workload is what they do together.
	Shared bool `json:"shared,omitempty"`
	// Model is the GPU's product name, Profile the GPU instance's; empty for a whole GPU.
	Model   string `json:"model"`
	Profile string `json:"profile,omitempty"`
}

// compare orders keys.
func (k Key) compare(l Key) int {
	return cmp.Or(
		cmp.Compare(k.Namespace, l.Namespace),
		cmp.Compare(k.Owner, l.Owner),
		cmp.Compare(k.Container, l.Container),
		cmp.Compare(k.Model, l.Model),
		cmp.Compare(k.Profile, l.Profile),
		compareBools(k.Shared, l.Shared),
	)
}

// compareBools orders false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}

	return 1
}

// tenantsKey returns the key of all workloads on the GPU instances of a GPU together.
func tenantsKey(g *gpu.GPU) Key { return Key{Owner: "tenants/" + string(g.UUID), Model: g.Name} }

// keyOf returns the key of the workload that holds a device; false if none does. Several holders are one
// workload together.
func keyOf(
	g *gpu.GPU,
	profile string,
	holders []gpu.Holder,
	jobs []string,
	processes int,
) (Key, bool) {
	key := Key{Model: g.Name, Profile: profile}

	switch {
	case len(holders) > 0:
		h := &holders[0]

		key.Namespace = h.Namespace
		key.Container = h.Name

		key.Owner = cmp.Or(h.Workload, "Pod/"+h.Pod)
		if named := h.Rightsizing.Workload; named != "" {
			key.Owner = "label/" + named
		}

		key.Shared = len(holders) > 1 || h.Sharing != gpu.SharingExclusive
	case len(jobs) > 0:
		key.Owner = "batch/" + jobs[0]
		key.Shared = len(jobs) > 1
	case processes > 0:
		key.Owner = "processes/" + string(g.UUID)
	default:
		return Key{}, false
	}

	return key, true
}
