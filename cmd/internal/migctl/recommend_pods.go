package migctl

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// holderText names what holds a whole GPU.
func holderText(r *advise.Recommendation) string {
	if r.Pod != nil {
		return "pod " + r.Pod.Namespace + "/" + r.Pod.Name
	}

	if isOwnedBy(r, ownerProcesses) {
		return "the work on it"
	}

	return workloadName(r)
}

// writeOwnerChange writes how to change the owner of what holds a device, so that it asks for a slice,
// and returns the change. It writes the change of an owner only once.
func (w *procedure) writeOwnerChange(r *advise.Recommendation) ownerChange {
	c := changeOf(r)

	if w.changed[*r.Workload] {
		w.writeNote("Its owner asks for the slice already, see above.")
		return c
	}

	w.writeReach(r)

	if note := serverNote(r); note != "" {
		w.writeNote(note)
	}

	if c.command != "" {
		w.writeLook(r, c)
		w.writeCommand(c.command)
	}

	if c.words != "" {
		w.writeNote(c.words)
	}

	if other := w.otherProfile(r); other != "" {
		w.writeNote(
			fmt.Sprintf(
				"Another pod of this owner is recommended %s: one template cannot ask for both. Let it ask "+
					"for the larger one.",
				other,
			),
		)
	}

	if c.command != "" && !w.warnedOfRequests {
		w.writeNote(
			"If the API server refuses the patch because requests names the old resource too: give \"requests\" " +
				"the same beside \"limits\".",
		)
		w.warnedOfRequests = true
	}

	w.changed[*r.Workload] = true

	return c
}

// writeLook writes how to find the init containers that the patch must name too. With one that still
// asks for the old device, the pod needs both, and stays pending.
func (w *procedure) writeLook(r *advise.Recommendation, c ownerChange) {
	if w.warnedOfInit {
		w.writeNote("Its init containers, for which the same holds:")
		w.writeCommand(c.look)

		return
	}

	w.warnedOfInit = true

	w.writeNote("Init containers are not known here. See what they ask for:")
	w.writeCommand(c.look)
	w.writeNote(fmt.Sprintf(
		"If any of them asks for the old device too, as the container %s does, add it to the patch below: "+
			"\"initContainers\", beside \"containers\", in the same form. Without that the new pods ask for both "+
			"devices and stay pending.",
		orUnknown(r.Workload.Container),
	))
}

// writeReach warns that a change of an owner moves its pods on other nodes, too, although we have looked
// only at this node. A change of a Job, a pod without an owner, or work without Kubernetes moves nothing
// else.
func (w *procedure) writeReach(r *advise.Recommendation) {
	if isOwnedBy(r, "Job", ownerPod, ownerBatch, ownerProcesses) {
		return
	}

	w.writeNote(
		fmt.Sprintf(
			"This moves all replicas of %s in %s, on every node. The other nodes were not asked.",
			r.Workload.Owner,
			orUnknown(r.Workload.Namespace),
		),
	)

	// migctl fleet looks at whole GPUs only.
	isWhole := !r.Instance.Present()
	if isWhole && !w.warnedOfReach {
		w.writeNote("migctl fleet reads the answers of all nodes, of which the weakest decides.")
		w.warnedOfReach = true
	}

	if !isWhole && !w.warnedOfSliceReach {
		w.writeNote("If it has replicas there, see migctl recommend of these nodes first.")
		w.warnedOfSliceReach = true
	}
}

// otherProfile returns a profile other than r's that is recommended for another pod of the same owner
// and container; empty if there is none.
func (w *procedure) otherProfile(r *advise.Recommendation) string {
	for i := range w.report.Devices {
		other := &w.report.Devices[i]

		moves := other.Action == advise.ActionSlice || other.ChangesSlice()
		if !moves || other.Recommended == r.Recommended {
			continue
		}

		if hasSameOwner(other, r) && other.Workload.Container == r.Workload.Container {
			return cmp.Or(other.Recommended, "a whole GPU")
		}
	}

	return ""
}

// hasSameOwner reports whether the same owner has what holds two devices.
func hasSameOwner(a, b *advise.Recommendation) bool {
	return a.Workload.Namespace == b.Workload.Namespace && a.Workload.Owner == b.Workload.Owner
}

// isOwnedBy reports whether the owner of what holds a GPU has one of these kinds.
func isOwnedBy(r *advise.Recommendation, kinds ...string) bool {
	kind, _, _ := strings.Cut(r.Workload.Owner, "/")
	return slices.Contains(kinds, kind)
}

// isReplaceable reports whether the pod that holds a GPU can be deleted without loss: its owner
// creates another one that goes on with the work.
func isReplaceable(r *advise.Recommendation) bool {
	return isOwnedBy(
		r,
		"Deployment",
		"StatefulSet",
		"DaemonSet",
		"ReplicaSet",
		"ReplicationController",
	)
}

