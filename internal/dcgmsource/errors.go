package dcgmsource

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The errors of a host engine. If package gpu has an error that says the same, both are wrapped.
var (
	// ErrNoLibrary means that there is no libdcgm.so.4.
	ErrNoLibrary = errors.New("libdcgm.so.4 not found: install DCGM 4 or leave --dcgm.address out")
	// ErrLibrary means that there is a libdcgm.so.4 that cannot be used.
	ErrLibrary = errors.New("libdcgm.so.4 cannot be loaded")
	// ErrVersion means that the library, the engine and this program do not have the same version
	// of the API.
	ErrVersion = errors.New("DCGM has another version of the API")
	// ErrStart means that an engine in this process did not start.
	ErrStart = errors.New("DCGM did not start")
	// ErrNoModule means that the engine has no profiling module, which GPUs without GPM need. DCGM
	// 4 has it in a separate package.
	ErrNoModule = errors.New("the profiling module of DCGM is not loaded")
	// ErrConnection means that the engine does not answer, or that it has closed the connection.
	ErrConnection = errors.New("no connection to the DCGM host engine")
	// ErrRequiresRoot means that the engine may not profile.
	ErrRequiresRoot = errors.New("profiling requires a DCGM host engine that runs as root")
	// ErrLimit means that the engine can hold no more groups (64 for all its clients).
	ErrLimit = errors.New("the DCGM host engine holds no more groups")
	// ErrPaused means that profiling is paused.
	ErrPaused = errors.New("profiling is paused in the DCGM host engine")
	// ErrNotWatched means that the engine has forgotten a watch.
	ErrNotWatched = errors.New("not watched by the DCGM host engine")
	// ErrStale means that the engine's hierarchy still differs from the driver's layout.
	ErrStale = errors.New("the DCGM host engine lists other instances than the driver")
	// ErrGone means that the engine does not know a group or an entity.
	ErrGone = errors.New("not known to the DCGM host engine")
)

// statusNotWatched is the one status of a Value (DCGM_ST_*) that means more than that there is no
// value.
const statusNotWatched = -16

// failure is one of DCGM's return codes that this package distinguishes.
type failure struct {
	code int
	text string   // a part of what errorString of DCGM 3 and 4 returns for it, in lower case
	errs [2]error // what the error wraps; the second may be nil
}

// failures maps DCGM's codes and texts to errors. go-dcgm returns the code of some functions, but
// of most only the text.
func failures() []failure {
	return []failure{
		// There is no engine that answers.
		{-7, "dcgm initialization error", [2]error{ErrStart, gpu.ErrUnavailable}},
		{-12, "api version mismatch", [2]error{ErrVersion, gpu.ErrUnavailable}},
		{-25, "dcgm library could not be found", [2]error{ErrLibrary, gpu.ErrUnavailable}},
		{-21, "connection invalid/disconnected", [2]error{ErrConnection, gpu.ErrUnavailable}},
		{-10, "object is in an undefined state", [2]error{ErrConnection, gpu.ErrUnavailable}},
		{-11, "timeout", [2]error{ErrConnection, gpu.ErrTimeout}},
		{-57, "driver timeout", [2]error{gpu.ErrTimeout}},

		// The engine refuses.
		{-29, "running as non-root", [2]error{ErrRequiresRoot, gpu.ErrNoPermission}},
		{-17, "no permission", [2]error{gpu.ErrNoPermission}},
		{-24, "max limit reached", [2]error{ErrLimit, gpu.ErrInsufficientResources}},
		{-54, "paused", [2]error{ErrPaused, gpu.ErrUnavailable}},

		// It does not know what is asked for.
		{-16, "not being watched", [2]error{ErrNotWatched}},
		{-5, "setting not configured", [2]error{ErrGone, gpu.ErrNotFound}},
		{-45, "gpu instance does not exist", [2]error{ErrGone, gpu.ErrNotFound}},
		{-46, "compute instance does not exist", [2]error{ErrGone, gpu.ErrNotFound}},
		{-1, "bad parameter", [2]error{gpu.ErrInvalidArgument}},

		// The GPU cannot do it.
		{-6, "feature not supported", [2]error{gpu.ErrNotSupported}},
		{-22, "gpu is not supported by dcgm", [2]error{gpu.ErrNotSupported}},
		{-23, "incompatible with each other", [2]error{gpu.ErrNotSupported}},
		{
			-33,
			"module of dcgm that is not currently loaded",
			[2]error{ErrNoModule, gpu.ErrNotSupported},
		},
		{-36, "profiling is not supported", [2]error{gpu.ErrNotSupported}},

		// The GPU fails.
		{-18, "gpu is lost", [2]error{gpu.ErrLost}},
		{-19, "gpu requires reset", [2]error{gpu.ErrResetRequired}},
	}
}

// Translate returns the error for a code of DCGM or, if the code is 0, for a text.
func Translate(op string, code int, text string) error {
	lower := strings.ToLower(text)

	for _, f := range failures() {
		if !f.matches(code, lower) {
			continue
		}

		err := f.errs[0]
		if f.errs[1] != nil {
			err = fmt.Errorf("%w: %w", err, f.errs[1])
		}

		return fmt.Errorf("%s: %w (DCGM: %q)", op, err, text)
	}

	return fmt.Errorf("%s: %w: DCGM: %q", op, gpu.ErrDriver, text)
}

// matches reports whether a code or, if the code is 0, a text in lower case is of the failure.
func (f failure) matches(code int, text string) bool {
	switch {
	case code != 0:
		return code == f.code
	case f.text == "timeout":
		// Texts of other failures contain this one, so it must be the whole text.
		return text == f.text || strings.HasSuffix(text, ": "+f.text)
	}

	return strings.Contains(text, f.text)
}

// isLost reports whether an error means that the connection cannot be used any more.
func isLost(err error) bool { return errors.Is(err, ErrConnection) || errors.Is(err, ErrVersion) }
