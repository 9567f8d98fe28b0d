package main

import (
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// blockedHint is about what is in use, or does not fit beside it.
func blockedHint(p *api.Problem, o *options) string {
	instances := slices.ContainsFunc(p.Blocking, func(b api.Blocker) bool { return b.Profile != "" })
	switch {
	case o.Command == commandMode && instances:
		return "end the work on these instances, destroy them (migctl apply --gpus GPU --devices none), then repeat the command."
	case o.Command == commandMode:
		return "end whatever has the GPU open, or move it to another node (kubectl drain), then repeat the command."
	case len(p.Blocking) == 0:
		return "ask for less, or name more GPUs. migctl get shows the room, migctl profiles what could be created."
	case o.Command == commandRollback:
		return "end the work of the holders, or move it to another node (kubectl drain), then repeat the command."
	}
	return "end the work of the holders, or move it to another node (kubectl drain), and plan again."
}

// writeForced prints the command that destroys what is in the way, whole, so that it can be copied. It plans only, where the
// command before it did.
func writeForced(p *page, problem *api.Problem, o *options) {
	if problem.Type != api.Infeasible && problem.Type != api.Busy || len(problem.Blocking) == 0 {
		return
	}
	if o.Command != commandPlan && o.Command != commandApply || o.Plan != "" {
		return
	}
	p.para("", plain, "To destroy it on purpose (right force; it ends no process, and the driver refuses while one runs):")
	words := append([]string{"migctl " + o.Command}, o.Spec.words()...)
	if o.TakeOver {
		words = append(words, "--take-over")
	}
	force := slices.Clone(o.Spec.Force)
	for i := range problem.Blocking {
		if !slices.Contains(force, problem.Blocking[i].Instance) {
			force = append(force, problem.Blocking[i].Instance)
		}
	}
	for _, f := range force {
		words = append(words, "--force "+quote(f))
	}
	for i, w := range words {
		if i > 0 {
			w = "  " + w
		}
		if i < len(words)-1 {
			w += " \\"
		}
		p.whole("  " + w)
	}
}

// words are the flags of a spec, as they were given.
func (o *specOptions) words() []string {
	var all []string
	add := func(flag string, values ...string) {
		for _, v := range values {
			if v != "" {
				all = append(all, flag+" "+quote(v))
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

// quote makes one word of a shell's command line.
func quote(s string) string {
	const safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"
	if s != "" && strings.Trim(s, safe) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
