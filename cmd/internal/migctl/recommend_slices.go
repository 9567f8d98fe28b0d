package migctl

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// writeSliceProcedure writes how slices get to what is recommended for them.
func (s *session) writeSliceProcedure(ctx context.Context, w *procedure) error {
	var node nodedoc.Document
	if slices.ContainsFunc(w.report.Devices, func(r advise.Recommendation) bool {
		return r.ChangesSlice()
	}) {
		if err := s.client.fetch(ctx, "/node", &node); err != nil {
			return err
		}
	}

	plan := w.report.PlanSlices(instancesOf(node.GPUs))
	w.writeSlicePlan(&plan)

	return nil
}

// instancesOf returns the instances of GPUs and the profiles that they offer, which layouts are
// planned from.
func instancesOf(list []nodedoc.GPU) []gpu.GPU {
	gpus := make([]gpu.GPU, len(list))

	for i := range list {
		g := &gpus[i]
		g.Index = list[i].Index
		g.UUID = list[i].UUID
		g.Profiles = list[i].Profiles
		g.Instances = make([]gpu.GPUInstance, len(list[i].GPUInstances))

		for k := range g.Instances {
			was := &list[i].GPUInstances[k]
			inst := &g.Instances[k]
			inst.ID = was.ID
			inst.Profile = was.Profile
			inst.ProfileID = was.ProfileID
			inst.Placement = was.Placement
			inst.Allocated = was.Allocated

			for n := range was.ComputeInstances {
				c := gpu.ComputeInstance{Profile: was.ComputeInstances[n].Profile}
				inst.ComputeInstances = append(inst.ComputeInstances, c)
			}
		}
	}

	return gpus
}

// writeSlicePlan writes the steps for the slices that should change: those for which a free one
// stands, those that must be created, those that are to be given up.
func (w *procedure) writeSlicePlan(plan *advise.SlicePlan) {
	if len(plan.Direct)+len(plan.Moved)+len(plan.Idle)+len(plan.Refused) == 0 {
		return
	}

	w.p.line()

	if len(plan.Direct)+len(plan.Moved)+len(plan.Idle) > 0 {
		w.p.line(text("Procedure for slices. None of it is done automatically.").in(bold))
	}

	w.steps = 0
	if len(plan.Direct) > 0 {
		w.step("Move to what is free: the owners ask for it.")
		w.moveSlices(plan.Direct)
		w.waitForChanges(plan.Direct)
	}

	if len(plan.Moved) > 0 && plan.Room {
		w.createSlices(
			plan,
			"create the slices beside those that are held, while no new "+w.arrivals()+".",
		)
		w.step("Move to them: the owners ask for them. The slices that they leave are free then.")
		w.moveSlices(plan.Moved)
		w.waitForChanges(plan.Moved)
	} else if len(plan.Moved) > 0 {
		what := "These pods leave, and wait for their slices"
		if w.report.WithoutKubernetes {
			what = "This work leaves, and waits for its slices"
		}

		w.step("%s until the GPUs are repartitioned: there is no room beside them.", what)
		w.cordon()
		w.emptySlices(plan.Moved)
		w.createSlices(
			plan,
			"repartition. migctl apply refuses, and changes nothing, while a pod or a process is on a "+
				"slice that it destroys.",
		)
		w.waitForChanges(plan.Moved)
	}

	for _, r := range plan.Idle {
		w.writeIdle(r)
	}

	for _, refused := range plan.Refused {
		why := refused.Why
		if r := refused.Slice; r != nil {
			why = changeText(r, r.Recommended) + ": " + why
		}

		w.p.para("! ", yellow, "Not changed: "+why)
	}
}

// createSlices writes how the layouts of a plan are made.
func (w *procedure) createSlices(plan *advise.SlicePlan, what string) {
	indices := sortedKeys(plan.Layouts)
	w.step("GPU %s: %s", joinNumbers(indices), what)

	if plan.Room {
		w.cordon()
	}

	for _, index := range indices {
		w.writeCommand(fmt.Sprintf("migctl apply --gpus %d --devices %s", index,
			QuoteForShell(layoutWords(plan.Layouts[index]))))
	}

	w.restartPlugin()
	w.uncordon()
}

