package collector

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// labels are sorted by name. They are shared between metrics and never modified once made.
type labels []*dto.LabelPair

// makeLabels returns labels of alternating names and values. See extend.
func makeLabels(pairs ...string) labels { return labels(nil).extend(pairs...) }

// extend returns the labels together with more, given as alternating names and values. An empty value leaves its label
// out: to Prometheus both are the same. Bytes that are no UTF-8 become U+FFFD, for a label value must be UTF-8.
func (l labels) extend(pairs ...string) labels {
	all := make(labels, len(l), len(l)+len(pairs)/2)
	copy(all, l)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		value := strings.ToValidUTF8(pairs[i+1], "\uFFFD")
		all = append(all, &dto.LabelPair{Name: &pairs[i], Value: &value})
	}
	slices.SortFunc(all, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all
}

// podLabels makes labels of the holders of devices.
type podLabels struct {
	mode    PodLabelMode
	jobs    bool // batch jobs are told too
	allowed []allowedLabel
}

// allowedLabel is a pod label that is shown: its Kubernetes name and its Prometheus name.
type allowedLabel struct {
	kubernetes, prometheus string
}

func newPodLabels(mode PodLabelMode, names []string) (podLabels, error) {
	switch mode {
	case "":
		mode = PodLabelsSeries
	case PodLabelsSeries, PodLabelsInfo, PodLabelsOff:
	default:
		return podLabels{}, fmt.Errorf("pod labels %q: expected series, info or off", mode)
	}
	p := podLabels{mode: mode}
	taken := map[string]string{}
	for _, name := range names {
		if name == "" {
			return podLabels{}, fmt.Errorf("pod label %q: expected the name of a Kubernetes label", name)
		}
		as := "label_" + sanitise(name)
		if other, ok := taken[as]; ok {
			return podLabels{}, fmt.Errorf("pod label %q: %q is shown as %s already", name, other, as)
		}
		taken[as] = name
		p.allowed = append(p.allowed, allowedLabel{kubernetes: name, prometheus: as})
	}
	return p, nil
}

// sanitise makes every character that a Prometheus label name cannot have an underscore.
func sanitise(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}
		return '_'
	}, name)
}

// infoPairs returns the labels of a holder's info series, as alternating names and values: its container, the chosen labels of
// its pod and how it holds the device.
func (p podLabels) infoPairs(h *gpu.Holder) []string {
	pairs := append(containerPairs(h.Container), "workload", h.Workload, "resource", h.Resource, "sharing", string(h.Sharing),
		"replica", h.Replica, "confirmed", strconv.FormatBool(confirmed(h)))
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

// confirmed reports whether it is known that the container holds the device.
func confirmed(h *gpu.Holder) bool { return h.Unconfirmed == "" }

// onSeries returns the holder that the series of a device name, nil for none. It is the only holder of the device, or the
// only confirmed one beside unconfirmed ones, and has the device to itself. The series carry its container and nothing else
// of it: what becomes known later, or changes, would end them and begin others.
func (p podLabels) onSeries(holders []gpu.Holder) *gpu.Holder {
	if p.mode != PodLabelsSeries {
		return nil
	}
	if one := gpu.ExclusiveHolder(holders); one != nil && !one.Undescribed {
		return one
	}
	return nil
}

// jobOnSeries returns what the series of a device carry of the batch jobs on it: the job where there is exactly one.
func (p podLabels) jobOnSeries(jobs []string) []string {
	if !p.jobs || p.mode != PodLabelsSeries || len(jobs) != 1 {
		return nil
	}
	return []string{"hpc_job", jobs[0]}
}
