package nvmlsource

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// slot is the GPU at one index of the driver, or why there is none.
type slot struct {
	state   *gpuState
	err     error
	skipped bool // the GPU is released
}

// isUsable reports whether the GPU needs no new lookup.
func (s slot) isUsable() bool { return s.state != nil && s.state.isUsable() }

// Discover lists the GPUs that can be read now. It initialises NVML unless that has succeeded
// before, and looks up lost GPUs again. While nothing changes it costs one driver call. It also
// carries out Release and Reacquire requests. If it fails, only Released of the inventory is set.
func (s *Source) Discover() (gpu.Inventory, error) {
	if err := s.enter(); err != nil {
		return gpu.Inventory{Released: s.listReleased()}, err
	}

	defer s.leave()
	s.discovering.Lock()
	defer s.discovering.Unlock()

	if err := s.advanceSession(); err != nil {
		return gpu.Inventory{Released: s.listReleased()}, err
	}

	s.resumeQueue()

	return s.listInventory()
}

// rediscover is Discover without changes of the session, for callers that hold handles (beginCall):
// a change waits until no handle is in use, and would wait for them.
func (s *Source) rediscover() (gpu.Inventory, error) {
	s.discovering.Lock()
	defer s.discovering.Unlock()

	if s.session.change != nil {
		return gpu.Inventory{}, gpu.ErrLibraryClosed
	}

	if s.session.down != nil {
		return gpu.Inventory{}, s.session.down
	}

	return s.listInventory()
}

// listInventory initialises NVML unless that has succeeded before, and lists the GPUs.
func (s *Source) listInventory() (gpu.Inventory, error) {
	released := s.listReleased()
	if err := s.initialise(); err != nil {
		return gpu.Inventory{Released: released}, err
	}

	if err := s.listGPUs(lookupTimeout); err != nil {
		return gpu.Inventory{Released: released}, err
	}

	inventory := s.inventory
	inventory.Released = released

	return inventory, nil
}

// listGPUs updates the inventory. It waits for lookups until a timeout.
func (s *Source) listGPUs(timeout time.Duration) error {
	err := s.readVersions()
	if err == nil {
		err = s.enumerate(timeout)
	}

	if err != nil {
		if errors.Is(err, gpu.ErrNoDriver) { // the driver was unloaded: all handles are invalid
			s.initialised = false
			s.versionsRead = false
			s.replaceSlots(nil)
		}

		return fmt.Errorf("discover GPUs: %w", err)
	}

	return nil
}

// initialise calls nvmlInit, once: NVML counts the calls.
func (s *Source) initialise() error {
	if s.initialised {
		return nil
	}

	if s.opts.MayOpen != nil {
		if err := s.opts.MayOpen(s.askConfidential()); err != nil {
			return fmt.Errorf("nvmlInit: %w", err)
		}
	}

	s.session.rights = s.readRights()
	before, _ := s.listBound() // nil if it is unknown what the kernel driver has bound
	open := s.lib.Init

	if s.session.targets != nil {
		open = s.lib.InitNoAttach
	}

	if err := checkReturn("nvmlInit", open()); err != nil {
		if l, ok := s.lib.(interface{ LoadError() error }); ok && l.LoadError() != nil {
			return fmt.Errorf("%w: %w", gpu.ErrNoDriver, l.LoadError())
		}

		return err
	}

	s.mu.Lock()
	s.inits++
	s.mu.Unlock()
	s.initialised = true

	// We note what was bound before nvmlInit, since a GPU that was bound while it ran may not be among
	// NVML's. If that was unknown, nvmlInit may have loaded the driver, so we ask again.
	if s.session.targets == nil && before == nil {
		before, _ = s.listBound()
	}

	if s.session.targets == nil {
		s.session.bound = before
	}

	s.session.noEventsAt = time.Time{}
	s.followBinding()

	return nil
}

// askConfidential asks whether the GPUs are in confidential-computing mode, without opening them.
// Any failure leaves the answer unknown, also "not supported": the driver may need an attached GPU
// to know.
func (s *Source) askConfidential() gpu.Opt[bool] {
	state, ret := s.lib.SystemGetConfComputeState()
	if checkReturn("nvmlSystemGetConfComputeState", ret) != nil {
		return gpu.None[bool]()
	}

	return gpu.Some(state.CcFeature != nvml.CC_SYSTEM_FEATURE_DISABLED)
}

