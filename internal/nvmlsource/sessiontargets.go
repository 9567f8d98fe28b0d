package nvmlsource

import (
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// setTargets sets which GPUs are looked up by their PCI bus ids, at the indexes that they had
// before.
func (c *sessionChange) setTargets() {
	s := c.source

	bound, err := s.listBound()
	if err != nil {
		bound = nil
	}

	s.session.bound = bound
	s.session.targets = nil
	s.session.count = 0

	if len(c.skip) == 0 {
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	s.session.targets = map[int]string{}
	used := map[int]bool{}
	var unplaced []string // GPUs that were never read, or whose index another GPU has had since

	for _, busID := range c.listCandidates(bound) {
		index, known := s.indexOf(busID)
		switch {
		case !known || used[index]:
			unplaced = append(unplaced, busID)
		default:
			s.session.targets[index] = busID
			used[index] = true
		}
	}

	for id := range c.released {
		used[s.session.known[id].Index] = true
	}

	for index := 0; len(unplaced) > 0; index++ {
		if !used[index] {
			s.session.targets[index], unplaced = unplaced[0], unplaced[1:]
		}
	}

	for index := range s.session.targets {
		s.session.count = max(s.session.count, index+1)
	}
}

// listCandidates lists the PCI bus ids of the GPUs that are not released: of those that the kernel
// driver has bound, except foreign ones, or of all that were read if bound is nil. The caller holds
// mu.
func (c *sessionChange) listCandidates(bound []string) []string {
	var list []string

	for _, facts := range c.source.session.known {
		if bound == nil && c.released[facts.UUID] == nil {
			list = append(list, shortBusID(facts.PCIBusID))
		}
	}

	for _, busID := range bound {
		skipped := c.source.session.foreign[busID]
		for id := range c.released {
			skipped = skipped || shortBusID(c.source.session.known[id].PCIBusID) == busID
		}

		if !skipped {
			list = append(list, busID)
		}
	}

	slices.Sort(list)

	return list
}

// indexOf returns the index that the GPU at a PCI bus id had when it was read last. The caller
// holds mu.
func (s *Source) indexOf(busID string) (index int, known bool) {
	for _, facts := range s.session.known {
		if shortBusID(facts.PCIBusID) == busID {
			return facts.Index, true
		}
	}

	return 0, false
}

// noteForeign notes which GPUs the kernel driver has bound but NVML does not list, as in a
// container that was given some GPUs of its machine. It cannot know them while NVML does not list
// all its GPUs, or lists one that was never read.
func (s *Source) noteForeign() {
	if s.session.targets != nil {
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	listed := map[string]bool{}
	for _, facts := range s.session.known {
		listed[shortBusID(facts.PCIBusID)] = true
	}

	s.session.foreign = map[string]bool{}
	for _, sl := range s.slots {
		if sl.state == nil || s.session.known[sl.state.uuid].PCIBusID == "" {
			return
		}
	}

	for _, busID := range s.session.bound {
		if !listed[busID] {
			s.session.foreign[busID] = true
		}
	}
}

// isForeign reports whether the GPU that was looked up by its PCI bus id may belong to another
// container: NVML does not find it, and it was never read.
func (s *Source) isForeign(index int, err error) bool {
	busID := s.session.targets[index]
	if busID == "" || !errors.Is(err, gpu.ErrNotFound) {
		return false
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	_, known := s.indexOf(busID)

	return !known
}
