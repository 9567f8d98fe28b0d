package sim

import (
	"fmt"
	"strings"
)

// deviceID is the id of a granted device in the form of the allocator, as the kubelet's
// pod-resources API shows it.
func (n *Node) deviceID(g grant) string {
	switch n.scenario.Node.Allocator {
	case AllocatorGKE:
		return gkeID(g)
	case AllocatorHAMi:
		return fmt.Sprintf("%s-%d", g.gpu.uuid, g.replica)
	}

	id := string(g.gpu.uuid)
	if g.compute != nil {
		id = string(g.compute.UUID)
	}

	if g.shared {
		id = fmt.Sprintf("%s::%d", id, g.replica)
	}

	return id
}

// gkeID is "nvidia0", "nvidia0/gi7", "nvidia0/gi7/vgpu0" or "nvidia0/vgpu1": the minor number, the
// GPU instance and the part of a shared device.
func gkeID(g grant) string {
	id := fmt.Sprintf("nvidia%d", g.gpu.minor)
	if g.instance != nil {
		id += fmt.Sprintf("/gi%d", g.instance.ID)
	}

	if g.shared {
		id += fmt.Sprintf("/vgpu%d", g.replica)
	}

	return id
}

// claimDevice is the name that the DRA driver gives to a device: "gpu-0", or
// "gpu-2-mig-1g24gb-19-0" with the minor number, the profile, its id and the start of the
// placement.
func claimDevice(g grant) string {
	if g.instance == nil {
		return fmt.Sprintf("gpu-%d", g.gpu.minor)
	}

	profile := g.instance.Profile

	return fmt.Sprintf(
		"gpu-%d-mig-%s-%d-%d",
		g.gpu.minor,
		strings.ReplaceAll(profile.Name, ".", ""),
		profile.ID,
		g.instance.Placement.Start,
	)
}
