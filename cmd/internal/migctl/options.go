package migctl

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/usage"
)

// The commands.
const (
	commandGet        = "get"
	commandPlan       = "plan"
	commandApply      = "apply"
	commandRollback   = "rollback"
	commandAccept     = "accept"
	commandSettled    = "settled"
	commandConfirm    = "confirm-free"
	commandMode       = "mode"
	commandRestore    = "restore"
	commandProfiles   = "profiles"
	commandOperations = "operations"
	commandLayouts    = "layouts"
	commandRecommend  = "recommend"
	commandEvaluate   = "evaluate"
	commandRelease    = "release"
	commandReacquire  = "reacquire"
)

// The forms of output.
const (
	formTable = "table"
	formWide  = "wide"
	formName  = "name"
	formText  = "text"
	formJSON  = "json"
	formYAML  = "yaml"
)

const (
	defaultAddress = "unix:///run/mig-exporter/control.sock"
	releaseAddress = "unix:///run/mig-exporter/release.sock"
	programHelp    = "Show and repartition the GPUs of a node: a client of " +
		"mig-exporter's partition control (--control.enabled). A plan changes nothing; " +
		"apply shows the plan, asks, and says how to undo it. GPUs are named by index, " +
		"UUID or PCI bus id, profiles by name or id; the beginning of a UUID will do if it " +
		"is the only one with it: GPU-5f65f8d5.\n\n" + exitHelp + "\n\n" + setupHelp
	exitHelp = "Exit codes: 0 done, or nothing to do; 1 refused, or failed and rolled back; 2 the " +
		"command line or the spec is wrong; 3 the server cannot be reached; 4 degraded or stuck, an " +
		"operator must act; 5 the layout is neither the previous nor the planned one (another client " +
		"interrupted the operation, or an operator accepted the layout), plan again; 6 unsettled, the " +
		"layout is as planned, but the kubelet does not offer exactly its devices yet, or a hook has " +
		"failed; 130 interrupted by Ctrl-C, the operation continues."
	setupHelp = "The flags before the command can also be set as environment variables: MIGCTL_ADDRESS, " +
		"MIGCTL_TOKEN_FILE, MIGCTL_CA_FILE, MIGCTL_CERT_FILE, MIGCTL_KEY_FILE, MIGCTL_TIMEOUT, MIGCTL_COLOR; " +
		"--url as MIGCTL_URL.\n\nCompletion: source <(migctl --completion-script-bash), or " +
		"--completion-script-zsh; in fish source (migctl --completion-script-fish | psub). " +
		"Man page: migctl --help-man | man -l -"
)

// options are the values of a command line.
type options struct {
	// program is the program that runs migctl's commands under its own name; nil for migctl itself.
	program *Program
	own     bool // the program runs this command line by itself
	// Node, AllNodes and Parallel are for a program: the node of the command, or whether it is for
	// all nodes with an exporter, and how many of them at a time.
	Node     string
	AllNodes bool
	Parallel int

	Command string

	Address, TokenFile, CAFile, CertFile, KeyFile string

	// ExporterURL is the metrics listener that a command asks instead of Address; empty: none.
	ExporterURL            string
	urlGiven, addressGiven bool // by a flag

	Timeout time.Duration // 0: see requestTimeout
	Color   string

	Output string
	GPUs   []string // the argument "gpu"; of confirm-free: "device"
	State  string   // of mode: on or off
	Watch  bool     // of get

	Spec specOptions
	Plan string // of apply: the id of a plan that the operator has seen
	Hash string // of apply: the hash of that plan
	Yes  bool
	// Reason is why the operator changes a layout, in his own words.
	Reason string

	Operation string // the id of an operation
	Follow    bool
	TakeOver  bool
	Forget    bool // of restore

	Explain string   // of recommend: the GPU to explain
	Prices  []string // of recommend, not parsed yet
	URL     string   // of evaluate, which asks no control API
	Top     topOptions
	Fleet   fleetOptions
}

// defaultTimeout is how long the answer to a request may take without --timeout.
const defaultTimeout = 30 * time.Second

// requestTimeout returns how long the answer to a request may take.
func (o *options) requestTimeout() time.Duration {
	if o.Command == commandFleet {
		return cmp.Or(o.Timeout, queryTimeout)
	}

	return cmp.Or(o.Timeout, defaultTimeout)
}

