package podmeta

import (
	"fmt"
	"strconv"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// rightsizingAnnotations are a pod's annotations about right-sizing.
type rightsizingAnnotations struct {
	Rightsizing string `json:"mig-exporter.dev/rightsizing"`
	Strict      string `json:"mig-exporter.dev/strict"`
	MaxStretch  string `json:"mig-exporter.dev/max-stretch"`
}

// The values that mig-exporter.dev/max-stretch may have, as those of --advise.max-stretch.
const leastStretch, mostStretch = 1, 100

// parse returns what the annotations say, and a text for each that is ignored because its value is invalid.
func (a *rightsizingAnnotations) parse() (hints gpu.RightsizingHints, invalid []string) {
	complain := func(name, value, expected string) {
		invalid = append(invalid, fmt.Sprintf("mig-exporter.dev/%s=%.64q: expected %s", name, value, expected))
	}
	switch a.Rightsizing {
	case "", "on":
	case "off":
		hints.OptOut = true
	default:
		complain("rightsizing", a.Rightsizing, `"off" or "on"`)
	}
	switch a.Strict {
	case "", "false":
	case "true":
		hints.Strict = true
	default:
		complain("strict", a.Strict, `"true" or "false"`)
	}
	if a.MaxStretch == "" {
		return hints, invalid
	}
	stretch, err := strconv.ParseFloat(a.MaxStretch, 64)
	if err != nil || !(stretch >= leastStretch && stretch <= mostStretch) { // NaN is invalid
		complain("max-stretch", a.MaxStretch, fmt.Sprintf("a number from %d to %d", leastStretch, mostStretch))
		return hints, invalid
	}
	hints.MaxStretch = gpu.Some(stretch)
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
			level.Warn(p.logger).Log("msg", "ignoring an annotation of a pod", "pod", a.pod.namespace+"/"+a.pod.name,
				"annotation", a.text)
		}
	}
	p.invalid = now
}
