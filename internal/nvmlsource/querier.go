package nvmlsource

import (
	"errors"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// answers caches the calls that an entity refuses, by the name of the call. It is valid until the
// entity changes.
type answers struct {
	unsupported map[string]bool
	denied      map[string]error     // for lack of privilege
	refused     map[gpu.Reading]bool // readings whose denial was reported, so that a repeated one is not new
}

func newAnswers() answers {
	return answers{
		unsupported: map[string]bool{},
		denied:      map[string]error{},
		refused:     map[gpu.Reading]bool{},
	}
}

// querier makes the calls of one step of a reading, about one entity. It caches a call that is not
// supported and seldom tries it again; it tries a denied call again once a minute; every other
// failure is an error of the step. Once the GPU as a whole does not answer, it makes no call.
type querier struct {
	*gpuRead
	answers
	errs []gpu.ReadError // of the step so far
	// the entity, a MIG device or an instance, has vanished or changed (losesEntity); a GPU never
	// does
	stale bool
}

// newQuerier returns a querier for an entity of the GPU, with what is cached of it.
func (r *gpuRead) newQuerier(cached answers) querier { return querier{gpuRead: r, answers: cached} }

// query makes one call, unless its refusal is cached. It returns the answer, or an error, which it
// also adds to the step's errors if users have to know of it (addError). call is NVML's name of the
// function, with its argument if we call it with several: "nvmlDeviceGetClockInfo(SM)".
func query[T any](
	q *querier,
	call string,
	reading gpu.Reading,
	f func() (T, nvml.Return),
) (T, error) {
	var none T
	if err := q.checkRefused(call, reading); err != nil {
		return none, err
	}

	answer, ret := f()
	if err := q.recordReturn(call, reading, ret); err != nil {
		return none, err
	}

	return answer, nil
}

// queryOpt is query with an answer that is absent after an error.
func queryOpt[T any](
	q *querier,
	call string,
	reading gpu.Reading,
	f func() (T, nvml.Return),
) gpu.Opt[T] {
	answer, err := query(q, call, reading, f)
	if err != nil {
		return gpu.None[T]()
	}

	return gpu.Some(answer)
}

// queryScaled is query for a number that the driver reports in fractions of our unit: 1000 for mW
// and watts.
func queryScaled[T int | uint32 | uint64](
	q *querier,
	call string,
	reading gpu.Reading,
	f func() (T, nvml.Return),
	fraction float64,
) gpu.Opt[float64] {
	answer, err := query(q, call, reading, f)
	if err != nil {
		return gpu.None[float64]()
	}

	return gpu.Some(float64(answer) / fraction)
}

// queryKnown is query for a call with an argument that not every driver knows, such as a new memory
// location. The driver calls such an argument invalid; that is cached like a call that is not
// supported.
func queryKnown[T any](
	q *querier,
	call string,
	reading gpu.Reading,
	f func() (T, nvml.Return),
) gpu.Opt[T] {
	if q.checkRefused(call, reading) != nil {
		return gpu.None[T]()
	}

	answer, ret := f()

	err := q.classify(call, reading, ret)
	if errors.Is(err, gpu.ErrInvalidArgument) {
		q.unsupported[call] = true
		return gpu.None[T]()
	}

	if err != nil {
		q.recordError(reading, err)
		return gpu.None[T]()
	}

	return gpu.Some(answer)
}

// refusalOf returns why a call must not be made: the GPU is lost, or the call's refusal is cached.
func (q *querier) refusalOf(call string) error {
	switch {
	case q.lost != nil:
		return q.lost
	case q.unsupported[call]:
		return gpu.ErrNotSupported
	case q.retryDenied:
		return nil
	}

	return q.denied[call]
}

// checkRefused is refusalOf; it also adds a cached denial to the step's errors.
func (q *querier) checkRefused(call string, reading gpu.Reading) error {
	err := q.refusalOf(call)
	if errors.Is(err, gpu.ErrNoPermission) {
		q.errs = append(q.errs, gpu.ReadError{Reading: reading, Err: err, Remembered: true})
	}

	return err
}

// recordReturn updates the caches by the return code of a call, and adds its error to the step's
// errors.
func (q *querier) recordReturn(call string, reading gpu.Reading, ret nvml.Return) error {
	err := q.classify(call, reading, ret)
	if err != nil {
		q.recordError(reading, err)
	}

	return err
}

// classify is classifyError for a return code.
func (q *querier) classify(call string, reading gpu.Reading, ret nvml.Return) error {
	return q.classifyError(call, reading, checkReturn(call, ret))
}

// classifyError updates the caches by the error of a call, nil if it succeeded. It does not add the
// error to the step's errors.
func (q *querier) classifyError(call string, reading gpu.Reading, err error) error {
	switch {
	case err == nil:
		if q.denied[call] != nil {
			delete(q.denied, call)
			q.markRegained(reading)
		}
	case errors.Is(err, gpu.ErrNotSupported):
		q.unsupported[call] = true
	case errors.Is(err, gpu.ErrNoPermission):
		q.denied[call] = err
	case losesDevice(err):
		q.lost = err
	case losesEntity(err):
		q.stale = true
	}

	if q.lost == nil && q.source.session.blocked.Load() {
		q.lost = gpu.ErrLibraryClosed // NVML is to be shut down: the reading ends here
	}

	return err
}

// markRegained records that a reading that was denied has been answered, so that its next denial is
// new.
func (q *querier) markRegained(reading gpu.Reading) {
	delete(q.refused, reading)
	q.source.privilege.markRegained(reading)
}

// recordError adds an error to the step's errors, and logs a denial or that processes are hidden.
func (q *querier) recordError(reading gpu.Reading, err error) {
	switch {
	case errors.Is(err, gpu.ErrNoPermission):
		q.source.privilege.markMissing(reading)
	case errors.Is(err, gpu.ErrPIDNamespace):
		q.source.privilege.markHidden(err)
	}

	q.addError(reading, err)
}

// addError adds an error to the step's errors. It leaves out ErrNotSupported, after which a value
// is only absent, and all errors once the GPU is lost, which is the error of the whole reading.
func (q *querier) addError(reading gpu.Reading, err error) {
	if errors.Is(err, gpu.ErrNotSupported) || q.lost != nil {
		return
	}

	e := gpu.ReadError{Reading: reading, Err: err}
	if errors.Is(err, gpu.ErrNoPermission) || errors.Is(err, gpu.ErrPIDNamespace) {
		e.Remembered = q.refused[reading]
		q.refused[reading] = true
	}

	q.errs = append(q.errs, e)
}

// validUTF8 returns a string of the driver as a valid label value.
func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
