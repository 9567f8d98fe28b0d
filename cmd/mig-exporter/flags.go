package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kernellog"
	"github.com/mig-exporter/mig-exporter/internal/podresources"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/usage"
)

// The commands.
const (
	commandServe     = "serve"
	commandCheck     = "check-config"
	commandCheckNode = "check-node"
	commandCapture   = "capture"
)

// logOptions say how to log.
type logOptions struct {
	Level, Format string
	Journal       bool // whether lines begin with a priority for systemd's journal
}

// invocation is a parsed command line.
type invocation struct {
	Command  string
	Config   Config
	Log      logOptions
	Warnings []warning // to be logged once the logger exists
}

// parseCommandLine reads the command line. Each flag can come from the environment too:
// MIG_EXPORTER_ and the flag's name in upper case with dots and dashes as underscores.
//
// Flags and variables of dcgm-exporter are accepted, too: see aliases.
func parseCommandLine(line, environ []string) (invocation, error) {
	line, err := expandFiles(line)
	if err != nil {
		return invocation{}, err
	}

	// An old variable must not keep the user from reading the help, which has the flags of today.
	goneVariables := environ
	if asksForHelp(line) {
		goneVariables = nil
	}

	if err := refuseGone(line, goneVariables); err != nil {
		return invocation{}, err
	}

	lookup := lookupIn(environ)

	args, warnings, err := translateAliases(line, lookup)
	if err != nil {
		return invocation{}, fmt.Errorf("%w (see docs/migration.md)", err)
	}

	app := newApp()
	inv := invocation{Config: Config{Capture: CaptureConfig{Polls: defaultCapturePolls}}}
	cfg := &inv.Config

	declareCommands(app, &inv)

	if err := checkRepeated(app, line); err != nil {
		return invocation{}, fmt.Errorf("%w (see docs/migration.md)", err)
	}

	command, err := app.Parse(usage.CompletionArgs(app, args))
	if err != nil {
		// kingpin's error names the flag even if a variable has set it.
		if variableErr := checkVariables(line, lookup); variableErr != nil {
			err = variableErr
		}

		return invocation{}, fmt.Errorf(
			"%w (see mig-exporter --help; docs/migration.md has dcgm-exporter's flags)",
			err,
		)
	}

	inv.Command = command
	cfg.Metrics.NodeName, _ = lookup(nodeNameVariable) // dcgm-exporter prefers it to the host name, too

	if cfg.Driver.Kind == driverNVML {
		cfg.Hostname = cmp.Or(cfg.Kubernetes.NodeName, cfg.Metrics.NodeName)
	}

	var errs flagErrors

	cfg.validate(&errs)
	ineffective := findIneffective(cfg, line, lookup, &errs)
	inv.Warnings = slices.Concat(warnings, ineffective, findEmptyVariables(lookup))

	if err := errs.join(line, lookup); err != nil {
		return invocation{}, err
	}

	return inv, nil
}

// declareCommands declares the commands and all flags.
func declareCommands(app *kingpin.Application, inv *invocation) {
	declareFlags(app, &inv.Config, &inv.Log)
	app.Command(commandServe, "Serve metrics of this node's GPUs.").Default()
	app.Command(commandCheck, "Check the flags and the files that they name.")

	checkNode := app.Command(commandCheckNode, "Read this node for a few seconds and report "+
		"what of it can be seen with these flags, what not, why, and what to change. Nothing is "+
		"served or changed. The exit code is 0 if nothing that the flags ask for is known to be "+
		"missing, 1 if something is missing or unknown, 4 if the node could not be checked.")
	declareCheckNodeFlags(checkNode, &inv.Config.CheckOutput)

	capture := app.Command(commandCapture, "Write the answers of this node's driver to a file "+
		"for --sim.scenario: inventory, readings and errors, without identities. Nothing is "+
		"served, and pods are not captured.")
	declareCaptureFlags(capture, &inv.Config.Capture)
}

// declareFlags declares the flags that all commands have.
func declareFlags(app *kingpin.Application, cfg *Config, logs *logOptions) {
	cfg.Metrics.Disabled = map[string]bool{}
	declareCollectors(app, cfg.Metrics.Disabled)

	declareDriverFlags(app, &cfg.Driver)
	declareReleaseFlags(app, &cfg.ReleaseSocket)
	declareSimulationFlags(app, &cfg.Driver)
	declarePollFlags(app, &cfg.Poll)
	declareHostFlags(app, &cfg.Driver)
	declareProfilingFlags(app, &cfg.Profiling)
	declareJobFlags(app, &cfg.JobDir)

	declareMetricsFlags(app, &cfg.Metrics)
	declareWebFlags(app, &cfg.Web)
	declareKubernetesFlags(app, &cfg.Kubernetes)

	declareAdviseFlags(app, &cfg.Advise, &cfg.Kubernetes.WorkloadLabel)
	declareControlFlags(app, &cfg.Control)

	enumFlag(app, "log.level", "Lowest level of messages to log: debug, info, warn or error.",
		"info", &logs.Level, "debug", "info", "warn", "error")
	enumFlag(app, "log.format", "Form of the log on standard error: logfmt or json.",
		"logfmt", &logs.Format, "logfmt", "json")
}

