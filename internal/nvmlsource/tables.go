package nvmlsource

import (
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// tables are what a GPU offers, as the Actuator read it last: what stays the same while the driver
// runs and the MIG mode does not change. Reading a layout reads them again if they are older than
// supportEvery, since drivers leave something out for a while after they were loaded or a GPU was
// reset. A step reads them again only if the GPU's instances contradict them.
type tables struct {
	enabled    gpu.Opt[bool] // the MIG mode that they were read in
	readAt     time.Time
	name       string
	pciBusID   string
	pciDevice  uint32
	profiles   []profileEntry
	maxDevices int // how many MIG devices the GPU can have; 0 if the driver does not report it

	mu           sync.Mutex
	computeInfos map[uint32][]nvml.ComputeInstanceProfileInfo // by the profile id of the GPU instance
}

// tablesForStep returns the tables of a GPU in a MIG mode, however old they are: every operation
// reads the layout before its first step, and a step has to be cheap.
func (a *Actuator) tablesForStep(g *gpuState, mode modeState) (*tables, error) {
	if t := g.tables.Load(); t != nil && t.enabled == mode.enabled {
		return t, nil
	}

	return a.tablesOf(g, mode)
}

// tablesOf returns the tables of a GPU in a MIG mode. It keeps them if they are complete.
func (a *Actuator) tablesOf(g *gpuState, mode modeState) (*tables, error) {
	now := a.source.opts.Now()
	if t := g.tables.Load(); t != nil && t.enabled == mode.enabled {
		if age := now.Sub(t.readAt); age >= 0 && age < supportEvery {
			return t, nil
		}
	}

	t := &tables{
		enabled:      mode.enabled,
		readAt:       now,
		computeInfos: map[uint32][]nvml.ComputeInstanceProfileInfo{},
	}
	// We must not use g itself: a Read of it may be under way.
	own := a.source.meterReadings(newGPUState(g.uuid, g.handle, int(g.index.Load())))
	r := newGPURead(a.source, own, gpu.ReadCues{})
	r.state.mode = mode
	q := r.newQuerier(r.state.answers)
	queryFact(
		&q,
		"nvmlDeviceGetName",
		r.dev.GetName,
		func(name string) { t.name = validUTF8(name) },
	)
	queryFact(&q, "nvmlDeviceGetPciInfo", r.dev.GetPciInfo, func(pci nvml.PciInfo) {
		t.pciBusID = pciBusID(pci)
		t.pciDevice = pci.PciDeviceId
	})
	r.queryProfiles(&q)
	t.profiles = r.state.static.profiles

	on := mode.enabled.Or(false)
	if on {
		t.maxDevices, _ = r.queryMaxDevices(&q)
	}

	if r.lost != nil {
		return nil, r.lost
	}

	for _, e := range q.errs {
		if e.Reading == gpu.ReadingMIG {
			return nil, e.Err
		}
	}

	complete := !mode.enabled.Present() ||
		r.state.static.progress == profilesPlaced && (t.maxDevices > 0 || !on)
	if complete && len(q.errs) == 0 {
		g.tables.Store(t)
	}

	return t, nil
}

// listComputeProfiles returns the profiles that compute instances can have in a GPU instance of
// profile profileID.
func (a *Actuator) listComputeProfiles(t *tables, gi MutableInstance,
	profileID uint32) ([]nvml.ComputeInstanceProfileInfo, error) {
	t.mu.Lock()
	list := t.computeInfos[profileID]
	t.mu.Unlock()

	if list != nil {
		return list, nil
	}

	list, ret := queryComputeProfiles(gi.GetComputeInstanceProfileInfo)
	if err := checkReturn("nvmlGpuInstanceGetComputeInstanceProfileInfo", ret); err != nil {
		return nil, err
	}

	if list == nil {
		return nil, fmt.Errorf(
			"%w: the driver offers no compute instances in GPU instances of profile %d",
			gpu.ErrNotSupported,
			profileID,
		)
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	t.computeInfos[profileID] = list

	return list, nil
}
