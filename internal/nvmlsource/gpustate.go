package nvmlsource

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// gpuState is what we know of one GPU behind one handle. A GPU that is lost and found again gets a
// new state, so that a call that hangs with the old handle cannot modify what is in use.
type gpuState struct {
	uuid   gpu.UUID
	handle Device
	dev    Device     // handle with meter as its observer, for readings
	meter  *readMeter // of readings
	index  atomic.Int64
	phase  atomic.Int32           // a gpuPhase
	change atomic.Int32           // a gpuChange: what was marked since the last reading began
	tables atomic.Pointer[tables] // the Actuator's; nil until it has read them

	// reading is held by the Read under way; the rest belongs to it.
	reading sync.Mutex
	mode    modeState
	answers answers
	facts   gpu.Facts // with profiles
	static  static
	tree    tree
	values  []nvml.FieldValue // of chosen, in the same order; reused by every Read
	chosen  []*field          // the fields that the reading under way asks for
	fields  []field           // all that we ask for
	links   linkCounters
	ecc     []eccCounter
	slow    tier      // the last slow tier: reported until the next
	slowAt  time.Time // when it was read; zero: it is due
	gpm     gpmState
	watch   treeWatch
	// processes holds the last lists of processes.
	processes processLists
	// processesSeen is the newest time stamp, in microseconds, of the driver's samples of
	// processes.
	processesSeen uint64
	metrics       [gpuMetrics]GPMMetric // reused by every Read
	mediaMetrics  []GPMMetric           // reused by every Read
	forgottenAt   time.Time             // when unsupported calls were last forgotten
	deniedAt      time.Time             // when denied calls were last tried again

	eventRights delivery // of events under MIG, as far as a reading has shown it
}

// gpuPhase is how far the use of a GPU behind one handle has come. It never goes back: a lost GPU
// is looked up again, and gets a new gpuState.
type gpuPhase int32

const (
	phaseFound   gpuPhase = iota // Discover has looked it up
	phaseRead                    // a reading has succeeded
	phaseLost                    // a reading has failed as a whole; the next Discover looks the GPU up again
	phaseRetired                 // another state has replaced it, or the driver does not list it any more
)

// gpuChange is how we know that a GPU has changed since the last reading.
type gpuChange int32

const (
	unchanged      gpuChange = iota
	changeReported           // an event of the driver says so
	changeMade               // the Actuator has made a change
)

// advanceTo moves the GPU on to a phase, and reports whether it was in an earlier one.
func (g *gpuState) advanceTo(phase gpuPhase) bool { return raise(&g.phase, int32(phase)) }

// markChanged makes the next reading try unsupported calls again and restart the windows of GPM,
// since the last one may have found the instances in the middle of a change. If the Actuator has
// made the change, the next reading also reads the slow tier.
func (g *gpuState) markChanged(change gpuChange) { raise(&g.change, int32(change)) }

// raise sets value to a higher one. It returns false if value is that high already.
func raise(value *atomic.Int32, to int32) bool {
	for {
		now := value.Load()
		if now >= to {
			return false
		}

		if value.CompareAndSwap(now, to) {
			return true
		}
	}
}

func (g *gpuState) isIn(phase gpuPhase) bool { return g.phase.Load() == int32(phase) }

// isUsable reports whether the GPU is neither lost nor retired.
func (g *gpuState) isUsable() bool { return gpuPhase(g.phase.Load()) < phaseLost }

// modeState is the answer of nvmlDeviceGetMigMode; both are absent if the GPU has no MIG.
type modeState struct {
	enabled, pending gpu.Opt[bool]
}

// static records how far the facts have been read.
type static struct {
	complete   bool            // everything was asked once
	errs       keptErrors      // of facts that failed: they are read again with the slow tier
	answered   map[string]bool // calls whose answers are among the facts
	profiles   []profileEntry
	progress   profileProgress
	maxDevices gpu.Opt[int] // how many MIG devices the GPU can have
}

func newStatic() static { return static{answered: map[string]bool{}} }

// profileProgress is how far the profiles have been read.
type profileProgress int

const (
	profilesIncomplete profileProgress = iota
	profilesListed                     // all of them, without their placements
	profilesPlaced                     // all of them with their placements
)

func newGPUState(uuid gpu.UUID, h Device, index int) *gpuState {
	g := &gpuState{
		uuid:    uuid,
		handle:  h,
		answers: newAnswers(),
		ecc:     eccCounters(),
		metrics: gpmMetrics(),
		static:  newStatic(),
	}
	g.fields = fields(&g.links)
	g.index.Store(int64(index))

	return g
}

// supportEvery is how often unsupported calls are tried again: for a while after it was loaded, or
// a GPU was reset, a driver reports calls as unsupported that it supports.
const supportEvery = 10 * time.Minute

// deniedEvery is how often calls that were denied are tried again at most. Each refusal can print a
// line to the kernel's log (open kernel modules, kernel_mig_manager.c 7955).
const deniedEvery = time.Minute

// retriesDenied reports whether denied calls are to be tried again now.
func (g *gpuState) retriesDenied(now time.Time) bool {
	if since := now.Sub(g.deniedAt); !g.deniedAt.IsZero() && since >= 0 && since < deniedEvery {
		return false
	}

	g.deniedAt = now

	return true
}

// retryUnsupported clears the cache of unsupported calls if that is due, or the GPU was changed,
// and reports whether it did.
func (g *gpuState) retryUnsupported(now time.Time, changed bool) bool {
	if since := now.Sub(g.forgottenAt); since >= 0 && since < supportEvery && !changed {
		return false
	}

	g.forgottenAt = now
	clear(g.answers.unsupported)
	clear(g.tree.answers.unsupported)

	for e := range g.tree.entities() {
		clear(e.answers.unsupported)
	}

	return true
}
