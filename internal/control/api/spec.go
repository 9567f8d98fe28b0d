package api

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// Spec says what is wanted of the node, in exactly one of three forms: a named layout (Layout, one
// of the built-in ones or of the node's own file, or from MIGConfigs, an inline document of
// mig-parted's form); counts of instances for chosen GPUs (GPUs with Devices); a demand for further
// instances of whichever profile (Demand).
//
// Documents of specs are read by the tags of these types, see strictyaml.
type Spec struct {
	Layout string `json:"layout,omitempty" nonzero:"the name of a layout" expected:"the name of a layout"`
	// Version and MIGConfigs are those of mig-parted's file, v1.
	Version    string                  `json:"version,omitempty" oneof:"v1" expected:"v1"`
	MIGConfigs map[string][]LayoutRule `json:"mig-configs,omitempty"`

	GPUs []Selector `json:"gpus,omitempty" range:"0..256" expected:"a list of indexes, UUIDs or PCI bus ids of GPUs"` //nolint:lll // a struct tag is one line
	// Devices are by profile name or id; empty: no instances.
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

// Need asks for a number of further instances of at least so much memory and so many SMs; without a
// count for one.
type Need struct {
	Memory Bytes `json:"memory,omitempty"`
	SMs    int   `json:"sms,omitempty" range:"0..1048576" expected:"a number of SMs"`
	Count  int   `json:"count" default:"1" range:"0..64" expected:"a count of 0 to 64"`
}

// DeviceRequest is a count, or {"count": 1, "compute": ["1c", "2c"]}: the compute instances of each.
// Without compute there is one of all slices, with an empty list none; without a count it is 1. It
// may also be a list of these, for instances of one profile that are split in different ways.
type DeviceRequest struct {
	Count   int      `json:"count" default:"1" range:"0..64" expected:"a count of 0 to 64"`
	Compute []string `json:"compute,omitempty" range:"0..16" expected:"a list of compute instances, such as [1c, 2c]"` //nolint:lll // a struct tag is one line
	// Each is the list; if it is not nil, Count and Compute mean nothing, and neither do the Each
	// of its items.
	Each []DeviceRequest `json:"-"`
}

// NamedLayout is a named layout that the node knows.
type NamedLayout struct {
	Name  string       `json:"name"`
	Rules []LayoutRule `json:"rules"`
	// Applies lists the GPUs that its rules are for.
	Applies []gpu.UUID `json:"applies"`
	// BuiltIn is set if it is not from the operator's file.
	BuiltIn bool `json:"builtIn,omitempty"`
}

// NamedLayouts answers GET /api/v1/layouts.
type NamedLayouts struct {
	APIVersion string        `json:"apiVersion"`
	Layouts    []NamedLayout `json:"layouts"`
}
