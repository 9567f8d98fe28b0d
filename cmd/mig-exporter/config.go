package main

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/podresources"
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

// How DCGM is reached: see ProfilingConfig.dcgmMode. The second is a value of --dcgm.address, too.
const (
	dcgmOff      = "off"
	dcgmEmbedded = "embedded"
	dcgmRemote   = "remote"
)

// defaultDriverBudget is the default of --poll.driver-budget.
const defaultDriverBudget = 0.05

// Times and paths that are no flags: they are the same on every node, or follow from a flag.
const (
	// staleIntervals is the number of intervals after which we drop the readings of a GPU that does
	// not answer. One late reading is no failure; after more of them old values would pass for
	// current ones.
	staleIntervals = 3

	// podsStaleAfter is how long we use the kubelet's last answer after it has stopped answering. A
	// kubelet restarts in less. After that pods may have come and gone, and we say so.
	podsStaleAfter = 5 * time.Minute

	// The age of the last reading at which /-/ready begins to answer 503: some intervals, and many
	// of the default one, so that a slow poll does not take the node out of service.
	leastReadyMaxAge = 15 * time.Second
	readyIntervals   = 3

	// procDir is the process table: of the host if the process is in the host's PID namespace,
	// and of no use otherwise, because the driver's process ids are those of that namespace.
	procDir = "/proc"

	// logDir is where every kubelet links the logs of its containers: the path is fixed in the
	// kubelet.
	logDir = podresources.DefaultLogDir

	// defaultWindow is the time over which dcgm-exporter counts XIDs and clock events.
	defaultWindow = 5 * time.Minute
)

// Config is the configuration from the command line and the environment.
type Config struct {
	Driver     DriverConfig
	Poll       PollConfig
	Profiling  ProfilingConfig
	Metrics    MetricsConfig
	Web        WebConfig
	Kubernetes KubernetesConfig
	Advise     AdviseConfig
	Control    ControlConfig
	Capture    CaptureConfig

	Hostname      string // of the node, in what is served; empty: the host's, or the scenario's
	JobDir        string // empty: there are no batch jobs
	ReleaseSocket string // empty: GPUs are not released by hand; see releaseSocket
	CheckOutput   string // of check-node
}

// DriverConfig says which driver we read, a simulated one among them, and how.
type DriverConfig struct {
	Kind         string // driverNVML or driverSim
	Library      string // of NVML; empty: libnvidia-ml.so.1 by the dynamic linker's rules
	Scenario     string // of the simulation; empty: the scenario that is built in
	Clock        sim.ClockMode
	PIDNamespace pidNamespace
	KernelLog    bool // XIDs are taken from the kernel's log, too
}

// PollConfig says how often the driver is read.
type PollConfig struct {
	Interval time.Duration
	Timeout  time.Duration

	// DriverBudget is how many seconds of calls that keep others waiting a second of polls may
	// take; 0: any number.
	DriverBudget float64
}

// ProfilingConfig says where activity comes from.
type ProfilingConfig struct {
	Source      string
	DCGMAddress string // HOST:PORT, a path or dcgmEmbedded; empty: DCGM is off
}

// MetricsConfig says which metrics are served, and under which names.
type MetricsConfig struct {
	Disabled        map[string]bool // of each collector, whether it is off
	Names           collector.Names
	CountersFile    string
	RepeatGPUFields bool
	HostnameLabel   collector.HostnameLabel
	NodeName        string // value of that label; empty: the name of the host

	// XIDWindow and ClockEventsWindow are those of DCGM_EXP_XID_ERRORS_COUNT and
	// DCGM_EXP_CLOCK_EVENTS_COUNT.
	XIDWindow, ClockEventsWindow time.Duration
}

// WebConfig says where and what the program serves.
type WebConfig struct {
	Addresses     []string
	ConfigFile    string
	SystemdSocket bool
	MaxScrapes    int
	State         bool
	Processes     gpu.ProcessDetail // or processesAuto; see processDetail
	Pprof         bool
}

// processesAuto lists processes if no other than a user of the node or an authenticated client can
// ask.
const processesAuto gpu.ProcessDetail = "auto"

// processDetail returns how much of single processes is served. By default they are listed, without
// their users, if each listener is on a loopback address, or the web configuration asks for a
// password or a client certificate.
//
// Sockets of systemd may be on any address. The listeners of partition control always authenticate.
func (c *WebConfig) processDetail() gpu.ProcessDetail {
	if c.Processes != processesAuto {
		return c.Processes
	}

	onLoopback := !c.SystemdSocket && !slices.ContainsFunc(c.Addresses, func(address string) bool {
		return !web.IsLoopback(address)
	})
	if onLoopback || web.Authenticates(c.ConfigFile) {
		return gpu.ProcessNames
	}

	return gpu.ProcessesOff
}

