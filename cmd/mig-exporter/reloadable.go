package main

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// servedMetrics holds the collector in force, which a reload replaces. It is safe for concurrent use.
type servedMetrics struct {
	current atomic.Pointer[collector.Collector]
}

func newServedMetrics(c *collector.Collector) *servedMetrics {
	m := &servedMetrics{}
	m.current.Store(c)

	return m
}

// Gather implements web.Metrics.
func (m *servedMetrics) Gather(s *gpu.Snapshot) ([]*dto.MetricFamily, error) {
	return m.current.Load().Gather(s)
}

// CheckCollectors implements web.Metrics.
func (m *servedMetrics) CheckCollectors(names []string) error {
	return m.current.Load().CheckCollectors(names)
}

// Filter implements web.Metrics.
func (m *servedMetrics) Filter(families []*dto.MetricFamily, names []string) []*dto.MetricFamily {
	return m.current.Load().Filter(families, names)
}

// Render implements web.Metrics.
func (m *servedMetrics) Render(
	dst *bytes.Buffer,
	s *gpu.Snapshot,
	format expfmt.Format,
	names []string,
) (bool, error) {
	return m.current.Load().Render(dst, s, format, names)
}

// neededExtras returns the extra readings that a collector needs, and those that right-sizing needs if
// it is on.
func neededExtras(advises bool, c *collector.Collector) gpu.Extras {
	extras := extrasOf(c)
	extras.Media = extras.Media || advises

	return extras
}

// extrasOf returns the extra readings that a collector needs.
func extrasOf(c *collector.Collector) gpu.Extras {
	return gpu.Extras{
		Media:        c.ServesMedia(),
		InstanceECC:  c.Serves(collector.GroupInstanceECC),
		InstancePCIe: c.Serves(collector.GroupInstancePCIe),
		Fabric:       c.Serves(collector.GroupFabric),
	}
}

// Observe observes a Snapshot that is about to be published.
func (m *servedMetrics) Observe(s *gpu.Snapshot) { m.current.Load().Observe(s) }

// readCounters reads the counters file. Its counters take effect with the next poll; histograms and
// windows continue.
func (x *exporter) readCounters(path string) (applyFunc, error) {
	if err := expectRegular(path); err != nil {
		return nil, err
	}

	counters, err := loadCounters(path, x.logger)
	if err != nil {
		return nil, err
	}

	return func(ctx context.Context) ([]string, error) { return x.setCounters(ctx, counters) }, nil
}

// setCounters puts counters in force before the next poll.
func (x *exporter) setCounters(
	ctx context.Context, counters []collector.Counter,
) ([]string, error) {
	changes := listChanges(indexByField(x.counters), indexByField(counters))
	if len(changes) == 0 {
		return nil, nil
	}

	c, err := x.newCollector(counters, x.metrics.current.Load())
	if err != nil {
		return nil, err
	}

	// We change the collector between two polls, when it does not observe a Snapshot.
	err = x.poller.Poll(ctx, func() error {
		x.metrics.current.Store(c)
		x.poller.SetExtras(neededExtras(x.advises, c))
		x.counters = counters

		return nil
	})
	if err != nil && x.metrics.current.Load() != c {
		return nil, fmt.Errorf("poll: %w", err)
	}

	return changes, nil
}

// indexByField indexes counters by their fields.
func indexByField(counters []collector.Counter) map[string]collector.Counter {
	m := make(map[string]collector.Counter, len(counters))
	for _, c := range counters {
		m[c.Field] = c
	}

	return m
}

// readLayouts reads the file of named layouts. It takes effect for later plans.
func (c *controller) readLayouts(cfg *ControlConfig) (applyFunc, error) {
	if err := expectRegular(cfg.LayoutsFile); err != nil {
		return nil, err
	}

	layouts, err := cfg.layouts()
	if err != nil {
		return nil, err
	}

	return func(context.Context) ([]string, error) {
		changes := listChanges(c.layouts, layouts)
		if len(changes) > 0 {
			c.named.setFile(layouts)
			c.layouts = layouts
		}

		return changes, nil
	}, nil
}

// listChanges lists the names that were added, removed or changed, in alphabetical order.
func listChanges[T any](before, after map[string]T) []string {
	var list []string

	for name, value := range after {
		switch old, existed := before[name]; {
		case !existed:
			list = append(list, name+" added")
		case !reflect.DeepEqual(old, value):
			list = append(list, name+" changed")
		}
	}

	for name := range before {
		if _, exists := after[name]; !exists {
			list = append(list, name+" removed")
		}
	}

	slices.Sort(list)

	return list
}
