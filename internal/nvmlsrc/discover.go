package nvmlsrc

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// slot is what the driver has at one index: a GPU, or why there is none.
type slot struct {
	board *board
	err   error
}

// usable tells whether the GPU there needs no new lookup.
func (s slot) usable() bool { return s.board != nil && !s.board.lost.Load() }

// Discover lists the GPUs that can be read now. It initialises NVML where that has not succeeded yet, and looks up GPUs
// again that were lost. While nothing changes it costs one driver call.
func (s *Source) Discover() (gpu.Inventory, error) {
	if err := s.enter(); err != nil {
		return gpu.Inventory{}, err
	}
	defer s.leave()
	s.discovering.Lock()
	defer s.discovering.Unlock()
	if err := s.initialise(); err != nil {
		return gpu.Inventory{}, err
	}
	err := s.readVersions()
	if err == nil {
		err = s.enumerate()
	}
	if err != nil {
		if errors.Is(err, gpu.ErrNoDriver) { // it went away: all handles are void
			s.initialised, s.versioned = false, false
			s.keep(nil)
		}
		return gpu.Inventory{}, fmt.Errorf("discover GPUs: %w", err)
	}
	return s.inventory, nil
}

// initialise calls nvmlInit, once: NVML counts the calls.
func (s *Source) initialise() error {
	if s.initialised {
		return nil
	}
	if err := s.check("nvmlInit", s.lib.Init()); err != nil {
		if l, ok := s.lib.(interface{ LoadError() error }); ok && l.LoadError() != nil {
			return fmt.Errorf("%w: %w", gpu.ErrNoDriver, l.LoadError())
		}
		return err
	}
	s.mu.Lock()
	s.loaded = true
	s.mu.Unlock()
	s.initialised = true
	return nil
}

// readVersions reads the versions, once. One that is unknown stays empty.
func (s *Source) readVersions() error {
	if s.versioned {
		return nil
	}
	s.driver = gpu.Driver{}
	version, ret := s.lib.SystemGetDriverVersion()
	if err := s.check("nvmlSystemGetDriverVersion", ret); err == nil {
		s.driver.Version = text(version)
	} else if losesDevice(err) {
		return err
	}
	if version, ret = s.lib.SystemGetNVMLVersion(); s.check("nvmlSystemGetNVMLVersion", ret) == nil {
		s.driver.NVML = text(version)
	}
	cuda, ret := s.lib.SystemGetCudaDriverVersion()
	if s.check("nvmlSystemGetCudaDriverVersion", ret) == nil {
		s.driver.CUDA = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	}
	s.versioned = true
	return nil
}

// enumerate looks up what is not known: everything where the number of GPUs has changed, else what is missing or lost.
func (s *Source) enumerate() error {
	count, ret := s.lib.DeviceGetCount()
	if err := s.check("nvmlDeviceGetCount", ret); err != nil {
		return err
	}
	same := count == len(s.slots)
	if same && !slices.ContainsFunc(s.slots, func(at slot) bool { return !at.usable() }) {
		if s.inventory.Driver != s.driver { // the first, of a node without GPUs
			s.keep(s.slots)
		}
		return nil
	}
	if !same {
		s.lookups = map[int]*lookup{} // what an index stood for, it may stand for no longer
	}
	next := make([]slot, count)
	var unknown []int
	for i := range next {
		if same && s.slots[i].usable() {
			next[i] = s.slots[i]
		} else {
			unknown = append(unknown, i)
		}
	}
	for i, found := range s.lookUp(unknown) {
		next[i] = s.slotOf(i, found)
		if errors.Is(next[i].err, gpu.ErrVersionMismatch) || errors.Is(next[i].err, gpu.ErrNoDriver) {
			return next[i].err
		}
	}
	s.keep(next)
	return nil
}

// keep makes a list of slots the inventory, which is not modified after that, and listens to the events of its GPUs.
func (s *Source) keep(next []slot) {
	s.slots = next
	s.inventory = gpu.Inventory{Driver: s.driver}
	boards := make(map[gpu.UUID]*board, len(next))
	var list []*board
	for i, at := range next {
		if at.board == nil {
			missing := gpu.MissingGPU{Index: i, Err: at.err, Hung: s.lookups[i] != nil}
			s.inventory.Missing = append(s.inventory.Missing, missing)
			continue
		}
		if boards[at.board.uuid] != nil {
			// Where the driver has numbered its GPUs anew, the next lookup finds the one that is there now.
			next[i] = slot{err: fmt.Errorf("GPU %d: %w: its UUID is also that of another GPU", i, gpu.ErrDriver)}
			s.inventory.Missing = append(s.inventory.Missing, gpu.MissingGPU{Index: i, Err: next[i].err})
			continue
		}
		boards[at.board.uuid] = at.board
		list = append(list, at.board)
		s.inventory.GPUs = append(s.inventory.GPUs, gpu.FoundGPU{Index: i, UUID: at.board.uuid})
	}
	s.mu.Lock()
	before := s.boards
	s.boards = boards
	s.mu.Unlock()
	for id, b := range before {
		if boards[id] != b {
			s.retire(b)
		}
	}
	s.queue.listen(list)
}
