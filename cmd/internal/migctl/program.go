package migctl

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/usage"
)

// Program is another program that runs migctl's commands, and reaches nodes its own way: each
// command names the node first, as in "kubectl mig get gpu-01".
type Program struct {
	Name string // "kubectl mig"
	Help string // what --help begins with
	// Flags declares the program's own flags; Groups are theirs in --help.
	Flags  func(*kingpin.Application)
	Groups []usage.Group
	// Prefix returns how a command line begins that reaches the same nodes, such as
	// "kubectl mig --context=prod".
	Prefix func() string
	// Nodes lists the nodes that have an exporter.
	Nodes func(context.Context) ([]string, error)
	// Connect connects to the control API of a node. The connection has only the given rights, each
	// of them get, plan, apply, mode, force, take-over or release.
	Connect func(ctx context.Context, node string, rights []string) (*Connection, error)
	// Extend declares the program's own commands, and its flags of migctl's commands. It calls output
	// for a command that has -o with the forms text, json and yaml.
	Extend func(app *kingpin.Application, output func(*kingpin.CmdClause))
	// Owns reports whether the program runs a command line itself instead of leaving it to migctl.
	// The error says what is wrong with the line.
	Owns func(*Line) (bool, error)
	// Own runs a command line of which Owns reports true. Its error is reported as migctl's errors
	// are. A code other than 0 becomes the exit code.
	Own func(context.Context, *Line) (code int, err error)
}

// Line is what a program gets of a command line that it runs itself.
type Line struct {
	Command  string
	Node     string // the first argument of migctl's commands
	AllNodes bool
	File     string // -f
	TakeOver bool
	Reason   string
	Timeout  time.Duration // of a request
	Parallel int

	In  io.Reader
	Out io.Writer
	// Ask asks the operator, and returns nil if the answer is yes.
	Ask func(ctx context.Context, question string) error
	// Print prints a document and reports true if the operator wants one: with -o json or yaml.
	Print func(document any) (bool, error)
}

// Connection is a connection to one node's control API.
type Connection struct {
	// Transport sends a request for https://control to the node, whichever its address is, and
	// authenticates the server and the caller.
	Transport http.RoundTripper
	Close     func()
}

// Run runs one command line of the program, as migctl's Run does.
func (p *Program) Run(args []string) int { return runProcess(args, p) }

// programName returns the name of the program that runs, for --help and messages.
func (o *options) programName() string {
	if o.program == nil {
		return "migctl"
	}

	return o.program.Name
}

func (o *options) programHelp() string {
	if o.program == nil {
		return programHelp
	}

	return o.program.Help + "\n\n" + exitHelp + " " + nodesHelp
}

func (p *Program) addFlags(app *kingpin.Application, o *options) {
	p.Flags(app)
	app.Flag("all", "All nodes that have an exporter, instead of NODE.").BoolVar(&o.AllNodes)
	app.Flag("parallel", "How many nodes are asked at the same time.").
		Default("8").
		IntVar(&o.Parallel)
}

// line returns the command line for the program that may run it itself.
func (s *session) line() *Line {
	o := &s.opts

	return &Line{
		Command:  o.Command,
		Node:     o.Node,
		AllNodes: o.AllNodes,
		File:     o.Spec.File,
		TakeOver: o.TakeOver,
		Reason:   o.Reason,
		Timeout:  o.requestTimeout(),
		Parallel: o.Parallel,
		In:       s.in,
		Out:      s.out,
		Ask:      s.askOperator,
		Print: func(document any) (bool, error) {
			if o.Output != formJSON && o.Output != formYAML {
				return false, nil
			}

			data, err := json.Marshal(document)
			if err == nil {
				err = s.printDocument(data)
			}

			return true, err
		},
	}
}

// checkOwn returns an error if a command line that the program runs itself has flags that only
// migctl's own commands know.
func (o *options) checkOwn() error {
	spec := o.Spec
	spec.File = ""

	switch {
	case !spec.isEmpty() || len(spec.Force) > 0 || o.Plan != "" || o.Hash != "":
		return usageError{"the layouts of several nodes are those of the file: give no --gpus, --devices, " +
			"--demand, --layout, --force, --plan or --hash"}
	case o.Operation != "":
		return usageError{fmt.Sprintf("%q: expected the nodes as one argument: gpu-01,gpu-02", o.Operation)}
	case o.printsOutcome():
		return usageError{fmt.Sprintf("-o %s: %s of several nodes has no document; runs has", o.Output, o.Command)}
	case o.Parallel < 1:
		return usageError{fmt.Sprintf("--parallel=%d: expected 1 or more", o.Parallel)}
	}

	return nil
}

