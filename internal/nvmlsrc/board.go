package nvmlsrc

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// board is one physical GPU behind one handle. When the GPU is lost and found again it gets a new board: a call that
// hangs in the old one touches nothing that is in use.
type board struct {
	uuid   gpu.UUID
	handle Device
	index  atomic.Int64
	lost   atomic.Bool // a reading has failed as a whole; the next Discover looks the GPU up again
	// wasRead: a reading has succeeded.
	wasRead atomic.Bool
	retired atomic.Bool            // another board has taken its place
	recut   atomic.Bool            // the driver has told of a change of its instances since the last reading began
	touched atomic.Bool            // we have changed it since the last reading began
	tables  atomic.Pointer[tables] // of the Actuator

	// reading is held by the Read under way; the rest belongs to it.
	reading sync.Mutex
	known   bool // mode has been read
	mode    migMode
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
	metrics       [boardMetrics]GPMMetric // reused by every Read
	mediaMetrics  []GPMMetric             // likewise
	freshAt       time.Time               // when answers were last empty
}

// migMode is what nvmlDeviceGetMigMode says; both absent where the GPU has no MIG.
type migMode struct {
	enabled, pending gpu.Opt[bool]
}

// static says how far the facts have been read.
type static struct {
	have      bool
	errs      []gpu.ReadError // of what failed: it is tried again with the slow tier
	answered  map[string]bool // questions whose answers are among the facts
	profiles  []profileEntry
	counted   bool // the profiles are all there are
	placed    bool // they have their placements
	mostMIG   int  // how many MIG devices the GPU can have
	mostKnown bool
}

func newBoard(uuid gpu.UUID, h Device, index int) *board {
	b := &board{uuid: uuid, handle: h, answers: newAnswers(), fields: fields(), ecc: eccCounters(), metrics: gpmMetrics()}
	b.static.answered = map[string]bool{}
	b.index.Store(int64(index))
	return b
}

// forget makes the next questions new ones, after a change of what the GPU can answer.
func (b *board) forget() {
	b.answers = newAnswers()
	b.slowAt = time.Time{}
}

// supportEvery is how often what was not supported is asked again: drivers say so of what they have as well, for a while
// after they were loaded or a GPU was reset.
const supportEvery = 10 * time.Minute

// hope asks again what was not supported, where that is due, and tells whether it is.
func (b *board) hope(now time.Time) bool {
	recut := b.recut.Swap(false)
	b.gpm.recut = b.gpm.recut || recut
	if since := now.Sub(b.freshAt); since >= 0 && since < supportEvery && !recut {
		return false
	}
	b.freshAt = now
	clear(b.answers.unsupported)
	clear(b.tree.answers.unsupported)
	for i := range b.tree.nodes {
		n := &b.tree.nodes[i]
		clear(n.answers.unsupported)
		for j := range n.computes {
			clear(n.computes[j].answers.unsupported)
		}
	}
	return true
}

// round is one reading of one GPU.
type round struct {
	asker
	board *board
	dev   Device
	now   time.Time
	slow  bool // the slow tier is due
	media bool // media engines are wanted
	hopes bool // what was not supported is asked again
	// moved: somebody re-cuts the GPU while it is read; rescans: how often its tree has been read again for that.
	// changed: the last look at the tree differed from the one before.
	moved, changed bool
	rescans        int
	scanErr        error // why the tree could not be scanned; its handles must not be used then
	out            gpu.GPU
}

func newRound(s *Source, b *board) *round {
	r := &round{board: b, dev: b.handle, now: s.opts.Now()}
	r.hopes = b.hope(r.now)
	if b.touched.Swap(false) {
		b.slowAt = time.Time{}
	}
	r.asker = asker{source: s, answers: b.answers}
	since := r.now.Sub(b.slowAt)
	r.slow = b.slowAt.IsZero() || since < 0 || since >= s.opts.SlowEvery
	r.retry = r.slow
	r.media = s.opts.Media != nil && s.opts.Media()
	return r
}

// read reads everything. Whether the GPU answers at all shows in any of the questions.
func (r *round) read() (gpu.GPU, error) {
	r.readMode()
	r.readFacts()
	r.sample()
	r.readTree()
	r.readFast()
	r.readSlow()
	r.readInstances()
	r.readActivity()
	r.readEvents()
	if r.fatal != nil {
		return gpu.GPU{}, r.fatal
	}
	r.out.Facts = r.board.facts
	r.out.UUID = r.board.uuid
	r.out.Index = int(r.board.index.Load())
	r.out.Up = true
	r.out.Errors = append(r.errs, r.board.static.errs...)
	r.out.Errors = append(r.out.Errors, r.board.slow.errs...)
	r.out.Errors = append(r.out.Errors, r.board.tree.errs...)
	remember(r.board.static.errs)
	remember(r.board.slow.errs)
	remember(r.board.tree.errs)
	return r.out, nil
}

// remember marks errors that stand until what failed is asked again.
func remember(errs []gpu.ReadError) {
	for i := range errs {
		errs[i].Remembered = true
	}
}

// again starts over what is remembered about the GPU, in the middle of a round.
func (r *round) again() {
	r.board.forget()
	r.answers = r.board.answers
	r.slow, r.retry = true, true
}

// readMode reads the MIG mode. A change makes everything else new: profiles are immutable only within a mode, and the
// minor number may change (nvml.h). That a GPU has none is asked every time: all else hangs on it. A GPU that had one has
// it still, whatever the driver says in between.
func (r *round) readMode() {
	const question = "nvmlDeviceGetMigMode"
	mode := r.board.mode // it stays through an error
	if r.may(question, gpu.ReadingMIG) {
		current, pending, ret := r.dev.GetMigMode()
		switch {
		case ret == nvml.ERROR_INVALID_ARGUMENT: // the handle is the only one
			r.fatal = r.source.check(question, ret)
		case r.took(question, gpu.ReadingMIG, ret):
			mode.enabled = gpu.Some(current == nvml.DEVICE_MIG_ENABLE)
			mode.pending = gpu.Some(pending == nvml.DEVICE_MIG_ENABLE)
		case r.unsupported[question]:
			delete(r.unsupported, question)
			if mode.enabled.Present() {
				r.errs = append(r.errs, gpu.ReadError{Reading: gpu.ReadingMIG, Err: driverError(question, ret)})
			}
		}
	}
	if r.board.known && mode.enabled != r.board.mode.enabled {
		r.again()
		r.board.gpm.asked, r.board.gpm.recut = false, true
		r.board.static = static{answered: map[string]bool{}}
		r.board.facts = gpu.Facts{}
		r.board.tree = tree{}
	}
	r.board.known, r.board.mode = true, mode
	r.out.MIG.Enabled, r.out.MIG.Pending = mode.enabled, mode.pending
}
