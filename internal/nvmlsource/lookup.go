package nvmlsource

import (
	"fmt"
	"maps"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// lookupTimeout is how long Discover waits for all its lookups, in real time, so that a GPU that
// hangs does not block the others.
const lookupTimeout = time.Second

// attachTimeout is lookupTimeout for a change of the session. After an nvmlInit that attaches no
// GPU, each lookup attaches one. Without persistence mode that takes about a second for each GPU,
// one after the other, and the largest machines have 16. Meanwhile the last readings stay.
const attachTimeout = 20 * time.Second

// lookup receives the result of looking up the GPU at an index. The driver may never return; the
// channel is buffered, so that a late result need not be received.
type lookup chan found

// found is the result of a lookup: a handle and its UUID, unless there is an error.
type found struct {
	handle Device
	uuid   gpu.UUID
	err    error
}

// lookUp looks up the GPUs at these indexes concurrently. A lookup that does not return in time
// goes on; the next lookUp returns its result.
func (s *Source) lookUp(indexes []int, timeout time.Duration) map[int]found {
	known := s.listHandles()
	began := false

	for _, index := range indexes {
		if s.lookups[index] == nil {
			s.lookups[index] = s.beginLookup(index, known)
			began = true
		}
	}

	var expired <-chan time.Time

	if began {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		expired = timer.C
	}

	answers := make(map[int]found, len(indexes))
	for _, index := range indexes {
		answer, ok := s.lookups[index].awaitAnswer(&expired)
		if !ok {
			answers[index] = found{
				err: fmt.Errorf(
					"nvmlDeviceGetHandleByIndex: %w: it has not returned yet",
					gpu.ErrTimeout,
				),
			}
			continue
		}

		delete(s.lookups, index)
		answers[index] = answer
	}

	return answers
}

// awaitAnswer returns the result if it comes before expired fires. It then sets expired to nil, so
// that we do not wait for further lookups.
func (l lookup) awaitAnswer(expired *<-chan time.Time) (found, bool) {
	if *expired != nil {
		select {
		case answer := <-l:
			return answer, true
		case <-*expired:
			*expired = nil
		}
	}

	select {
	case answer := <-l:
		return answer, true
	default:
		return found{}, false
	}
}

// listHandles returns the handles of the GPUs that need no lookup, with their UUIDs.
func (s *Source) listHandles() map[Device]gpu.UUID {
	known := map[Device]gpu.UUID{}

	for _, sl := range s.slots {
		if sl.isUsable() {
			known[sl.state.handle] = sl.state.uuid
		}
	}

	return known
}

// beginLookup starts a lookup. It does not read the UUID of a known handle again. NVML stays loaded
// until the lookup returns.
func (s *Source) beginLookup(index int, known map[Device]gpu.UUID) lookup {
	l := make(lookup, 1)
	known = maps.Clone(known)
	busID, byBus := s.session.targets[index]

	use, err := s.beginLookupCall()
	if err != nil {
		l <- found{err: err}
		return l
	}

	go func() {
		defer s.endCall(use)

		h, err := s.findHandle(index, busID, byBus)
		if err != nil {
			l <- found{err: err}
			return
		}

		if uuid, ok := known[h]; ok {
			l <- found{handle: h, uuid: uuid}
			return
		}

		uuid, ret := h.GetUUID()
		l <- found{handle: h, uuid: gpu.UUID(validUTF8(uuid)), err: checkReturn("nvmlDeviceGetUUID", ret)}
	}()

	return l
}

// beginLookupCall is beginCall for a lookup. It also works while a change of the session has paused
// other calls: the change itself looks up GPUs.
func (s *Source) beginLookupCall() (*usage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.closed {
		return nil, errClosed
	}

	return s.countCall(), nil
}

// findHandle looks up a GPU by its PCI bus id if byBus is set, else by its index.
func (s *Source) findHandle(index int, busID string, byBus bool) (Device, error) {
	if byBus {
		h, ret := s.lib.DeviceGetHandleByPciBusId(busID)
		return h, checkReturn("nvmlDeviceGetHandleByPciBusId", ret)
	}

	h, ret := s.lib.DeviceGetHandleByIndex(index)

	return h, checkReturn("nvmlDeviceGetHandleByIndex", ret)
}

// slotOf returns the slot for the result of a lookup. A GPU that is known and not lost keeps its
// state, even at a new index: a reading of it may be under way.
func (s *Source) slotOf(index int, f found) slot {
	if f.err != nil {
		return slot{err: fmt.Errorf("GPU %d: %w", index, f.err)}
	}

	for _, sl := range s.slots {
		if sl.isUsable() && sl.state.uuid == f.uuid {
			sl.state.index.Store(int64(index))
			return sl
		}
	}

	return slot{state: s.meterReadings(newGPUState(f.uuid, f.handle, index))}
}
