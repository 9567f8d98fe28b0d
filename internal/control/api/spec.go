package api

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// Spec says which instances the node shall have, in exactly one of three forms:
//   - a named layout: Layout is the name of a built-in one or of one in the node's own file, or a
//     key of MIGConfigs, which is an inline document in mig-parted's form
//   - counts of instances for chosen GPUs: GPUs with Devices
//   - further instances of any profile that is large enough: Demand
//
// The tags of these types say how package strictyaml reads and checks such documents.
type Spec struct {
	Layout string `json:"layout,omitempty" nonzero:"the name of a layout" expected:"the name of a layout"`
	// Version and MIGConfigs are the keys of mig-parted's file.
	Version    string                  `json:"version,omitempty" oneof:"v1" expected:"v1"`
	MIGConfigs map[string][]LayoutRule `json:"mig-configs,omitempty"`

	GPUs []Selector `json:"gpus,omitempty" range:"0..256" expected:"a list of indexes, UUIDs or PCI bus ids of GPUs"` //nolint:lll // a struct tag is one line
	// Devices has requests by the name or id of a profile. If it is empty, but not nil, the GPUs
	// shall have no instances.
	Devices map[string]DeviceRequest `json:"devices,omitzero"`

	Demand []Need `json:"demand,omitempty" range:"0..64" expected:"a list of needs such as {memory: 12GiB, count: 3}"` //nolint:lll // a struct tag is one line
}

// LayoutRule is one rule of a layout in mig-parted's form.
type LayoutRule struct {
	Devices      DeviceList     `json:"devices"` // "all" or a list of indexes
	DeviceFilter Strings        `json:"device-filter,omitempty" range:"0..256"`
	MIGEnabled   bool           `json:"mig-enabled"`
	MIGDevices   map[string]int `json:"mig-devices,omitzero"`
}

// Need asks for Count further instances, each with at least this much memory and this many SMs.
type Need struct {
	Memory Bytes `json:"memory,omitempty"`
	SMs    int   `json:"sms,omitempty" range:"0..1048576" expected:"a number of SMs"`
	Count  int   `json:"count" default:"1" range:"0..64" expected:"a count of 0 to 64"`
}

// DeviceRequest asks for instances of one profile. In a document it is a count such as 2, or
// {"count": 2, "compute": ["1c", "2c"]} for instances with these compute instances each, or a list
// of these, for instances that are split in different ways.
type DeviceRequest struct {
	Count int `json:"count" default:"1" range:"0..64" expected:"a count of 0 to 64"`
	// Compute are the compute instances of each instance. nil asks for one with all slices, an empty
	// list for none.
	Compute []string `json:"compute,omitempty" range:"0..16" expected:"a list of compute instances, such as [1c, 2c]"` //nolint:lll // a struct tag is one line
	// Each is the list. If it is not nil, Count and Compute are unused. Its items have no Each.
	Each []DeviceRequest `json:"-"`
}

// NamedLayout is a named layout that the node knows.
type NamedLayout struct {
	Name  string       `json:"name"`
	Rules []LayoutRule `json:"rules"`
	// Applies lists the GPUs that its rules are for.
	Applies []gpu.UUID `json:"applies"`
	// BuiltIn is set unless the layout is from the operator's file.
	BuiltIn bool `json:"builtIn,omitempty"`
}

// NamedLayouts answers GET /api/v1/layouts.
type NamedLayouts struct {
	APIVersion string        `json:"apiVersion"`
	Layouts    []NamedLayout `json:"layouts"`
}