// KubernetesConfig says how pods are found, and what is served of them.
type KubernetesConfig struct {
	Socket        string // of the kubelet; empty: there is none
	socketSet     bool   // the user has named the socket
	WitnessPod    string // empty: the exporter's own pod
	Checkpoint    string // empty: it is not read
	PodLabels     collector.PodLabelMode
	ResourceNames []string
	PodLabelNames []string
	WorkloadLabel string // names workloads; empty: the pods' owners alone do
	NodeName      string // empty: the API server is not asked for owners and labels

	NodeConditions, NodeEvents bool // what is written to the API server
	NodeLabels                 NodeLabelsConfig
}

// validate checks what the types of the flags do not. Files are read when they are used.
func (c *Config) validate(errs *flagErrors) {
	c.Poll.validate(errs)
	c.Metrics.validate(errs)
	c.Profiling.validate(errs)

	errs.check(c.Web.MaxScrapes >= 0,
		"%s=%d: expected 0 (no limit) or more", flagName("web.max-scrapes"), c.Web.MaxScrapes)
	errs.check(c.Capture.Polls >= 1 && c.Capture.Polls <= maxCapturePolls,
		"%s=%d: expected a number from 1 to %d",
		flagName("capture.polls"), c.Capture.Polls, maxCapturePolls)
	errs.check(len(filepath.Dir(c.ReleaseSocket)) <= longestSocketDir,
		"%s=%s: expected a path whose folder has at most %d characters",
		flagName("release.socket"), c.ReleaseSocket, longestSocketDir)

	c.validateAPIServer(errs)
	errs.check(c.Control.DevicePlugin == "" || c.Kubernetes.Socket != "",
		"%s=%s: expected a path in %s: the kubelet says when the plugin has followed",
		flagName("control.device-plugin"), c.Control.DevicePlugin, flagName("kubernetes.socket"))

	c.Advise.validate(errs)
	c.Kubernetes.validate(errs)
	c.Control.validate(errs)
}

// validateAPIServer checks that the node is named, if something is asked of the API server.
func (c *Config) validateAPIServer(errs *flagErrors) {
	const tooFor = "%s: expected %s too: %s"

	nodeName := flagName("kubernetes.node-name")
	known := c.Kubernetes.NodeName != "" || c.Driver.Kind == driverSim
	errs.check(len(c.Kubernetes.PodLabelNames) == 0 || known, tooFor,
		flagName("kubernetes.pod-label"), nodeName, "labels come from the API server")
	errs.check(c.Kubernetes.WorkloadLabel == "" || known, tooFor,
		flagName("advise.workload-label"), nodeName, "labels come from the API server")
	errs.check(!c.Advise.ServerMetrics || known, tooFor, flagName("advise.server-metrics"),
		nodeName, "annotations and addresses come from the API server")

	for _, wants := range []struct {
		flag flagName
		on   bool
	}{
		{"kubernetes.node-conditions", c.Kubernetes.NodeConditions},
		{"kubernetes.node-events", c.Kubernetes.NodeEvents},
	} {
		errs.check(!wants.on || c.Kubernetes.NodeName != "", "%s: expected %s with it", wants.flag, nodeName)
	}

	labels := flagName("kubernetes.node-labels")
	mode := c.Kubernetes.NodeLabels.Mode
	errs.check(mode == nodeLabelsOff || c.Kubernetes.NodeName != "",
		"%s=%s: expected %s with it: the API server has the labels",
		labels, mode, nodeName)
	errs.check(mode != nodeLabelsFollow || c.Control.Enabled,
		"%s=%s: expected %s with it: partition control applies the layout",
		labels, mode, controlEnabled)
	errs.check(!c.Control.Cordon || c.Kubernetes.NodeName != "",
		"%s: expected %s with it", flagName("control.cordon"), nodeName)
}

func (c *PollConfig) validate(errs *flagErrors) {
	errs.check(c.Interval >= minInterval,
		"%s=%s: expected %s or more", flagName("poll.interval"), c.Interval, minInterval)
	errs.check(c.Timeout > 0,
		"%s=%s: expected more than 0s", flagName("poll.timeout"), c.Timeout)
	errs.check(c.DriverBudget >= 0 && c.DriverBudget <= maxDriverBudget, // NaN is not
		"%s=%v: expected seconds of driver calls for each second, such as 0.05, or 0 for no limit",
		flagName("poll.driver-budget"), c.DriverBudget)
}

