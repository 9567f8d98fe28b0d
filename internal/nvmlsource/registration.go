package nvmlsource

import (
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// eventKinds are the kinds of events that we receive. We register them one by one: NVML refuses a
// mask with a kind that is not supported. Libraries before 565 do not know newKinds.
const (
	newKinds   = nvml.EventTypeGpuUnavailableError | nvml.EventTypeGpuRecoveryAction
	eventKinds = nvml.EventTypeXidCriticalError | nvml.EventMigConfigChange | newKinds
)

// registrationPhase is how far the registration of a GPU has come. Only the methods of registration
// change it:
//
//	phase         what happens                               next phase    method
//	------------  -----------------------------------------  ------------  -------------
//	unregistered  an attempt begins                          registering   begin
//	incomplete    an attempt begins                          registering   begin
//	spoiling      an attempt begins                          registering   begin
//	registering   a reading reports that it does not end     overdue       reportFailure
//	registering,  it ends; nothing is left to try            registered    end
//	  overdue     it ends; a kind was refused                incomplete    end
//	              it ends, and has broken the set            spoiling      end
//	              it ends after its set was replaced         unregistered  endLate
//	registered    the set is replaced                        unregistered  leaveSet
//	incomplete    the set is replaced                        unregistered  leaveSet
//
// In the other phases a new set changes nothing: an attempt with the earlier one may still be under
// way, and a GPU that has spoiled a set waits before it can spoil the next.
type registrationPhase int

const (
	unregistered registrationPhase = iota // not tried with the set in use; due at once
	registering                           // an attempt is under way, perhaps with an earlier set
	overdue                               // under way, too, and a reading has reported that it does not end
	registered                            // for all kinds that are to be tried
	// some kind was refused; due after a pause, or when the GPU is found again
	incomplete
	spoiling // the attempt has broken the set; due after a pause
)

// registration is the state of receiving the events of one GPU. It is kept by handle, as the driver
// does: a GPU that is found again behind its old handle is still in the set, and must not be put
// into it twice. The eventQueue's mu guards it.
type registration struct {
	uuid  gpu.UUID
	phase registrationPhase
	// suspect is set if a set failed because a GPU is lost, perhaps this one: we register it again
	// only after a reading of it has succeeded. A set can fail in every phase, even while an
	// attempt with an earlier set is under way.
	suspect bool
	kinds   uint64 // registered with the set in use
	harmful uint64 // those of newKinds that have broken a set: they are not tried again

	// Of the last attempt:

	state   *gpuState
	triedAt time.Time
	pause   time.Duration // until what failed is tried again

	delivery delivery // whether the driver delivers the events that the GPU is registered for

	received bool          // XIDs were received at some time
	failure  gpu.ReadError // why XIDs are not received; zero if they are, or no attempt has ended yet
	logged   bool          // we have logged that XIDs are not received
}

// attemptOutcome is what became of an attempt to register a GPU.
type attemptOutcome struct {
	registered uint64           // the kinds for which it succeeded
	errs       map[uint64]error // of the other kinds that were tried
	broken     bool             // the set is undefined now
	harmful    uint64           // the kind that has broken it, if that is one of newKinds
}

// isUnderWay reports whether a call of the driver is under way, perhaps with an earlier set.
func (r *registration) isUnderWay() bool { return r.phase == registering || r.phase == overdue }

// reportsChanges reports whether we learn of every change of the GPU's layout: it is registered for
// them, and its events are delivered.
func (r *registration) reportsChanges() bool {
	return r.kinds&nvml.EventMigConfigChange != 0 && r.delivery == delivered
}

// missingKinds returns the kinds that an attempt is to register.
func (r *registration) missingKinds() uint64 { return eventKinds &^ (r.kinds | r.harmful) }

// isDue reports whether a GPU is to be registered for kinds that it lacks.
func (r *registration) isDue(g *gpuState, now time.Time) bool {
	if !g.isUsable() || r.suspect && !g.isIn(phaseRead) {
		return false
	}

	since := now.Sub(r.triedAt)
	paused := since >= 0 && since < r.pause // the clock may have been set back

	switch r.phase {
	case unregistered:
		return true
	case incomplete:
		return !paused || r.state != g
	case spoiling:
		return !paused
	}

	return false
}

// begin begins an attempt.
func (r *registration) begin(g *gpuState, now time.Time) {
	r.phase = registering
	r.uuid = g.uuid
	r.state = g
	r.triedAt = now
}

// end ends an attempt. What failed is tried again after retryAfter; what is only not supported,
// after supportEvery.
func (r *registration) end(outcome attemptOutcome, retryAfter time.Duration) {
	r.kinds |= outcome.registered
	r.harmful |= outcome.harmful
	r.received = r.received || r.kinds&nvml.EventTypeXidCriticalError != 0
	r.failure = gpu.ReadError{
		Reading: gpu.ReadingEvents,
		Err:     outcome.errs[nvml.EventTypeXidCriticalError],
	}

	switch {
	case outcome.broken && outcome.harmful == 0:
		r.phase = spoiling
	case r.missingKinds() != 0:
		r.phase = incomplete
	default:
		r.phase = registered
	}

	r.suspect = false
	r.pause = supportEvery

	for _, err := range outcome.errs {
		// A library that does not know a kind of event may call that an invalid argument.
		if r.phase != spoiling && !errors.Is(err, gpu.ErrNotSupported) &&
			!errors.Is(err, gpu.ErrInvalidArgument) {
			r.pause = retryAfter
		}

		r.suspect = r.suspect || losesDevice(err)
	}
}

// endLate ends an attempt whose set was replaced meanwhile: the GPU is not in the set in use.
func (r *registration) endLate() { r.phase = unregistered }

// leaveSet records that a new set has replaced the one that the GPU was registered with. lost is
// set if that one failed because a GPU is lost, perhaps this one.
func (r *registration) leaveSet(lost bool) {
	r.kinds = 0
	r.suspect = r.suspect || lost

	if r.phase == registered || r.phase == incomplete {
		r.phase = unregistered
	}
}

// reportFailure returns, for a reading, why XIDs are not received; zero if they are. While no other
// reason is known, it reports an attempt that does not end.
func (r *registration) reportFailure(now time.Time) gpu.ReadError {
	late := r.isUnderWay() && r.kinds&nvml.EventTypeXidCriticalError == 0 &&
		now.Sub(r.triedAt) >= lookupTimeout
	if !late || r.failure.Err != nil {
		return reportKept(&r.failure)
	}

	hang := gpu.ReadError{
		Reading:    gpu.ReadingEvents,
		Err:        fmt.Errorf("register for events: %w", gpu.ErrTimeout),
		Remembered: r.phase == overdue,
	}
	r.phase = overdue

	return hang
}

// shouldLog reports whether to log that XIDs are not received, and records that it was logged:
// once, until they are received again. It leaves out a GPU that is lost, whose readings fail, too.
func (r *registration) shouldLog() bool {
	if r.failure.Err == nil {
		r.logged = false
		return false
	}

	if r.logged || r.suspect {
		return false
	}

	r.logged = true

	return true
}
