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

// rightsizingAnnotations are a pod's annotations about right-sizing. One that the pod does not have
// is nil.
type rightsizingAnnotations struct {
	Rightsizing *string `json:"mig-exporter.io/rightsizing"`
	Strict      *string `json:"mig-exporter.io/strict"`
	MaxStretch  *string `json:"mig-exporter.io/max-stretch"`
	ServiceTime *string `json:"mig-exporter.io/service-time"`
	ModelMemory *string `json:"mig-exporter.io/model-memory"`
	MultiGPU    *string `json:"mig-exporter.io/multi-gpu"`
	Server      *string `json:"mig-exporter.io/server-metrics"`

	formerAnnotations
}

// formerAnnotations are the same annotations under the domain that they had before. We read one
// only if the pod does not have it under the present domain. So an empty annotation of the present
// domain cancels one of the former domain.
type formerAnnotations struct {
	FormerRightsizing *string `json:"mig-exporter.dev/rightsizing"`
	FormerStrict      *string `json:"mig-exporter.dev/strict"`
	FormerMaxStretch  *string `json:"mig-exporter.dev/max-stretch"`
	FormerServiceTime *string `json:"mig-exporter.dev/service-time"`
	FormerModelMemory *string `json:"mig-exporter.dev/model-memory"`
	FormerMultiGPU    *string `json:"mig-exporter.dev/multi-gpu"`
	FormerServer      *string `json:"mig-exporter.dev/server-metrics"`
}

// The domains of annotations.
const domain, formerDomain = "mig-exporter.io", "mig-exporter.dev"

// The range of mig-exporter.io/max-stretch; --advise.max-stretch has the same.
const leastStretch, mostStretch = 1, 100

// mostServiceTime is the longest time that mig-exporter.io/service-time may name.
const mostServiceTime = time.Hour

// parse returns what the annotations say. invalid has a text for each annotation that we ignore
// because of its value, and former has the names of those that we read from the former domain.
func (a *rightsizingAnnotations) parse() (
	hints gpu.RightsizingHints, invalid, former []string,
) {
	for _, annotation := range []struct {
		name          string
		value, former *string
		parse         func(string, *gpu.RightsizingHints) error // the error says what is expected
	}{
		{"rightsizing", a.Rightsizing, a.FormerRightsizing, parseOptOut},
		{"strict", a.Strict, a.FormerStrict, parseStrict},
		{"max-stretch", a.MaxStretch, a.FormerMaxStretch, parseStretch},
		{"service-time", a.ServiceTime, a.FormerServiceTime, parseServiceTime},
		{"model-memory", a.ModelMemory, a.FormerModelMemory, parseModelMemory},
		{"multi-gpu", a.MultiGPU, a.FormerMultiGPU, parseMultiGPU},
		{"server-metrics", a.Server, a.FormerServer, parseServer},
	} {
		name := domain + "/" + annotation.name

		value := annotation.value
		if value == nil && annotation.former != nil {
			name = formerDomain + "/" + annotation.name
			value = annotation.former
			former = append(former, name)
		}

		if value == nil || *value == "" {
			continue
		}

		if err := annotation.parse(*value, &hints); err != nil {
			invalid = append(invalid, fmt.Sprintf("%s=%.64q: expected %s", name, *value, err))
		}
	}

	return hints, invalid, former
}

func parseOptOut(value string, hints *gpu.RightsizingHints) error {
	return parseSwitch(value, "off", "on", &hints.OptOut)
}

func parseStrict(value string, hints *gpu.RightsizingHints) error {
	return parseSwitch(value, "true", "false", &hints.Strict)
}

// parseSwitch sets *to to whether the value is on; it may only be on or off.
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

// parseServer parses a port and a path, ":8000/metrics". It accepts no host: we ask only the pod
// itself.
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

// The bytes that the path of mig-exporter.io/server-metrics may have, and how many: no query, no
// fragment and nothing encoded.
const (
	serverPathBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~/-"
	mostServerPath  = 200
)

// ParseHints returns what a pod's annotations say about right-sizing, and a text for each that we
// ignore because its value is invalid.
func ParseHints(annotations map[string]string) (hints gpu.RightsizingHints, invalid []string) {
	var a rightsizingAnnotations

	text, err := json.Marshal(annotations)
	if err == nil {
		err = json.Unmarshal(text, &a)
	}

	if err != nil {
		return hints, []string{err.Error()}
	}

	hints, invalid, _ = a.parse()

	return hints, invalid
}

// invalidAnnotation is an annotation of a pod that we ignore.
type invalidAnnotation struct {
	pod  podName
	text string // the annotation, and what was expected
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

// podAnnotations are the names of some annotations of a pod.
type podAnnotations struct {
	pod   podName
	names []string
}

// logFormer logs that pods have annotations of the former domain, and the first such pod. It logs
// this once in the life of the process.
func (p *Poller) logFormer(list []podAnnotations) {
	if len(list) == 0 || p.formerLogged {
		return
	}

	p.formerLogged = true
	first := list[0]
	level.Warn(p.logger).Log(
		"msg", "pods have annotations of a deprecated domain; this is logged once",
		"pods", len(list),
		"pod", first.pod.namespace+"/"+first.pod.name,
		"annotations", strings.Join(first.names, ","),
		"use", domain,
	)
}
