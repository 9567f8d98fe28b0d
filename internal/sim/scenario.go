package sim

import (
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Scenario is a node and what happens on it. Times count from the start of the clock. It is read by
// Load and Parse and must not be modified afterwards.
type Scenario struct {
	Name      string // the file's name without its extension
	Node      NodeSpec
	Seed      uint64
	GPUs      []GPUSpec // by index
	Pods      []PodSpec
	Processes []ProcessSpec
	Faults    []FaultSpec
	// DriverCosts are how long calls of the driver take, in real time; a function's own goes before
	// its class'.
	DriverCosts map[CallName]time.Duration
	digest      string // of the file
}

// NodeSpec is the node as a whole.
type NodeSpec struct {
	Hostname string `default:"gpu-node"`
	// Driver is the driver's version, and CUDA that of the CUDA driver.
	Driver string `default:"580.95.05" match:"[1-9][0-9]{0,8}[.].*" expected:"a driver version such as \"580.95.05\""`   //nolint:lll // a struct tag is one line
	CUDA   string `yaml:"cuda" default:"'13.0'" match:"[1-9]\\d?[.](0|[1-9]\\d?)" expected:"a version such as \"13.0\""` //nolint:lll // a struct tag is one line

	Kubernetes bool `default:"true"`
	Privileged bool `default:"true"` // whether the driver's callers have root's rights
	// PIDNamespace is that of the driver's callers: the host's, or a container's own, in which
	// nothing of the node runs.
	PIDNamespace PIDNamespace `yaml:"pidNamespace" default:"host" oneof:"host container"`
	// KernelLog is whether this process may read the kernel's log.
	KernelLog bool      `yaml:"kernelLog" default:"true"`
	Allocator Allocator `default:"device-plugin" oneof:"device-plugin gke hami dra"`
	// Strategy is the device plugin's MIG strategy. With single, MIG devices are offered as
	// nvidia.com/gpu.
	Strategy string `default:"mixed" oneof:"mixed single"`
	// MIGUUIDs is the form of MIG devices' UUIDs. Legacy is that of drivers before R470,
	// MIG-GPU-<uuid>/<gi>/<ci>.
	MIGUUIDs string    `yaml:"migUUIDs" default:"uuid" oneof:"uuid legacy"`
	GIIDs    GIIDOrder `yaml:"giIDs" default:"placement" oneof:"placement creation"`
	// PassThrough makes the node a virtual machine that GPUs are passed through to: the driver
	// cannot reset them itself.
	PassThrough bool `yaml:"passThrough,omitempty"`
	// PersistenceMode is that of all GPUs.
	PersistenceMode bool `yaml:"persistenceMode" default:"true"`
	// LookupOpens is which GPUs a lookup by PCI bus id opens.
	LookupOpens LookupScope `yaml:"lookupOpens" default:"own" oneof:"own all"`
	// ConfidentialComputing makes the node a confidential virtual machine whose GPUs are in
	// confidential-computing mode.
	ConfidentialComputing bool `yaml:"confidentialComputing,omitempty"`
}

// DriverBranch is the release branch of the driver, 580 of "580.95.05": what it knows depends on
// it.
func (s *NodeSpec) DriverBranch() int {
	branch, _, _ := strings.Cut(s.Driver, ".")
	number, _ := gpu.ParseDecimal(branch)

	return int(number)
}

// CUDAVersion is the CUDA version in NVML's form, 13000 of "13.0".
func (s *NodeSpec) CUDAVersion() int {
	major, minor, _ := strings.Cut(s.CUDA, ".")
	a, _ := gpu.ParseDecimal(major)
	b, _ := gpu.ParseDecimal(minor)

	return int(a)*1000 + int(b)*10
}

// PIDNamespace is where the driver's callers run. The driver reports processes by their ids in it.
type PIDNamespace string

// The PID namespaces.
const (
	PIDNamespaceHost      PIDNamespace = "host"
	PIDNamespaceContainer PIDNamespace = "container"
)

// Allocator is the program that assigns devices to containers. It decides the form of their ids.
type Allocator string

// The allocators.
const (
	AllocatorDevicePlugin Allocator = "device-plugin" // GPU-<uuid>, MIG-<uuid>, with ::<n> where shared
	AllocatorGKE          Allocator = "gke"           // nvidia0, nvidia0/gi7, nvidia0/gi7/vgpu0
	AllocatorHAMi         Allocator = "hami"          // GPU-<uuid>-<n>
	AllocatorDRA          Allocator = "dra"           // claims: gpu-0, gpu-2-mig-1g24gb-19-0
)

// GIIDOrder is how the driver numbers GPU instances: both ways were seen, nothing may depend on it.
type GIIDOrder string

// The ways of numbering. Each size of a placement has its own range of ids (0, then 1-2, 3-6,
// 7-14).
const (
	// by its placement: the two 3g.20gb of an A100 are 1 at 0:4 and 2 at 4:4
	GIIDByPlacement GIIDOrder = "placement"
	GIIDByCreation  GIIDOrder = "creation" // the lowest free one of the range
)

// MIGModeSpec is the MIG mode that a GPU starts with.
type MIGModeSpec int

// The MIG modes of a scenario.
const (
	MIGOff MIGModeSpec = iota
	MIGOn
	MIGPending // off, to be on after the next reset
)

// migModes are the modes by their names in scenarios.
func migModes() map[string]MIGModeSpec {
	return map[string]MIGModeSpec{"false": MIGOff, "true": MIGOn, "pending": MIGPending}
}

// GPUSpec is one GPU.
type GPUSpec struct {
	Model   gpuModel
	Minor   gpu.Opt[int] `yaml:",omitempty" range:"0..65536"`
	Fans    int          `yaml:",omitempty" range:"0..8"`
	MIG     MIGModeSpec  `yaml:"mig,omitempty"`
	Layout  []LayoutSpec `yaml:"-"`
	Sharing SharingSpec  `yaml:",omitempty"`
}

// SharingSpec is how the devices of a GPU are shared among containers. Replicas is 0 if they are
// not.
type SharingSpec struct {
	Kind     gpu.Sharing `oneof:"time-slicing mps"`
	Replicas int         `default:"2" range:"2..128"`
	Rename   bool        `yaml:",omitempty"` // the resource is called <name>.shared
}

// Workload is what one process does: demands over the time since its start. One that does not say
// so does some arithmetic, with half of the warps.
type Workload struct {
	Name   string               `nonzero:"a name"`
	Memory signalOf[memorySize] `yaml:",omitempty"`
	Demand
	// DRAM is of the shorthand sm: share of the memory bandwidth of its device in use while all SMs
	// are busy.
	DRAM   signalOf[share] `yaml:"dram,omitempty"`
	Tensor signalOf[share] `yaml:",omitempty"` // share of its SM time with the tensor cores busy
	// Shares of its SM time with the pipe busy, and of the warps that could be resident.
	FP64      signalOf[share] `yaml:"fp64,omitempty"`
	FP32      signalOf[share] `yaml:"fp32" default:"0.2"`
	FP16      signalOf[share] `yaml:"fp16,omitempty"`
	Occupancy signalOf[share] `default:"0.5"`

	// Media are the media engines of each kind that it keeps busy at full speed: 1.5 is one all the
	// time and another half of it. With fewer, all of its work is slower.
	Media [mediaEngines]Signal `yaml:"-"`

	// Server makes it an inference server, which takes its memory by itself.
	Server *Server `yaml:",omitempty"`

	PCIe   signalOf[memorySize] `yaml:"pcie,omitempty"`   // per second and direction at full speed
	NVLink signalOf[memorySize] `yaml:"nvlink,omitempty"` // per second and direction at full speed
}

// PodSpec is a pod that asks for devices at a time.
type PodSpec struct {
	Namespace string `default:"default" match:"[a-z0-9.-]+" expected:"lower-case letters, digits, - and ."` //nolint:lll // a struct tag is one line
	Name      string `match:"[a-z0-9.-]+" expected:"lower-case letters, digits, - and . as in resnet-0"`    //nolint:lll // a struct tag is one line
	// Owner is such as "Deployment/resnet".
	Owner string `yaml:",omitempty"`
	// Static is from a file of the node instead of the API server.
	Static bool              `yaml:",omitempty"`
	Labels map[string]string `yaml:",omitempty"`
	// Annotations are those that mig-exporter reads, such as mig-exporter.io/service-time.
	Annotations map[string]string `yaml:",omitempty"`
	Containers  []ContainerSpec   `yaml:",omitempty"`
	At          time.Duration     `yaml:",omitempty"`
	// Created is when the API server got the pod, which is bound to the node at At; 0: then, too.
	Created time.Duration `yaml:",omitempty" nonzero:"more than no time; leave it out for a pod that is bound at once"` //nolint:lll // a struct tag is one line
	// For is 0 for a pod that stays.
	For   time.Duration `yaml:",omitempty" nonzero:"more than no time; leave it out for a pod that stays"`
	Waits bool          `yaml:",omitempty"` // for a free device, instead of being refused
}

// ContainerSpec is a container and the resource that it asks for.
type ContainerSpec struct {
	Name string `default:"main" match:"[a-z0-9.-]+" expected:"lower-case letters, digits, - and . as in main"`
	resourceRequest
	// Init is set for an init container, which runs before the others, for the time For.
	Init bool          `yaml:",omitempty"`
	For  time.Duration `yaml:",omitempty" nonzero:"more than no time"`
}

// resourceRequest is what a container asks for. Workload is nil if its devices stay idle.
type resourceRequest struct {
	Resource string             `yaml:",omitempty"` // empty if it asks for none
	Count    int                `default:"1" range:"1..65536"`
	Device   gpu.Opt[DevicePin] `yaml:",omitempty"`
	Workload *Workload          `yaml:",omitempty"`
	// Admin is set for a claim with administrative access, on devices that others may hold.
	Admin bool `yaml:",omitempty"`
}

// ProcessSpec is a process of a bare node, or of the host.
type ProcessSpec struct {
	Device   DevicePin `yaml:",omitempty"`
	Workload *Workload
	At       time.Duration `yaml:",omitempty"`
	For      time.Duration `yaml:",omitempty"`
}
