package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// ReasonReplicasDiffer keeps GPUs whole for which slices would do, but no one profile does for all
// replicas of their owner.
const ReasonReplicasDiffer advise.Reason = "replicas-differ"

// alignReplicas gives all GPUs of one owner the same answer, on whatever nodes they are: the owner's
// pods have one template, so that a patch changes all of them. If one must stay whole, all do. Else
// all get the largest profile, and the answer is provisional if that of one that still has its GPU is.
func alignReplicas(gpus []GPU) {
	type key struct{ cluster, owner string }
	members := map[key][]*GPU{}
	ownerless := map[podKey][]*GPU{} // by cluster and namespace

	for i := range gpus {
		switch g := &gpus[i]; {
		case g.Owner != "":
			k := key{g.Cluster, g.Owner}
			members[k] = append(members[k], g)
		case g.pod.pod != "" && !g.hasLeft:
			k := podKey{cluster: g.Cluster, namespace: g.pod.namespace}
			ownerless[k] = append(ownerless[k], g)
		}
	}

	for k, list := range members {
		list = withoutFormerModels(list)
		namespace, _, _ := strings.Cut(k.owner, "/")
		strangers := slices.DeleteFunc(
			slices.Clone(ownerless[podKey{cluster: k.cluster, namespace: namespace}]),
			func(g *GPU) bool { return !mayBeOf(g.pod.pod, k.owner) },
		)

		doubtStrangers(strangers, list)

		moving := slices.DeleteFunc(slices.Clone(list), func(g *GPU) bool {
			return g.Action != advise.ActionSlice
		})
		if len(moving) == 0 {
			continue
		}

		if i := slices.IndexFunc(list, (*GPU).keepsReplicas); i >= 0 {
			reason, why := list[i].refusal()
			keepWhole(moving, reason, fmt.Sprintf("the one %s stays whole: %s", list[i].where(), why))

			continue
		}

		giveLargest(list, moving)
		shareDoubts(list, moving)
		doubtForStrangers(strangers, moving)
	}
}

// withoutFormerModels returns the GPUs of an owner without those that its pods have left for another model,
// or that are gone.
func withoutFormerModels(list []*GPU) []*GPU {
	models := map[string]bool{}
	isThere := func(g *GPU) bool { return !g.hasLeft }

	if !slices.ContainsFunc(list, isThere) {
		isThere = func(g *GPU) bool { return g.Reason != ReasonGone }
	}

	for _, g := range list {
		if isThere(g) {
			models[g.Model] = true
		}
	}

	return slices.DeleteFunc(list, func(g *GPU) bool { return len(models) > 0 && !models[g.Model] })
}

// doubtStrangers makes the answer for pods provisional that may be replicas of an owner, unless it is known
// to do for those.
func doubtStrangers(strangers, list []*GPU) {
	for _, g := range strangers {
		differs := func(other *GPU) bool { return !other.hasLeft && !other.goesWith(g) }
		g.Provisional = g.Provisional || g.Action == advise.ActionSlice && slices.ContainsFunc(list, differs)
	}
}

// doubtForStrangers makes the answer for GPUs of one owner provisional if pods whose own owner is unknown may
// be other replicas, and it is not known to do for one of those.
func doubtForStrangers(strangers, moving []*GPU) {
	for _, g := range moving {
		i := slices.IndexFunc(strangers, func(other *GPU) bool { return !other.goesWith(g) })
		if i >= 0 && g.Action == advise.ActionSlice {
			g.Provisional = true
			g.Explanation += fmt.Sprintf("; %s %s may be another replica: its owner is not in the history",
				strangers[i].pod.pod, strangers[i].where())
		}
	}
}

// where says on which node the last holder of a GPU is, or was.
func (g *GPU) where() string {
	node := "on node " + cmp.Or(g.Node, "-")
	if g.hasLeft {
		return "that was " + node
	}

	return node
}

// mayBeOf reports whether a pod's name is as those that an owner gives its pods: its own name, and what
// follows. Kubernetes cuts that off at 58 characters.
//
// https://github.com/kubernetes/apiserver/blob/master/pkg/storage/names/generate.go
func mayBeOf(pod, owner string) bool {
	const cutAt = 58

	begin := owner[strings.LastIndex(owner, "/")+1:] + "-"

	return strings.HasPrefix(pod, begin[:min(len(begin), cutAt)])
}

// goesWith reports whether what a GPU's workload needs is known to be no more than another GPU's answer.
func (g *GPU) goesWith(other *GPU) bool {
	size := g.sizeOf(g.Profile)

	return g.Action == advise.ActionSlice && !g.Provisional && g.Model == other.Model && size > 0 &&
		(g.Profile == other.Profile || size < other.sizeOf(other.Profile))
}

