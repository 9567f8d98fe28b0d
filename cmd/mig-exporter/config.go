package main

import (
	"net"
	"path/filepath"
	"slices"
	"strconv"
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

// How we reach DCGM: see ProfilingConfig.dcgmMode. dcgmEmbedded is also a value of --dcgm.address.
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
	// not answer. One late reading is no failure, but after a few of them we would serve old values as
	// if they were current.
	staleIntervals = 3

	// podsStaleAfter is how long we use the kubelet's last answer after it has stopped answering. A
	// restart of the kubelet takes less. After that, pods may have come and gone, and we report that.
	podsStaleAfter = 5 * time.Minute

	// /-/ready answers 503 if the last reading is older than readyIntervals, but at least
	// leastReadyMaxAge, so that a slow poll with the default interval does not take the node out of
	// service.
	leastReadyMaxAge = 15 * time.Second
	readyIntervals   = 3

	// procDir is the process table. It is only of use if we run in the host's PID namespace, because
	// the driver reports process ids of that.
	procDir = "/proc"

	// logDir is where every kubelet has links to the logs of its containers. The kubelet has no flag
	// for it.
	logDir = podresources.DefaultLogDir

	// defaultWindow is the time over which dcgm-exporter counts XIDs and clock events by default.
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

	Hostname      string // the node's name in all that we serve; empty: the host's, or the scenario's
	JobDir        string // empty: there are no batch jobs
	ReleaseSocket string // empty: GPUs are not released by hand; see releaseSocket
	CheckOutput   string // the form of check-node's report: reportText or reportJSON
}

// DriverConfig says which driver we read, a simulated one among them, and how.
type DriverConfig struct {
	Kind         string // driverNVML or driverSim
	Library      string // path of the NVML library; empty: libnvidia-ml.so.1 as the linker finds it
	Scenario     string // path of the simulation's scenario; empty: the built-in one
	Clock        sim.ClockMode
	PIDNamespace pidNamespace
	KernelLog    bool // also take XIDs from the kernel's log
}

// PollConfig says how often the driver is read.
type PollConfig struct {
	Interval time.Duration
	Timeout  time.Duration

	// DriverBudget is how many seconds per second we may spend in driver calls that keep other users
	// of the GPUs waiting; 0: there is no limit.
	DriverBudget float64
}

// ProfilingConfig says where activity comes from.
type ProfilingConfig struct {
	Source      string
	DCGMAddress string // HOST:PORT, a path or dcgmEmbedded; empty: DCGM is off
}

// MetricsConfig says which metrics are served, and under which names.
type MetricsConfig struct {
	Disabled        map[string]bool // whether a collector is off, for each by its name
	Names           collector.Names
	CountersFile    string // of dcgm-exporter; empty: the built-in list
	RepeatGPUFields bool
	HostnameLabel   collector.HostnameLabel
	NodeName        string // the value of HostnameLabel; empty: the name of the host

	// XIDWindow and ClockEventsWindow are the times over which DCGM_EXP_XID_ERRORS_COUNT and
	// DCGM_EXP_CLOCK_EVENTS_COUNT count.
	XIDWindow, ClockEventsWindow time.Duration
}

// WebConfig says where and what the program serves.
type WebConfig struct {
	Addresses     []string
	ConfigFile    string
	SystemdSocket bool
	State         bool
	Processes     gpu.ProcessDetail // or processesAuto; see processDetail
	Pprof         bool
}

// processesAuto lists processes if only users of the node and authenticated clients can ask for them.
const processesAuto gpu.ProcessDetail = "auto"

// processDetail returns what we serve of single processes. By default (processesAuto) we list them,
// without their users, if all addresses are loopback addresses, or if the web configuration asks for
// a password or a client certificate.
//
// Sockets of systemd do not count as loopback: they may be on any address. The listeners of partition
// control need no check: they always authenticate.
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
	Socket        string // the kubelet's pod-resources socket; empty: there is no kubelet
	socketSet     bool   // whether the user has given Socket
	WitnessPod    string // see --kubernetes.witness-pod; empty: the exporter's own pod
	Checkpoint    string // path of the device manager's checkpoint; empty: we do not read it
	PodLabels     collector.PodLabelMode
	ResourceNames []string
	PodLabelNames []string
	WorkloadLabel string // the pod label that names workloads; empty: only the pods' owners do
	NodeName      string // the node's name at the API server; empty: we do not ask the API server

	NodeConditions, NodeEvents bool // whether we write them to the API server
	NodeLabels                 NodeLabelsConfig
}

