package nvmlsource

import (
	"errors"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// answers caches the calls that an entity refuses, by the name of the call. It is valid until the entity changes.
type answers struct {
	unsupported map[string]bool
	denied      map[string]error     // for lack of privilege
	refused     map[gpu.Reading]bool // readings whose denial was reported: a repeated one is no new error
}

func newAnswers() answers {
	return answers{unsupported: map[string]bool{}, denied: map[string]error{}, refused: map[gpu.Reading]bool{}}
}

// querier makes the calls about one entity in one reading. A call that is not supported is cached and seldom tried
// again, one that is denied is tried again with the slow tier, and every other failure is an error of the entity.
type querier struct {
	source *Source
	answers
	slow  bool // the slow tier is due: denied calls are tried again
	errs  []gpu.ReadError
	fatal error // the GPU as a whole does not answer; no further call is made
	stale bool  // the entity, a MIG device or an instance, is not what it was (losesEntity); meaningless for a GPU
}

// query makes one call, unless its refusal is cached, and reports whether it has answered. The call is named by the
// function of NVML, with its argument if it is made with several.
func query[T any](q *querier, call string, reading gpu.Reading, f func() (T, nvml.Return)) (T, bool) {
	var answer T
	if !q.mayQuery(call, reading) {
		return answer, false
	}
	answer, ret := f()
	return answer, q.accept(call, reading, ret)
}

// queryOpt is query for an answer that is a reading.
func queryOpt[T any](q *querier, call string, reading gpu.Reading, f func() (T, nvml.Return)) gpu.Opt[T] {
	answer, ok := query(q, call, reading, f)
	if !ok {
		return gpu.None[T]()
	}
	return gpu.Some(answer)
}

// queryScaled is query for a number in a fraction of the reading's unit, such as 1000 for mW.
func queryScaled[T int | uint32 | uint64](q *querier, call string, reading gpu.Reading, f func() (T, nvml.Return),
	fraction float64) gpu.Opt[float64] {
	answer, ok := query(q, call, reading, f)
	if !ok {
		return gpu.None[float64]()
	}
	return gpu.Some(float64(answer) / fraction)
}

// queryKnown is query for a call with an argument that not every driver knows. A driver answers such a call as one
// with an invalid argument, and it is cached like one that is not supported.
func queryKnown[T any](q *querier, call string, reading gpu.Reading, f func() (T, nvml.Return)) (T, bool) {
	var answer T
	if !q.mayQuery(call, reading) {
		return answer, false
	}
	answer, ret := f()
	err := q.classify(call, reading, ret)
	if errors.Is(err, gpu.ErrInvalidArgument) {
		q.unsupported[call] = true
		return answer, false
	}
	return answer, q.record(reading, err)
}

// mayQuery reports whether a call is to be made. A denial that is cached is an error of this reading, too.
func (q *querier) mayQuery(call string, reading gpu.Reading) bool {
	if q.fatal != nil || q.unsupported[call] {
		return false
	}
	if err := q.denied[call]; err != nil && !q.slow {
		q.errs = append(q.errs, gpu.ReadError{Reading: reading, Err: err, Remembered: true})
		return false
	}
	return true
}

// accept records the return code of a call and reports whether it has answered.
func (q *querier) accept(call string, reading gpu.Reading, ret nvml.Return) bool {
	return q.record(reading, q.classify(call, reading, ret))
}

// record adds what classify has returned of a call to the reading, and reports whether the call has answered.
func (q *querier) record(reading gpu.Reading, err error) bool {
	if err == nil {
		return true
	}
	if errors.Is(err, gpu.ErrNoPermission) {
		q.source.privilege.markMissing(reading)
	}
	q.addError(reading, err)
	return false
}

// classify counts a call, updates the caches, and returns the call's error, which it does not add to the reading.
func (q *querier) classify(call string, reading gpu.Reading, ret nvml.Return) error {
	err := q.source.checkReturn(call, ret)
	switch {
	case err == nil:
		if q.denied[call] != nil {
			delete(q.denied, call)
			delete(q.refused, reading)
			q.source.privilege.markRegained(reading)
		}
	case errors.Is(err, gpu.ErrNotSupported):
		q.unsupported[call] = true
	case errors.Is(err, gpu.ErrNoPermission):
		q.denied[call] = err
	case losesDevice(err):
		q.fatal = err
	case losesEntity(err):
		q.stale = true
	}
	return err
}

// addError adds the error of a call to the reading. A value that is not supported is absent, which is no error; the
// loss of the whole GPU is returned by the reading itself.
func (q *querier) addError(reading gpu.Reading, err error) {
	if errors.Is(err, gpu.ErrNotSupported) || q.fatal != nil {
		return
	}
	e := gpu.ReadError{Reading: reading, Err: err}
	if errors.Is(err, gpu.ErrNoPermission) {
		e.Remembered, q.refused[reading] = q.refused[reading], true
	}
	q.errs = append(q.errs, e)
}

// separate runs a step and returns the errors that it adds to the reading, which does not keep them.
func (q *querier) separate(step func()) []gpu.ReadError {
	before := q.errs
	q.errs = nil
	step()
	own := q.errs
	q.errs = before
	return own
}

// lastError returns why the last call has failed, which is the reason of a step that gave up after it.
func (q *querier) lastError() error {
	if q.fatal != nil || len(q.errs) == 0 {
		return q.fatal
	}
	return q.errs[len(q.errs)-1].Err
}

// validUTF8 returns a string of the driver as a valid label value.
func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
