package migctl

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// showPlan shows what a change would do.
func (s *session) showPlan(ctx context.Context) error {
	request, err := s.planRequest(ctx)
	if err != nil {
		return err
	}

	var data json.RawMessage

	err = s.client.sendDocument(ctx, http.MethodPost, "/plans", request, "", &data)
	if err != nil {
		return err
	}

	if s.opts.Output != formText {
		return s.printDocument(data)
	}

	var plan api.Plan
	if err := s.client.decodeAnswer(data, &plan); err != nil {
		return err
	}

	writePlan(s.page, &plan)

	if len(plan.Steps) > 0 {
		s.page.line()
		s.page.line(text("To do this:").in(cyan))
		s.page.line(text("  migctl apply --plan %s --hash \\", plan.ID))
		s.page.line(text("    %s", plan.Hash))
	}

	return nil
}

// writePlan shows a plan: each GPU before and after, which instances are destroyed, created and
// kept, and the workloads affected.
func writePlan(p *page, plan *api.Plan) {
	p.line(
		text("Plan ").in(dim),
		text("%s", plan.ID).in(bold),
		text(" for node %s", orUnknown(plan.Node)).in(dim),
	)

	for i := range plan.GPUs {
		p.line()
		writePlanGPU(p, &plan.GPUs[i])
	}

	p.line()

	if len(plan.Steps) == 0 {
		p.line(text("Nothing to do: the node has this layout already.").in(green))
	} else {
		writeEffects(p, plan)
	}

	for _, o := range plan.Owners {
		p.paragraph("! ", yellow, "managed by another owner: "+o)
	}

	if plan.TakeOver && len(plan.Owners) > 0 {
		p.paragraph("! ", yellow, "--take-over: the GPUs are changed anyway")
	}

	for _, w := range plan.Warnings {
		p.paragraph("! ", yellow, w)
	}
}

// writePlanGPU draws the axis of a GPU, before and after if the plan changes it, and lists its
// instances.
func writePlanGPU(p *page, g *api.PlanGPU) {
	p.line(span{gpuTitle(p, g.Index, g.Name, g.UUID), bold})

	before := planSlots(g.Before)
	after := planSlots(g.After)

	if changesLayout(g) {
		p.line(text("  before").in(dim))
		p.drawAxis(g.AxisUnits, layOutSlots(nodedoc.Axis{Units: g.AxisUnits}, before))
		p.line(text("  after").in(dim))
	}

	p.drawAxis(g.AxisUnits, layOutSlots(nodedoc.Axis{Units: g.AxisUnits}, after))

	for i := range g.Before {
		if g.Before[i].Fate == api.Destroy {
			writeInstance(p, "-", red, &g.Before[i])
		}
	}

	for i := range g.After {
		inst := &g.After[i]
		if inst.Fate == api.Create {
			writeInstance(p, "+", green, inst)
			continue
		}

		writeKept(p, inst, keptInstance(g.Before, inst.Placement))
	}

	if len(g.Before)+len(g.After) == 0 {
		p.line(text("  no instances").in(dim))
	}

	if g.Left != "" {
		p.line(text("  room left for ").in(dim), text("%s", g.Left))
	} else {
		p.line(text("  no room left").in(dim))
	}
}

func changesLayout(g *api.PlanGPU) bool {
	differs := func(i api.Instance) bool {
		return i.Fate != api.Keep ||
			slices.ContainsFunc(i.Compute, func(c api.ComputeInstance) bool {
				return c.Fate != api.Keep
			})
	}

	return slices.ContainsFunc(g.Before, differs) || slices.ContainsFunc(g.After, differs)
}

// planSlots marks the fate of each instance by sign and color, so that it can be read without
// colors.
func planSlots(instances []api.Instance) []slot {
	var slots []slot

	for i := range instances {
		inst := &instances[i]
		s := slot{reported: gpu.Some(inst.Placement), label: inst.Profile, note: "keep"}

		switch inst.Fate {
		case api.Destroy:
			s.note = "- destroy"
			s.color = red
		case api.Create:
			s.note = "+ create"
			s.color = green
		}

		slots = append(slots, s)
	}

	return slots
}

