package migctl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/fleet"
)

// reportError writes an error to standard error, with what to do next, and returns the exit code.
func (s *session) reportError(err error) int {
	p := s.newPage(s.errOut, s.errTerminal)
	defer p.flush() // its error has nowhere to go: standard error does not take it

	var usage usageError
	var problem *api.Problem
	var ended *operationError
	var silent *unreachable
	var refused *refusals
	var query *fleet.QueryError

	switch {
	case errors.Is(err, errDeclined):
		p.line(text("Nothing was done."))
		return exitFailed
	case errors.As(err, &usage):
		p.paragraph("migctl: ", red, usage.text)
		p.line(text("See migctl --help and migctl help COMMAND."))

		return exitUsage
	case errors.As(err, &ended): // its outcome has been shown
		return ended.code
	case errors.As(err, &refused):
		refused.report(p, &s.opts)
		return exitFailed
	case errors.As(err, &problem):
		reportProblem(p, problem, &s.opts)
		return exitCodeOf(problem)
	case errors.As(err, &silent):
		p.paragraph("migctl: ", red, silent.Error())

		hint := unreachableHint(silent)
		if s.opts.Command == commandTop && s.opts.program == nil || s.opts.ExporterURL != "" {
			hint = topHint()
		} else if isAbsent(silent) {
			hint += s.opts.listenerHint()
		}

		writeHint(p, cmp.Or(answerHint(silent), hint))

		return exitUnreachable
	case errors.As(err, &query):
		return reportQuery(p, query)
	case errors.Is(err, context.Canceled):
		p.line(text("migctl: interrupted."))
		return exitInterrupted
	}

	p.paragraph("migctl: ", red, err.Error())

	return exitFailed
}

func writeHint(p *page, s string) {
	if s != "" {
		p.paragraph("What to do: ", cyan, s)
	}
}

func reportProblem(p *page, problem *api.Problem, o *options) {
	p.paragraph("migctl: ", red, problem.Error())

	writeBlockers(p, problem.Blocking)

	if len(problem.Profiles) > 0 && !strings.Contains(problem.Detail, problem.Profiles[0]) {
		p.paragraph("  offered: ", plain, strings.Join(problem.Profiles, ", "))
	}

	writeHint(p, problemHint(problem, o))
	writeCommands(p, problem, o)
	writeAlternatives(p, problem)
	writeConfirmation(p, problem, o)
	writeForced(p, problem, o)
}

// writeBlockers names the instances that are in the way, by GPU, profile and placement, and their
// holders; or a GPU that is in the way as a whole.
func writeBlockers(p *page, blocking []api.Blocker) {
	gpu := ""

	for i := range blocking {
		b := &blocking[i]

		if b.Profile == "" {
			p.paragraph("  in the way: ", yellow, b.Instance)
			writeHolds(p, "    ", b.Holders)

			continue
		}

		if gpu != string(b.GPU) {
			gpu = string(b.GPU)
			p.paragraph("  in the way on ", yellow, gpu+":")
		}

		p.paragraph(fmt.Sprintf("    %s@%d  ", b.Profile, b.Placement.Start), yellow, holdersText(b.Holders))
	}
}

// holdersText names the holders of an instance that is in the way, pods and jobs first.
func holdersText(holds []api.Hold) string {
	texts := make([]string, 0, len(holds))
	isWorkload := func(h api.Hold) bool { return h.Kind == api.HoldPod || h.Kind == api.HoldJob }

	holds = slices.Clone(holds)
	slices.SortStableFunc(holds, func(a, b api.Hold) int {
		switch {
		case isWorkload(a) == isWorkload(b):
			return 0
		case isWorkload(a):
			return -1
		default:
			return 1
		}
	})

	for _, h := range holds {
		if h.Unconfirmed() {
			texts = append(texts, "may be in use: "+h.What)
		} else {
			texts = append(texts, holdText(h))
		}
	}

	return strings.Join(texts, "; ")
}

