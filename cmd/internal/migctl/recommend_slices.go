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

	plan := w.report.PlanSlices(gpusToPlan(node.GPUs))
	w.writeSlicePlan(&plan)

	return nil
}

// gpusToPlan returns what the advisor needs of a document's GPUs to plan layouts: their profiles and
// their instances.
func gpusToPlan(documented []nodedoc.GPU) []gpu.GPU {
	gpus := make([]gpu.GPU, len(documented))

	for i := range documented {
		from := &documented[i]
		g := &gpus[i]
		g.Index = from.Index
		g.UUID = from.UUID
		g.Profiles = from.Profiles
		g.Instances = make([]gpu.GPUInstance, len(from.GPUInstances))

		for k := range g.Instances {
			have := &from.GPUInstances[k]
			inst := &g.Instances[k]
			inst.ID = have.ID
			inst.Profile = have.Profile
			inst.ProfileID = have.ProfileID
			inst.Placement = have.Placement
			inst.Allocated = have.Allocated

			for n := range have.ComputeInstances {
				c := gpu.ComputeInstance{Profile: have.ComputeInstances[n].Profile}
				inst.ComputeInstances = append(inst.ComputeInstances, c)
			}
		}
	}

	return gpus
}

// writeSlicePlan writes the steps for the slices that should change: first moves to slices that are
// free, then moves to slices that must be created, then slices that are given up.
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
		w.writeStep("Move to what is free: the owners ask for it.")
		w.writeMoves(plan.Direct)
		w.writeWaitForChanges(plan.Direct)
	}

	if len(plan.Moved) > 0 && plan.Room {
		w.writeSliceCreation(
			plan,
			"create the slices beside those that are held, while no new "+w.arrivingWork()+".",
		)
		w.writeStep("Move to them: the owners ask for them. The slices that they leave are free then.")
		w.writeMoves(plan.Moved)
		w.writeWaitForChanges(plan.Moved)
	} else if len(plan.Moved) > 0 {
		what := "These pods leave, and wait for their slices"
		if w.report.WithoutKubernetes {
			what = "This work leaves, and waits for its slices"
		}

		w.writeStep("%s until the GPUs are repartitioned: there is no room beside them.", what)
		w.writeCordon()
		w.writeDepartures(plan.Moved)
		w.writeSliceCreation(
			plan,
			"repartition. migctl apply refuses, and changes nothing, while a pod or a process is on a "+
				"slice that it destroys.",
		)
		w.writeWaitForChanges(plan.Moved)
	}

	for _, r := range plan.Idle {
		w.writeIdle(r)
	}

	for _, refused := range plan.Refused {
		why := refused.Why
		if r := refused.Slice; r != nil {
			why = changeText(r, r.Recommended) + ": " + why
		}

		w.p.paragraph("! ", yellow, "Not changed: "+why)
	}
}

// writeSliceCreation writes the step that creates the layouts of a plan; what says what it does.
// Without room, an earlier step has cordoned the node and emptied the slices.
func (w *procedure) writeSliceCreation(plan *advise.SlicePlan, what string) {
	indices := sortedKeys(plan.Layouts)
	w.writeStep("GPU %s: %s", joinNumbers(indices), what)

	if plan.Room {
		w.writeCordon()
	}

	for _, index := range indices {
		w.writeCommand(fmt.Sprintf("migctl apply --gpus %d --devices %s", index,
			QuoteForShell(devicesValue(plan.Layouts[index]))))
	}

	w.writePluginRestart()
	w.writeUncordon()
}

// writeMoves writes how pods move to slices that exist.
func (w *procedure) writeMoves(changes []advise.SliceChange) {
	for _, c := range changes {
		target := firstSlice(c)
		for i, r := range c.Slices {
			w.writeNote(changeText(r, c.To) + ".")

			if i == 0 {
				w.writeOwnerChange(target)
			}
		}

		if changeOf(target).replaces {
			continue
		}

		for _, r := range c.Slices {
			w.writeRemoval(r)
		}
	}
}

