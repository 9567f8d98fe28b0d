package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// ReasonReplicasDiffer keeps GPUs whole of which a slice would do for each, but not one that does
// for all replicas.
const ReasonReplicasDiffer advise.Reason = "replicas-differ"

// followWeakest makes the answers for the GPUs of one owner one answer, on whatever nodes they are:
// its pods have one template, so that a patch moves all of them. If one must stay whole, all do;
// else all get the largest profile, and the answer is as provisional as any.
func followWeakest(gpus []GPU) {
	type key struct{ cluster, owner string }
	members := map[key][]*GPU{}

	for i := range gpus {
		if g := &gpus[i]; g.Owner != "" && g.Reason != ReasonGone {
			at := key{g.Cluster, g.Owner}
			members[at] = append(members[at], g)
		}
	}

	for _, list := range members {
		moving := slices.DeleteFunc(slices.Clone(list), func(g *GPU) bool {
			return g.Action != advise.ActionSlice
		})
		if len(moving) == 0 || len(list) == 1 {
			continue
		}

		if at := slices.IndexFunc(list, (*GPU).keepsReplicas); at >= 0 {
			stayAll(
				moving,
				list[at].Reason,
				fmt.Sprintf("the one on node %s stays whole: %s", cmp.Or(list[at].Node, "-"),
					list[at].Explanation),
			)
			continue
		}

		takeLargest(list, moving)
		takeDoubts(
			moving,
			slices.ContainsFunc(list, func(g *GPU) bool {
				return g.needs() == "" || g.Provisional
			}),
		)
	}
}

// needs returns the profile that does for a GPU; empty if unknown.
func (g *GPU) needs() string { return cmp.Or(g.Profile, g.fits) }

// keepsReplicas reports whether the replica on a GPU must stay whole. One that has been there for
// less than a day, or gains nothing where it is, can move.
func (g *GPU) keepsReplicas() bool {
	return g.Action != advise.ActionSlice && g.Reason != advise.ReasonLittleEvidence &&
		g.Reason != advise.ReasonNoGain
}

// stayAll keeps GPUs whole because of what holds for another replica of their owner.
func stayAll(list []*GPU, reason advise.Reason, why string) {
	for _, g := range list {
		g.Action = advise.ActionKeep
		g.Reason = reason
		g.ByReplica = true
		g.Explanation = fmt.Sprintf("a patch moves all replicas of %s, and %s", g.Owner, why)
		g.clearPrediction()
	}
}

// clearPrediction drops the slice, and all that is expected in it: another one is to be taken, or
// none.
func (g *GPU) clearPrediction() {
	g.Profile = ""
	g.StretchP95 = nil
	g.Decided = nil
	g.StartWith = nil
	g.Provisional = false
	g.NotChecked = false
}

// takeLargest gives the GPUs that move the largest profile that does for any replica of their
// owner. There is none that does for all if they are of several models, or if a smaller one has
// what it has not, such as media engines.
func takeLargest(list, moving []*GPU) {
	known := slices.DeleteFunc(slices.Clone(list), func(g *GPU) bool { return g.needs() == "" })
	if len(known) == 0 ||
		!slices.ContainsFunc(known, func(g *GPU) bool { return g.needs() != known[0].needs() }) {
		return
	}

	another := func(g *GPU) bool { return g.Model != known[0].Model || strings.Contains(g.needs(), "+") }
	if slices.ContainsFunc(known, another) {
		stayAll(moving, ReasonReplicasDiffer, "no one profile is known to do for all of them")
		return
	}

	most := slices.MaxFunc(known, func(a, b *GPU) int {
		return cmp.Compare(a.neededSize(), b.neededSize())
	})
	for _, g := range moving {
		if g.Profile != most.needs() {
			provisional := g.Provisional
			unchecked := g.NotChecked
			g.clearPrediction()
			g.Profile = most.needs()
			g.Provisional = provisional
			g.NotChecked = unchecked
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

// takeDoubts makes the answer for GPUs that move provisional, or unchecked if it is for one.
func takeDoubts(moving []*GPU, isProvisional bool) {
	isUnchecked := slices.ContainsFunc(moving, func(g *GPU) bool { return g.NotChecked })
	for _, g := range moving {
		if g.Action == advise.ActionSlice {
			g.Provisional = isProvisional
			g.NotChecked = isUnchecked
		}
	}
}
