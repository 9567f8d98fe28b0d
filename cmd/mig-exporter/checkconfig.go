package main

import (
	"errors"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/capture"
	"github.com/mig-exporter/mig-exporter/internal/control/server"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/web"
)

// checkConfig reads every file that the configuration names, without starting anything.
func checkConfig(cfg *Config) error {
	var errs []error
	if cfg.Driver.Scenario != "" {
		errs = append(errs, checkScenario(cfg.Driver.Scenario))
	}

	errs = append(errs, web.CheckConfig(cfg.Web.ConfigFile))
	_, err := cfg.Control.layouts()
	errs = append(errs, err)

	if cfg.Control.ConfigFile != "" {
		errs = append(errs, server.CheckConfig(cfg.Control.ConfigFile))
	}

	counters, err := loadCounters(cfg.Metrics.CountersFile, log.NewNopLogger())
	if err == nil {
		opts := collectorOptions(&cfg.Metrics, &cfg.Kubernetes, cfg.JobDir != "")
		opts.Counters = counters
		_, err = collector.New(opts)
	}

	return errors.Join(append(errs, err)...)
}

// checkScenario reads a recording, or a scenario. It also starts the scenario's node, because only
// that shows a layout that does not fit.
func checkScenario(path string) error {
	if capture.IsRecording(path) {
		_, err := capture.Load(path)
		return err
	}

	scenario, err := sim.Load(path)
	if err != nil {
		return err
	}

	node, err := sim.New(scenario, sim.NewClock(sim.ClockStep))
	if err != nil {
		return err
	}

	return node.Close()
}
