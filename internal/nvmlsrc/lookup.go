package nvmlsrc

import (
	"fmt"
	"maps"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// patience is for how long Discover waits for a single GPU, in real time: the others are not to be kept from it.
const patience = time.Second

// lookup asks the driver for the GPU at an index. It may never return.
type lookup struct {
	done chan found // with room for the answer
}

// found is what a lookup gives: a handle and its UUID, or an error.
type found struct {
	handle Device
	uuid   gpu.UUID
	err    error
}

// lookUp asks for the GPUs at some indexes, side by side. A lookup that does not return in time goes on, and is asked for
// its answer the next time.
func (s *Source) lookUp(indexes []int) map[int]found {
	known := s.handles()
	began := false
	for _, index := range indexes {
		if s.lookups[index] == nil {
			s.lookups[index] = s.beginLookup(index, known)
			began = true
		}
	}
	var expired <-chan time.Time
	if began {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		expired = timer.C
	}
	answers := make(map[int]found, len(indexes))
	for _, index := range indexes {
		answer, ok := s.lookups[index].answer(&expired)
		if !ok {
			answers[index] = found{err: fmt.Errorf("nvmlDeviceGetHandleByIndex: %w: it has not returned yet", gpu.ErrTimeout)}
			continue
		}
		delete(s.lookups, index)
		answers[index] = answer
	}
	return answers
}

// answer waits until expired, which it sets to nil then: nobody is waited for any more.
func (l *lookup) answer(expired *<-chan time.Time) (found, bool) {
	if *expired != nil {
		select {
		case answer := <-l.done:
			return answer, true
		case <-*expired:
			*expired = nil
		}
	}
	select {
	case answer := <-l.done:
		return answer, true
	default:
		return found{}, false
	}
}

// handles are those of the GPUs that need no lookup, with their UUIDs.
func (s *Source) handles() map[Device]gpu.UUID {
	known := map[Device]gpu.UUID{}
	for _, at := range s.slots {
		if at.usable() {
			known[at.board.handle] = at.board.uuid
		}
	}
	return known
}

// beginLookup starts a lookup. A handle that is known is not asked for its UUID again. Like a Read it keeps NVML loaded.
func (s *Source) beginLookup(index int, known map[Device]gpu.UUID) *lookup {
	l := &lookup{done: make(chan found, 1)}
	known = maps.Clone(known)
	if err := s.enter(); err != nil {
		l.done <- found{err: err}
		return l
	}
	go func() {
		defer s.leave()
		h, ret := s.lib.DeviceGetHandleByIndex(index)
		if err := s.check("nvmlDeviceGetHandleByIndex", ret); err != nil {
			l.done <- found{err: err}
			return
		}
		if uuid, ok := known[h]; ok {
			l.done <- found{handle: h, uuid: uuid}
			return
		}
		uuid, ret := h.GetUUID()
		err := s.check("nvmlDeviceGetUUID", ret)
		if ret != nvml.SUCCESS {
			h = nil
		}
		l.done <- found{handle: h, uuid: gpu.UUID(text(uuid)), err: err}
	}()
	return l
}

// slotOf makes a slot of what was found. A GPU that is known and not lost stays as it is, whatever its index was: a
// reading of it may be under way.
func (s *Source) slotOf(index int, f found) slot {
	if f.err != nil {
		return slot{err: fmt.Errorf("GPU %d: %w", index, f.err)}
	}
	for _, at := range s.slots {
		if at.usable() && at.board.uuid == f.uuid {
			at.board.index.Store(int64(index))
			return at
		}
	}
	return slot{board: newBoard(f.uuid, f.handle, index)}
}
