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

// callType is a function of NVML as the driver seam has it: the names that its arguments may have, and the type of its
// answer.
type callType struct {
	name   string
	args   []names
	answer reflect.Type
}

// none is the answer of a call that returns a code and nothing else.
type none struct{}

// nodeCalls, gpuCalls and migCalls list the calls of each kind of entity. Those whose methods are generated are generated,
// too; a GPU instance has no others.
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

// returns makes the type of a call whose answer is a T.
func returns[T any](name string, args ...names) callType {
	return callType{name, args, reflect.TypeFor[T]()}
}

// callOf writes a call with its arguments.
func callOf(function string, args ...string) string {
	return function + "(" + strings.Join(args, ", ") + ")"
}

// findCall reads a call, and returns it with the form in which it is looked up: one with names for arguments that have one.
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
	at := slices.IndexFunc(known, func(c callType) bool { return c.name == name && len(c.args) == len(args) })
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
			return c, "", fmt.Errorf("has the argument %q, which is neither a number nor a name known here", args[i])
		}
		args[i] = of.name(v)
	}
	return c, callOf(name, args...), nil
}

// names lists values with their names, such as " 0:GRAPHICS 1:SM "; a value without one is written as a number. The names
// are those of nvml.h without the prefix that all of them have.
type names string

const (
	numbers     names = ""
	windowNames names = " 4294967295:WHOLE " // what a window of samples is of: a GPU instance by its id, or the entity itself
)

// name is that of a value, or its number.
func (n names) name(value uint64) string {
	number := strconv.FormatUint(value, 10)
	_, rest, found := strings.Cut(string(n), " "+number+":")
	if !found {
		return number
	}
	name, _, _ := strings.Cut(rest, " ")
	return name
}

// value reads a name or a number.
func (n names) value(text string) (uint64, bool) {
	number := text
	if before, _, found := strings.Cut(string(n), ":"+text+" "); found && !strings.Contains(text, " ") {
		number = before[strings.LastIndex(before, " ")+1:]
	}
	v, err := strconv.ParseUint(number, 10, 64)
	return v, err == nil
}
