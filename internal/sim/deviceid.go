package sim

import (
	"fmt"
	"strings"
)

// deviceID returns the id that the allocator gives to a granted device, as the kubelet's
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

// gkeID returns the id in GKE's form: "nvidia0", "nvidia0/gi7", "nvidia0/gi7/vgpu0" or
// "nvidia0/vgpu1". The numbers are the GPU's minor number, the id of the GPU instance, and which
// part of a shared device it is.
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

// claimDeviceName returns the name that the DRA driver gives to a device: "gpu-0", or
// "gpu-2-mig-1g24gb-19-0" with the minor number, the profile, the profile's id and the start of the
// placement.
func claimDeviceName(g grant) string {
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
