package sim

import (
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Scenario describes a node and what happens on it. Times count from the start of the clock. Load and
// Parse return it; it must not be modified.
type Scenario struct {
	Name      string // the file's name without its extension
	Node      NodeSpec
	Seed      uint64
	GPUs      []GPUSpec // by index
	Pods      []PodSpec
	Processes []ProcessSpec
	Faults    []FaultSpec
	// DriverCosts are how long calls of the driver take, in real time. The cost of a function goes
	// before the cost of its class.
	DriverCosts map[CallName]time.Duration
	digest      string // SHA-256 of the file
}

// NodeSpec is the node as a whole.
type NodeSpec struct {
	Hostname string `default:"gpu-node"`
	// Driver is the version of the GPU driver, and CUDA the version of the CUDA driver.
	Driver string `default:"580.95.05" match:"[1-9][0-9]{0,8}[.].*" expected:"a driver version such as \"580.95.05\""`   //nolint:lll // a struct tag is one line
	CUDA   string `yaml:"cuda" default:"'13.0'" match:"[1-9]\\d?[.](0|[1-9]\\d?)" expected:"a version such as \"13.0\""` //nolint:lll // a struct tag is one line

	Kubernetes bool `default:"true"`
	Privileged bool `default:"true"` // whether the driver's callers have root's rights
	// PIDNamespace is where the driver's callers run: in the host's PID namespace, or in a container's
	// own, which has none of the node's processes.
	PIDNamespace PIDNamespace `yaml:"pidNamespace" default:"host" oneof:"host container"`
	// KernelLog says whether this process may read the kernel's log.
	KernelLog bool      `yaml:"kernelLog" default:"true"`
	Allocator Allocator `default:"device-plugin" oneof:"device-plugin gke hami dra"`
	// Strategy is the device plugin's MIG strategy. With single, MIG devices are offered as
	// nvidia.com/gpu.
	Strategy string `default:"mixed" oneof:"mixed single"`
	// MIGUUIDs is the form of MIG devices' UUIDs. Drivers before R470 have the legacy form
	// MIG-GPU-<uuid>/<gi>/<ci>.
	MIGUUIDs string    `yaml:"migUUIDs" default:"uuid" oneof:"uuid legacy"`
	GIIDs    GIIDOrder `yaml:"giIDs" default:"placement" oneof:"placement creation"`
	// PassThrough makes the node a virtual machine to which GPUs are passed through. The driver
	// cannot reset them.
	PassThrough bool `yaml:"passThrough,omitempty"`
	// PersistenceMode says whether persistence mode is on, for all GPUs.
	PersistenceMode bool `yaml:"persistenceMode" default:"true"`
	// LookupOpens says which GPUs a lookup by PCI bus id opens.
	LookupOpens LookupScope `yaml:"lookupOpens" default:"own" oneof:"own all"`
	// ConfidentialComputing makes the node a confidential virtual machine whose GPUs are in
	// confidential-computing mode.
	ConfidentialComputing bool `yaml:"confidentialComputing,omitempty"`
}

// DriverBranch returns the release branch of the driver, which decides what the driver supports: 580
// of "580.95.05".
func (s *NodeSpec) DriverBranch() int {
	branch, _, _ := strings.Cut(s.Driver, ".")
	number, _ := gpu.ParseDecimal(branch)

	return int(number)
}

// CUDAVersion returns the CUDA version in NVML's form: 13000 for "13.0".
func (s *NodeSpec) CUDAVersion() int {
	major, minor, _ := strings.Cut(s.CUDA, ".")
	a, _ := gpu.ParseDecimal(major)
	b, _ := gpu.ParseDecimal(minor)

	return int(a)*1000 + int(b)*10
}

// PIDNamespace is a PID namespace. The driver reports processes by their ids in that of its caller.
type PIDNamespace string

// The PID namespaces.
const (
	PIDNamespaceHost      PIDNamespace = "host"
	PIDNamespaceContainer PIDNamespace = "container"
)

// Allocator is the program that assigns devices to containers. It decides the form of the devices'
// ids.
type Allocator string

// The allocators, with the ids that they give.
const (
	AllocatorDevicePlugin Allocator = "device-plugin" // GPU-<uuid>, MIG-<uuid>, with ::<n> where shared
	AllocatorGKE          Allocator = "gke"           // nvidia0, nvidia0/gi7, nvidia0/gi7/vgpu0
	AllocatorHAMi         Allocator = "hami"          // GPU-<uuid>-<n>
	AllocatorDRA          Allocator = "dra"           // claims: gpu-0, gpu-2-mig-1g24gb-19-0
)

// GIIDOrder is how the driver numbers GPU instances. Both ways were seen on real nodes, so clients
// must not depend on one.
type GIIDOrder string

// The ways of numbering. Each size of instance has its own range of ids: see newInstanceID.
const (
	// by the placement: the two 3g.20gb of an A100 are 1 at 0:4 and 2 at 4:4
	GIIDByPlacement GIIDOrder = "placement"
	GIIDByCreation  GIIDOrder = "creation" // the lowest free id of the range
)

// MIGModeSpec is the MIG mode that a GPU starts with.
type MIGModeSpec int

// The MIG modes of a scenario.
const (
	MIGOff MIGModeSpec = iota
	MIGOn
	MIGPending // off now, on after the next reset
)

// migModes returns the modes by their names in scenarios.
func migModes() map[string]MIGModeSpec {
	return map[string]MIGModeSpec{"false": MIGOff, "true": MIGOn, "pending": MIGPending}
}

// GPUSpec describes one GPU.
type GPUSpec struct {
	Model   gpuModel
	Minor   gpu.Opt[int]   `yaml:",omitempty" range:"0..65536"`
	Fans    int            `yaml:",omitempty" range:"0..8"`
	MIG     MIGModeSpec    `yaml:"mig,omitempty"`
	Layout  []InstanceSpec `yaml:"-"`
	Sharing SharingSpec    `yaml:",omitempty"`
}

// SharingSpec says how containers share the devices of a GPU. Replicas is 0 if they do not.
type SharingSpec struct {
	Kind     gpu.Sharing `oneof:"time-slicing mps"`
	Replicas int         `default:"2" range:"2..128"`
	Rename   bool        `yaml:",omitempty"` // the resource is called <name>.shared
}

// Workload is what one process does, over the time since its start. Unless a scenario says otherwise,
// it does some arithmetic (FP32) with half of the warps.
type Workload struct {
	Name   string               `nonzero:"a name"`
	Memory signalOf[memorySize] `yaml:",omitempty"`
	Demand
	// DRAM belongs to the shorthand sm: the share of the device's memory bandwidth that the workload
	// would draw with all of the device's SMs busy.
	DRAM signalOf[share] `yaml:"dram,omitempty"`
	// Tensor to FP16 are the shares of its SM time in which the tensor cores or the pipe are busy.
	Tensor signalOf[share] `yaml:",omitempty"`
	FP64   signalOf[share] `yaml:"fp64,omitempty"`
	FP32   signalOf[share] `yaml:"fp32" default:"0.2"`
	FP16   signalOf[share] `yaml:"fp16,omitempty"`
	// Occupancy is the share of the possible warps that are resident on its SMs.
	Occupancy signalOf[share] `default:"0.5"`

	// Media are how many media engines of each kind it keeps busy at full speed: 1.5 is one engine
	// all the time and another for half of it. If there are fewer, all of its work slows down.
	Media [mediaEngines]Signal `yaml:"-"`

	// Server makes it an inference server, whose memory follows from Server instead of Memory.
	Server *Server `yaml:",omitempty"`

	PCIe   signalOf[memorySize] `yaml:"pcie,omitempty"`   // per second and direction at full speed
	NVLink signalOf[memorySize] `yaml:"nvlink,omitempty"` // per second and direction at full speed
}

// PodSpec describes a pod.
type PodSpec struct {
	Namespace string `default:"default" match:"[a-z0-9.-]+" expected:"lower-case letters, digits, - and ."` //nolint:lll // a struct tag is one line
	Name      string `match:"[a-z0-9.-]+" expected:"lower-case letters, digits, - and . as in resnet-0"`    //nolint:lll // a struct tag is one line
	// Owner is the kind and name of the pod's owner, such as "Deployment/resnet".
	Owner string `yaml:",omitempty"`
	// Static is set for a pod from a file of the node instead of the API server.
	Static bool              `yaml:",omitempty"`
	Labels map[string]string `yaml:",omitempty"`
	// Annotations are for mig-exporter to read, such as mig-exporter.io/service-time.
	Annotations map[string]string `yaml:",omitempty"`
	Containers  []ContainerSpec   `yaml:",omitempty"`
	// At is when the pod is bound to the node, and Created when the API server got it; 0: also At.
	At      time.Duration `yaml:",omitempty"`
	Created time.Duration `yaml:",omitempty" nonzero:"more than no time; leave it out for a pod that is bound at once"` //nolint:lll // a struct tag is one line
	// For is 0 for a pod that stays.
	For   time.Duration `yaml:",omitempty" nonzero:"more than no time; leave it out for a pod that stays"`
	Waits bool          `yaml:",omitempty"` // for a free device, instead of being refused
}

// ContainerSpec is a container and the resource that it asks for.
type ContainerSpec struct {
	Name string `default:"main" match:"[a-z0-9.-]+" expected:"lower-case letters, digits, - and . as in main"`
	resourceRequest
	// Init is set for an init container: it runs before the others, and ends after For.
	Init bool          `yaml:",omitempty"`
	For  time.Duration `yaml:",omitempty" nonzero:"more than no time"`
}

// resourceRequest is a container's request for devices, and what it does with them. Workload is nil
// if the devices stay idle.
type resourceRequest struct {
	Resource string             `yaml:",omitempty"` // empty if it asks for no devices
	Count    int                `default:"1" range:"1..65536"`
	Device   gpu.Opt[DevicePin] `yaml:",omitempty"`
	Workload *Workload          `yaml:",omitempty"`
	// Admin is set for a claim with administrative access, which can be for devices that others hold.
	Admin bool `yaml:",omitempty"`
}

// ProcessSpec describes a process outside of all pods.
type ProcessSpec struct {
	Device   DevicePin `yaml:",omitempty"`
	Workload *Workload
	At       time.Duration `yaml:",omitempty"`
	For      time.Duration `yaml:",omitempty"`
}