// specOptions give the wanted layout, from a file or on the command line.
type specOptions struct {
	File    string
	Layout  string
	GPUs    []string
	Devices []string
	Demand  []string
	Force   []string
}

// usageError is a mistake on the command line or in a spec.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// errVersionPrinted ends kingpin's parsing after we have printed the version.
var errVersionPrinted = errors.New("the version is printed")

// parseCommandLine reads the command line. done is set if nothing is left to do, as after --help or
// --version.
func (s *session) parseCommandLine(args []string) (done bool, err error) {
	if err := refuseGone(args); err != nil {
		return false, err
	}

	app := newApp(&s.opts)
	printed := false // whether kingpin has printed help or a completion, or we the version

	// app.Version would put the lines of the version into the first line of the man page.
	app.Flag("version", "Show the version.").PreAction(func(*kingpin.ParseContext) error {
		fmt.Fprintln(s.out, version.Print(s.opts.programName()))
		printed = true

		return errVersionPrinted
	}).Bool()

	app.UsageWriter(s.out)
	app.ErrorWriter(s.errOut)
	// kingpin goes on after it calls this, and can print the help again: we discard that.
	app.Terminate(func(int) {
		printed = true
		app.UsageWriter(io.Discard)
		app.ErrorWriter(io.Discard)
	})

	command, err := app.Parse(joinLoneDash(usage.CompletionArgs(app, args)))
	if printed && slices.ContainsFunc(args, asksForHelp) {
		return true, nil
	}

	if printed {
		return false, usageError{"a command is missing, see above"}
	}

	if err != nil {
		return false, usageError{err.Error()}
	}

	s.opts.Command = command

	if p := s.opts.program; p != nil {
		s.opts.own, err = p.Owns(s.line())
		if err != nil {
			return false, err
		}
	}

	if s.opts.own {
		return false, s.opts.checkOwn()
	}

	return false, s.opts.checkFlags()
}

// joinLoneDash joins "-f -" into one argument: kingpin accepts no lone dash as the value of a flag.
func joinLoneDash(args []string) []string {
	var joined []string

	for i := 0; i < len(args); i++ {
		if (args[i] == "-f" || args[i] == "--file") && i+1 < len(args) && args[i+1] == "-" {
			joined = append(joined, "--file=-")
			i++
			continue
		}

		joined = append(joined, args[i])
	}

	return joined
}

func asksForHelp(arg string) bool {
	return arg == "help" || arg == "-h" || strings.HasPrefix(arg, "--help") || arg == "--version" ||
		strings.HasPrefix(arg, "--completion-")
}

// releases reports whether the command releases GPUs, or opens them again.
func (o *options) releases() bool {
	return o.Command == commandRelease || o.Command == commandReacquire
}

// checkFlags returns an error if flags contradict each other.
func (o *options) checkFlags() error {
	if o.program != nil {
		if err := o.checkNodes(); err != nil {
			return err
		}
	}

	if err := o.checkURL(fileExists); err != nil {
		return err
	}

	if o.Command == commandRecommend {
		return o.checkRecommend()
	}

	if o.releases() && o.Address == defaultAddress {
		o.Address = releaseAddress
	}

	if o.Command != commandPlan && o.Command != commandApply {
		return nil
	}

	if (o.Plan == "") != (o.Hash == "") {
		return usageError{
			"--plan and --hash belong together: the plan's id and its hash, as migctl plan prints them",
		}
	}

	if o.Plan != "" {
		if !o.Spec.isEmpty() || o.TakeOver || len(o.Spec.Force) > 0 {
			return usageError{
				"--plan names an existing plan: it cannot be combined with a spec, --force or --take-over",
			}
		}

		return nil
	}

	if o.Spec.isEmpty() {
		return usageError{
			"the wanted layout is missing: -f FILE, --layout NAME, --gpus with --devices, or --demand",
		}
	}

	return nil
}