func newApp() *kingpin.Application {
	app := kingpin.New(
		"mig-exporter",
		"Prometheus exporter for NVIDIA GPUs, GPU instances and compute instances (MIG). "+
			"dcgm-exporter's flags and environment variables are accepted, or refused with what to use "+
			"instead (docs/migration.md). SIGHUP reads the counters file, the layouts and control's "+
			"configuration again; SIGTERM and SIGINT stop (docs/faults.md).",
	)
	app.Version(version.Print("mig-exporter"))
	app.UsageWriter(os.Stdout) // --help and --version are answers, not errors
	usage.Install(app, flagGroups(), usage.Table{
		Title: "Collectors (+ is on by default, - is off)",
		Rows:  describeCollectors(),
	})

	app.HelpFlag.Short('h').NoEnvar()

	// dcgm-exporter has -v, too. NoEnvar: images set MIG_EXPORTER_VERSION.
	app.VersionFlag.Short('v').NoEnvar()
	app.DefaultEnvars()

	return app
}

// flagGroups returns the groups of --help.
func flagGroups() []usage.Group {
	return []usage.Group{
		{Title: "General", Names: []string{"help", "version"}},
		{Title: "This command", Names: []string{"output", "capture."}},
		{
			Title: "Driver",
			Names: []string{"driver", "nvml.library-path", "pid-namespace", "xid.kernel-log"},
		},
		{Title: "Polling", Names: []string{"poll."}},
		{Title: "Activity", Names: []string{"profiling.source", "dcgm.address"}},
		{Title: "Metrics", Names: []string{collectorsFlag, "metrics.", "dcgm."}},
		{Title: "Web", Names: []string{"web."}},
		{Title: "Kubernetes and batch jobs", Names: []string{"kubernetes.", "hpc."}},
		{Title: "Right-sizing", Names: []string{"advise."}},
		{Title: "Partition control", Names: []string{"control.", "release.socket"}},
		{Title: "Simulation", Names: []string{"sim."}},
		{Title: "Logging", Names: []string{"log."}},
	}
}

func declareDriverFlags(app *kingpin.Application, cfg *DriverConfig) {
	enumFlag(app, "driver", "Source of the GPUs: nvml, this node's NVIDIA driver, or sim, a "+
		"simulated node (--sim.scenario).",
		driverNVML, &cfg.Kind, driverNVML, driverSim)
	app.Flag("nvml.library-path", "Path of the NVML library; by default libnvidia-ml.so.1 as "+
		"the dynamic linker finds it.").
		SetValue(usage.File(&cfg.Library))
}

func declareSimulationFlags(app *kingpin.Application, cfg *DriverConfig) {
	app.Flag("sim.scenario", "Scenario file of the simulated node, or a file written by "+
		"capture; by default the built-in dgx-a100-mixed, a DGX A100 that several teams share.").
		SetValue(usage.File(&cfg.Scenario))
	enumFlag(app, "sim.clock", "How simulated time passes: real, step (only by POST "+
		"/-/sim/advance?by=1s), or x60.",
		sim.ClockReal, &cfg.Clock, sim.ClockReal, sim.ClockStep, sim.ClockX60)
}

// declareHostFlags declares the flags about the host: its PID namespace and its kernel's log.
func declareHostFlags(app *kingpin.Application, cfg *DriverConfig) {
	enumFlag(app, "pid-namespace", "PID namespace of this process, in which the driver lists "+
		"processes: auto, host (all processes that can be on the GPUs are in it, as on a node "+
		"that is a container itself) or container (there may be others: none is listed).",
		pidNamespaceAuto, &cfg.PIDNamespace, pidNamespaceAuto, pidNamespaceHost,
		pidNamespaceContainer)
	app.Flag("xid.kernel-log", "Take XIDs from the kernel's log, too: some are no events of the "+
		"driver, such as 62 and 119, and 79 on an idle GPU. Needs "+kernellog.Path+", and "+
		"CAP_SYSLOG where kernel.dmesg_restrict is 1 (docs/image.md).").
		BoolVar(&cfg.KernelLog)
}

