package collector

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// podLabels makes labels for the holders of devices.
type podLabels struct {
	mode    PodLabelMode
	jobs    bool // batch jobs have labels, too
	allowed []allowedLabel
}

// allowedLabel is a pod label that is served: its Kubernetes name and its Prometheus name.
type allowedLabel struct {
	kubernetes, prometheus string
}

func newPodLabels(mode PodLabelMode, names []string) (podLabels, error) {
	switch mode {
	case "":
		mode = PodLabelsContainer
	case PodLabelsContainer, PodLabelsSeries, PodLabelsInfo, PodLabelsOff:
	default:
		return podLabels{}, fmt.Errorf(
			"pod labels %q: expected container, series, info or off",
			mode,
		)
	}

	p := podLabels{mode: mode}
	kubernetesNames := map[string]string{} // by their Prometheus names

	for _, name := range names {
		if name == "" {
			return podLabels{}, fmt.Errorf(
				"pod label %q: expected the name of a Kubernetes label",
				name,
			)
		}

		prometheus := "label_" + sanitizeLabelName(name)
		if other, ok := kubernetesNames[prometheus]; ok {
			return podLabels{}, fmt.Errorf(
				"pod label %q: %q is shown as %s already",
				name,
				other,
				prometheus,
			)
		}

		kubernetesNames[prometheus] = name
		p.allowed = append(p.allowed, allowedLabel{kubernetes: name, prometheus: prometheus})
	}

	return p, nil
}

// sanitizeLabelName replaces every character that a Prometheus label name cannot have by an
// underscore.
func sanitizeLabelName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}

		return '_'
	}, name)
}

// infoPairs appends the labels of a holder's info series to pairs, as alternating names and values:
// its container, the chosen labels of its pod and how it holds the device.
func (p podLabels) infoPairs(pairs []string, h *gpu.Holder) []string {
	pairs = append(
		append(pairs, containerPairs(h.Container)...),
		"workload",
		h.Workload,
		"resource",
		h.Resource,
		"sharing",
		string(h.Sharing),
		"replica",
		h.Replica,
		"confirmed",
		strconv.FormatBool(isConfirmed(h)),
	)
	for _, a := range p.allowed {
		i := slices.IndexFunc(h.Labels, func(l gpu.Label) bool { return l.Name == a.kubernetes })
		if i >= 0 {
			pairs = append(pairs, a.prometheus, h.Labels[i].Value)
		}
	}

	return pairs
}

func containerPairs(c gpu.Container) []string {
	return []string{"namespace", c.Namespace, "pod", c.Pod, "container", c.Name}
}

// isConfirmed reports whether the container is known to hold the device.
func isConfirmed(h *gpu.Holder) bool { return h.Unconfirmed == "" }

// namesContainers reports whether containers have series of their own.
func (p podLabels) namesContainers() bool {
	return p.mode == PodLabelsContainer || p.mode == PodLabelsSeries
}

// nameableHolder returns the exclusive holder of a device if series may name it, else nil. Series
// have the labels of its container and no others: a label that becomes known later, or changes,
// would end them and begin others.
func nameableHolder(holders []gpu.Holder) *gpu.Holder {
	if one := gpu.ExclusiveHolder(holders); one != nil && !one.Undescribed {
		return one
	}

	return nil
}
