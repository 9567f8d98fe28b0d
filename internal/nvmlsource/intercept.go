package nvmlsource

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Interceptor is at the one point through which every call of a driver passes. It is called
// concurrently.
type Interceptor interface {
	// Before is called before the driver is, and says what becomes of the call.
	Before(c Call) Verdict
	// Object returns what further calls about a handle will name as their Object. The handle is one
	// that a call has returned, at a position if it returned a list. If it is unknown, the caller
	// gets no handle.
	Object(c Call, position int, handle any) (object any, known bool)
}

// Call is one call of a driver.
type Call struct {
	Object   any       // of the handle that the call is about; nil for the library
	Function string    // its name in nvml.h, without a version
	Args     [3]uint64 // its numbers, as many as it has
	Samples  [2]any    // the objects of the samples that it takes

	// What it fills in.
	Fields  []nvml.FieldValue
	Metrics []GPMMetric
}

// Verdict says what becomes of a call. The zero Verdict lets it pass.
type Verdict struct {
	Answered bool // with what follows: the driver is not called
	Answer   any  // of another type than the call's, or nil: the zero value
	Return   nvml.Return

	// After, if not nil, gets what the driver has returned.
	After func(answer any, ret nvml.Return)

	observer CallObserver // if not nil, it learns when the call ends
	began    time.Time
}

// Intercept returns a Library with an interceptor in front of it, and of all handles that it gives
// out. Handles of equal handles are equal if their objects are. If each call is answered, there
// need be no driver.
func Intercept(driver Library, by Interceptor) Library {
	return interceptedLibrary{handle[Library]{driver, by, nil}}
}

// handle is a Library, or a handle that it has given out, with the interceptor in front of it.
type handle[D any] struct {
	raw    D // what only passCall may call
	by     Interceptor
	object any
}

// passCall makes the call f, unless the interceptor answers it. It allocates nothing if that only
// observes.
func passCall[D, T any](
	h handle[D],
	c Call,
	f func(D) (T, nvml.Return),
) (answer T, ret nvml.Return) {
	c.Object = h.object

	v := h.by.Before(c)
	if v.Answered {
		answer, _ = v.Answer.(T)
		return answer, v.Return
	}

	if v.observer != nil {
		defer v.observer.EndCall(c.Function, v.began)
	}

	answer, ret = f(h.raw)
	if v.After != nil {
		v.After(answer, ret)
	}

	return answer, ret
}

// pass is passCall for a call without arguments.
func pass[D, T any](h handle[D], function string, f func(D) (T, nvml.Return)) (T, nvml.Return) {
	return passCall(h, Call{Function: function}, f)
}

// passNumber is passCall for a call that takes one number.
func passNumber[D, T any, N ~int | ~int32 | ~uint32 | ~uint64](
	h handle[D],
	function string,
	f func(D, N) (T, nvml.Return),
	n N,
) (T, nvml.Return) {
	c := Call{Function: function, Args: [3]uint64{uint64(n)}}
	return passCall(h, c, func(d D) (T, nvml.Return) { return f(d, n) })
}

// passCode is passCall for a call that returns a code and nothing else.
func passCode[D any](h handle[D], c Call, f func(D) nvml.Return) nvml.Return {
	_, ret := passCall(h, c, func(d D) (struct{}, nvml.Return) { return struct{}{}, f(d) })
	return ret
}

// ObserveCalls returns a Library that reports to an observer every call of another Library, and of
// all handles that this one gives out. Receiving events is not observed: it waits in the driver all
// the time.
func ObserveCalls(lib Library, observer CallObserver) Library {
	return Intercept(lib, observing{observer})
}

// CallObserver observes every call of the seam, by the function's name in nvml.h without a version.
// It is called concurrently.
type CallObserver interface {
	// BeginCall is called before the driver is. EndCall gets its result.
	BeginCall(function string) time.Time
	EndCall(function string, began time.Time)
}

// observing is the Interceptor of a CallObserver.
type observing struct{ CallObserver }

func (o observing) Before(c Call) Verdict {
	switch c.Function {
	case "nvmlEventSetCreate", "nvmlEventSetWait", "nvmlEventSetFree", "nvmlDeviceRegisterEvents",
		"nvmlGpmSampleFree":
		return Verdict{}
	}

	return Verdict{observer: o.CallObserver, began: o.BeginCall(c.Function)}
}

func (observing) Object(Call, int, any) (object any, known bool) { return nil, true }

// observeInstead returns a handle of ObserveCalls with another observer.
func observeInstead(d Device, observer CallObserver) Device {
	switch d := d.(type) {
	case interceptedMutableDevice:
		d.by = observing{observer}
		return d
	case interceptedDevice:
		d.by = observing{observer}
		return d
	}

	return d
}
