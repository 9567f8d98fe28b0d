package main

import (
	"path/filepath"
	"strconv"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/control/cluster"
	"github.com/mig-exporter/mig-exporter/internal/usage"
)

// ControlConfig is the configuration of partition control.
type ControlConfig struct {
	Enabled       bool
	Mode          string
	Socket        string
	AllowGID      int    // the group that may use Socket; -1: only root may
	ListenAddress string // empty: we only serve on Socket
	ConfigFile    string // certificates, tokens and rights for ListenAddress
	Audiences     []string
	LayoutsFile   string
	StateDir      string
	Restore       bool
	Cordon        bool
	DevicePlugin  string // NAMESPACE/LABELS of its pods; empty: it is not restarted
	Hooks         []string
	IdleFor       time.Duration
}

// What partition control may do.
const (
	controlPlan  = "plan"
	controlApply = "apply"
)

func declareControlFlags(app *kingpin.Application, cfg *ControlConfig) {
	app.Flag("control.enabled", "Serve partition control for migctl on --control.socket "+
		"(docs/partition-control.md).").
		BoolVar(&cfg.Enabled)
	enumFlag(app, "control.mode", "What partition control may do: plan changes nothing; apply "+
		"repartitions GPUs, which is experimental: it has not been proven on every model.",
		controlPlan, &cfg.Mode, controlPlan, controlApply)

	app.Flag("control.socket", "Unix socket of partition control, for root and "+
		"--control.allow-gid.").
		Default("/run/mig-exporter/control.sock").
		StringVar(&cfg.Socket)
	intFlag(app, "control.allow-gid", "Group whose members may read, plan, apply and change the "+
		"MIG mode on the socket, without force, take-over and release; -1 is none.",
		"-1", &cfg.AllowGID)
	app.Flag("control.listen-address", "Address on which partition control is served over TLS "+
		"too; needs --control.config.file.").
		StringVar(&cfg.ListenAddress)
	app.Flag("control.config.file", "Certificates, tokens and rights of "+
		"--control.listen-address (YAML). Read again when it has changed, and with SIGHUP.").
		SetValue(usage.File(&cfg.ConfigFile))
	app.Flag("control.audience", "Audience that Kubernetes tokens must have; with an audience "+
		"of its own, a token is not accepted by the API server. Repeatable. By default the API "+
		"server's own.").
		StringsVar(&cfg.Audiences)

	app.Flag("control.layouts", "File of named layouts, in mig-parted's form. Read again with "+
		"SIGHUP.").
		SetValue(usage.File(&cfg.LayoutsFile))
	app.Flag("control.state-dir", "Folder of the operations' state and the audit log; created "+
		"if it is missing.").
		Default("/var/lib/mig-exporter").
		StringVar(&cfg.StateDir)
	app.Flag("control.restore", "After a reboot, restore the layouts that operations have made, "+
		"on GPUs without instances; each GPU on its own, tried again while it fails.").
		BoolVar(&cfg.Restore)

	app.Flag("control.cordon", "Keep new pods from the node during a change; needs "+
		"--kubernetes.node-name and the right to patch the node.").
		BoolVar(&cfg.Cordon)
	app.Flag("control.device-plugin", "Pods of the device plugin, as "+
		"NAMESPACE/KEY=VALUE[,KEY=VALUE]: that of this node is restarted after a change, and "+
		"the operation ends when the kubelet offers the new devices. Needs --control.cordon, "+
		"and the right to list and delete pods there.").
		StringVar(&cfg.DevicePlugin)
	app.Flag("control.hook", "Program to run after a change, as a JSON list of its arguments; "+
		"repeatable. Its environment has the old and new UUIDs. "+
		`{"reboot": [...]} is a command that reboots the node: --kubernetes.node-labels=follow `+
		"starts it once for a MIG mode that is pending until then.").
		StringsVar(&cfg.Hooks)

	durationFlag(app, "control.idle-for", "Time for which an instance must have been inactive "+
		"to count as idle.",
		"1m", &cfg.IdleFor)
}

// callTimeout is the time after which a call of the driver counts as stuck, and a write of the state
// folder as failed. We expect both to take seconds. More time would only delay the news for the
// operator, and less would gain nothing: a stuck operation goes on when its call returns.
const callTimeout = 30 * time.Second

// settleTimeout is how long an operation blocks its GPUs while the kubelet does not offer exactly the
// devices that exist; then it is unsettled. By default a pod of the device plugin has 30 s to end, and
// its successor starts within the rest. What takes longer is not lost: an unsettled operation succeeds
// once the kubelet has followed.
const settleTimeout = 2 * time.Minute

// hookTimeout is the time after which we kill a hook. Hooks restart services, and systemd gives a
// service 90 s to stop. A hook that needs longer should start its work and return.
const hookTimeout = 2 * time.Minute

// longestSocketDir leaves room for the socket's name, and for the temporary name under which it is
// created, in the 107 bytes of a unix address.
const longestSocketDir = 80

// markDir returns the folder in which we remember across restarts that the node has a kubelet; empty:
// we do not remember it.
func (c *ControlConfig) markDir() string {
	if !c.Enabled {
		return ""
	}

	return c.StateDir
}

func (c *ControlConfig) validate(errs *flagErrors) {
	if !c.Enabled {
		return
	}

	const (
		socket  = flagName("control.socket")
		address = flagName("control.listen-address")
		file    = flagName("control.config.file")
		plugin  = flagName("control.device-plugin")
	)

	errs.check(c.Socket != "" || c.ListenAddress != "", "%s: expected a path, or %s", socket, address)
	errs.check(len(filepath.Dir(c.Socket)) <= longestSocketDir,
		"%s=%s: expected a folder of at most %d bytes: the kernel takes no longer ones",
		socket, c.Socket, longestSocketDir)
	errs.check(c.StateDir != "", "%s: expected a folder", flagName("control.state-dir"))
	errs.check(c.AllowGID >= -1, "%s=%s: expected a group id, or -1 for none",
		flagName("control.allow-gid"), strconv.Itoa(c.AllowGID))

	if c.ListenAddress != "" {
		errs.checkAddress(address, c.ListenAddress)
	}

	errs.check(c.ListenAddress == "" || c.ConfigFile != "",
		"%s=%s: expected %s=FILE with it", address, c.ListenAddress, file)
	errs.check(c.ConfigFile == "" || c.ListenAddress != "",
		"%s=%s: expected %s with it", file, c.ConfigFile, address)

	errs.check(c.IdleFor >= 0, "%s=%s: expected 0s or more", flagName("control.idle-for"), c.IdleFor)
	errs.check(c.DevicePlugin == "" || c.Cordon,
		"%s=%s: expected %s with it: until the plugin has restarted, pods may be given "+
			"devices that do not exist",
		plugin, c.DevicePlugin, flagName("control.cordon"))

	if c.DevicePlugin != "" {
		_, err := cluster.ParsePluginSelector(c.DevicePlugin)
		errs.check(err == nil, "%s: %w", plugin, err)
	}

	_, _, err := c.hooks()
	errs.check(err == nil, "%s: %w", flagName("control.hook"), err)
}