// flagGroups returns the groups of --help.
func (o *options) flagGroups() []usage.Group {
	var groups []usage.Group
	if o.program != nil {
		groups = o.program.Groups
	}

	return append(groups, []usage.Group{
		{Title: "General", Names: []string{"help", "version", "color"}},
		{
			Title: "Server",
			Names: []string{"address", "token-file", "ca-file", "cert-file", "key-file", "timeout"},
		},
		{
			Title: "Wanted layout",
			Names: []string{"file", "layout", "gpus", "devices", "demand", "plan", "hash"},
		},
		{
			Title: "Prometheus",
			Names: []string{"prometheus.", "window", "time", "match", "cluster-label"},
		},
		{
			Title: "Right-sizing",
			Names: []string{"max-stretch", "min-evidence", "strict", "price", "explain"},
		},
		{
			Title: "This command",
			Names: []string{"output", "yes", "reason", "force", "take-over", "forget", "follow", "watch", "url",
				"once"},
		},
	}...)
}

// newApp declares commands and flags, whose values go to o.
func newApp(o *options) *kingpin.Application {
	app := kingpin.New(o.programName(), o.programHelp())
	app.HelpFlag.Short('h')
	usage.Install(app, o.flagGroups())

	if o.program == nil {
		addServerFlags(app, o)
	} else {
		o.program.addFlags(app, o)
	}

	timeouts := "30s"
	if o.program == nil {
		timeouts += ", of " + commandFleet + " 2m"
	}

	app.Flag("timeout", "Time within which a request must be answered: "+timeouts+". Following an operation "+
		"has no limit.").
		PlaceHolder("DURATION").
		Envar("MIGCTL_TIMEOUT").
		SetValue(durationValue("--timeout (or MIGCTL_TIMEOUT)", &o.Timeout))
	app.Flag("color", "Colors: auto (on a terminal, unless NO_COLOR is set), always or never.").
		Default("auto").
		Envar("MIGCTL_COLOR").
		HintOptions("auto", "always", "never").
		SetValue(oneOf("--color (or MIGCTL_COLOR)", &o.Color, "auto", "always", "never"))

	addReadCommands(app, o)

	plan := o.command(app, commandPlan, "Show what a change would do, and change nothing.")
	addPlanFlags(plan, o, false)

	apply := o.command(app, commandApply, "Change the layout: show the plan, ask, follow the "+
		"operation, say how to undo it.")
	addPlanFlags(apply, o, true)

	gpus := o.completions(listGPUs)

	addRollbackCommand(app, o)

	accept := o.command(app, commandAccept, "Accept the current layout and close an operation that "+
		"is degraded or stuck. Changes no GPU.")
	addOperationArg(accept, o).Required()
	addOutcomeFlags(accept, o)

	settled := o.command(app, commandSettled, "End an operation's wait for the kubelet to list the "+
		"new devices.")
	addOperationArg(settled, o).Required()
	addOutcomeFlags(settled, o)

	confirm := o.command(app, commandConfirm, "Confirm that nothing uses devices whose use the "+
		"kubelet does not report. Changes no GPU. Requires the force right.")
	confirm.Arg("device", "The devices: a MIG UUID, GPU-<uuid>/<GPU instance>, or a GPU by "+
		"index, UUID or PCI bus id.").
		Required().
		HintAction(o.completions(listMIGDevices)).
		HintAction(gpus).
		StringsVar(&o.GPUs)
	addYesFlag(confirm, o)

	mode := o.command(app, commandMode, "Switch MIG mode. The GPUs must have no instances and no "+
		"users. Never resets a GPU by itself.")
	mode.Arg("state", "on or off.").
		Required().
		HintOptions("on", "off").
		SetValue(oneOf("the state", &o.State, "on", "off"))
	mode.Arg("gpu", "The GPUs: index, UUID or PCI bus id.").
		Required().
		HintAction(gpus).
		StringsVar(&o.GPUs)
	mode.Flag("take-over", "Change GPUs although another owner manages them.").BoolVar(&o.TakeOver)
	addYesFlag(mode, o)

	addRestoreCommand(app, o)
	addReleaseCommands(app, o)

	if o.program == nil {
		addFleetCommand(app, o)
	} else {
		o.program.Extend(app, func(c *kingpin.CmdClause) {
			addOutputFlag(c, o, formText, formJSON, formYAML)
		})
	}

	return app
}

