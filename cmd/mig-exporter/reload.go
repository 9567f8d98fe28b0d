package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// servedMetrics is the collector that is in force. It is safe for concurrent use.
type servedMetrics struct {
	current atomic.Pointer[collector.Collector]
}

func serveMetrics(c *collector.Collector) *servedMetrics {
	m := &servedMetrics{}
	m.current.Store(c)
	return m
}

// Gather implements web.Metrics.
func (m *servedMetrics) Gather(s *gpu.Snapshot) ([]*dto.MetricFamily, error) {
	return m.current.Load().Gather(s)
}

// Render implements web.Metrics.
func (m *servedMetrics) Render(dst *bytes.Buffer, s *gpu.Snapshot, format expfmt.Format) (bool, error) {
	return m.current.Load().Render(dst, s, format)
}

// ServesMedia reports whether media engines are served.
func (m *servedMetrics) ServesMedia() bool { return m.current.Load().ServesMedia() }

// Observe takes a Snapshot that is about to be published.
func (m *servedMetrics) Observe(s *gpu.Snapshot) { m.current.Load().Observe(s) }

// reloader reads again the files that may change while the program runs.
type reloader struct {
	files  []reloadable
	logger log.Logger
}

// reloadable is such a file.
type reloadable struct {
	flag, path string
	// reload reads the file, puts it in force and returns what changed, nothing if nothing did.
	reload func(context.Context) ([]string, error)
	broken string // what holds after an error
}

// keepsOld is what holds after an error in most files.
const keepsOld = "A file cannot be used; what was read before stays in force"

// newReloader lists the files that the flags name.
func newReloader(cfg *Config, x *exporter) *reloader {
	r := &reloader{logger: x.logger}
	if cfg.CountersFile != "" && cfg.Names != collector.NamesNative {
		r.files = append(r.files, reloadable{flag: "--dcgm.counters", path: cfg.CountersFile, broken: keepsOld,
			reload: func(ctx context.Context) ([]string, error) { return x.reloadCounters(ctx, cfg) }})
	}
	if x.control == nil {
		return r
	}
	if cfg.Control.LayoutsFile != "" {
		r.files = append(r.files, reloadable{flag: "--control.layouts", path: cfg.Control.LayoutsFile, broken: keepsOld,
			reload: func(context.Context) ([]string, error) { return x.control.reloadLayouts(&cfg.Control) }})
	}
	if cfg.Control.ConfigFile != "" {
		r.files = append(r.files, reloadable{flag: "--control.config.file", path: cfg.Control.ConfigFile,
			broken: "A file cannot be used; TLS keeps its certificate, but partition control refuses all TCP clients until the file is valid",
			reload: func(context.Context) ([]string, error) {
				return x.control.server.Reloader.Reload(cfg.Control.ConfigFile)
			}})
	}
	return r
}

// run reloads with every signal until ctx ends.
func (r *reloader) run(ctx context.Context, signals <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-signals:
			level.Info(r.logger).Log("msg", "Reading files again", "signal", s, "files", len(r.files))
			r.reload(ctx)
		}
	}
}

// reload reads every file again and logs what became of it.
func (r *reloader) reload(ctx context.Context) {
	if len(r.files) == 0 {
		level.Info(r.logger).Log("msg", "Nothing was reloaded: no flag names a file that is read again")
	}
	for _, f := range r.files {
		changes, err := f.reload(ctx)
		switch {
		case ctx.Err() != nil:
			return // the program stops
		case err != nil:
			level.Error(r.logger).Log("msg", f.broken, "flag", f.flag, "file", f.path, "err", err)
		case len(changes) == 0:
			level.Info(r.logger).Log("msg", "A file has not changed", "flag", f.flag, "file", f.path)
		default:
			level.Info(r.logger).Log("msg", "A file was reloaded", "flag", f.flag, "file", f.path, "changes", strings.Join(changes, ", "))
		}
	}
}

// reloadCounters puts the counters file in force before the next poll. Histograms and windows go on.
func (x *exporter) reloadCounters(ctx context.Context, cfg *Config) ([]string, error) {
	counters, err := loadCounters(cfg, x.logger)
	if err != nil {
		return nil, err
	}
	changes := differences(byField(x.counters), byField(counters))
	if len(changes) == 0 {
		return nil, nil
	}
	c, err := newCollector(cfg, counters, x.source.DriverCalls, x.node.profilerCalls, x.metrics.current.Load())
	if err != nil {
		return nil, err
	}
	err = x.poller.Poll(ctx, func() error { // no Snapshot is observed meanwhile
		x.metrics.current.Store(c)
		x.counters = counters
		return nil
	})
	if err != nil && x.metrics.current.Load() != c {
		return nil, fmt.Errorf("poll: %w", err)
	}
	return changes, nil
}

// byField indexes counters by their fields.
func byField(counters []collector.Counter) map[string]collector.Counter {
	m := make(map[string]collector.Counter, len(counters))
	for _, c := range counters {
		m[c.Field] = c
	}
	return m
}

// reloadLayouts puts the file of named layouts in force for the plans that follow.
func (c *controller) reloadLayouts(cfg *ControlConfig) ([]string, error) {
	layouts, err := cfg.layouts()
	if err != nil {
		return nil, err
	}
	changes := differences(c.layouts, layouts)
	if len(changes) > 0 {
		c.engine.SetLayouts(layouts)
		c.layouts = layouts
	}
	return changes, nil
}

// differences lists the names that were added, removed or changed, in their order.
func differences[T any](before, after map[string]T) []string {
	var list []string
	for name, now := range after {
		switch was, had := before[name]; {
		case !had:
			list = append(list, name+" added")
		case !reflect.DeepEqual(was, now):
			list = append(list, name+" changed")
		}
	}
	for name := range before {
		if _, has := after[name]; !has {
			list = append(list, name+" removed")
		}
	}
	slices.Sort(list)
	return list
}
