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

// callTypes lists the calls of one kind of entity. Those whose methods are generated are generated, too.
func callTypes(kind string) []callType {
	onlyCode := reflect.TypeFor[none]()
	number := []names{numbers}
	profiled := []callType{ // the call, and each metric of it
		{"nvmlGpmSampleGet", nil, onlyCode},
		{"nvmlGpmMetricsGet", []names{windowNames}, onlyCode},
		{"nvmlGpmMetricsGet", []names{windowNames, metricNames}, reflect.TypeFor[float64]()},
	}
	switch kind {
	case "node":
		return append(generatedLibraryCalls(), []callType{
			{"nvmlDeviceGetCount", nil, reflect.TypeFor[handleCount]()},
			{"nvmlDeviceGetHandleByIndex", number, reflect.TypeFor[gpuName]()},
			{"nvmlEventSetCreate", nil, onlyCode},
			{"nvmlGpmSampleAlloc", nil, onlyCode},
		}...)
	case "gpu":
		return slices.Concat(generatedDeviceCalls(), profiled, []callType{
			{"nvmlDeviceGetFieldValues", nil, onlyCode}, // and each field of it:
			{"nvmlDeviceGetFieldValues", []names{fieldNames, numbers}, reflect.TypeFor[fieldValue]()},
			{"nvmlDeviceGetGpuInstances", number, reflect.TypeFor[handleCount]()},
			{"nvmlDeviceGetMigDeviceHandleByIndex", number, onlyCode},
			{"nvmlDeviceGetProcessUtilization", nil, reflect.TypeFor[[]nvml.ProcessUtilizationSample]()},
			{"nvmlDeviceRegisterEvents", []names{eventNames}, onlyCode},
			{"nvmlGpmMigSampleGet", number, onlyCode},
		})
	case "mig":
		return append(generatedMIGDeviceCalls(), profiled...)
	}
	return generatedGPUInstanceCalls()
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
