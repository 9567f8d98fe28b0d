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

// rightsizingAnnotations are a pod's annotations about right-sizing, nil if the pod has them not.
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

// formerAnnotations are the same under the domain that they had before. One is read if the
// annotation of the present domain is absent: an empty one says nothing, and overrides it.
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

// The values that mig-exporter.io/max-stretch may have, as those of --advise.max-stretch.
const leastStretch, mostStretch = 1, 100

// mostServiceTime is the longest time that mig-exporter.io/service-time may name.
const mostServiceTime = time.Hour

// parse returns what the annotations say, a text for each that is ignored because its value is
// invalid, and the names of those that the former domain has and the present one not.
func (a *rightsizingAnnotations) parse() (
	hints gpu.RightsizingHints, invalid, former []string,
) {
	into := func(parse func(string, *gpu.RightsizingHints) error) func(string) error {
		return func(value string) error { return parse(value, &hints) }
	}
	flip := func(on, off string, to *bool) func(string) error {
		return func(value string) error { return parseSwitch(value, on, off, to) }
	}

	for _, one := range []struct {
		name           string
		value, earlier *string
		parse          func(value string) error // the error says what is expected
	}{
		{"rightsizing", a.Rightsizing, a.FormerRightsizing, flip("off", "on", &hints.OptOut)},
		{"strict", a.Strict, a.FormerStrict, flip("true", "false", &hints.Strict)},
		{"max-stretch", a.MaxStretch, a.FormerMaxStretch, into(parseStretch)},
		{"service-time", a.ServiceTime, a.FormerServiceTime, into(parseServiceTime)},
		{"model-memory", a.ModelMemory, a.FormerModelMemory, into(parseModelMemory)},
		{"multi-gpu", a.MultiGPU, a.FormerMultiGPU, into(parseMultiGPU)},
		{"server-metrics", a.Server, a.FormerServer, into(parseServer)},
	} {
		under := domain

		value := one.value
		if value == nil && one.earlier != nil {
			under = formerDomain
			value = one.earlier
			former = append(former, under+"/"+one.name)
		}

		if value == nil || *value == "" {
			continue
		}

		if err := one.parse(*value); err != nil {
			invalid = append(
				invalid,
				fmt.Sprintf("%s/%s=%.64q: expected %s", under, one.name, *value, err),
			)
		}
	}

	return hints, invalid, former
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

// parseServer reads a port and a path, ":8000/metrics". A host is none of its parts: only the pod
// itself is asked.
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

// What the path of mig-exporter.io/server-metrics may have, up to mostServerPath bytes: no query,
// no fragment and nothing that is encoded.
const (
	serverPathBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~/-"
	mostServerPath  = 200
)

// ParseHints returns what a pod's annotations say about right-sizing, and a text for each that is
// ignored because its value is invalid.
func ParseHints(annotations map[string]string) (hints gpu.RightsizingHints, invalid []string) {
	var a rightsizingAnnotations
	if text, err := json.Marshal(annotations); err == nil {
		err = json.Unmarshal(text, &a)
		if err != nil {
			return hints, []string{err.Error()}
		}
	}

	hints, invalid, _ = a.parse()

	return hints, invalid
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

// podAnnotations are names of annotations that a pod has.
type podAnnotations struct {
	pod   podName
	names []string
}

// logFormer logs the first pod of a list that has annotations of the former domain. It does so
// once.
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
