package podmeta

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// rightsizingAnnotations are a pod's annotations about right-sizing.
type rightsizingAnnotations struct {
	Rightsizing string `json:"mig-exporter.dev/rightsizing"`
	Strict      string `json:"mig-exporter.dev/strict"`
	MaxStretch  string `json:"mig-exporter.dev/max-stretch"`
	ServiceTime string `json:"mig-exporter.dev/service-time"`
	ModelMemory string `json:"mig-exporter.dev/model-memory"`
	MultiGPU    string `json:"mig-exporter.dev/multi-gpu"`
	Server      string `json:"mig-exporter.dev/server-metrics"`
}

// The values that mig-exporter.dev/max-stretch may have, as those of --advise.max-stretch.
const leastStretch, mostStretch = 1, 100

// mostServiceTime is the longest time that mig-exporter.dev/service-time may name.
const mostServiceTime = time.Hour

// parse returns what the annotations say, and a text for each that is ignored because its value is invalid.
func (a *rightsizingAnnotations) parse() (hints gpu.RightsizingHints, invalid []string) {
	for _, one := range []struct {
		name, value string
		parse       func(value string) error // the error says what is expected
	}{
		{"rightsizing", a.Rightsizing, func(v string) error { return parseSwitch(v, "off", "on", &hints.OptOut) }},
		{"strict", a.Strict, func(v string) error { return parseSwitch(v, "true", "false", &hints.Strict) }},
		{"max-stretch", a.MaxStretch, func(v string) error { return parseStretch(v, &hints) }},
		{"service-time", a.ServiceTime, func(v string) error { return parseServiceTime(v, &hints) }},
		{"model-memory", a.ModelMemory, func(v string) error { return parseModelMemory(v, &hints) }},
		{"multi-gpu", a.MultiGPU, func(v string) error { return parseMultiGPU(v, &hints) }},
		{"server-metrics", a.Server, func(v string) error { return parseServer(v, &hints) }},
	} {
		if one.value == "" {
			continue
		}

		if err := one.parse(one.value); err != nil {
			invalid = append(
				invalid,
				fmt.Sprintf("mig-exporter.dev/%s=%.64q: expected %s", one.name, one.value, err),
			)
		}
	}

	return hints, invalid
}

// parseSwitch sets a switch to whether a value is the first of two, which are all that it may be.
func parseSwitch(value, on, off string, to *bool) error {
	if value != on && value != off {
		return fmt.Errorf("%q or %q", on, off)
	}

	*to = value == on

	return nil
}

func parseStretch(value string, hints *gpu.RightsizingHints) error {
	stretch, err := strconv.ParseFloat(value, 64)
	if err != nil || !(stretch >= leastStretch && stretch <= mostStretch) { // NaN is invalid
		return fmt.Errorf("a number from %d to %d", leastStretch, mostStretch)
	}

	hints.MaxStretch = gpu.Some(stretch)

	return nil
}

func parseMultiGPU(value string, hints *gpu.RightsizingHints) error {
	var several bool
	if err := parseSwitch(value, "true", "false", &several); err != nil {
		return err
	}

	hints.MultiGPU = gpu.Some(several)

	return nil
}

func parseServiceTime(value string, hints *gpu.RightsizingHints) error {
	if value == "none" {
		hints.Closed = true
		return nil
	}

	service, err := time.ParseDuration(value)
	if err != nil || service <= 0 || service > mostServiceTime {
		return fmt.Errorf(`a duration up to %s, such as "120ms", or "none"`, mostServiceTime)
	}

	hints.ServiceTime = gpu.Some(service)

	return nil
}

func parseModelMemory(value string, hints *gpu.RightsizingHints) error {
	bytes, ok := gpu.ParseModelMemory(value)
	if !ok {
		return errors.New(`a number of bytes, such as "14Gi" or "800Mi"`)
	}

	hints.ModelMemory = gpu.Some(bytes)

	return nil
}

// parseServer reads a port and a path, ":8000/metrics". A host is none of its parts: only the pod itself is asked.
func parseServer(value string, hints *gpu.RightsizingHints) error {
	expected := errors.New(`a port and a path of the pod, such as ":8000/metrics"`)
	rest, ok := strings.CutPrefix(value, ":")
	number, path, slash := strings.Cut(rest, "/")
	port, err := strconv.ParseUint(number, 10, 16)

	isPlain := len(path) <= mostServerPath && strings.Trim(path, serverPathBytes) == ""
	if !ok || !slash || err != nil || port == 0 || !isPlain {
		return expected
	}

	hints.Server = gpu.ServerEndpoint{Port: uint16(port), Path: "/" + path}

	return nil
}

// What the path of mig-exporter.dev/server-metrics may have, up to mostServerPath bytes: no query, no fragment and
// nothing that is encoded.
const (
	serverPathBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~/-"
	mostServerPath  = 200
)

// ParseHints returns what a pod's annotations say about right-sizing, and a text for each that is ignored because its
// value is invalid.
func ParseHints(annotations map[string]string) (hints gpu.RightsizingHints, invalid []string) {
	var a rightsizingAnnotations
	if text, err := json.Marshal(annotations); err == nil {
		err = json.Unmarshal(text, &a)
		if err != nil {
			return hints, []string{err.Error()}
		}
	}

	return a.parse()
}

// invalidAnnotation is an annotation that is ignored.
type invalidAnnotation struct {
	pod  podName
	text string
}

// logInvalid logs the ignored annotations of a list that the list before did not have.
func (p *Poller) logInvalid(now map[invalidAnnotation]bool) {
	for a := range now {
		if !p.invalid[a] {
			level.Warn(p.logger).Log(
				"msg", "ignoring an annotation of a pod",
				"pod", a.pod.namespace+"/"+a.pod.name,
				"annotation", a.text,
			)
		}
	}

	p.invalid = now
}
