package migctl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// unconfirmedHint says how to find out whether holders that may or may not use a device
// (api.Hold.Unconfirmed) do so.
func unconfirmedHint(holds []api.Hold) string {
	var ways []string
	if slices.ContainsFunc(holds, func(h api.Hold) bool { return h.Unconfirmed() && !h.ByClaim() }) {
		ways = append(ways, "wait until the kubelet lists its pods again")
	}

	if slices.ContainsFunc(holds, api.Hold.ByClaim) {
		ways = append(
			ways,
			"let mig-exporter read claims (--kubernetes.node-name, and the right to get "+
				"resourceclaims.resource.k8s.io)",
		)
	}

	return strings.Join(ways, ", and ") +
		". Or look whether anything uses the device (crictl ps, nvidia-smi), confirm " +
		"that it is free, then repeat the command."
}

// blockedHint says what to do about instances in use, or a layout that does not fit beside them.
func blockedHint(p *api.Problem, o *options) string {
	var holds []api.Hold
	for i := range p.Blocking {
		holds = append(holds, p.Blocking[i].Holders...)
	}

	unconfirmed := slices.ContainsFunc(holds, api.Hold.Unconfirmed)
	others := slices.ContainsFunc(holds, func(h api.Hold) bool { return !h.Unconfirmed() })

	switch {
	case o.Command == commandConfirm && unconfirmed:
		return "confirm the device that the message names instead."
	case o.Command == commandConfirm:
		return "something is seen to use the device, which counts more. Once that has ended, try again."
	case unconfirmed && !others:
		return unconfirmedHint(holds)
	case unconfirmed:
		return usedHint(p, o) + " For what may be in use: " + unconfirmedHint(holds)
	}

	return usedHint(p, o)
}

// writeConfirmation prints the command that confirms that devices are free. It names the devices that
// may be in use, and leaves out those that certainly are.
func writeConfirmation(p *page, problem *api.Problem, o *options) {
	command := "migctl " + commandConfirm

	for i := range problem.Blocking {
		b := &problem.Blocking[i]
		if slices.ContainsFunc(b.Holders, api.Hold.Unconfirmed) &&
			!slices.ContainsFunc(b.Holders, api.Hold.Confirmed) {
			command += " " + QuoteForShell(b.Instance)
		}
	}

	if o.Command != commandConfirm && command != "migctl "+commandConfirm {
		p.paragraph("", plain, "To confirm that nothing uses it (right force):")
		p.uncut("  " + command)
	}
}

func usedHint(p *api.Problem, o *options) string {
	instances := slices.ContainsFunc(p.Blocking, func(b api.Blocker) bool { return b.Profile != "" })
	switch {
	case o.Command == commandMode && instances:
		return "end the work on these instances, destroy them (migctl apply --gpus GPU " +
			"--devices none), then repeat the command."
	case o.Command == commandMode:
		return "end whatever has the GPU open, or move it to another node" + drainHint(p) +
			", then repeat the command."
	case len(p.Blocking) == 0:
		return "ask for less, or name more GPUs. migctl get shows the room, migctl profiles what could be created."
	case o.Command == commandRollback:
		return "end the work of the holders, or move it to another node" + drainHint(p) +
			", then repeat the command."
	}

	return "end the work of the holders, or move it to another node" + drainHint(p) +
		", and plan again."
}

// drainHint names the command that moves pods, if a pod is in the way.
func drainHint(p *api.Problem) string {
	isPod := func(h api.Hold) bool { return h.Kind == api.HoldPod || h.Unconfirmed() }

	if slices.ContainsFunc(p.Blocking, func(b api.Blocker) bool {
		return slices.ContainsFunc(b.Holders, isPod)
	}) {
		return " (kubectl drain)"
	}

	return ""
}

// writeForced prints the same command with --force for the instances in the way. It is not cut, so
// that the operator can copy it.
func writeForced(p *page, problem *api.Problem, o *options) {
	if problem.Type != api.Infeasible && problem.Type != api.Busy || len(problem.Blocking) == 0 {
		return
	}

	if o.Command != commandPlan && o.Command != commandApply || o.Plan != "" {
		return
	}

	what := "it"
	if n := len(problem.Blocking); n > 1 {
		what = fmt.Sprintf("these %d", n)
	}

	p.paragraph("", plain, "To destroy "+what+
		" on purpose (right force; it ends no process, and the driver refuses while one runs):")

	words := append([]string{"migctl " + o.Command}, o.Spec.flags()...)
	if o.TakeOver {
		words = append(words, "--take-over")
	}

	force := slices.Clone(o.Spec.Force)
	for i := range problem.Blocking {
		if !slices.Contains(force, problem.Blocking[i].Instance) {
			force = append(force, problem.Blocking[i].Instance)
		}
	}

	words = append(words, "--force "+QuoteForShell(strings.Join(shortNames(force), ",")))

	const indent = 2
	if line := strings.Join(words, " "); columnsOf(line)+indent <= tableWidth {
		words = []string{line}
	}

	for i, w := range words {
		if i > 0 {
			w = "  " + w
		}

		if i < len(words)-1 {
			w += " \\"
		}

		p.uncut("  " + w)
	}
}

// flags returns the flags that gave the spec, with values quoted for a shell.
func (o *specOptions) flags() []string {
	var all []string
	add := func(flag string, values ...string) {
		for _, v := range values {
			if v != "" {
				all = append(all, flag+" "+QuoteForShell(v))
			}
		}
	}
	add("-f", o.File)
	add("--layout", o.Layout)
	add("--gpus", o.GPUs...)
	add("--devices", o.Devices...)
	add("--demand", o.Demand...)

	return all
}