// validate checks values that their flags cannot check by themselves. It does not read files.
func (c *Config) validate(errs *flagErrors) {
	c.Poll.validate(errs)
	c.Metrics.validate(errs)
	c.Web.validate(errs)
	c.Profiling.validate(errs)

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

// validateAPIServer checks that --kubernetes.node-name is set if other flags need the API server.
func (c *Config) validateAPIServer(errs *flagErrors) {
	const format = "%s: expected %s too: %s"

	nodeName := flagName("kubernetes.node-name")
	known := c.Kubernetes.NodeName != "" || c.Driver.Kind == driverSim
	errs.check(len(c.Kubernetes.PodLabelNames) == 0 || known, format,
		flagName("kubernetes.pod-label"), nodeName, "labels come from the API server")
	errs.check(c.Kubernetes.WorkloadLabel == "" || known, format,
		flagName("advise.workload-label"), nodeName, "labels come from the API server")
	errs.check(!c.Advise.ServerMetrics || known, format, flagName("advise.server-metrics"),
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
	errs.check(c.DriverBudget >= 0 && c.DriverBudget <= maxDriverBudget, // false for NaN
		"%s=%v: expected seconds of driver calls for each second, such as 0.05, or 0 for no limit",
		flagName("poll.driver-budget"), c.DriverBudget)
}

func (c *WebConfig) validate(errs *flagErrors) {
	for _, address := range c.Addresses {
		const flag = flagName("web.listen-address")

		if vsock, isVsock := strings.CutPrefix(address, "vsock://"); isVsock {
			_, port, err := net.SplitHostPort(vsock)
			errs.check(err == nil && isNumber(port, 32), "%s=%s: expected vsock://:PORT", flag, address)

			continue
		}

		errs.checkAddress(flag, address)
	}
}

// isNumber reports whether a text is a number of so many bits at most, without a sign.
func isNumber(text string, bits int) bool {
	_, err := strconv.ParseUint(text, 10, bits)
	return err == nil
}

// checkAddress adds an error unless we can listen on an address, as far as its form goes. Without a port we
// would listen on a random one, as with port 0, which says so.
func (e *flagErrors) checkAddress(flag flagName, address string) {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}

	e.check(err == nil && port != "",
		"%s=%s: expected HOST:PORT or :PORT, with a port up to 65535", flag, address)
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

// isWitness reports whether a text names a pod as NAMESPACE/NAME, or pods by a prefix of it and *.
func isWitness(text string) bool {
	namespace, name, found := strings.Cut(strings.TrimSuffix(text, "*"), "/")
	isName := func(s string) bool { return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" }

	return found && namespace != "" && isName(namespace) && isName(name) &&
		!strings.HasSuffix(text, "/")
}

// minInterval keeps a typing error from making the program poll the driver all the time.
const minInterval = 50 * time.Millisecond

// maxDriverBudget is more than the exporter's threads can spend in a second. A larger budget is a
// mistake, such as one in milliseconds.
const maxDriverBudget = 100

// maxWindow bounds the memory for dcgm-exporter's counts: we keep the clock events of each poll in
// the window.
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

// pidNamespace is the PID namespace of this process. The driver's lists of processes are only
// complete in the host's.
type pidNamespace string

const (
	pidNamespaceAuto      pidNamespace = "auto" // we ask the kernel, the scenario or the recording
	pidNamespaceHost      pidNamespace = "host"
	pidNamespaceContainer pidNamespace = "container"
)

// dcgmMode returns how we reach DCGM, by --dcgm.address: dcgmOff, dcgmEmbedded or dcgmRemote.
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

// asksGPM reports whether we ask the driver itself for activity (GPM).
func (c *ProfilingConfig) asksGPM() bool {
	return c.Source == profilingAuto || c.Source == profilingGPM
}

// servesProcesses reports whether metrics of single processes are served.
func (c *MetricsConfig) servesProcesses() bool {
	off, known := c.Disabled[processCollector]
	return known && !off
}

// processCollector is the collector of single processes, which is off by default.
const processCollector = "process"

// readyMaxAge returns the age of the last reading from which on the program is not ready. The node's
// clock runs speed times as fast as real time.
func (c *PollConfig) readyMaxAge(speed time.Duration) time.Duration {
	return max(leastReadyMaxAge, readyIntervals*c.Interval) * speed
}

// freshFor returns how long scrapers share the fresh metrics, those of this process. It is as long as
// they share a Snapshot. So we gather fresh metrics twice for one Snapshot only if a poll is late.
func (c *PollConfig) freshFor() time.Duration { return max(minFresh, c.Interval) }

// stepGrace is how many intervals, in real time, a poll waits for readings if the clock is stepped.
const stepGrace = 10

// grace returns how long one poll waits for readings.
func (c *PollConfig) grace(stepped bool) time.Duration {
	if stepped {
		return stepGrace * c.Interval
	}

	return min(c.Interval, c.Timeout)
}
