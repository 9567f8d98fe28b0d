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
	refused     map[gpu.Reading]bool // readings whose denial was reported: a repeated one is no new error
}

func newAnswers() answers {
	return answers{
		unsupported: map[string]bool{},
		denied:      map[string]error{},
		refused:     map[gpu.Reading]bool{},
	}
}

// querier makes the calls of one step of a reading, about one entity. A call that is not supported
// is cached and seldom tried again, one that is denied is tried again once a minute, and every
// other failure is an error of the step. Once the GPU as a whole does not answer, it makes no call.
type querier struct {
	*gpuRead
	answers
	errs []gpu.ReadError // of the step so far
	// the entity, a MIG device or an instance, is not what it was (losesEntity); no GPU is stale
	stale bool
}

// newQuerier returns a querier for an entity of the GPU, with what is cached of it.
func (r *gpuRead) newQuerier(cached answers) querier { return querier{gpuRead: r, answers: cached} }

// query makes one call, unless its refusal is cached, and returns its answer, or zero with the
// error. The errors that a user has to know of are added to those of the step, too. The call is
// named by the function of NVML, with its argument if it is made with several.
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

// queryOpt is query for an answer that is a reading.
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

// queryScaled is query for a number in a fraction of the reading's unit, such as 1000 for mW.
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

// queryKnown is query for a call with an argument that not every driver knows. A driver answers
// such a call as one with an invalid argument, and it is cached like one that is not supported.
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

// checkRefused is refusalOf, and adds a denial that is cached to the errors of the step.
func (q *querier) checkRefused(call string, reading gpu.Reading) error {
	err := q.refusalOf(call)
	if errors.Is(err, gpu.ErrNoPermission) {
		q.errs = append(q.errs, gpu.ReadError{Reading: reading, Err: err, Remembered: true})
	}

	return err
}

// recordReturn classifies the return code of a call, and adds its error to those of the step.
func (q *querier) recordReturn(call string, reading gpu.Reading, ret nvml.Return) error {
	err := q.classify(call, reading, ret)
	if err != nil {
		q.recordError(reading, err)
	}

	return err
}

// classify classifies the error of a call.
func (q *querier) classify(call string, reading gpu.Reading, ret nvml.Return) error {
	return q.classifyError(call, reading, q.source.checkReturn(call, ret))
}

// classifyError updates the caches by what a call has returned. It does not add the error to those
// of the step.
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

	if q.lost == nil && q.source.session.paused.Load() {
		q.lost = gpu.ErrLibraryClosed // NVML is to be shut down: the reading ends here
	}

	return err
}

// markRegained records that a reading that was denied has been answered: its next denial is a new
// one.
func (q *querier) markRegained(reading gpu.Reading) {
	delete(q.refused, reading)
	q.source.privilege.markRegained(reading)
}

// recordError adds an error to those of the step, and logs a denial or that processes are hidden.
func (q *querier) recordError(reading gpu.Reading, err error) {
	switch {
	case errors.Is(err, gpu.ErrNoPermission):
		q.source.privilege.markMissing(reading)
	case errors.Is(err, gpu.ErrPIDNamespace):
		q.source.privilege.markHidden(err)
	}

	q.addError(reading, err)
}

// addError adds an error to those of the step. A value that is not supported is absent, which is no
// error; the loss of the whole GPU is the error of the reading itself.
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
