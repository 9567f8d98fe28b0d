package sim

// watchPlugin records when the device plugin begins to offer nothing, and when it offers devices
// again.
func (n *Node) watchPlugin() {
	problem := n.singleStrategyError()
	switch {
	case problem == n.pluginError:
		return
	case problem == "":
		n.record(Record{Message: "the device plugin offers devices again"})
	default:
		n.record(Record{Message: "the device plugin offers nothing: " + problem})
	}

	n.pluginError = problem
}

// singleStrategyError returns why NVIDIA's device plugin offers nothing on the node as it is now;
// empty if it offers devices. With the MIG strategy single it does not start unless all GPUs are
// without MIG, or all have MIG devices of one profile (k8s-device-plugin, internal/rm/device_map.go,
// assertAllMigDevicesAreValid).
func (n *Node) singleStrategyError() string {
	spec := &n.scenario.Node
	if spec.Strategy != "single" || spec.Allocator != AllocatorDevicePlugin {
		return ""
	}

	var profile string // of all MIG devices so far
	var hasWholeGPU bool

	for _, g := range n.gpus {
		if !g.migOn {
			hasWholeGPU = true
			continue
		}

		hasDevice := false

		for _, i := range g.instances {
			for _, c := range i.ComputeInstances {
				hasDevice = true

				if profile != "" && profile != c.Profile {
					return "more than one MIG device type present on node"
				}

				profile = c.Profile
			}
		}

		if !hasDevice {
			return "at least one device with migEnabled=true was not configured correctly"
		}
	}

	if hasWholeGPU && profile != "" {
		return "all devices on the node must be configured with the same migEnabled value"
	}

	return ""
}
