package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/web"
)

// The drivers.
const (
	driverNVML = "nvml"
	driverSim  = "sim"
)

// Where activity comes from.
const (
	profilingAuto = "auto"
	profilingGPM  = "gpm"
	profilingDCGM = "dcgm"
	profilingOff  = "off"
)

// How DCGM is reached.
const (
	dcgmOff      = "off"
	dcgmEmbedded = "embedded"
	dcgmRemote   = "remote"
)

// defaultDriverBudget is the default of --poll.driver-budget.
const defaultDriverBudget = 0.05

// The default of --web.ready-max-age, and how many intervals it is at least.
const (
	defaultReadyMaxAge = 15 * time.Second
	readyIntervals     = 3
)

// Config is the configuration from the command line and the environment.
type Config struct {
	Driver       string
	Hostname     string // of the node, in what is served; empty: the host's, or the scenario's
	NVMLLibrary  string // empty: libnvidia-ml.so.1 by the dynamic linker's rules
	SimScenario  string
	SimClock     sim.ClockMode
	PollInterval time.Duration
	PollTimeout  time.Duration
	// DriverBudget is how many seconds of calls that keep others waiting a second of polls may take; 0: any number.
	DriverBudget float64
	StaleAfter   int // intervals

	Profiling   string
	DCGMMode    string
	DCGMAddress string
	KernelLog   bool   // XIDs are taken from the kernel's log, too
	JobDir      string // empty: there are no batch jobs

	Names           collector.Names
	CountersFile    string
	CountersLenient bool
	RepeatGPUFields bool
	HostnameLabel   collector.HostnameLabel
	DCGMNodeName    string // value of that label; empty: Hostname
	// XIDWindow and ClockEventsWindow are those of DCGM_EXP_XID_ERRORS_COUNT and DCGM_EXP_CLOCK_EVENTS_COUNT.
	XIDWindow, ClockEventsWindow time.Duration

	Addresses     []string
	WebConfigFile string
	SystemdSocket bool
	TelemetryPath string
	MaxScrapes    int
	ReadyMaxAge   time.Duration
	State         bool

	OpenMetricsCreated bool
	CheckOutput        string // of check-node

	readyMaxAgeSet bool
	Pprof          bool

	ReleaseSocket    string // empty: GPUs are not released by hand; see releaseSocket
	KubeletSocket    string // empty: there is no kubelet
	kubeletSocketSet bool
	WitnessPod       string // empty: the exporter's own pod
	Checkpoint       string // empty: it is not read
	PodLabels        collector.PodLabelMode
	PodsStaleAfter   time.Duration
	ResourceNames    []string
	PodLabelNames    []string
	NodeName         string // empty: the API server is not asked for owners and labels
	ContainerLogs    string
	ProcDir          string
	PIDNamespace     pidNamespace

	Disabled map[string]bool // collectors that are switched off

	Advise  AdviseConfig
	Control ControlConfig
	Capture CaptureConfig
}

