package capture

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// callType describes a function of NVML at the driver seam.
type callType struct {
	name   string
	args   []names      // for each argument, the names of its values
	answer reflect.Type // the type of its answer
}

// none is the answer of a call that returns a code and nothing else.
type none struct{}

// nodeCalls, gpuCalls, migCalls and instanceCalls return the calls of each kind of entity.
func nodeCalls() []callType {
	return callsOf[nvmlsource.Library]("nvml",
		returns[handleCount]("nvmlDeviceGetCount"),
		returns[gpuName]("nvmlDeviceGetHandleByIndex", numbers),
		returns[none]("nvmlEventSetCreate"),
		returns[none]("nvmlGpmSampleAlloc"),
	)
}

func gpuCalls() []callType {
	return callsOf[nvmlsource.Device]("nvmlDevice", append(profiledCalls(),
		returns[none]("nvmlDeviceGetFieldValues"), // the call, and each of its fields:
		returns[fieldValue]("nvmlDeviceGetFieldValues", fieldNames, numbers),
		returns[handleCount]("nvmlDeviceGetGpuInstances", numbers),
		returns[none]("nvmlDeviceGetMigDeviceHandleByIndex", numbers),
		// Without the argument lastSeen: a replay is asked for the samples of the same polls.
		returns[[]nvml.ProcessUtilizationSample]("nvmlDeviceGetProcessUtilization"),
		returns[none]("nvmlDeviceRegisterEvents", eventNames),
		returns[none]("nvmlGpmMigSampleGet", numbers),
		returns[nvmlsource.ComputeCapability]("nvmlDeviceGetCudaComputeCapability"),
		returns[nvmlsource.RemappedRows]("nvmlDeviceGetRemappedRows"),
		returns[nvmlsource.MIGModes]("nvmlDeviceGetMigMode"),
	)...)
}

func migCalls() []callType { return callsOf[nvmlsource.MIGDevice]("nvmlDevice", profiledCalls()...) }

func instanceCalls() []callType { return callsOf[nvmlsource.GPUInstance]("nvmlGpuInstance") }

func profiledCalls() []callType {
	return []callType{
		returns[none]("nvmlGpmSampleGet"),
		returns[none]("nvmlGpmMetricsGet", windowNames), // the call, and each of its metrics:
		returns[float64]("nvmlGpmMetricsGet", windowNames, metricNames),
	}
}

// callsOf returns the calls of an interface of the driver seam: the listed ones, and all others
// with the types of their methods. It omits calls for which notRecorded returns true.
func callsOf[I any](prefix string, listed ...callType) []callType {
	seam := reflect.TypeFor[I]()
	all := listed

	for i := range seam.NumMethod() {
		m := seam.Method(i)

		c := callType{name: prefix + m.Name}
		if strings.HasPrefix(m.Name, "Gpm") {
			c.name = "nvml" + m.Name
		}

		isListed := func(l callType) bool { return l.name == c.name }
		if notRecorded(c.name) || slices.ContainsFunc(listed, isListed) {
			continue
		}

		c.answer = m.Type.Out(0)
		if m.Type.NumOut() == 1 {
			c.answer = reflect.TypeFor[none]()
		}

		for k := range m.Type.NumIn() {
			c.args = append(c.args, namesOf(m.Type.In(k)))
		}

		all = append(all, c)
	}

	return all
}

// notRecorded reports whether we do not record a call: a recording ends before Shutdown, and a
// program that records releases no GPU.
func notRecorded(function string) bool {
	switch function {
	case "nvmlShutdown", "nvmlInitNoAttach", "nvmlDeviceGetHandleByPciBusId", "nvmlGpmSampleFree":
		return true
	}

	return false
}

// namesOf returns the names of the values that an argument of type t can have.
func namesOf(t reflect.Type) names {
	switch t {
	case reflect.TypeFor[nvml.MemoryErrorType]():
		return memoryErrorTypeNames
	case reflect.TypeFor[nvml.EccCounterType]():
		return eccCounterTypeNames
	case reflect.TypeFor[nvml.MemoryLocation]():
		return memoryLocationNames
	case reflect.TypeFor[nvml.TemperatureThresholds]():
		return temperatureThresholdsNames
	case reflect.TypeFor[nvml.ClockType]():
		return clockTypeNames
	}

	return numbers
}

// text returns a call of the type as it is written in a file.
func (t callType) text(c nvmlsource.Call) string {
	if len(t.args) == 0 {
		return t.name
	}

	args := make([]string, 0, len(t.args))
	for i, values := range t.args {
		args = append(args, values.name(c.Args[i]))
	}

	return callOf(t.name, args...)
}

// returns returns the type of a call whose answer is a T.
func returns[T any](name string, args ...names) callType {
	return callType{name, args, reflect.TypeFor[T]()}
}

// callOf returns a call with its arguments, as it is written in a file.
func callOf(function string, args ...string) string {
	return function + "(" + strings.Join(args, ", ") + ")"
}

// findCall parses a call. It returns its type and its canonical form, which has names instead of
// numbers if there are any.
func findCall(known []callType, text string) (c callType, canonical string, err error) {
	name, inner, hasArgs := strings.Cut(text, "(")
	var args []string

	if hasArgs {
		list, closed := strings.CutSuffix(inner, ")")
		if !closed {
			return c, "", errors.New("is not closed by a parenthesis")
		}

		args = strings.Split(list, ", ")
	}

	at := slices.IndexFunc(known, func(c callType) bool {
		return c.name == name && len(c.args) == len(args)
	})
	if at < 0 {
		return c, "", errors.New("is no call that is made here")
	}

	c = known[at]
	if !hasArgs {
		return c, name, nil
	}

	for i, values := range c.args {
		v, ok := values.value(args[i])
		if !ok {
			return c, "", fmt.Errorf(
				"has the argument %q, which is neither a number nor a name known here",
				args[i],
			)
		}

		args[i] = values.name(v)
	}

	return c, callOf(name, args...), nil
}

// names lists values with their names, such as " 0:GRAPHICS 1:SM "; other values are written as
// numbers. The names are nvml.h's without their common prefix.
type names string

const (
	numbers names = ""
	// windowNames are the ids of the GPU instance that a sample is of; WHOLE (nvmlsource.NoInstance)
	// is a sample of the whole entity.
	windowNames names = " 4294967295:WHOLE "
)

// name returns the name of a value, or its number.
func (n names) name(value uint64) string {
	number := strconv.FormatUint(value, 10)

	_, rest, found := strings.Cut(string(n), " "+number+":")
	if !found {
		return number
	}

	name, _, _ := strings.Cut(rest, " ")

	return name
}

// value parses a name or a number.
func (n names) value(text string) (uint64, bool) {
	number := text

	// The number of a name is between the space before it and its colon.
	before, _, found := strings.Cut(string(n), ":"+text+" ")
	if found && !strings.Contains(text, " ") {
		number = before[strings.LastIndex(before, " ")+1:]
	}

	v, err := strconv.ParseUint(number, 10, 64)

	return v, err == nil
}
