package dcgmsource

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// maxStarts is how often an engine in this process is started without success. Each failed start
// leaves a thread of libdcgm behind (seen with DCGM 4.5.3).
const maxStarts = 3

// startLimit counts the failed starts of an engine. The count starts again when the GPUs change:
// their MIG modes or layouts, or when one answers again.
type startLimit struct {
	failed int
	gpus   []gpuLayout // the GPUs when starts were last counted
	next   []gpuLayout // update's buffer
}

// leavesThread reports whether a start failed in the library, which leaves a thread behind: not if the
// library could not be loaded, or if there was an engine that does not answer.
func leavesThread(err error) bool {
	return !errors.Is(err, ErrNoLibrary) && !errors.Is(err, ErrLibrary) &&
		!errors.Is(err, ErrConnection)
}

// gpuLayout is what a start of an engine may depend on of one GPU.
type gpuLayout struct {
	uuid       gpu.UUID
	mig        gpu.Opt[bool]
	generation uint64
	up         bool
}

// changed reports whether a start that failed may succeed now. A GPU that goes down is no such
// change.
func (l gpuLayout) changed(from gpuLayout) bool {
	return l.uuid != from.uuid || l.mig != from.mig || l.generation != from.generation ||
		l.up && !from.up
}

// update notes the GPUs of a Snapshot, and reports whether they have changed since the last call. If
// so, the count starts again.
func (l *startLimit) update(s *gpu.Snapshot) (changed bool) {
	l.next = l.next[:0]

	for i := range s.GPUs {
		g := &s.GPUs[i]
		now := gpuLayout{
			uuid:       g.UUID,
			mig:        g.MIG.Enabled,
			generation: g.MIG.LayoutGeneration,
			up:         g.Up,
		}

		// A GPU that is down may not report its layout: we keep the last one.
		if !g.Up && !g.MIG.Enabled.Present() {
			if last, ok := l.lastLayout(g.UUID); ok {
				now.mig = last.mig
				now.generation = last.generation
			}
		}

		l.next = append(l.next, now)
	}

	same := slices.EqualFunc(
		l.next,
		l.gpus,
		func(now, before gpuLayout) bool { return !now.changed(before) },
	)

	l.gpus, l.next = l.next, l.gpus

	if !same {
		l.failed = 0
	}

	return !same
}

// lastLayout returns the layout of a GPU when starts were last counted.
func (l *startLimit) lastLayout(id gpu.UUID) (gpuLayout, bool) {
	at := slices.IndexFunc(l.gpus, func(g gpuLayout) bool { return g.uuid == id })
	if at < 0 {
		return gpuLayout{}, false
	}

	return l.gpus[at], true
}

// versionIsFinal reports whether no start of an engine in this process can succeed any more: the
// library, which stays loaded, is of another version.
func (s *Source) versionIsFinal() bool {
	return s.opts.Mode == ModeEmbedded && s.starts.failed >= maxStarts &&
		errors.Is(s.lastErr, ErrVersion)
}

// needsRoot reports whether an engine would not start in this process because we are not root: while
// a GPU is in MIG mode, it starts only as root.
func (s *Source) needsRoot(snapshot *gpu.Snapshot) bool {
	return s.opts.Mode == ModeEmbedded && s.opts.User() != 0 &&
		slices.ContainsFunc(snapshot.GPUs, func(g gpu.GPU) bool { return g.MIG.Enabled.Or(false) })
}

// explainStart adds to an error what to do if an engine does not start in this process because we
// are not root.
func (s *Source) explainStart(err error) error {
	user := s.opts.User()

	switch {
	case s.opts.Mode != ModeEmbedded || user == 0:
		return err
	case errors.Is(err, ErrStart) && s.cannotStart:
		return fmt.Errorf(
			"%w: %w: this process runs as user %d, and a DCGM in it does not start without root while a GPU "+
				"is in MIG mode: %s",
			err,
			ErrRequiresRoot,
			user,
			s.rootAdvice(),
		)
	case errors.Is(err, ErrRequiresRoot):
		return fmt.Errorf("%w: %s", err, s.rootAdvice())
	}

	return err
}
