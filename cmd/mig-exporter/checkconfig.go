package main

import (
	"errors"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/web"
)

// checkConfig reads every file that the configuration names, without starting anything.
func checkConfig(cfg *Config) error {
	var errs []error
	if cfg.SimScenario != "" {
		scenario, err := sim.Load(cfg.SimScenario)
		if err == nil {
			err = tryScenario(scenario)
		}
		errs = append(errs, err)
	}
	errs = append(errs, web.CheckConfig(cfg.WebConfigFile))
	_, err := collector.New(collector.Options{PodLabels: cfg.PodLabels, PodLabelNames: cfg.PodLabelNames, Disabled: cfg.Disabled})
	return errors.Join(append(errs, err)...)
}

// tryScenario builds the simulated node once: a layout that does not fit shows then.
func tryScenario(scenario *sim.Scenario) error {
	node, err := sim.New(scenario, sim.NewClock(sim.ClockStep))
	if err != nil {
		return err
	}
	return node.Close()
}
