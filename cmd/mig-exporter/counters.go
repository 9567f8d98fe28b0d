package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/collector"
)

// dcgmExporterFiles is the folder of counters files in dcgm-exporter's image, which its manifests
// name.
const dcgmExporterFiles = "/etc/dcgm-exporter/"

// loadCounters reads a counters file of dcgm-exporter. Without a path it returns nil: the built-in
// list. Invalid rows are an error: otherwise a typing error would show only as a metric that is
// missing in a dashboard.
func loadCounters(path string, logger log.Logger) ([]collector.Counter, error) {
	if path == "" {
		return nil, nil
	}

	file, err := os.Open(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && strings.HasPrefix(path, dcgmExporterFiles):
		return nil, fmt.Errorf(
			"--dcgm.counters: %w: a file of dcgm-exporter's image is not here: leave it out for the "+
				"built-in list, or mount it (see docs/migration.md)",
			err,
		)
	case err != nil:
		return nil, fmt.Errorf("--dcgm.counters: %w", err)
	}

	defer file.Close()

	counters, faulty, err := collector.ParseCounters(path, file)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--dcgm.counters: %w", err)
	case len(faulty) > 0:
		return nil, fmt.Errorf("--dcgm.counters: %w", errors.Join(faulty...))
	case len(counters) == 0:
		return nil, fmt.Errorf(
			"--dcgm.counters: %s has no counter that can be served: expected rows of field, type, help",
			path,
		)
	}

	if without := collector.WithoutValue(counters); len(without) > 0 {
		level.Info(logger).Log(
			"msg", "counters have no source and so no series",
			"fields", fmt.Sprint(without),
		)
	}

	return counters, nil
}
