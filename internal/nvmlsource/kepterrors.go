package nvmlsource

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// keptErrors are the errors of a step that not every reading makes. Until the step is made again,
// every reading reports them, but they are new, and counted, only in the first report.
//
// Denials are kept in another way (answers.refused): a denied call is tried again and again, and
// several calls can be denied for one reading, but only the first denial of a reading is new.
// privilege, registration and session keep no errors either; they only remember what they have
// logged.
type keptErrors []gpu.ReadError

// report returns the errors for a reading.
func (k keptErrors) report() []gpu.ReadError {
	errs := slices.Clone(k)
	markRemembered(k)

	return errs
}

// reportKept is report for a single error; the zero ReadError is none.
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