// keptInstance returns the instance at a placement from the instances before the plan, if the plan
// keeps it, and otherwise an empty instance.
func keptInstance(before []api.Instance, place gpu.Placement) *api.Instance {
	if i := slices.IndexFunc(before,
		func(b api.Instance) bool { return b.Placement == place && b.Fate == api.Keep }); i >= 0 {
		return &before[i]
	}

	return &api.Instance{}
}

// writeInstance shows a GPU instance that is destroyed or created, with its compute instances.
func writeInstance(p *page, sign string, c color, inst *api.Instance) {
	t := fmt.Sprintf("%s %s at %s", sign, inst.Profile, inst.Placement)
	if id, ok := inst.ID.Get(); ok {
		t += fmt.Sprintf(", GPU instance %d", id)
	}

	if n, ok := inst.Need.Get(); ok {
		t += fmt.Sprintf(", for demand %d", n+1)
	}

	if len(inst.Compute) == 1 && inst.Compute[0].UUID != "" {
		t += ", " + string(inst.Compute[0].UUID)
	}

	p.line(span{"  " + t, c})

	if len(inst.Compute) != 1 { // the line above names an only compute instance by its UUID
		writeComputeInstances(p, sign, c, inst.Compute)
	}

	writeHolds(p, "      ", holdsOf(inst.Holders, inst.Compute))
}

// writeKept shows a GPU instance that is kept, and its compute instances if there are several or
// some change.
func writeKept(p *page, inst, before *api.Instance) {
	t := fmt.Sprintf("  = %s at %s", inst.Profile, inst.Placement)
	if id, ok := inst.ID.Get(); ok {
		t += fmt.Sprintf(", GPU instance %d", id)
	}

	if len(inst.Compute) == 1 && inst.Compute[0].UUID != "" {
		t += ", " + string(inst.Compute[0].UUID)
	}

	p.line(span{t, dim})

	for _, side := range []struct {
		sign string
		c    color
		fate api.Fate
		list []api.ComputeInstance
	}{{"-", red, api.Destroy, before.Compute}, {"+", green, api.Create, inst.Compute},
		{"=", dim, api.Keep, inst.Compute}} {
		computeInstances := slices.DeleteFunc(slices.Clone(side.list), func(c api.ComputeInstance) bool {
			return c.Fate != side.fate
		})
		// The line of the GPU instance names an only compute instance already.
		isNamed := side.fate == api.Keep && len(inst.Compute) == 1
		if len(computeInstances) == 0 || isNamed {
			continue
		}

		writeComputeInstances(p, side.sign, side.c, computeInstances)

		if side.fate == api.Destroy {
			writeHolds(p, "      ", holdsOf(nil, computeInstances))
		}
	}
}

func writeComputeInstances(p *page, sign string, c color, computeInstances []api.ComputeInstance) {
	if len(computeInstances) == 0 {
		p.line(span{"      without compute instances", dim})
	}

	for i := range computeInstances {
		ci := &computeInstances[i]
		t := fmt.Sprintf("    %s compute instance %dc at %s", sign, ci.Placement.Size, ci.Placement)

		if ci.UUID != "" {
			t += ", " + string(ci.UUID)
		}

		p.line(span{t, c})
	}
}

// holdsOf returns the holders of a GPU instance and its compute instances, each once.
func holdsOf(ofInstance []api.Hold, computeInstances []api.ComputeInstance) []api.Hold {
	holds := slices.Clone(ofInstance)

	for i := range computeInstances {
		for _, h := range computeInstances[i].Holders {
			if !slices.Contains(holds, h) {
				holds = append(holds, h)
			}
		}
	}

	return holds
}

func writeHolds(p *page, indent string, holds []api.Hold) {
	for _, h := range holds {
		if h.Unconfirmed() {
			p.paragraph(indent+"may be in use: ", yellow, h.What)
			continue
		}

		p.paragraph(indent+"in use: ", yellow, holdText(h))
	}
}