// Validate checks what the types of the flags do not. Files are read when they are used.
func (c *Config) Validate() error {
	var errs []error
	add := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	add(c.Driver != driverSim || c.SimScenario != "",
		"--driver=sim: expected --sim.scenario=FILE with the node to simulate")
	add(
		c.PollInterval >= minInterval,
		"--poll.interval=%s: expected %s or more",
		c.PollInterval,
		minInterval,
	)
	add(c.PollTimeout > 0, "--poll.timeout=%s: expected more than 0s", c.PollTimeout)
	add(
		c.DriverBudget >= 0 && c.DriverBudget <= maxDriverBudget, // NaN is not
		"--poll.driver-budget=%v: expected seconds of driver calls for each second, such as 0.05, or 0 for no limit",
		c.DriverBudget,
	)
	add(
		c.StaleAfter >= 1,
		"--poll.stale-after=%d: expected a number of intervals, 1 or more",
		c.StaleAfter,
	)
	add(
		c.XIDWindow > 0 && c.XIDWindow <= maxWindow,
		"--dcgm.xid-window=%s: expected more than 0s and at most %s",
		c.XIDWindow,
		maxWindow,
	)
	add(
		c.ClockEventsWindow > 0 && c.ClockEventsWindow <= maxWindow,
		"--dcgm.clock-events-window=%s: expected more than 0s and at most %s",
		c.ClockEventsWindow,
		maxWindow,
	)
	add(c.MaxScrapes >= 0, "--web.max-scrapes=%d: expected 0 (no limit) or more", c.MaxScrapes)
	add(c.ReadyMaxAge >= 0, "--web.ready-max-age=%s: expected 0s (no limit) or more", c.ReadyMaxAge)
	add(
		c.ReadyMaxAge == 0 || c.ReadyMaxAge > c.PollInterval,
		"--web.ready-max-age=%s: expected more than --poll.interval=%s, or 0s",
		c.ReadyMaxAge,
		c.PollInterval,
	)
	add(c.PodsStaleAfter >= 0, "--kubernetes.stale-after=%s: expected 0s or more", c.PodsStaleAfter)
	add(
		c.WitnessPod == "" || isWitness(c.WitnessPod),
		"--kubernetes.witness-pod=%s: expected NAMESPACE/NAME, or a prefix of it that ends in *",
		c.WitnessPod,
	)
	add(c.Checkpoint == "" || filepath.IsAbs(c.Checkpoint),
		"--kubernetes.checkpoint=%s: expected an absolute path, or none", c.Checkpoint)
	add(c.Capture.Polls >= 1 && c.Capture.Polls <= maxCapturePolls,
		"--capture.polls=%d: expected a number from 1 to %d", c.Capture.Polls, maxCapturePolls)
	add(
		len(c.PodLabelNames) == 0 || c.NodeName != "" || c.Driver == driverSim,
		"--kubernetes.pod-label: expected --kubernetes.node-name too: labels come from the API server",
	)
	add(c.DCGMMode != dcgmRemote || c.DCGMAddress != "",
		"--dcgm.mode=remote: expected --dcgm.address=HOST:PORT or the path of a unix socket")

	if c.DCGMAddress != "" {
		if _, err := dcgmsource.ParseAddress(c.DCGMAddress); err != nil {
			errs = append(errs, fmt.Errorf("--dcgm.address: %w", err))
		}
	}

	add(
		!c.Control.Cordon || c.NodeName != "",
		"--control.cordon: expected --kubernetes.node-name with it",
	)
	add(
		len(filepath.Dir(c.ReleaseSocket)) <= longestSocketDir,
		"--release.socket=%s: expected a path whose folder has at most %d characters",
		c.ReleaseSocket,
		longestSocketDir,
	)
	add(
		c.Control.DevicePlugin == "" || c.KubeletSocket != "",
		"--control.device-plugin=%s: expected a path in --kubernetes.socket: the kubelet says when the plugin has followed",
		c.Control.DevicePlugin,
	)
	add(
		c.DCGMMode == dcgmRemote || c.DCGMAddress == "",
		"--dcgm.address=%s: expected --dcgm.mode=remote with it",
		c.DCGMAddress,
	)
	add(c.Profiling != profilingDCGM || c.DCGMMode != dcgmOff,
		"--profiling.source=dcgm: expected --dcgm.mode=embedded or remote with it")

	if err := web.CheckTelemetryPath(c.TelemetryPath); err != nil {
		errs = append(errs, fmt.Errorf("--web.telemetry-path: %w", err))
	}

	add(
		c.Advise.WorkloadLabel == "" || c.NodeName != "" || c.Driver == driverSim,
		"--advise.workload-label: expected --kubernetes.node-name too: labels come from the API server",
	)
	add(
		!c.Advise.ServerMetrics || c.NodeName != "" || c.Driver == driverSim,
		"--advise.server-metrics: expected --kubernetes.node-name too: annotations and addresses come from the API server",
	)

	return errors.Join(append(errs, c.Advise.validate(), c.Control.validate())...)
}

// isWitness reports whether a text is NAMESPACE/NAME of a pod, or a prefix of that which ends in *.
func isWitness(text string) bool {
	namespace, name, found := strings.Cut(strings.TrimSuffix(text, "*"), "/")
	isName := func(s string) bool { return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" }

	return found && namespace != "" && isName(namespace) && isName(name) &&
		!strings.HasSuffix(text, "/")
}

// minInterval prevents that a typing error makes the program poll the driver all the time.
const minInterval = 50 * time.Millisecond

// maxDriverBudget is more than the threads of the exporter can spend in a second: a larger budget is a typing error, as
// one in milliseconds.
const maxDriverBudget = 100

// maxWindow bounds the memory of the windows of dcgm-exporter's counts, which hold the clock events of each poll.
const maxWindow = 24 * time.Hour

// clockSpeed is the factor by which the clock of the configuration runs faster than real time. Limits in its time are
// multiplied by it.
func (c *Config) clockSpeed() time.Duration {
	if c.Driver == driverSim && c.SimClock == sim.ClockX60 {
		return 60
	}

	return 1
}

// asksGPM reports whether the driver is asked for activity.
func (c *Config) asksGPM() bool {
	return c.Profiling == profilingAuto || c.Profiling == profilingGPM
}

// pidNamespace is the PID namespace of this process: the driver's lists of processes are complete in the host's alone.
type pidNamespace string

const (
	pidNamespaceAuto      pidNamespace = "auto" // as the kernel, the scenario or the recording has it
	pidNamespaceHost      pidNamespace = "host"
	pidNamespaceContainer pidNamespace = "container"
)

// servesProcesses reports whether metrics of single processes are served.
func (c *Config) servesProcesses() bool {
	off, said := c.Disabled[processCollector]
	return said && !off
}

// processCollector is the collector of single processes, which is off by default.
const processCollector = "process"

// freshFor is the time for which scrapers share the metrics of the process: as long as they share a Snapshot, so that
// these are gathered again for an old Snapshot only if a poll is late.
func (c *Config) freshFor() time.Duration { return max(minFresh, c.PollInterval) }

// stepped reports whether time only moves by /-/sim/advance.
func (c *Config) stepped() bool { return c.Driver == driverSim && c.SimClock == sim.ClockStep }

// stepGrace is the number of intervals of real time for which a poll on a stepped clock waits for a reading.
const stepGrace = 10

// grace returns how long one poll waits for readings.
func (c *Config) grace() time.Duration {
	if c.stepped() {
		return stepGrace * c.PollInterval
	}

	return min(c.PollInterval, c.PollTimeout)
}
