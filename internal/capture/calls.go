package capture

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// callType describes a function of NVML at the driver seam: the names of its arguments' values, and the type of its
// answer.
type callType struct {
	name   string
	args   []names
	answer reflect.Type
}

// none is the answer of a call that returns a code and nothing else.
type none struct{}

// nodeCalls, gpuCalls and migCalls return the calls of each kind of entity. Calls whose methods are generated are
// listed in generated functions; GPU instances have only those.
func nodeCalls() []callType {
	return append(generatedLibraryCalls(),
		returns[handleCount]("nvmlDeviceGetCount"),
		returns[gpuName]("nvmlDeviceGetHandleByIndex", numbers),
		returns[none]("nvmlEventSetCreate"),
		returns[none]("nvmlGpmSampleAlloc"),
	)
}

func gpuCalls() []callType {
	return append(slices.Concat(generatedDeviceCalls(), profiledCalls()),
		returns[none]("nvmlDeviceGetFieldValues"), // the call, and each field of it:
		returns[fieldValue]("nvmlDeviceGetFieldValues", fieldNames, numbers),
		returns[handleCount]("nvmlDeviceGetGpuInstances", numbers),
		returns[none]("nvmlDeviceGetMigDeviceHandleByIndex", numbers),
		returns[[]nvml.ProcessUtilizationSample]("nvmlDeviceGetProcessUtilization"),
		returns[none]("nvmlDeviceRegisterEvents", eventNames),
		returns[none]("nvmlGpmMigSampleGet", numbers),
	)
}

func migCalls() []callType { return append(generatedMIGDeviceCalls(), profiledCalls()...) }

func profiledCalls() []callType {
	return []callType{
		returns[none]("nvmlGpmSampleGet"),
		returns[none]("nvmlGpmMetricsGet", windowNames), // the call, and each metric of it:
		returns[float64]("nvmlGpmMetricsGet", windowNames, metricNames),
	}
}

// returns is the type of a call whose answer is a T.
func returns[T any](name string, args ...names) callType {
	return callType{name, args, reflect.TypeFor[T]()}
}

// callOf returns a call with its arguments, as it is written in a file.
func callOf(function string, args ...string) string {
	return function + "(" + strings.Join(args, ", ") + ")"
}

// findCall parses a call. It returns its type and its canonical form, in which arguments are written by name if they
// have one.
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

	for i, of := range c.args {
		v, ok := of.value(args[i])
		if !ok {
			return c, "", fmt.Errorf(
				"has the argument %q, which is neither a number nor a name known here",
				args[i],
			)
		}

		args[i] = of.name(v)
	}

	return c, callOf(name, args...), nil
}

// names lists values with their names, such as " 0:GRAPHICS 1:SM "; other values are written as numbers. The names
// are those of nvml.h without their common prefix.
type names string

const (
	numbers names = ""
	// what a window of samples is of: a GPU instance by its id, or the entity itself
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

	before, _, found := strings.Cut(string(n), ":"+text+" ")
	if found && !strings.Contains(text, " ") {
		number = before[strings.LastIndex(before, " ")+1:]
	}

	v, err := strconv.ParseUint(number, 10, 64)

	return v, err == nil
}