// UsageError returns an error about the command line.
func UsageError(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// theCluster stands for the address of the API server.
const theCluster = "the cluster"

// UnreachableCluster returns the error of an API server that does not answer, or refuses.
func UnreachableCluster(err error) error { return &unreachable{theCluster, err} }

// UnreachableNode returns the error of a node whose exporter does not answer, or proves nothing.
func UnreachableNode(node string, err error) error { return &unreachable{"node " + node, err} }

// severalNodesCommands returns the commands that can be run on several nodes: they change nothing.
func severalNodesCommands() []string {
	return []string{
		commandGet, commandPlan, commandOperations, commandRecommend, commandProfiles, commandLayouts,
	}
}

// command declares a command. With a program, its first argument is the node.
func (o *options) command(app *kingpin.Application, name, help string) *kingpin.CmdClause {
	c := app.Command(name, help)
	if o.program == nil {
		return c
	}

	help = "The node."
	if slices.Contains(severalNodesCommands(), name) {
		help = "The node, or several: gpu-01,gpu-02; none with --all."
	}

	node := c.Arg("node", help).HintAction(o.listNodes)
	// kingpin takes no required argument after an optional one. Neither argument of rollback is
	// required: checkNodes says which is missing.
	if hasRequiredArgument(name) && name != commandRollback {
		node.Required()
	}

	node.StringVar(&o.Node)

	return c
}

// hasRequiredArgument reports whether a command requires an argument after the node.
func hasRequiredArgument(name string) bool {
	switch name {
	case commandRollback, commandAccept, commandSettled, commandConfirm, commandMode,
		commandRelease, commandReacquire:
		return true
	}

	return false
}

// listNodes returns the nodes that have an exporter, for the shell; none if the API server does not
// answer soon.
func (o *options) listNodes() []string {
	ctx, cancel := context.WithTimeout(context.Background(), hintTimeout)
	defer cancel()

	nodes, err := o.program.Nodes(ctx)
	if err != nil {
		return nil
	}

	return nodes
}

// checkNodes returns an error if the command line does not name the nodes that the command can be
// run on.
func (o *options) checkNodes() error {
	several := o.AllNodes || strings.Contains(o.Node, ",")

	switch {
	case o.Parallel < 1:
		return usageError{fmt.Sprintf("--parallel=%d: expected 1 or more", o.Parallel)}
	case several && !slices.Contains(severalNodesCommands(), o.Command):
		return usageError{o.Command + " works on one node at a time: name it"}
	case o.AllNodes && o.Node != "":
		return usageError{fmt.Sprintf("--all and %q: expected one of them", o.Node)}
	case !o.AllNodes && o.Node == "":
		return usageError{"the node is missing: its name, or --all"}
	case several && (o.Watch || o.Follow):
		return usageError{"--watch and --follow work on one node at a time: name it"}
	case o.Command == commandRollback && o.Operation == "":
		return usageError{"the operation is missing: its id, after the node"}
	case several && o.Output == formSpec:
		return usageError{"-o spec writes the file of one node: name it"}
	}

	return nil
}

// rights returns the rights that the command needs. They include weaker rights: a caller with the
// right to apply may plan and get, too.
func (o *options) rights() []string {
	var rights []string

	if len(o.Spec.Force) > 0 || o.Command == commandConfirm {
		rights = append(rights, "force")
	}

	if o.TakeOver {
		rights = append(rights, "take-over")
	}

	switch o.Command {
	case commandPlan:
		return append(rights, "plan")
	case commandApply, commandRollback, commandAccept, commandSettled, commandRestore:
		return append(rights, "apply")
	case commandMode:
		return append(rights, "mode")
	case commandRelease, commandReacquire:
		return append(rights, "release")
	}

	return append(rights, "get")
}

// connect returns a client of the node's control API.
func (s *session) connect(ctx context.Context) (*client, error) {
	o := &s.opts
	if o.program == nil {
		return newClient(o)
	}

	address := "node " + o.Node

	connection, err := o.program.Connect(ctx, o.Node, o.rights())
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}

		return nil, &unreachable{address, err}
	}

	return newConnectedClient(o.Node, connection, o.requestTimeout()), nil
}

// renamer returns a function that writes migctl's commands in a text as the program has them:
// "migctl get" becomes "kubectl mig get gpu-01". It returns nil if migctl itself runs.
func (o *options) renamer() func(string) string {
	if o.program == nil {
		return nil
	}

	ownCommand := regexp.MustCompile(`\bmigctl (--?[a-z-]+|[a-z-]+)`)

	return func(t string) string {
		t = ownCommand.ReplaceAllStringFunc(t, func(found string) string {
			_, word, _ := strings.Cut(found, " ")

			switch {
			case strings.HasPrefix(word, "-") || word == "help":
				return o.program.Name + " " + word
			case !slices.Contains(nodeCommands(), word):
				return found
			}

			return o.program.Prefix() + " " + word + " " + cmp.Or(o.Node, "NODE")
		})

		if rest, ok := strings.CutPrefix(t, "migctl: "); ok {
			t = o.program.Name + ": " + rest
		}

		return t
	}
}

// nodeCommands returns the commands that, in a program, have a node as first argument.
func nodeCommands() []string {
	return []string{
		commandGet, commandTop, commandPlan, commandApply, commandRollback, commandAccept,
		commandSettled, commandConfirm, commandMode, commandRestore, commandProfiles,
		commandOperations, commandLayouts, commandRecommend, commandRelease, commandReacquire,
	}
}