// addServerFlags declares the flags about the server: where it is, how to trust it, and the
// credentials for it.
func addServerFlags(app *kingpin.Application, o *options) {
	app.Flag("address", "Address of mig-exporter's control API: unix:///PATH or "+
		"https://HOST:PORT.").
		Default(defaultAddress).
		IsSetByUser(&o.addressGiven).
		Envar("MIGCTL_ADDRESS").
		StringVar(&o.Address)
	app.Flag("token-file", "File with the bearer token.").
		Envar("MIGCTL_TOKEN_FILE").
		SetValue(usage.File(&o.TokenFile))
	app.Flag("ca-file", "File with the certificates to trust (PEM); by default the system's.").
		Envar("MIGCTL_CA_FILE").
		SetValue(usage.File(&o.CAFile))
	app.Flag("cert-file", "File with the client's certificate (PEM).").
		Envar("MIGCTL_CERT_FILE").
		SetValue(usage.File(&o.CertFile))
	app.Flag("key-file", "File with the client's key (PEM).").
		Envar("MIGCTL_KEY_FILE").
		SetValue(usage.File(&o.KeyFile))
}

// addReleaseCommands declares the commands that release GPUs and open them again. They have a socket of
// their own, which exists even without partition control.
func addReleaseCommands(app *kingpin.Application, o *options) {
	release := o.command(app, commandRelease, "Let go of GPUs, so that they can be reset, unbound "+
		"from the driver or passed to a virtual machine: the exporter closes them and reads "+
		"nothing of them. Unless --address is given, by "+releaseAddress+", which needs no "+
		"partition control. Root alone, or the right release.")
	release.Arg("gpu", "The GPUs: index, UUID or PCI bus id.").Required().StringsVar(&o.GPUs)

	reacquire := o.command(app, commandReacquire, "Open released GPUs again.")
	reacquire.Arg("gpu", "The GPUs: index, UUID or PCI bus id.").Required().StringsVar(&o.GPUs)
}

func addRollbackCommand(app *kingpin.Application, o *options) {
	rollback := o.command(app, commandRollback, "Restore the layout from before an operation, or "+
		"retry the rollback of one that is degraded.")

	operation := addOperationArg(rollback, o)
	if o.program == nil { // otherwise checkNodes says that it is missing
		operation.Required()
	}

	addReasonFlag(rollback, o)
	addOutcomeFlags(rollback, o)
}

// addOperationArg declares the argument with an operation's id.
func addOperationArg(c *kingpin.CmdClause, o *options) *kingpin.ArgClause {
	arg := c.Arg("operation", "The operation's id.").HintAction(o.completions(listOperationIDs))
	arg.StringVar(&o.Operation)

	return arg
}

func addRestoreCommand(app *kingpin.Application, o *options) {
	restore := o.command(app, commandRestore, "Give GPUs the layout again that operations have "+
		"made, such as after a reboot. Destroys nothing.")
	restore.Arg("gpu", "The GPUs: index, UUID or PCI bus id; by default those whose layout is "+
		"not restored.").
		HintAction(o.completions(listGPUs)).
		HintAction(o.completions(listUnrestored)).
		StringsVar(&o.GPUs)
	restore.Flag("forget", "Forget the layout instead: of a GPU that was taken out, or whose "+
		"present layout is to stay.").
		BoolVar(&o.Forget)
	restore.Flag("take-over", "Change GPUs although another owner manages them.").
		BoolVar(&o.TakeOver)
	addYesFlag(restore, o)
}

// addReadCommands declares the commands that only read.
func addReadCommands(app *kingpin.Application, o *options) {
	get := o.command(app, commandGet, "Draw the node: GPUs, their slices on the placement axis, "+
		"their users, free and stranded slices. held: a pod, a batch job or a process has it. free: nothing "+
		"has it. idle, as recommend says: nothing runs on it, held or not.")
	get.Arg("gpu", "Only these GPUs: index, UUID or PCI bus id.").
		HintAction(o.completions(listGPUs)).
		StringsVar(&o.GPUs)
	get.Flag("watch", "Draw it again with each reading, until Ctrl-C.").Short('w').BoolVar(&o.Watch)
	addExporterURLFlag(get, o)
	addOutputFlag(get, o, formTable, formWide, formName, formJSON, formYAML)

	addTopCommand(app, o)

	profiles := o.command(app, commandProfiles, "List the profiles that GPUs offer: id, free and "+
		"possible instances, size, placements; and the compute instance profiles.")
	profiles.Arg("gpu", "Only these GPUs: index, UUID or PCI bus id.").
		HintAction(o.completions(listGPUs)).
		StringsVar(&o.GPUs)
	addExporterURLFlag(profiles, o)
	addOutputFlag(profiles, o, formTable, formJSON, formYAML)

	operations := o.command(app, commandOperations, "List the operations, the latest first; or "+
		"show one with its steps.")
	addOperationArg(operations, o)
	operations.Flag("follow", "Follow the operation to its end.").BoolVar(&o.Follow)
	addOutputFlag(operations, o, formTable, formJSON, formYAML)

	addRecommendCommand(app, o)

	if o.program == nil {
		addEvaluateCommand(app, o)
	}

	layouts := o.command(app, commandLayouts, "List the node's named layouts.")
	addOutputFlag(layouts, o, formTable, formJSON, formYAML)
}

