package sim

// Container is a container that the simulated kubelet has admitted, with what the kubelet's
// pod-resources API and the node's process table show of it.
type Container struct {
	Namespace, Pod, Name string
	Owner                string            // "Deployment/resnet"; empty for a bare pod
	Labels               map[string]string // the pod's labels
	PodUID               string
	ID                   string // the container runtime's id, 64 hexadecimal digits
	Devices              []DeviceGrant
	Claims               []Claim
	PIDs                 []uint32
}

// DeviceGrant is the ids of devices of one resource, in the form of the scenario's allocator.
type DeviceGrant struct {
	Resource string
	IDs      []string
}

// Claim is a dynamic resource claim (DRA) of a container.
type Claim struct {
	Name, Namespace string
	Driver          string // "gpu.nvidia.com"
	Pool, Device    string // such as "gpu-2-mig-1g24gb-19-0"
	Admin           bool   // for administrative access: others can have the device as well
}