func declarePollFlags(app *kingpin.Application, cfg *PollConfig) {
	durationFlag(app, "poll.interval", "Time between two readings of all GPUs.",
		"1s", &cfg.Interval)
	durationFlag(app, "poll.timeout", "Time after which a GPU counts as down whose driver does "+
		"not return from a call. A reading of many calls that each return may take ten times as "+
		"long.",
		"5s", &cfg.Timeout)
	floatFlag(app, "poll.driver-budget", "Seconds of driver calls, for each second, that may "+
		"keep other users of the GPUs waiting. Readings that take more are made less often "+
		"until they fit: every 5s at most, those that are dear or seldom change every 2m. 0 is "+
		"no limit.",
		defaultDriverBudget, &cfg.DriverBudget)
}

func declareReleaseFlags(app *kingpin.Application, socket *string) {
	app.Flag("release.socket", "Unix socket on which root releases GPUs by migctl, with or "+
		"without partition control: auto is "+defaultReleaseSocket+", and none on a "+
		"simulated node. Empty is none.").
		Default(autoSocket).
		StringVar(socket)
}

func declareProfilingFlags(app *kingpin.Application, cfg *ProfilingConfig) {
	enumFlag(app, "profiling.source", "Source of activity: auto (for each GPU, GPM if its "+
		"driver has it, else DCGM), gpm, dcgm (GPM if DCGM fails) or off.",
		profilingAuto, &cfg.Source, profilingAuto, profilingGPM, profilingDCGM, profilingOff)
	app.Flag("dcgm.address", "Where DCGM runs: HOST:PORT of a host engine, the path of its unix "+
		"socket, or embedded (libdcgm.so.4 in this process). By default DCGM is not used.").
		StringVar(&cfg.DCGMAddress)
}

func declareJobFlags(app *kingpin.Application, dir *string) {
	app.Flag("hpc.job-mapping-dir", "Folder in which a batch scheduler records which job has "+
		"which GPU: files <gpu> and <gpu>.<GPU instance>, a job in each line.").
		SetValue(usage.File(dir))
}

func declareMetricsFlags(app *kingpin.Application, cfg *MetricsConfig) {
	enumFlag(app, "metrics.names", "Names of the metrics: native, dcgm (those of dcgm-exporter) "+
		"or both.",
		collector.NamesNative, &cfg.Names, collector.NamesNative, collector.NamesDCGM,
		collector.NamesBoth)
	app.Flag("dcgm.counters", "Counters file of dcgm-exporter (CSV) that chooses the metrics "+
		"under its names; by default a built-in list. Read again with SIGHUP.").
		SetValue(usage.File(&cfg.CountersFile))
	app.Flag("dcgm.repeat-gpu-fields", "Repeat the values of a GPU for each of its GPU "+
		"instances under dcgm-exporter's names, as it does. Sums over such series count it "+
		"several times.").
		BoolVar(&cfg.RepeatGPUFields)
	enumFlag(app, "dcgm.hostname-label", "Label with the host's name under dcgm-exporter's "+
		"names: Hostname, hostname (since its 4.8.3) or off.",
		collector.HostnameUpper, &cfg.HostnameLabel, collector.HostnameUpper,
		collector.HostnameLower, collector.HostnameOff)
	windowFlag(app, xidWindowFlag, &cfg.XIDWindow)
	windowFlag(app, clockEventsWindowFlag, &cfg.ClockEventsWindow)
}

// windowFlag declares a hidden flag that only has dcgm-exporter's name: the time, in milliseconds up
// to the last reading, over which one of dcgm-exporter's metrics counts. Its environment variable is
// among the aliases.
func windowFlag(app *kingpin.Application, name string, target *time.Duration) {
	initial := strconv.FormatInt(defaultWindow.Milliseconds(), 10)
	app.Flag(name, "").Hidden().NoEnvar().Default(initial).SetValue(
		flagValue(name, "a number of milliseconds", func(s string) bool {
			n, err := strconv.ParseUint(s, 10, 31)
			*target = time.Duration(n) * time.Millisecond

			return err == nil
		}),
	)
}