// readVersions reads the versions of the driver, of NVML and of CUDA, once. A version that cannot
// be read stays empty.
func (s *Source) readVersions() error {
	if s.versionsRead {
		return nil
	}

	s.driver = gpu.Driver{}

	version, ret := s.lib.SystemGetDriverVersion()
	if err := checkReturn("nvmlSystemGetDriverVersion", ret); err == nil {
		s.driver.Version = validUTF8(version)
	} else if losesDevice(err) {
		return err
	}

	version, ret = s.lib.SystemGetNVMLVersion()
	if checkReturn("nvmlSystemGetNVMLVersion", ret) == nil {
		s.driver.NVML = validUTF8(version)
	}

	cuda, ret := s.lib.SystemGetCudaDriverVersion()
	if checkReturn("nvmlSystemGetCudaDriverVersion", ret) == nil {
		s.driver.CUDA = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	}

	s.versionsRead = true

	return nil
}

// enumerate looks up all GPUs if their number has changed, otherwise those that are missing or
// lost.
func (s *Source) enumerate(timeout time.Duration) error {
	count, ret := s.lib.DeviceGetCount()
	if err := checkReturn("nvmlDeviceGetCount", ret); err != nil {
		return err
	}

	if s.session.targets != nil {
		count = s.session.count
	}

	sameCount := count == len(s.slots)
	needsLookup := func(sl slot) bool { return !sl.skipped && !sl.isUsable() }

	if sameCount && !slices.ContainsFunc(s.slots, needsLookup) {
		if s.inventory.Driver != s.driver { // the first inventory of a node without GPUs
			s.replaceSlots(s.slots)
		}

		return nil
	}

	if !sameCount {
		s.lookups = map[int]lookup{} // an index may now belong to another GPU
	}

	next := make([]slot, count)
	var unknown []int

	for i := range next {
		switch {
		case s.session.targets != nil && s.session.targets[i] == "":
			next[i] = slot{skipped: true}
		case sameCount && s.slots[i].isUsable():
			next[i] = s.slots[i]
		default:
			unknown = append(unknown, i)
		}
	}

	for i, found := range s.lookUp(unknown, timeout) {
		next[i] = s.slotOf(i, found)
		if errors.Is(next[i].err, gpu.ErrVersionMismatch) ||
			errors.Is(next[i].err, gpu.ErrNoDriver) {
			return next[i].err
		}
	}

	s.replaceSlots(next)

	return nil
}

// replaceSlots sets the slots and the inventory, which is not modified after that, and registers
// the events of its GPUs.
func (s *Source) replaceSlots(next []slot) {
	s.slots = next
	s.inventory = gpu.Inventory{Driver: s.driver}
	gpus := make(map[gpu.UUID]*gpuState, len(next))
	var list []*gpuState

	for i, sl := range next {
		if sl.skipped {
			continue
		}

		if sl.state == nil && s.isForeign(i, sl.err) {
			continue
		}

		if sl.state == nil {
			missing := gpu.MissingGPU{Index: i, Err: sl.err, Hung: s.lookups[i] != nil}
			s.inventory.Missing = append(s.inventory.Missing, missing)
			continue
		}

		if gpus[sl.state.uuid] != nil {
			// If the driver has renumbered its GPUs, the next lookup finds the GPU that is at this
			// index now.
			next[i] = slot{
				err: fmt.Errorf(
					"GPU %d: %w: its UUID is also that of another GPU",
					i,
					gpu.ErrDriver,
				),
			}
			s.inventory.Missing = append(
				s.inventory.Missing,
				gpu.MissingGPU{Index: i, Err: next[i].err},
			)
			continue
		}

		gpus[sl.state.uuid] = sl.state
		list = append(list, sl.state)
		s.inventory.GPUs = append(s.inventory.GPUs, gpu.FoundGPU{Index: i, UUID: sl.state.uuid})
	}

	s.mu.Lock()
	before := s.gpus
	s.gpus = gpus
	s.mu.Unlock()

	for id, g := range before {
		if gpus[id] != g {
			s.retireGPU(g)
		}
	}

	s.queue.startRegistering(list)
}
