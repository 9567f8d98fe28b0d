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
// all get the largest profile, and the answer is provisional if one of them is.
func alignReplicas(gpus []GPU) {
	type key struct{ cluster, owner string }
	members := map[key][]*GPU{}

	for i := range gpus {
		if g := &gpus[i]; g.Owner != "" {
			k := key{g.Cluster, g.Owner}
			members[k] = append(members[k], g)
		}
	}

	for _, list := range members {
		moving := slices.DeleteFunc(slices.Clone(list), func(g *GPU) bool {
			return g.Action != advise.ActionSlice
		})
		if len(moving) == 0 || len(list) == 1 {
			continue
		}

		if i := slices.IndexFunc(list, (*GPU).keepsReplicas); i >= 0 {
			keepWhole(
				moving,
				list[i].Reason,
				fmt.Sprintf("the one on node %s stays whole: %s", cmp.Or(list[i].Node, "-"),
					list[i].Explanation),
			)
			continue
		}

		isProvisional := slices.ContainsFunc(list, func(g *GPU) bool {
			return g.needs() == "" || g.Provisional
		})

		giveLargest(list, moving)
		shareDoubts(moving, isProvisional)
	}
}

// needs returns the profile that would do for a GPU's workload; empty if we don't know.
func (g *GPU) needs() string { return cmp.Or(g.Profile, g.fits) }

// keepsReplicas reports whether the replica on a GPU must stay whole. One that has been there for
// less than a day, or gains nothing where it is, can move. One that the history lost may have moved.
func (g *GPU) keepsReplicas() bool {
	return g.Action != advise.ActionSlice && g.Reason != advise.ReasonLittleEvidence &&
		g.Reason != advise.ReasonNoGain && g.Reason != ReasonGone
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
		return cmp.Compare(a.neededSize(), b.neededSize())
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
				"a patch moves all replicas of %s, and the one on node %s needs %s",
				g.Owner,
				cmp.Or(most.Node, "-"),
				most.needs(),
			)
		}
	}
}

// neededSize orders profiles of a model by memory and SMs.
func (g *GPU) neededSize() int {
	at := slices.IndexFunc(g.model.Profiles, func(p gpu.Profile) bool {
		return p.Name == g.needs()
	})
	if at < 0 {
		return 0
	}

	return g.model.Profiles[at].MemorySlices<<16 + g.model.Profiles[at].SMs
}

// shareDoubts sets Provisional of all GPUs that move, and NotChecked of all if it is set for one.
func shareDoubts(moving []*GPU, isProvisional bool) {
	notChecked := slices.ContainsFunc(moving, func(g *GPU) bool { return g.NotChecked })
	for _, g := range moving {
		if g.Action == advise.ActionSlice {
			g.Provisional = isProvisional
			g.NotChecked = notChecked
		}
	}
}