func declareWebFlags(app *kingpin.Application, cfg *WebConfig) {
	app.Flag("web.listen-address", "Address to serve on; repeatable.").
		Default(":9401").
		StringsVar(&cfg.Addresses)
	app.Flag("web.config.file", "Web configuration for TLS, basic auth and HTTP headers, as "+
		"exporter-toolkit describes it.").
		SetValue(usage.File(&cfg.ConfigFile))
	app.Flag("web.systemd-socket", "Serve on the sockets that systemd passes instead of "+
		"--web.listen-address.").
		BoolVar(&cfg.SystemdSocket)

	app.Flag("web.state", "Serve the node's state as JSON at /api/v1/node, and on the landing "+
		"page.").
		Default("true").
		BoolVar(&cfg.State)
	enumFlag(app, "web.processes", "Processes on the GPUs in the node's state, and in the "+
		"collector process_info: off, names (process id, type, memory, container or job, name of "+
		"the program, never arguments), users (the user, too) or auto (names if only loopback "+
		"addresses are listened on, or --web.config.file asks clients for a password or a "+
		"certificate; else off).",
		processesAuto, &cfg.Processes, processesAuto, gpu.ProcessesOff, gpu.ProcessNames,
		gpu.ProcessUsers)

	app.Flag("web.pprof", "Serve Go's profiles under /debug/pprof/.").BoolVar(&cfg.Pprof)
}

func declareKubernetesFlags(app *kingpin.Application, cfg *KubernetesConfig) {
	app.Flag("kubernetes.socket", "The kubelet's pod-resources socket. It need not exist; an "+
		"empty path means that this node has no kubelet.").
		Default(podresources.DefaultSocket).
		IsSetByUser(&cfg.socketSet).
		StringVar(&cfg.Socket)
	app.Flag("kubernetes.witness-pod", "Pod of the API server, NAMESPACE/NAME, a trailing * is "+
		"a prefix, without whose presence the kubelet's list is not complete after a restart: "+
		"no device counts as free before it, and every pod that is known, are listed. By "+
		"default the exporter's own pod; on a host name one that always runs there, of a "+
		"DaemonSet, such as kube-system/calico-node-*; a static pod is none.").
		StringVar(&cfg.WitnessPod)
	app.Flag("kubernetes.checkpoint", "The checkpoint of the kubelet's device manager, a second "+
		"source of which container holds a device while the kubelet does not list its pods, and "+
		"for init containers. Only root can read it; an empty path turns it off.").
		Default(podresources.DefaultCheckpoint).
		StringVar(&cfg.Checkpoint)

	enumFlag(app, "kubernetes.labels", "Where pods are named: container (in the info families "+
		"and in nvidia_gpu_container_*), series (also on the memory, activity, power and energy "+
		"of what they hold), info (in the info families only), off.",
		collector.PodLabelsContainer, &cfg.PodLabels, collector.PodLabelsContainer,
		collector.PodLabelsSeries, collector.PodLabelsInfo, collector.PodLabelsOff)
	app.Flag("kubernetes.resource-name", "Resource name of NVIDIA devices besides "+
		"nvidia.com/gpu, nvidia.com/gpu.shared and nvidia.com/mig-*; a trailing * is a prefix; "+
		"repeatable.").
		StringsVar(&cfg.ResourceNames)
	app.Flag("kubernetes.pod-label", "Pod label to show as label_NAME on the info series of "+
		"pods; needs --kubernetes.node-name; repeatable.").
		StringsVar(&cfg.PodLabelNames)

	app.Flag("kubernetes.node-name", "This node's name at the API server, which is then asked "+
		"for the owners and labels of its pods; by default it is not asked.").
		StringVar(&cfg.NodeName)

	app.Flag("kubernetes.node-conditions", "Write the conditions GPUHealthy and "+
		"MIGLayoutApplied of the Node; needs --kubernetes.node-name and the right to patch "+
		"nodes/status (docs/health.md).").
		BoolVar(&cfg.NodeConditions)
	app.Flag("kubernetes.node-events", "Create an Event on the Node for each operation of "+
		"partition control that has ended; needs --kubernetes.node-name, --control.enabled and "+
		"the right to create events.").
		BoolVar(&cfg.NodeEvents)
	declareNodeLabelsFlag(app, &cfg.NodeLabels)
}

func declareCheckNodeFlags(command *kingpin.CmdClause, output *string) {
	command.Flag("output", "Form of the report: text or json.").
		Short('o').
		NoEnvar().
		Default(reportText).
		EnumVar(output, reportText, reportJSON)
}

func declareCaptureFlags(command *kingpin.CmdClause, cfg *CaptureConfig) {
	command.Flag("output", "File to write, or - for standard output.").
		Required().
		StringVar(&cfg.Output)
	intFlag(command, "capture.polls", "Readings of all GPUs to capture, --poll.interval apart.",
		strconv.Itoa(defaultCapturePolls), &cfg.Polls)
	command.Flag("capture.keep-identities", "Keep UUIDs, serial numbers, process ids and the "+
		"host's name instead of pseudonyms.").
		BoolVar(&cfg.KeepIdentities)
}
