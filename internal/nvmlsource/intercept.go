package nvmlsource

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Interceptor sees every call of a driver. Its methods are called concurrently.
type Interceptor interface {
	// Before is called before the driver is, and says what becomes of the call.
	Before(c Call) Verdict
	// Object returns the object by which later calls name a handle (Call.Object). Call c has
	// returned the handle, at a position if it returned a list. If known is false, the caller gets
	// no handle.
	Object(c Call, position int, handle any) (object any, known bool)
}

// Call is one call of a driver.
type Call struct {
	Object   any       // the object of the handle that is called; nil for the library
	Function string    // its name in nvml.h, without a version
	Args     [3]uint64 // its numeric arguments
	Samples  [2]any    // the objects of the GPM samples that it takes

	// Buffers that it fills in.
	Fields  []nvml.FieldValue
	Metrics []GPMMetric
}

// Verdict says what becomes of a call. The zero Verdict lets it pass.
type Verdict struct {
	Answered bool // the driver is not called; the call returns Answer and Return
	Answer   any  // nil, or of another type than the call's: the zero value
	Return   nvml.Return

	// After, if not nil, is called with what the driver has returned.
	After func(answer any, ret nvml.Return)

	observer CallObserver // if not nil, it learns when the call ends
	began    time.Time
}

// Intercept returns a Library that passes every call of driver, and of all handles that it gives
// out, to an Interceptor first. Two handles are equal if the driver's handles and their objects
// are. If the Interceptor answers every call, driver may be nil.
func Intercept(driver Library, by Interceptor) Library {
	return interceptedLibrary{handle[Library]{driver, by, nil}}
}

// handle is a Library, or a handle that it has given out, with the interceptor in front of it.
type handle[D any] struct {
	raw    D // the driver's; only passCall may call it
	by     Interceptor
	object any
}

// passCall makes the call f, unless the Interceptor answers it. If that only observes calls,
// passCall allocates nothing.
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

// ObserveCalls returns a Library that reports every call of lib, and of all handles that it gives
// out, to an observer. Receiving events is not observed: it waits in the driver all the time.
func ObserveCalls(lib Library, observer CallObserver) Library {
	return Intercept(lib, observing{observer})
}

// CallObserver observes driver calls, by the function's name in nvml.h without a version. Its
// methods are called concurrently.
type CallObserver interface {
	// BeginCall is called before the driver is. EndCall is called afterwards, with what BeginCall
	// returned.
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

// observeInstead returns d, a handle of ObserveCalls, with another observer.
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