func addPlanFlags(c *kingpin.CmdClause, o *options, apply bool) {
	help := "File with the spec, YAML or JSON; - is standard input."
	if o.program != nil {
		help += " Without a node, the layouts of many: of the kind Fleet."
	}

	c.Flag("file", help).
		Short('f').
		PlaceHolder("FILE").
		SetValue(usage.File(&o.Spec.File))
	c.Flag("layout", "A named layout, of the file or of the node.").
		PlaceHolder("NAME").
		HintAction(o.completions(listLayoutNames)).
		StringVar(&o.Spec.Layout)
	c.Flag("gpus", "The GPUs to give a layout: index, UUID or PCI bus id, or all; "+
		"comma-separated or repeated.").
		PlaceHolder("GPU,...").
		HintAction(o.completions(listGPUs)).
		HintOptions("all").
		StringsVar(&o.Spec.GPUs)
	c.Flag("devices", "Their instances: 1g.10gb=4,3g.40gb=1; none for no instances. All others "+
		"on these GPUs are destroyed.").
		PlaceHolder("PROFILE=COUNT,...").
		HintAction(o.completions(listDevices)).
		StringsVar(&o.Spec.Devices)
	c.Flag("demand", "Further instances, of any profile: memory=12GiB,sms=20,count=3. "+
		"Repeatable.").
		PlaceHolder("memory=SIZE,sms=N,count=N").
		StringsVar(&o.Spec.Demand)
	c.Flag("force", "A busy instance that may be destroyed: its MIG UUID, or GPU-<uuid>/<GPU "+
		"instance>. Repeatable, or several with commas.").
		PlaceHolder("UUID,...").
		HintAction(o.completions(listMIGDevices)).
		StringsVar(&o.Spec.Force)
	c.Flag("take-over", "Change GPUs although another owner manages them.").BoolVar(&o.TakeOver)

	if !apply {
		addOutputFlag(c, o, formText, formJSON, formYAML)
		return
	}

	c.Flag("plan", "Apply this plan, which migctl plan has shown, instead of a new one.").
		PlaceHolder("ID").
		StringVar(&o.Plan)
	c.Flag("hash", "The hash of that plan.").StringVar(&o.Hash)
	addReasonFlag(c, o)
	addOutcomeFlags(c, o)
}

// addOutcomeFlags declares the flags of a command that starts or ends one operation.
func addOutcomeFlags(c *kingpin.CmdClause, o *options) {
	addYesFlag(c, o)
	outputFlag(c, o, "Form of the output: text, json, yaml. With the latter two standard output has only the "+
		"operation when it has ended, or the plan if there is nothing to do; all else goes to standard error.",
		formText, formJSON, formYAML)
}

// addReasonFlag declares the flag with which an operator says why, which only another program has.
func addReasonFlag(c *kingpin.CmdClause, o *options) {
	if o.program == nil {
		return
	}

	expected := fmt.Sprintf("one line of at most %d bytes", api.MaxReason)

	c.Flag("reason", "Why, one line. The operation and the audit log have it as your words.").
		SetValue(flagValue("--reason", expected, func(s string) bool {
			o.Reason = s
			return api.IsReason(s)
		}))
}

func addYesFlag(c *kingpin.CmdClause, o *options) {
	c.Flag("yes", "Do not ask.").Short('y').BoolVar(&o.Yes)
}

func addOutputFlag(c *kingpin.CmdClause, o *options, forms ...string) {
	outputFlag(c, o, fmt.Sprintf("Form of the output: %s.", strings.Join(forms, ", ")), forms...)
}