// needs returns the profile that would do for a GPU's workload; empty if we don't know.
func (g *GPU) needs() string { return cmp.Or(g.Profile, g.fits) }

// keepsReplicas reports whether the replica on a GPU must stay whole. One that has been there for
// less than a day, or gains nothing where it is, can move. One that has left the GPU, or whose GPU is gone or
// was in MIG mode, keeps others by what it did there, not by what is unknown of that.
func (g *GPU) keepsReplicas() bool {
	reason, _ := g.refusal()

	if g.hasLeft && !isByWork(reason) {
		return false
	}

	switch reason {
	case advise.ReasonLittleEvidence, advise.ReasonNoGain, ReasonGone, ReasonMIGMode:
		return false
	}

	return g.Action != advise.ActionSlice
}

// isByWork reports whether a reason to keep a GPU whole comes from what its workload did there, as the
// history or an advisor has seen it.
func isByWork(reason advise.Reason) bool {
	switch reason {
	case advise.ReasonLatency, advise.ReasonThroughput, advise.ReasonGraphics:
		return true
	}

	return slices.Contains(refusalsByWork(), reason)
}

// refusal returns why a GPU stays whole: of one that is gone what its work needed, if that is known.
func (g *GPU) refusal() (reason advise.Reason, why string) {
	if g.refusedThere != "" {
		return g.refusedThere, g.whyThere
	}

	return g.Reason, g.Explanation
}

// keepWhole keeps GPUs whole because of another replica of their owner.
func keepWhole(list []*GPU, reason advise.Reason, why string) {
	for _, g := range list {
		g.Action = advise.ActionKeep
		g.Reason = reason
		g.ByReplica = true
		g.Explanation = fmt.Sprintf("a patch moves all replicas of %s, and %s", g.Owner, why)
		g.clearPrediction()
	}
}

// clearPrediction drops the slice and what we predict for it, to keep the GPU whole or to take
// another slice.
func (g *GPU) clearPrediction() {
	g.Profile = ""
	g.StretchP95 = nil
	g.Decided = nil
	g.StartWith = nil
	g.Provisional = false
	g.NotChecked = false
}

// giveLargest gives the moving GPUs the largest profile that any replica of their owner needs. If
// the GPUs are of several models, or a profile has an attribute such as +me, we don't know a profile
// that does for all: then they stay whole.
func giveLargest(list, moving []*GPU) {
	known := slices.DeleteFunc(slices.Clone(list), func(g *GPU) bool { return g.needs() == "" })
	if len(known) == 0 ||
		!slices.ContainsFunc(known, func(g *GPU) bool { return g.needs() != known[0].needs() }) {
		return
	}

	another := func(g *GPU) bool { return g.Model != known[0].Model || strings.Contains(g.needs(), "+") }
	if slices.ContainsFunc(known, another) {
		keepWhole(moving, ReasonReplicasDiffer, "no one profile is known to do for all of them")
		return
	}

	most := slices.MaxFunc(known, func(a, b *GPU) int {
		return cmp.Compare(a.sizeOf(a.needs()), b.sizeOf(b.needs()))
	})
	for _, g := range moving {
		if g.Profile != most.needs() {
			provisional := g.Provisional
			notChecked := g.NotChecked
			g.clearPrediction()
			g.Profile = most.needs()
			g.Provisional = provisional
			g.NotChecked = notChecked
			g.ByReplica = true
			g.Explanation = fmt.Sprintf(
				"a patch moves all replicas of %s, and the one %s needs %s",
				g.Owner,
				most.where(),
				most.needs(),
			)
		}
	}
}

// sizeOf orders the profiles of a GPU's model by memory and SMs. It is 0 for a name that is none of them.
func (g *GPU) sizeOf(profile string) int {
	at := slices.IndexFunc(g.model.Profiles, func(p gpu.Profile) bool { return p.Name == profile })
	if at < 0 {
		return 0
	}

	return g.model.Profiles[at].MemorySlices<<16 + g.model.Profiles[at].SMs
}

// shareDoubts makes the answer of all GPUs that move provisional, or not checked, if that of one of the
// owner's is. What has left its GPU says nothing of those that are there.
func shareDoubts(list, moving []*GPU) {
	notChecked := slices.ContainsFunc(moving, func(g *GPU) bool { return g.NotChecked })
	isProvisional := slices.ContainsFunc(list, func(g *GPU) bool {
		return !g.hasLeft && len(list) > 1 && (g.needs() == "" || g.Provisional || g.fitsIsDoubtful)
	})

	for _, g := range moving {
		if g.Action == advise.ActionSlice {
			g.Provisional = g.Provisional || isProvisional
			g.NotChecked = notChecked
		}
	}
}