func holdText(h api.Hold) string {
	pid := ""
	if h.PID != 0 {
		pid = fmt.Sprintf(" (process %d)", h.PID)
	}

	switch h.Kind {
	case api.HoldProcess:
		return processText(h) + " runs on it"
	case api.HoldHandle:
		return processText(h) + " has it open"
	case api.HoldActivity:
		return "activity: " + h.What
	case api.HoldPod:
		return "pod " + h.What + pid
	case api.HoldJob:
		return "batch " + strings.TrimPrefix(h.What, "batch ") + pid
	case api.HoldUnconfirmed:
		return "perhaps " + h.What
	case api.HoldUnknown:
		return "it could not be checked, which counts as in use: " + h.What
	}

	return h.What + pid
}

// processText names a process by its id, and by its command if the document has one: What of such
// a hold is the command, or repeats the id.
func processText(h api.Hold) string {
	t := fmt.Sprintf("process %d", h.PID)
	if h.What == "" || h.What == t || h.What == fmt.Sprint(h.PID) {
		return t
	}

	return t + " (" + h.What + ")"
}

// writeEffects summarizes what a plan destroys and creates, and the workloads that it affects.
func writeEffects(p *page, plan *api.Plan) {
	ops := map[mig.StepOp]int{}
	for i := range plan.Steps {
		ops[plan.Steps[i].Op]++
	}

	touched := 0
	var affected []string
	var holds []api.Hold

	for i := range plan.GPUs {
		g := &plan.GPUs[i]
		if changesLayout(g) {
			touched++
		}

		for j := range g.Before {
			affected = append(affected, affectedUsers(&g.Before[j])...)
			holds = append(holds, lostHolds(&g.Before[j])...)
		}
	}

	p.line(
		text("Destroys ").in(dim),
		text("%s", countsText(ops[mig.DestroyInstance], ops[mig.DestroyCompute])),
	)
	p.line(
		text("Creates  ").in(dim),
		text("%s", countsText(ops[mig.CreateInstance], ops[mig.CreateCompute])),
	)
	p.line(text("Takes    ").in(dim),
		text("%s on %s", nodedoc.Count(len(plan.Steps), "step", "steps"), nodedoc.Count(touched, "GPU", "GPUs")))

	if len(affected) == 0 {
		p.line(
			text("Affects  ").in(dim),
			text("no workload: nothing that is in use is destroyed").in(green),
		)
	}

	slices.Sort(affected)

	for _, name := range slices.Compact(affected) {
		p.paragraph("Affects  ", red, name)
	}

	for _, f := range plan.Forced {
		p.paragraph("Forced   ", red, f)
	}

	if slices.ContainsFunc(holds, api.Hold.Unconfirmed) {
		p.paragraph(
			"! ",
			yellow,
			"Whether all of these hold what is destroyed is not known: "+unconfirmedHint(holds),
		)
	}
}

// affectedUsers names the users of the instances that a plan destroys: of this GPU instance, or of
// some of its compute instances.
func affectedUsers(inst *api.Instance) []string {
	var all []string

	for _, h := range lostHolds(inst) {
		switch h.Kind {
		case api.HoldProcess, api.HoldHandle:
			all = append(all, processText(h))
		case api.HoldActivity:
			all = append(all, fmt.Sprintf("%s at %s: %s", inst.Profile, inst.Placement, h.What))
		default:
			all = append(all, holdText(h))
		}
	}

	return all
}

// lostHolds returns who holds the GPU instance, if the plan destroys it, and who holds each of its
// compute instances that the plan destroys.
func lostHolds(inst *api.Instance) []api.Hold {
	var holds []api.Hold
	if inst.Fate == api.Destroy {
		holds = slices.Clone(inst.Holders)
	}

	for i := range inst.Compute {
		if inst.Fate == api.Destroy || inst.Compute[i].Fate == api.Destroy {
			holds = append(holds, inst.Compute[i].Holders...)
		}
	}

	return holds
}

func countsText(instances, computeInstances int) string {
	return nodedoc.Count(instances, "GPU instance", "GPU instances") + " and " +
		nodedoc.Count(computeInstances, "compute instance", "compute instances")
}
