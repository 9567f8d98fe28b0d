package mig

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// modelTable is the table of known models: published captures and documents, named in each entry's
// "source". It serves the simulated node, tests and offline planning; on a real GPU the driver is
// the authority, whose names, memory sizes and even profile sets differ between versions. null
// means that no source has the value.
//
//go:embed models.json
var modelTable []byte

// Model is one kind of GPU that offers MIG. A number or list that no source has is zero or empty
// here; that includes the ids of profiles, so only a model with PlacementsKnown has profiles that
// can be told apart by id.
type Model struct {
	Name, Architecture string
	Aliases            []string
	// PCIDeviceIDs are PCI device ids of GPUs of this model, without the vendor's.
	PCIDeviceIDs []uint32
	// ComputeSlices is the number of the GPU's compute slices, AxisUnits the length of its
	// placement axis, which is its number of memory slices.
	ComputeSlices, AxisUnits int
	// SMs of the largest profile, which may be fewer than the GPU's (A100: 98 of 108).
	SMs      int
	Profiles []gpu.Profile
	// Derived lists, by profile name, the keys of its table entry whose values no source reports:
	// we concluded them, as Source explains. They are good enough for simulation and for plans
	// without a driver, but must not be shown as facts.
	Derived map[string][]string
	// Source says which captures and documents the numbers are from.
	Source string
}

// PlacementsKnown reports whether the possible placements of every profile are known: then the
// model has a geometry that can be simulated and planned for, and its profiles have their ids,
// slices, SMs and memory.
func (m Model) PlacementsKnown() bool {
	return len(m.Profiles) > 0 &&
		!slices.ContainsFunc(m.Profiles, func(p gpu.Profile) bool { return len(p.Placements) == 0 })
}

// Models lists the known models in the table's order. Each call decodes the table again: the caller
// owns the result.
func Models() []Model {
	var entries []modelEntry
	decoder := json.NewDecoder(bytes.NewReader(modelTable))
	decoder.DisallowUnknownFields()

	if err := decoder.Decode(&entries); err != nil {
		// The table is embedded, and the tests decode it.
		panic(fmt.Sprintf("mig: embedded models.json: %v", err))
	}

	models := make([]Model, 0, len(entries))
	for _, e := range entries {
		models = append(models, e.model())
	}

	return models
}

// modelEntry is a model as models.json has it.
type modelEntry struct {
	Name          string         `json:"name"`
	Architecture  string         `json:"architecture"`
	Aliases       []string       `json:"aliases"`
	PCIDeviceIDs  []hexID        `json:"pciDeviceIDs"`
	ComputeSlices int            `json:"computeSlices"`
	AxisUnits     int            `json:"axisUnits"`
	SMs           int            `json:"sms"`
	Source        string         `json:"source"`
	Profiles      []profileEntry `json:"profiles"`
}

// profileEntry is a profile as models.json has it.
type profileEntry struct {
	Name          string           `json:"name"`
	ID            uint32           `json:"id"`
	Enum          int              `json:"enum"`
	ComputeSlices int              `json:"computeSlices"`
	MemorySlices  int              `json:"memorySlices"`
	MemoryMiB     uint64           `json:"memoryMiB"`
	Derived       []string         `json:"derived"`
	SMs           int              `json:"sms"`
	MaxInstances  int              `json:"maxInstances"`
	Placements    []placementEntry `json:"placements"`
	Engines       *enginesEntry    `json:"engines"`
}

// enginesEntry has the fields of gpu.Engines under the table's names.
type enginesEntry struct {
	Copy    int `json:"copy"`
	Decoder int `json:"decoder"`
	Encoder int `json:"encoder"`
	JPEG    int `json:"jpeg"`
	OFA     int `json:"ofa"`
}

func (e modelEntry) model() Model {
	m := Model{
		Name:          e.Name,
		Architecture:  e.Architecture,
		Aliases:       e.Aliases,
		ComputeSlices: e.ComputeSlices,
		AxisUnits:     e.AxisUnits,
		SMs:           e.SMs,
		Source:        e.Source,
		Derived:       map[string][]string{},
	}
	for _, id := range e.PCIDeviceIDs {
		m.PCIDeviceIDs = append(m.PCIDeviceIDs, uint32(id))
	}

	for _, p := range e.Profiles {
		m.Profiles = append(m.Profiles, p.profile())
		if len(p.Derived) > 0 {
			m.Derived[p.Name] = p.Derived
		}
	}

	return m
}

func (e profileEntry) profile() gpu.Profile {
	p := gpu.Profile{
		ID:            e.ID,
		Enum:          e.Enum,
		Name:          e.Name,
		ComputeSlices: e.ComputeSlices,
		MemorySlices:  e.MemorySlices,
		SMs:           e.SMs,
		MemoryBytes:   e.MemoryMiB << 20,
		MaxInstances:  e.MaxInstances,
	}
	for _, placement := range e.Placements {
		p.Placements = append(p.Placements, gpu.Placement(placement))
	}

	if e.Engines != nil {
		p.Engines = gpu.Some(gpu.Engines(*e.Engines))
	}

	return p
}

// hexID is a PCI device id written "0x20B0".
type hexID uint32

func (id *hexID) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 0, 16)
	*id = hexID(n)

	return err
}

// placementEntry is a placement written "start:size".
type placementEntry gpu.Placement

func (p *placementEntry) UnmarshalText(text []byte) error {
	placement, err := gpu.ParsePlacement(string(text))
	*p = placementEntry(placement)

	return err
}