// writeCommands shows the commands that go with a problem's hint.
func writeCommands(p *page, problem *api.Problem, o *options) {
	id := cmp.Or(problem.Operation, "OPERATION")
	switch {
	case problem.Type == api.InProgress && !o.releases():
		p.command("To follow it", "migctl operations --follow", id)
	case problem.Type == api.DriverFailed:
		p.command("To see its steps", "migctl operations", id)
	case problem.Type == api.DegradedNode:
		p.command("To see its steps", "migctl operations", id)
		p.command("To try again", "migctl rollback", id)
		p.command("To accept the current layout", "migctl accept", id)
	case problem.Type == api.LayoutChanged && o.Command == commandRollback:
		p.command("To accept the current layout", "migctl accept", id)
	}
}

// writeAlternatives prints, for an operation that cannot be rolled back, the commands that plan the
// layouts from before it.
func writeAlternatives(p *page, problem *api.Problem) {
	for i := range problem.Instead {
		p.uncut("  " + planCommand(&problem.Instead[i]))
	}
}

// planCommand returns the command that plans a spec of counts. It uses flags, or a document if
// instances are split: no flag can say how.
func planCommand(spec *api.Spec) string {
	counts := map[string]int{}

	for profile, d := range spec.Devices {
		if d.Each != nil || d.Compute != nil {
			document, err := json.Marshal(spec)
			if err != nil {
				return "migctl plan -f SPEC" // impossible: the spec was decoded from JSON
			}

			return "echo " + QuoteForShell(string(document)) + " | migctl plan -f -"
		}

		counts[profile] = d.Count
	}

	gpus := make([]string, 0, len(spec.GPUs))
	for _, g := range spec.GPUs {
		gpus = append(gpus, string(g))
	}

	return "migctl plan --gpus " + QuoteForShell(strings.Join(gpus, ",")) + " --devices " +
		QuoteForShell(devicesValue(counts))
}

// exitCodeOf returns the exit code for a refusal.
func exitCodeOf(p *api.Problem) int {
	switch p.Type {
	case api.DegradedNode, api.StuckNode:
		return exitDegraded
	case api.BadSpec, api.UnknownProfile:
		return exitUsage
	}

	return exitFailed
}

// problemHint says what to do about a refusal. Which GPU or operation it is about is in its Detail.
func problemHint(p *api.Problem, o *options) string {
	if o.releases() {
		if hint := releaseHint(p, o); hint != "" {
			return hint
		}
	}

	switch p.Type {
	case api.Unauthenticated, api.Forbidden:
		return rightsHint(p, o)
	case api.PlanOnly:
		return "this node only plans. To allow changes restart mig-exporter with --control.mode=apply."
	case api.NotFound:
		return "migctl get lists GPUs, migctl operations lists operations, migctl layouts lists " +
			"layouts. Plans are kept in memory only: make a new one."
	case api.StalePlan, api.LayoutChanged, api.NotResumed:
		return changedHint(p, o)
	case api.InProgress:
		return "wait for the other operation to end."
	case api.DegradedNode:
		return "see which step failed, and fix its cause. " +
			"Then try again to roll back, or accept the current layout."
	case api.StuckNode:
		return "a driver call hangs. Metrics go on, and changes of its GPU wait. When the call " +
			"returns, the operation is finished or rolled back by itself. Look into dmesg for XIDs, and " +
			"do not kill mig-exporter. If the call never returns, reboot the node."
	case api.DriverFailed:
		return "see which step failed and what the driver said."
	case api.Infeasible, api.Busy, api.UnknownProfile, api.ModeDiffers, api.BadSpec, api.ForeignOwner:
		return specHint(p, o)
	}

	return serverHint(p, o)
}

// changedHint says what to do about a layout that has changed since the operator looked at it.
func changedHint(p *api.Problem, o *options) string {
	switch {
	case p.Type == api.StalePlan:
		return staleHint(o)
	case p.Type == api.NotResumed:
		return "look at the layout with migctl get, then plan again."
	case o.Command == commandRollback:
		return "the layout is no longer the one that the operation has left, so it is not " +
			"rolled back. Look at it with migctl get."
	}

	return "look at the layout with migctl get, make sure that " +
		"no other client changes these GPUs, then plan again."
}

