package nvmlsource_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// answering is an Interceptor that answers every call with success, so that no driver is called.
type answering struct{ called []nvmlsource.Call }

// Handles of a driver that answers nothing.
type (
	noDevice   struct{ nvmlsource.MutableDevice }
	noInstance struct{ nvmlsource.MutableInstance }
)

func (a *answering) Before(c nvmlsource.Call) nvmlsource.Verdict {
	a.called = append(a.called, c)

	answer := map[string]any{
		"nvmlDeviceGetHandleByIndex":               noDevice{},
		"nvmlDeviceGetGpuInstances":                []nvmlsource.GPUInstance{nil},
		"nvmlDeviceCreateGpuInstanceWithPlacement": noInstance{},
	}[c.Function]

	return nvmlsource.Verdict{Answered: true, Answer: answer}
}

// Object names a handle by the function that returned it.
func (a *answering) Object(c nvmlsource.Call, _ int, _ any) (object any, known bool) {
	return c.Function, true
}

// handles returns one handle of each kind of a library, with what its calls are about.
func handles(t *testing.T, lib nvmlsource.Library) map[any]reflect.Value {
	t.Helper()

	d, _ := lib.DeviceGetHandleByIndex(0)
	m, _ := d.GetMigDeviceHandleByIndex(0)
	list, _ := d.GetGpuInstances(0, 1)
	gi, _ := d.(nvmlsource.MutableDevice).CreateGpuInstanceWithPlacement(0, nvml.GpuInstancePlacement{})
	ci, _ := gi.CreateComputeInstanceWithPlacement(0, nvml.ComputeInstancePlacement{})
	set, _ := lib.EventSetCreate()
	sample, _ := lib.GpmSampleAlloc()

	return map[any]reflect.Value{
		nil:                                        reflect.ValueOf(lib),
		"nvmlDeviceGetHandleByIndex":               reflect.ValueOf(d),
		"nvmlDeviceGetMigDeviceHandleByIndex":      reflect.ValueOf(m),
		"nvmlDeviceGetGpuInstances":                reflect.ValueOf(list[0]),
		"nvmlDeviceCreateGpuInstanceWithPlacement": reflect.ValueOf(gi),
		"nvmlGpuInstanceCreateComputeInstanceWithPlacement": reflect.ValueOf(ci),
		"nvmlEventSetCreate": reflect.ValueOf(set),
		"nvmlGpmSampleAlloc": reflect.ValueOf(sample),
	}
}

// TestEveryCallPassesTheInterceptor: each method of the seam, on each kind of handle, is one call
// of the interceptor, about that handle, and none of the driver. Its function has a class in
// gpu.ClassifiedCalls: one that has none would be counted as unknown without a decision. A class of
// a function that is not called is a misspelt name.
func TestEveryCallPassesTheInterceptor(t *testing.T) {
	by := &answering{}
	lib := nvmlsource.Intercept(nil, by)
	all := handles(t, lib)
	classes := gpu.ClassifiedCalls()
	called := map[string]bool{}

	arguments := map[reflect.Type]reflect.Value{
		reflect.TypeFor[nvmlsource.EventSet]():  all["nvmlEventSetCreate"],
		reflect.TypeFor[nvmlsource.GPMSample](): all["nvmlGpmSampleAlloc"],
	}

	for object, handle := range all {
		for i := range handle.NumMethod() {
			m := handle.Method(i)
			name := handle.Type().Method(i).Name

			if name == "LoadError" {
				continue // no call of the driver
			}

			args := make([]reflect.Value, 0, m.Type().NumIn())
			for k := range m.Type().NumIn() {
				argument, isHandle := arguments[m.Type().In(k)]
				if !isHandle {
					argument = reflect.Zero(m.Type().In(k))
				}

				args = append(args, argument)
			}

			by.called = nil
			results := m.Call(args)

			if len(by.called) != 1 {
				t.Fatalf("%s of %v makes the calls %v, want one", name, object, by.called)
			}

			made := by.called[0]
			called[made.Function] = true
			cmptest.Equal(t, "object of "+made.Function, made.Object, object)
			cmptest.Equal(t, "code of "+made.Function, results[len(results)-1].Interface(), any(nvml.SUCCESS))

			if classes[made.Function] == "" {
				t.Errorf("%s is in no class: say in internal/gpu/call.go which it is, with the source, or that "+
					"it is unknown", made.Function)
			}
		}
	}

	for function := range classes {
		if !called[function] {
			t.Errorf("internal/gpu/call.go has a class for %s, which is not called", function)
		}
	}
}

// TestObserveCallsLeavesEventsOut: receiving events waits in the driver all the time, and to free a
// sample is no call of a reading.
func TestObserveCallsLeavesEventsOut(t *testing.T) {
	seen := &functions{}
	lib := nvmlsource.ObserveCalls(nvmlsource.Intercept(nil, &answering{}), seen)

	d, _ := lib.DeviceGetHandleByIndex(0)
	set, _ := lib.EventSetCreate()
	_ = d.RegisterEvents(nvml.EventTypeXidCriticalError, set)
	_, _ = set.Wait(0)
	_ = set.Free()
	sample, _ := lib.GpmSampleAlloc()
	_ = sample.Free()

	want := []string{"nvmlDeviceGetHandleByIndex", "nvmlGpmSampleAlloc"}
	cmptest.Equal(t, "calls that began", seen.began, want)
	cmptest.Equal(t, "calls that ended", seen.ended, want)
}

// functions is a CallObserver.
type functions struct{ began, ended []string }

func (f *functions) BeginCall(function string) time.Time {
	f.began = append(f.began, function)
	return time.Time{}
}

func (f *functions) EndCall(function string, _ time.Time) { f.ended = append(f.ended, function) }

// TestInterceptorGetsTheDriversAnswer: a call that is not answered reaches the driver, and After
// gets the answer.
func TestInterceptorGetsTheDriversAnswer(t *testing.T) {
	by := &listening{}

	d, ret := nvmlsource.Intercept(handleLibrary{}, by).DeviceGetHandleByIndex(3)
	if ret != nvml.SUCCESS {
		t.Fatalf("handle: %d", ret)
	}

	name, ret := d.GetName()
	cmptest.Equal(t, "name", name, "H100")
	cmptest.Equal(t, "code", ret, nvml.ERROR_UNKNOWN)
	cmptest.Equal(t, "answers", by.got, []any{namedDevice{}, "H100"})
}

type listening struct{ got []any }

func (l *listening) Before(nvmlsource.Call) nvmlsource.Verdict {
	return nvmlsource.Verdict{After: func(answer any, _ nvml.Return) { l.got = append(l.got, answer) }}
}

func (l *listening) Object(nvmlsource.Call, int, any) (object any, known bool) { return nil, true }

type handleLibrary struct{ nvmlsource.Library }

func (handleLibrary) DeviceGetHandleByIndex(int) (nvmlsource.Device, nvml.Return) {
	return namedDevice{}, nvml.SUCCESS
}

type namedDevice struct{ nvmlsource.Device }

func (namedDevice) GetName() (string, nvml.Return) { return "H100", nvml.ERROR_UNKNOWN }
