package nvmlsource

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// keptErrors are the errors of something that not every reading reads. Each reading reports them
// until it is read again; they are new, and count, in the first report alone.
//
// Denials are kept in another way (answers.refused): a denied call is tried again and again, and
// several calls can be denied for one reading, but only the first denial of a reading is new. What
// privilege, registration and session remember of the log is not here either: only which line was
// written.
type keptErrors []gpu.ReadError

// report returns the errors for a reading.
func (k keptErrors) report() []gpu.ReadError {
	errs := slices.Clone(k)
	markRemembered(k)

	return errs
}

// reportKept is report for a single error; zero is none.
func reportKept(kept *gpu.ReadError) gpu.ReadError {
	e := *kept
	kept.Remembered = true

	return e
}

// markRemembered marks errors that were reported before.
func markRemembered(errs []gpu.ReadError) {
	for i := range errs {
		errs[i].Remembered = true
	}
}