// serverHint says what to do about a server that cannot answer this request, or not now.
func serverHint(p *api.Problem, o *options) string {
	switch p.Type {
	case api.KeyReused:
		return "try again: migctl takes a new key for each attempt."
	case api.RateLimited:
		return "wait a moment and try again."
	case api.Unavailable:
		return unavailableHint(p, o)
	case api.ReadOnly:
		return "operations cannot be recorded, so nothing is changed. migctl operations has the " +
			"reason: the folder of --control.state-dir cannot be used, its disk is full, another process " +
			"has locked it, or what is in it cannot be read."
	case api.Internal, api.Malformed, api.NoMethod, api.TooLarge, api.MediaType:
		return "see mig-exporter's log; versions of migctl and mig-exporter that differ may be the reason " +
			"(migctl --version)."
	case api.NotBuilt:
		return notBuiltHint(p, o)
	}

	return ""
}

// unavailableHint says what to do about a server that lacks what it needs to answer.
func unavailableHint(p *api.Problem, o *options) string {
	const socketGoesOn = " On the node itself the unix socket needs no credentials: root can use it meanwhile."

	why, unchecked := strings.CutPrefix(p.Detail, api.CredentialsUnchecked)

	switch {
	case unchecked && strings.Contains(why, "--control.config.file"):
		return "correct it on the node: mig-exporter's log has the path and the mistake, and so has mig-exporter " +
			"check-config with the same flags. mig-exporter looks at the file for every call and needs no restart." +
			socketGoesOn
	case unchecked && strings.HasPrefix(why, ": "):
		return "give mig-exporter's service account the right that the detail names." + socketGoesOn
	case unchecked:
		return "mig-exporter cannot ask the cluster's API server whose token this is: its log has the reason." +
			socketGoesOn
	case o.Command == commandRecommend:
		return recommendHint
	case strings.Contains(p.Detail, "kubelet"): // the detail says what to do
		return ""
	}

	return "mig-exporter has no driver to ask, or not the rights: see its log, " +
		"and migctl get for the GPUs' errors."
}

// rightsHint says what to do about a caller who is not known, or lacks a right.
func rightsHint(p *api.Problem, o *options) string {
	if p.Type == api.Unauthenticated {
		if o.program != nil {
			return "the exporter does not accept the token of the service account: its " +
				"--control.config.file needs kubernetes: true, and it must know its own node " +
				"(docs/kubectl-mig.md#if-it-fails)."
		}

		return "authenticate with --token-file, or with --cert-file and --key-file. On the node " +
			"itself, use the unix socket as root or as a member of the group of --control.allow-gid."
	}

	if o.program != nil {
		return "the service account of the token lacks a verb on partitions.mig-exporter.io: " +
			"--service-account names another one (docs/kubectl-mig.md#rights)."
	}

	if !strings.HasPrefix(o.Address, "https:") {
		return "on the socket root has all rights, the group of --control.allow-gid all but force, take-over and " +
			"release, other users none: use sudo, or join that group."
	}

	return "ask the node's administrator for the right that is missing; read, plan, apply, mode, " +
		"take-over, force and release are separate."
}

// onlyRoot says who may release GPUs on a socket.
const onlyRoot = "on a socket root alone may release GPUs and open them again, members of no group: use sudo."

// releaseHint says what to do about a release that was refused. It is empty if the hint is the same
// as for other commands.
func releaseHint(p *api.Problem, o *options) string {
	switch p.Type {
	case api.Unauthenticated, api.Forbidden:
		if !strings.HasPrefix(o.Address, "https:") {
			return onlyRoot
		}
	case api.InProgress:
		return unfinishedHint(o)
	case api.Busy:
		if p.Status == http.StatusConflict && len(p.Blocking) == 0 {
			return "the GPU is as it was. Try again once the reason is gone."
		}
	case api.NotFound:
		return "migctl get lists the GPUs. One that was never read cannot be released."
	}

	return ""
}

// unfinishedHint says what to do about a release or a reacquisition that is not finished. The GPU may
// be open although it is listed as released.
func unfinishedHint(o *options) string {
	const hang = " If a driver call hangs, mig-exporter's log names it."

	if o.Command == commandReacquire {
		return "migctl get shows the GPU as released until it is open again. To repeat the command does " +
			"no harm." + hang
	}

	return "do not reset or unbind the GPU until migctl release succeeds, even if migctl get shows it as " +
		"released: mig-exporter may have it open (fuser -v /dev/nvidiaN lists the processes). It tries " +
		"again by itself, and when you repeat the command, which does no harm." + hang + " If the command " +
		"never succeeds, restart mig-exporter, which opens all GPUs, and release the GPU again."
}

