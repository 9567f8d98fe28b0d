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

// dcgmExporterFiles is the folder of counters files in dcgm-exporter's image, which its manifests name.
const dcgmExporterFiles = "/etc/dcgm-exporter/"

// loadCounters reads the counters file of dcgm-exporter's names; nil is the built-in list. Invalid rows are an error,
// or with --dcgm.counters.lenient a line of the log each.
func loadCounters(cfg *Config, logger log.Logger) ([]collector.Counter, error) {
	if cfg.CountersFile == "" {
		return nil, nil
	}

	file, err := os.Open(cfg.CountersFile)
	switch {
	case errors.Is(err, os.ErrNotExist) && strings.HasPrefix(cfg.CountersFile, dcgmExporterFiles):
		return nil, fmt.Errorf(
			"--dcgm.counters: %w: a file of dcgm-exporter's image is not here: leave it out for the "+
				"built-in list, or mount it (see docs/migration.md)",
			err,
		)
	case err != nil:
		return nil, fmt.Errorf("--dcgm.counters: %w", err)
	}

	defer file.Close()

	counters, faulty, err := collector.ParseCounters(cfg.CountersFile, file)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--dcgm.counters: %w", err)
	case len(faulty) > 0 && !cfg.CountersLenient:
		return nil, fmt.Errorf(
			"--dcgm.counters (--dcgm.counters.lenient starts without such rows): %w",
			errors.Join(faulty...),
		)
	case len(counters) == 0:
		return nil, fmt.Errorf(
			"--dcgm.counters: %s has no counter that can be served: expected rows of field, type, help",
			cfg.CountersFile,
		)
	}

	for _, row := range faulty {
		level.Warn(logger).Log("msg", "ignoring a line of the counters file", "err", row)
	}

	if without := collector.WithoutValue(counters); len(without) > 0 {
		level.Info(logger).Log(
			"msg", "counters have no source and so no series",
			"fields", fmt.Sprint(without),
		)
	}

	return counters, nil
}
