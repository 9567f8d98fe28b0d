package collector

import (
	"fmt"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// statusLabel is the label with the collector's name in the status families.
const statusLabel = "collector"

// groupSelection is whether each group of a Collector, by its index, is selected; nil selects all.
type groupSelection []bool

// includes reports whether the group with an index is selected.
func (s groupSelection) includes(group int) bool { return s == nil || group < len(s) && s[group] }

// enabledNames returns the names of the enabled collectors in the order in which they run.
func (c *Collector) enabledNames() []string {
	names := make([]string, len(c.groups))
	for i := range c.groups {
		names[i] = c.groups[i].name
	}

	return names
}

// CheckCollectors returns an error unless all names are those of enabled collectors. The error
// names the first that is not, and what was expected.
func (c *Collector) CheckCollectors(names []string) error {
	enabled := c.enabledNames()

	for _, name := range names {
		switch {
		case slices.Contains(enabled, name):
		case name == string(NamesDCGM) || slices.Contains(listGroupNames(), name):
			return fmt.Errorf(
				"collector %q is switched off by the flags of the exporter, expected one of %v",
				name,
				enabled,
			)
		default:
			return fmt.Errorf("unknown collector %.64q, expected one of %v", name, enabled)
		}
	}

	return nil
}

// selectGroups returns the selection of the named collectors, nil for no names. Unknown names
// select nothing.
func (c *Collector) selectGroups(names []string) groupSelection {
	if len(names) == 0 {
		return nil
	}

	selected := make(groupSelection, len(c.groups))
	for i := range c.groups {
		selected[i] = slices.Contains(names, c.groups[i].name)
	}

	return selected
}

// groupIndex returns the index of the group that a series of a family belongs to, -1 for none.
func (c *Collector) groupIndex(family string, m *dto.Metric) int {
	name, native := c.groupNames[family]
	switch {
	case !native:
		name = string(NamesDCGM)
	case name == "":
		for _, pair := range m.GetLabel() {
			if pair.GetName() == statusLabel {
				name = pair.GetValue()
			}
		}
	}

	return slices.IndexFunc(c.groups, func(g enabledGroup) bool { return g.name == name })
}

// Filter returns the named collectors' part of the families and series that Gather returned, or all
// if no names are given. The result shares memory with families: it must not be modified either.
func (c *Collector) Filter(families []*dto.MetricFamily, names []string) []*dto.MetricFamily {
	selected := c.selectGroups(names)
	if selected == nil {
		return families
	}

	var kept []*dto.MetricFamily

	for _, f := range families {
		if part := selected.filter(f, c.groupIndex); part != nil {
			kept = append(kept, part)
		}
	}

	return kept
}

// filter returns a family with only the selected metrics; nil if there are none. It does not modify
// f.
func (s groupSelection) filter(f *dto.MetricFamily, groupOf groupFunc) *dto.MetricFamily {
	if s == nil {
		return f
	}

	var metrics []*dto.Metric

	for _, m := range f.GetMetric() {
		if s.includes(groupOf(f.GetName(), m)) {
			metrics = append(metrics, m)
		}
	}

	if len(metrics) == 0 {
		return nil
	}

	return &dto.MetricFamily{
		Name:   f.Name,
		Help:   f.Help,
		Type:   f.Type,
		Unit:   f.Unit,
		Metric: metrics,
	}
}