// staleHint says what to do about a node that has changed since the plan or, for a rollback, may
// have changed since the operation.
func staleHint(o *options) string {
	if o.Command == commandRollback {
		return "what stands there may be another client's, so it is not destroyed unseen. If you want " +
			"the layout before the operation, plan it, look at what would be destroyed, then apply it."
	}

	return "the node has changed since the plan was made. Plan again, look at it, and apply the new one."
}

// notBuiltHint says what to do about something that the server lacks, or that is off.
func notBuiltHint(p *api.Problem, o *options) string {
	if o.Command == commandRecommend && p.Status == http.StatusNotImplemented {
		return "start mig-exporter without --no-advise.enabled."
	}

	return "this version of mig-exporter does not offer it."
}

// specHint says what to do about a spec that cannot be executed as it is.
func specHint(p *api.Problem, o *options) string {
	switch p.Type {
	case api.Infeasible, api.Busy:
		return blockedHint(p, o)
	case api.UnknownProfile:
		return "migctl profiles lists what each GPU offers."
	case api.ModeDiffers:
		return "switch the mode first: migctl mode on GPU, or migctl mode off GPU."
	case api.BadSpec:
		if slices.Contains([]string{commandRollback, commandAccept, commandSettled}, o.Command) {
			return "migctl operations shows what has become of it, " +
				"migctl get the layout as it is. Nothing was changed."
		}

		return "correct the spec: migctl profiles, migctl layouts and migctl get list the names that it may use."
	case api.ForeignOwner:
		return "let the other owner change it, or stop that owner on this node. --take-over " +
			"overrides it: then two may be at work on one GPU."
	}

	return ""
}

// answerHint says what to do if something answers that is no document; it is empty if nothing answers.
func answerHint(e *unreachable) string {
	switch {
	case errors.Is(e, errPassword):
		return "give them in the URL, https://USER:PASSWORD@HOST:PORT."
	case errors.Is(e, errToken):
		return "--token-file is the file with a token that it accepts."
	case errors.Is(e, errCredentials):
		return "mig-exporter asks for no such credentials: a proxy does, or another server. Ask without it."
	case errors.Is(e, errOtherVersion):
		return "use the migctl of that mig-exporter's version."
	}

	return ""
}

// isAbsent reports whether nothing listens at an address.
func isAbsent(e *unreachable) bool {
	return errors.Is(e, syscall.ECONNREFUSED) || errors.Is(e, fs.ErrNotExist)
}

// unreachableHint says what to do if a server does not answer.
func unreachableHint(e *unreachable) string {
	socket := !strings.HasPrefix(e.address, "https:") && !strings.HasPrefix(e.address, "node ")

	var dns *net.DNSError
	switch {
	case strings.HasPrefix(e.address, "http:"): // only evaluate has such an address
		return "is mig-exporter running there? --url (or MIGCTL_URL) is its metrics listener, --web.listen-address."
	case strings.HasPrefix(e.address, "node "), e.address == theCluster: // its error says what to do
		return ""
	case errors.Is(e, errForeign):
		return "check --address: control is not on the port of the metrics."
	case isAbsent(e):
		if e.address == releaseAddress {
			return "is mig-exporter running on this node, as root? Its --release.socket " +
				"must be --address (or MIGCTL_ADDRESS)."
		}

		if socket {
			return "is mig-exporter running on this node, with --control.enabled? Its " +
				"--control.socket must be --address (or MIGCTL_ADDRESS)."
		}

		return "is mig-exporter running there, with --control.enabled and --control.listen-address?"
	case errors.Is(e, fs.ErrPermission) && e.address == releaseAddress:
		return onlyRoot
	case errors.Is(e, fs.ErrPermission):
		return "the socket is for root, and for members of the group of " +
			"--control.allow-gid: use sudo, or join that group."
	case errors.Is(e, os.ErrDeadlineExceeded):
		return "the node may be overloaded or a driver call may hang: " +
			"see mig-exporter's log, or wait longer with --timeout."
	case errors.As(e, &dns):
		return "check the host name in --address."
	case strings.Contains(e.Error(), "tls:"), strings.Contains(e.Error(), "x509:"):
		return "check --ca-file (the CA that signed the server's certificate), the host name in " +
			"--address, and --cert-file with --key-file."
	}

	return "check --address, and mig-exporter's log."
}