func (c *MetricsConfig) validate(errs *flagErrors) {
	for _, w := range []struct {
		flag  flagName
		value time.Duration
	}{{xidWindowFlag, c.XIDWindow}, {clockEventsWindowFlag, c.ClockEventsWindow}} {
		errs.check(w.value > 0 && w.value <= maxWindow,
			"%s=%d: expected more than 0 and at most %d, in milliseconds",
			w.flag, w.value.Milliseconds(), maxWindow.Milliseconds())
	}
}

func (c *ProfilingConfig) validate(errs *flagErrors) {
	const address = flagName("dcgm.address")

	switch c.DCGMAddress {
	case "off", "none", "disabled":
		errs.check(false, "%s=%s: leave it out, DCGM is off without it", address, c.DCGMAddress)
	case "remote":
		errs.check(false, "%s=remote: expected HOST:PORT, or a socket's path", address)
	}

	if c.dcgmMode() == dcgmRemote {
		_, err := dcgmsource.ParseAddress(c.DCGMAddress)
		errs.check(err == nil, "%s: %w", address, err)
	}

	errs.check(c.Source != profilingDCGM || c.dcgmMode() != dcgmOff,
		"%s=dcgm: expected %s=HOST:PORT or embedded with it", flagName("profiling.source"), address)
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

// maxDriverBudget is more than the threads of the exporter can spend in a second: a larger budget
// is a typing error, as one in milliseconds.
const maxDriverBudget = 100

// maxWindow bounds the memory of the windows of dcgm-exporter's counts, which hold the clock events
// of each poll.
const maxWindow = 24 * time.Hour

// clockSpeed returns the factor by which the node's clock runs faster than real time.
func (c *DriverConfig) clockSpeed() time.Duration {
	if c.Kind == driverSim && c.Clock == sim.ClockX60 {
		return 60
	}

	return 1
}

// stepped reports whether time only moves by /-/sim/advance.
func (c *DriverConfig) stepped() bool { return c.Kind == driverSim && c.Clock == sim.ClockStep }

// pidNamespace is the PID namespace of this process: the driver's lists of processes are complete
// in the host's alone.
type pidNamespace string

const (
	pidNamespaceAuto      pidNamespace = "auto" // as the kernel, the scenario or the recording has it
	pidNamespaceHost      pidNamespace = "host"
	pidNamespaceContainer pidNamespace = "container"
)

// dcgmMode returns how DCGM is reached, which --dcgm.address says.
func (c *ProfilingConfig) dcgmMode() string {
	switch c.DCGMAddress {
	case "":
		return dcgmOff
	case dcgmEmbedded:
		return dcgmEmbedded
	}

	return dcgmRemote
}

// hostEngine returns the address of the DCGM host engine, empty if there is none.
func (c *ProfilingConfig) hostEngine() string {
	if c.dcgmMode() != dcgmRemote {
		return ""
	}

	return c.DCGMAddress
}

// asksGPM reports whether the driver is asked for activity.
func (c *ProfilingConfig) asksGPM() bool {
	return c.Source == profilingAuto || c.Source == profilingGPM
}

// servesProcesses reports whether metrics of single processes are served.
func (c *MetricsConfig) servesProcesses() bool {
	off, said := c.Disabled[processCollector]
	return said && !off
}

// processCollector is the collector of single processes, which is off by default.
const processCollector = "process"

// readyMaxAge returns the age of the last reading at which the program is not ready any more, by
// a clock of a speed.
func (c *PollConfig) readyMaxAge(speed time.Duration) time.Duration {
	return max(leastReadyMaxAge, readyIntervals*c.Interval) * speed
}

// freshFor is the time for which scrapers share the metrics of the process: as long as they share a
// Snapshot, so that these are gathered again for an old Snapshot only if a poll is late.
func (c *PollConfig) freshFor() time.Duration { return max(minFresh, c.Interval) }

// stepGrace is the number of intervals of real time for which a poll on a stepped clock waits for a
// reading.
const stepGrace = 10

// grace returns how long one poll waits for readings.
func (c *PollConfig) grace(stepped bool) time.Duration {
	if stepped {
		return stepGrace * c.Interval
	}

	return min(c.Interval, c.Timeout)
}
