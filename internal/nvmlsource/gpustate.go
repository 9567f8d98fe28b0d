package nvmlsource

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// gpuState is what is known of one GPU behind one handle. A GPU that is lost and found again gets a new state, so
// that a call that hangs with the old handle cannot modify what is in use.
type gpuState struct {
	uuid   gpu.UUID
	handle Device
	index  atomic.Int64
	lost   atomic.Bool // a reading has failed as a whole; the next Discover looks the GPU up again
	// wasRead is set once a reading has succeeded.
	wasRead       atomic.Bool
	retired       atomic.Bool            // another state has replaced it
	layoutChanged atomic.Bool            // the driver has reported a change of its instances since the last reading began
	ourChange     atomic.Bool            // the Actuator has changed it since the last reading began
	tables        atomic.Pointer[tables] // of the Actuator

	// reading is held by the Read under way; the rest belongs to it.
	reading sync.Mutex
	known   bool // mode has been read
	mode    modeState
	answers answers
	facts   gpu.Facts // with profiles
	static  static
	tree    tree
	values  []nvml.FieldValue // reused by every Read
	chosen  []*field
	fields  []field
	ecc     []eccCounter
	slow    slowReadings
	slowAt  time.Time // zero: the slow tier is due
	gpm     gpmState
	// processesSeen is the newest time stamp, in microseconds, of the driver's samples of processes.
	processesSeen uint64
	metrics       [gpuMetrics]GPMMetric // reused by every Read
	mediaMetrics  []GPMMetric           // likewise
	freshAt       time.Time             // when answers were last empty
}

// modeState is the answer of nvmlDeviceGetMigMode; both are absent if the GPU has no MIG.
type modeState struct {
	enabled, pending gpu.Opt[bool]
}

// static records how far the facts have been read.
type static struct {
	have      bool
	errs      []gpu.ReadError // of facts that failed: they are read again with the slow tier
	answered  map[string]bool // calls whose answers are among the facts
	profiles  []profileEntry
	counted   bool // the profiles are complete
	placed    bool // the profiles have their placements
	mostMIG   int  // how many MIG devices the GPU can have
	mostKnown bool
}

func newGPUState(uuid gpu.UUID, h Device, index int) *gpuState {
	b := &gpuState{uuid: uuid, handle: h, answers: newAnswers(), fields: fields(), ecc: eccCounters(),
		metrics: gpmMetrics()}
	b.static.answered = map[string]bool{}
	b.index.Store(int64(index))
	return b
}

// supportEvery is how often unsupported calls are tried again: for a while after it was loaded, or a GPU was reset, a
// driver reports calls as unsupported that it supports.
const supportEvery = 10 * time.Minute

// retryUnsupported clears the cache of unsupported calls if that is due, and reports whether it did.
func (b *gpuState) retryUnsupported(now time.Time) bool {
	layoutChanged := b.layoutChanged.Swap(false)
	b.gpm.layoutChanged = b.gpm.layoutChanged || layoutChanged
	if since := now.Sub(b.freshAt); since >= 0 && since < supportEvery && !layoutChanged {
		return false
	}
	b.freshAt = now
	clear(b.answers.unsupported)
	clear(b.tree.answers.unsupported)
	for e := range b.tree.entities() {
		clear(e.answers.unsupported)
	}
	return true
}
