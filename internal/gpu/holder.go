package gpu

import (
	"strings"
	"time"
)

// Sharing is how the holders of one device share it.
type Sharing string

// The ways of sharing. SharingReplica is time-slicing or MPS, as long as we don't know which.
const (
	SharingExclusive   Sharing = "exclusive"
	SharingTimeSlicing Sharing = "time-slicing"
	SharingMPS         Sharing = "mps"
	SharingHAMi        Sharing = "hami"
	SharingClaim       Sharing = "claim" // several containers of one DRA claim
	SharingReplica     Sharing = "replica"
	SharingUnknown     Sharing = "unknown" // allocators contradict each other, or do not report it
)

// Label is one pod label that an operator chose to show, under its Kubernetes name.
type Label struct {
	Name, Value string
}

// PodMetadata is what the API server knows of a pod. It must not be modified once returned.
type PodMetadata struct {
	UID      string
	Workload string // the pod's owner, "Deployment/resnet"; empty for a bare pod and for a static one
	Template string // the version of the owner's pod template, as a hash; empty if the owner gives none
	Labels   []Label
	// Rightsizing is what the pod's annotations and labels say about right-sizing.
	Rightsizing RightsizingHints
	Group       PodGroup // the job that the pod is part of
	// MIGDevices are the MIG devices that HAMi has reserved for the pod: a list for each container
	// that has any, in the order of the pod's spec.
	MIGDevices [][]DeviceRef
}

// ClaimDevice is one device of a ResourceClaim, by the names in the claim's status.
type ClaimDevice struct {
	Namespace, Claim     string
	Driver, Pool, Device string
}

// PodName names a pod at one time. A later pod may have the same name.
type PodName struct {
	Namespace, Name string
}

// String returns "namespace/name".
func (p PodName) String() string { return p.Namespace + "/" + p.Name }

// Container names a container of a pod.
type Container struct {
	Namespace, Pod, Name string
}

// Holder is a container that was given a device, or a part of one.
type Holder struct {
	Container
	PodUID   string // empty if unknown
	Workload string // the pod's owner, "Deployment/resnet"; empty if unknown
	Template string // see PodMetadata.Template
	// Resource is what the container requested, such as "nvidia.com/mig-3g.20gb", or for a DRA
	// claim "claim/<namespace>/<name>".
	Resource string
	Sharing  Sharing
	Replica  string // which replica of a shared device it has; empty if exclusive
	Labels   []Label
	// Since is when the holder was first seen to hold the device exclusively; zero if it shares it.
	Since time.Time
	// Unconfirmed is why we do not know whether the container holds the device; empty for a holder
	// that the kubelet lists. A device with an unconfirmed holder is neither allocated nor free.
	Unconfirmed string
	// Rightsizing is what the pod's annotations and labels say about right-sizing.
	Rightsizing RightsizingHints
	Group       PodGroup // the job that the pod is part of
	// Undescribed is set for at most a second, while we ask the API server about the pod of a new
	// holder: until then no series names the holder.
	Undescribed bool
}

// ClaimPrefix begins the Resource of a holder that has its device by a DRA claim.
const ClaimPrefix = "claim/"

// ByClaim reports whether the holder has its device by a DRA claim, not from a device plugin.
func (h *Holder) ByClaim() bool { return strings.HasPrefix(h.Resource, ClaimPrefix) }

// RightsizingHints are a pod's annotations under mig-exporter.io/, with an example of each below,
// and the label that names its workload.
type RightsizingHints struct {
	Workload   string       // by the label, used instead of the owner; empty without the label
	OptOut     bool         // we recommend nothing for the pod, rightsizing: "off"
	Strict     bool         // as --advise.strict for this pod, strict: "true"
	MaxStretch Opt[float64] // instead of --advise.max-stretch, max-stretch: "1.5"
	// ServiceTime is how long the GPU works on a request if it has nothing else to do,
	// service-time: "120ms". Closed is set by service-time: "none": no client waits for single
	// requests, so only throughput counts.
	ServiceTime Opt[time.Duration]
	Closed      bool
	ModelMemory Opt[uint64] // bytes of a model's weights, model-memory: "14Gi"
	// Server is where the pod's inference server has its metrics, server-metrics: ":8000/metrics";
	// zero if the annotation is missing.
	Server   ServerEndpoint
	MultiGPU Opt[bool] // whether the pod is part of a job on several GPUs, multi-gpu: "true"
}

// ExclusiveHolder returns the holder that has a device to itself: the only one, or the only
// confirmed one besides unconfirmed ones. It returns nil if there is none. The result points into
// holders.
func ExclusiveHolder(holders []Holder) *Holder {
	var only *Holder

	for i := range holders {
		h := &holders[i]
		if h.Unconfirmed != "" && len(holders) > 1 {
			continue
		}

		if only != nil {
			return nil
		}

		only = h
	}

	if only == nil || only.Sharing != SharingExclusive {
		return nil
	}

	return only
}

// ContainerUse is what one container uses of a device that it was given: a GPU, a GPU instance
// without a compute instance, or a compute instance. On a node without Kubernetes it is the use of
// a batch job, and Container is zero.
type ContainerUse struct {
	Container
	Job      string          // the batch job; empty if we know none, or several
	Instance Opt[InstanceID] // present if the device is a part of the GPU
	Compute  Opt[ComputeID]  // present if it is a compute instance
	Sharing  Sharing
	// MemoryUsed is in bytes. For a device that the container holds exclusively it is all memory
	// used on the device, or the memory of all its processes if the device is a part of a split GPU
	// instance. For a shared device it is the memory of the container's own processes.
	MemoryUsed Opt[uint64]
	// PowerWatts and EnergyJoules are the device's, estimated for a part of a GPU; absent for a
	// shared device. EnergyJoules begins at 0 when the container gets the device.
	PowerWatts   Opt[float64]
	EnergyJoules Opt[Counter]
}

// Offer is a device that an allocator can assign.
type Offer struct {
	Device   DeviceRef
	Resource string // what a container requests to get it, such as "nvidia.com/mig-3g.20gb"
}

// Assignment is one device, or one part of it, assigned to one container.
type Assignment struct {
	ID     string // of the device, as the allocator writes it
	Device DeviceRef
	Holder Holder
	// FirstListNumber is the number of the allocator's list that had the assignment first: lists
	// are numbered from 1. Of two exclusive holders of a device, the one with the larger number
	// counts.
	FirstListNumber uint64
	// LastListed is when the allocator last listed the assignment. It cannot be about a device that
	// was created later, even if that has the same ID.
	LastListed time.Time
}

// Assignments is what we know of the holders of a node's devices. It must not be modified once
// returned.
type Assignments struct {
	List []Assignment
	// Unreadable are the assignments whose ID we cannot parse. Their Device is zero.
	Unreadable []Assignment
	// Incomplete is why a device without a holder in List may be held nevertheless; empty if List
	// has all holders.
	Incomplete string
	// Free are the devices that an operator has confirmed to be free although Incomplete is set. A
	// GPU stands for all of its instances.
	Free []DeviceRef
	// Witness is whether you have named a pod that must be in List (--kubernetes.witness-pod).
	// Without one, List is never complete.
	Witness bool
	// Epoch grows when an allocator has restarted and earlier knowledge no longer counts.
	Epoch uint64
}
