package sim

// watchPlugin records when the device plugin begins to offer nothing, and when it offers devices
// again.
func (n *Node) watchPlugin() {
	now := n.singleStrategyError()
	switch {
	case now == n.pluginError:
		return
	case now == "":
		n.record(Record{Message: "the device plugin offers devices again"})
	default:
		n.record(Record{Message: "the device plugin offers nothing: " + now})
	}

	n.pluginError = now
}

// singleStrategyError returns why NVIDIA's device plugin offers nothing on a node as it is now:
// with the MIG strategy single it does not start unless all GPUs are without MIG, or all have MIG
// devices of one kind (k8s-device-plugin, internal/rm/device_map.go, assertAllMigDevicesAreValid).
// It is empty with other allocators and strategies.
func (n *Node) singleStrategyError() string {
	spec := &n.scenario.Node
	if spec.Strategy != "single" || spec.Allocator != AllocatorDevicePlugin {
		return ""
	}

	var kind string
	var whole bool

	for _, g := range n.gpus {
		if !g.migOn {
			whole = true
			continue
		}

		none := true

		for _, i := range g.instances {
			for _, c := range i.ComputeInstances {
				none = false

				if kind != "" && kind != c.Profile {
					return "more than one MIG device type present on node"
				}

				kind = c.Profile
			}
		}

		if none {
			return "at least one device with migEnabled=true was not configured correctly"
		}
	}

	if whole && kind != "" {
		return "all devices on the node must be configured with the same migEnabled value"
	}

	return ""
}