// writeRemoval writes how a pod leaves its GPU. If that loses no work, the operator deletes the pod, and
// kubectl waits until it is gone; otherwise the operator waits until it ends.
func (w *procedure) writeRemoval(r *advise.Recommendation) {
	switch {
	case r.Pod != nil && isReplaceable(r):
		w.writeDeletion(r)
		return
	case isOwnedBy(r, ownerPod):
		w.writeNote(
			"Wait until it ends. To end it earlier loses the work that it has done. A static pod (its owner is " +
				"the Node) ends when its manifest is moved out of the kubelet's staticPodPath on the node, and starts " +
				"again when the file is back. A pod without an owner is not created again: before you delete it, " +
				"keep its manifest (kubectl get pod -o yaml) to create it from.",
		)
	case isOwnedBy(r, ownerBatch, ownerProcesses):
		w.writeNote("Wait until it ends: to end it earlier loses the work that it has done.")
	default:
		w.writeNote(
			"Wait until it ends, or delete and recreate it deliberately: the work that it has done may be lost.",
		)
	}

	w.writeWaitUntilGone(r)
}

func (w *procedure) writeDeletion(r *advise.Recommendation) {
	w.writeCommand(kubectl(r.Pod.Namespace, "delete", "pod/"+r.Pod.Name, "--ignore-not-found"))
}

// writeWaitUntilGone writes how to wait until a pod has left its GPU. kubectl cannot wait for a pod
// of a StatefulSet, since the next one has the same name, nor for a pod that stays after its end:
// for these, migctl get shows when the GPU is free.
func (w *procedure) writeWaitUntilGone(r *advise.Recommendation) {
	if r.Pod == nil || !isReplaceable(r) || isOwnedBy(r, "StatefulSet") {
		w.writeCommand(fmt.Sprintf("migctl get %d", r.Index))

		what := fmt.Sprintf("GPU %d is free", r.Index)
		if r.Instance.Present() {
			what = fmt.Sprintf("%s of GPU %d is free", placedProfile(r.Profile, r.Placement), r.Index)
		}

		w.writeNote("Repeat it until " + what + ".")

		return
	}

	w.writeCommand(
		kubectl(r.Pod.Namespace, "wait", "--for=delete", "pod/"+r.Pod.Name, "--timeout=30m"),
	)
}

// writeWaitForSlices writes how to wait until the pods that get slices on some GPUs run there. The
// next step cordons the node: a late pod could not come to its slice, and its old pod would stay on the
// old GPU.
func (w *procedure) writeWaitForSlices(stages []advise.Stage) {
	waited := map[string]bool{} // the owners whose rollout it waits for

	for _, stage := range stages {
		var others []string // the owners without a rollout that we can wait for

		for _, slice := range stage.Slices {
			r := w.report.OfWhole(slice.From)
			if r == nil || r.Workload == nil || !isReplaceable(r) {
				continue
			}

			object := r.Workload.Namespace + "/" + r.Workload.Owner

			switch {
			case !w.canFinishRollout(r):
				if owner := ownerName(r); !slices.Contains(others, owner) {
					others = append(others, owner)
				}
			case !waited[object]:
				waited[object] = true
				w.writeWaitForRollout(r.Workload.Namespace, ownerObject(r))
			}
		}

		if len(others) > 0 {
			w.writeCommand(fmt.Sprintf("migctl get %d", stage.Index))
			w.writeNote(fmt.Sprintf("Repeat it until GPU %d has the pods of %s on its slices.",
				stage.Index, strings.Join(others, ", ")))
		}
	}
}

// canFinishRollout reports whether an owner replaces its pods by a rollout that can end now. It can't
// end as long as one of its pods on this node has no slice to go to.
func (w *procedure) canFinishRollout(r *advise.Recommendation) bool {
	if !changeOf(r).replaces {
		return false
	}

	for i := range w.report.Devices {
		other := &w.report.Devices[i]
		if other.Instance.Present() || other.Workload == nil {
			continue
		}

		if hasSameOwner(other, r) && !w.done[w.report.Packing.TargetOf(other.Index)] {
			return false
		}
	}

	return true
}

func (w *procedure) writeWaitForRollout(namespace, object string) {
	w.writeCommand(kubectl(namespace, "rollout", "status", object, "--timeout=30m"))

	if !w.warnedOfRollout {
		w.writeNote(
			"It ends when all replicas have their slices, those on other nodes too. If some of those cannot, or " +
				"the update strategy is OnDelete, go on when migctl get shows the pods of this node on theirs.",
		)
		w.warnedOfRollout = true
	}
}