// writeDepartures writes how pods leave their slices before their new ones exist.
func (w *procedure) writeDepartures(changes []advise.SliceChange) {
	for _, c := range changes {
		for i, r := range c.Slices {
			w.writeNote(changeText(r, c.To) + ".")

			if i == 0 {
				w.writeOwnerChange(firstSlice(c))
			}

			w.writeRemoval(r)
		}

		if isOwnedBy(c.Slices[0], "Deployment") {
			w.writeNote(
				"Until the new pods run, the Deployment keeps old ones as well, which are pending.",
			)
		}
	}
}

// firstSlice returns the first slice of a change, with the profile that all its slices shall get.
// The slices of a change have one owner, which is changed once for all of them.
func firstSlice(c advise.SliceChange) *advise.Recommendation {
	r := *c.Slices[0]
	r.Recommended = c.To

	return &r
}

// writeWaitForChanges writes how to wait until pods run on their new slices.
func (w *procedure) writeWaitForChanges(changes []advise.SliceChange) {
	var objects []string

	for _, c := range changes {
		r := c.Slices[0]
		object := ownerObject(r)

		switch {
		case !changeOf(firstSlice(c)).replaces:
			if isReplaceable(r) {
				w.writeCommand(fmt.Sprintf("migctl get %d", r.Index))
				w.writeNote(
					"Repeat it until the pods of " + ownerName(r) + " have their slices.",
				)
			}
		case !slices.Contains(objects, r.Workload.Namespace+"/"+object):
			objects = append(objects, r.Workload.Namespace+"/"+object)
			w.writeWaitForRollout(r.Workload.Namespace, object)
		}
	}
}

// writeIdle writes how a slice on which nothing runs is given up.
func (w *procedure) writeIdle(r *advise.Recommendation) {
	ran := "and run nothing. If its work"
	if isMediaUnread(r) {
		ran = "and no kernel ran. Its media engines cannot be read here, or were not all of the time: it may " +
			"have used them. If its work"
	}

	w.writeStep(
		"GPU %d, %s, %s: it has held its memory for a day %s is not needed, its owner gives it up.",
		r.Index,
		placedProfile(r.Profile, r.Placement),
		holderText(r),
		ran,
	)
	hasOthers := slices.ContainsFunc(w.report.Devices, func(o advise.Recommendation) bool {
		return o.Workload != nil && *o.Workload == *r.Workload &&
			(o.Index != r.Index || o.Instance != r.Instance)
	})

	switch {
	case !isOwnedBy(r, "Deployment", "StatefulSet", "ReplicaSet", "ReplicationController"):
		w.writeNote(
			"Owner " + r.Workload.Owner + ": only it knows whether the work is done. End it there.",
		)
	case isMediaUnread(r):
		w.writeNote(
			"Owner " + r.Workload.Owner + ": only it knows whether it decodes or encodes. No command is printed " +
				"that ends it.",
		)
	case hasOthers:
		w.writeNote(
			"Its owner has other replicas on this node, so that the command that ends it alone depends on them: " +
				"scale " +
				r.Workload.Owner + " down by one, and see which one ends.",
		)
	default:
		w.writeEnd(r)
	}

	other := "another pod"
	if w.report.WithoutKubernetes {
		other = "other work"
	}

	w.writeNote(
		"The slice is free then: " + other + " can have it, or migctl apply can make others of it, which refuses " +
			"while it is held.",
	)
}

// isMediaUnread reports whether a slice has media engines whose use could not be read.
func isMediaUnread(r *advise.Recommendation) bool { return r.Evidence != nil && r.Evidence.MediaUnread }

// writeEnd writes how all replicas of an owner are ended. That is everywhere, and we only know what
// they do on this node: so first comes how to see the others.
func (w *procedure) writeEnd(r *advise.Recommendation) {
	object := ownerObject(r)
	w.writeNote(fmt.Sprintf(
		"The last command ends all replicas of %s in %s, on every node. The other nodes were not asked: see "+
			"first how many there are.",
		r.Workload.Owner,
		orUnknown(r.Workload.Namespace),
	))
	w.writeCommand(kubectl(r.Workload.Namespace, "get", object))
	w.writeNote("If there are others that work, keep their number. If this is the only one, or none is needed:")
	w.writeCommand(kubectl(r.Workload.Namespace, "scale", object, "--replicas=0"))
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