// moveSlices writes how pods come to existing slices.
func (w *procedure) moveSlices(changes []advise.SliceChange) {
	for _, c := range changes {
		target := firstOf(c)
		for i, r := range c.Slices {
			w.writeNote(changeText(r, c.To) + ".")

			if i == 0 {
				w.change(target)
			}
		}

		if changeOf(target).replaces {
			continue
		}

		for _, r := range c.Slices {
			w.remove(r)
		}
	}
}

// emptySlices writes how pods leave their slices before there are others.
func (w *procedure) emptySlices(changes []advise.SliceChange) {
	for _, c := range changes {
		for i, r := range c.Slices {
			w.writeNote(changeText(r, c.To) + ".")

			if i == 0 {
				w.change(firstOf(c))
			}

			w.remove(r)
		}

		if isOwnedBy(c.Slices[0], "Deployment") {
			w.writeNote(
				"Until the new pods run, the Deployment keeps old ones as well, which are pending.",
			)
		}
	}
}

// firstOf returns the first slice of a change, with what all of them shall become.
func firstOf(c advise.SliceChange) *advise.Recommendation {
	r := *c.Slices[0]
	r.Recommended = c.To

	return &r
}

// waitForChanges writes how to wait until pods run on their new slices.
func (w *procedure) waitForChanges(changes []advise.SliceChange) {
	var objects []string

	for _, c := range changes {
		r := c.Slices[0]
		object := ownerObject(r)

		switch {
		case !changeOf(firstOf(c)).replaces:
			if isReplaceable(r) {
				w.writeCommand(fmt.Sprintf("migctl get %d", r.Index))
				w.writeNote(
					"Repeat it until the pods of " + ownerName(r) + " have their slices.",
				)
			}
		case !slices.Contains(objects, r.Workload.Namespace+"/"+object):
			objects = append(objects, r.Workload.Namespace+"/"+object)
			w.waitForRollout(r.Workload.Namespace, object)
		}
	}
}

// writeIdle writes how a slice on which nothing runs is given up.
func (w *procedure) writeIdle(r *advise.Recommendation) {
	w.step(
		"GPU %d, %s, %s: it has held its memory for a day and run nothing. If its work is not needed, its "+
			"owner gives it up.",
		r.Index,
		placedProfile(r.Profile, r.Placement),
		holderText(r),
	)
	others := slices.ContainsFunc(w.report.Devices, func(o advise.Recommendation) bool {
		return o.Workload != nil && *o.Workload == *r.Workload &&
			(o.Index != r.Index || o.Instance != r.Instance)
	})

	switch {
	case !isOwnedBy(r, "Deployment", "StatefulSet", "ReplicaSet", "ReplicationController"):
		w.writeNote(
			"Owner " + r.Workload.Owner + ": only it knows whether the work is done. End it there.",
		)
	case others:
		w.writeNote(
			"Its owner has other replicas on this node, so that the command that ends it alone depends on them: " +
				"scale " +
				r.Workload.Owner + " down by one, and see which one ends.",
		)
	default:
		w.writeCommand(
			kubectl(r.Workload.Namespace, "scale", ownerObject(r), "--replicas=0"),
		)
		w.writeNote(
			"This ends its replicas on other nodes, too. If there are any that work, keep their number.",
		)
	}

	w.writeNote(
		"The slice is free then: another pod can have it, or migctl apply can make others of it, which refuses " +
			"while it is held.",
	)
}

// changeText names a slice, its holder, and what it is to become.
func changeText(r *advise.Recommendation, to string) string {
	return fmt.Sprintf(
		"GPU %d, %s, %s: to %s",
		r.Index,
		placedProfile(r.Profile, r.Placement),
		holderText(r),
		cmp.Or(to, "a whole GPU"),
	)
}
