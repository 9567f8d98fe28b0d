package gpu

import "time"

// Sharing tells how the holders of one device share it.
type Sharing string

// The ways of sharing. SharingReplica is time-slicing or MPS before it is known which.
const (
	SharingExclusive   Sharing = "exclusive"
	SharingTimeSlicing Sharing = "time-slicing"
	SharingMPS         Sharing = "mps"
	SharingHAMi        Sharing = "hami"
	SharingClaim       Sharing = "claim" // several containers of one DRA claim
	SharingReplica     Sharing = "replica"
)

// Label is one pod label that an operator chose to show, under its Kubernetes name.
type Label struct {
	Name, Value string
}

// PodMetadata is what is known of a pod beside what the kubelet tells. It is immutable once handed out.
type PodMetadata struct {
	Workload string // the pod's owner, "Deployment/resnet"; empty for a bare pod
	Labels   []Label
	// MIGDevices are those that HAMi reserved: for each container that has any, in the order of the pod's spec.
	MIGDevices [][]DeviceRef
}

// Container names a container of a pod.
type Container struct {
	Namespace, Pod, Name string
}

// Holder is a container that was given a device, or a part of one.
type Holder struct {
	Container
	Workload string // the pod's owner, "Deployment/resnet"; empty where unknown
	Resource string // what it asked for, such as "nvidia.com/mig-3g.20gb"; a DRA claim as "claim/<namespace>/<name>"
	Sharing  Sharing
	Replica  string // which part of a shared device; empty where exclusive
	Labels   []Label
	// Since is when it was first seen to hold the device alone; zero where it shares it.
	Since time.Time
}

// ContainerMemory is the memory of one container's processes on a GPU that it shares. Instance and Compute are
// present where what it shares is a MIG device.
type ContainerMemory struct {
	Container
	Instance  Opt[InstanceID]
	Compute   Opt[ComputeID]
	UsedBytes uint64
}

// Assignment is one device, or one part of it, given to one container.
type Assignment struct {
	Device DeviceRef
	Holder Holder
	// Seen orders assignments by when they were first seen; of two exclusive holders of a device the later one counts.
	Seen uint64
}

// Assignments is what an allocator says of the whole node. It is immutable once handed out.
type Assignments struct {
	List []Assignment
	// Garbled counts device ids that could not be read.
	Garbled int
}
