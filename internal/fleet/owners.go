package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// ReasonReplicasDiffer keeps GPUs whole of which a slice would do for each, but not one that does for all replicas.
const ReasonReplicasDiffer advise.Reason = "replicas-differ"

// followWeakest makes the answers for the GPUs of one owner one answer, on whatever nodes they are: its pods have one
// template, so that a patch moves all of them. If one must stay whole, all do; else all get the largest profile, and
// the answer is as provisional as any.
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
		moving := slices.DeleteFunc(slices.Clone(list), func(g *GPU) bool { return g.Action != advise.ActionSlice })
		if len(moving) == 0 || len(list) == 1 {
			continue
		}
		if at := slices.IndexFunc(list, (*GPU).keepsReplicas); at >= 0 {
			stayAll(moving, list[at].Reason, fmt.Sprintf("the one on node %s stays whole: %s", cmp.Or(list[at].Node, "-"),
				list[at].Explanation))
			continue
		}
		takeLargest(moving)
		takeDoubts(moving, len(moving) < len(list))
	}
}

// keepsReplicas reports whether the replica on a GPU must stay whole. One that has been there for less than a day, or
// gains nothing where it is, can move.
func (g *GPU) keepsReplicas() bool {
	return g.Action != advise.ActionSlice && g.Reason != advise.ReasonLittleEvidence && g.Reason != advise.ReasonNoGain
}

// stayAll keeps GPUs whole because of what holds for another replica of their owner.
func stayAll(list []*GPU, reason advise.Reason, why string) {
	for _, g := range list {
		g.Action, g.Reason, g.ByReplica = advise.ActionKeep, reason, true
		g.Explanation = fmt.Sprintf("a patch moves all replicas of %s, and %s", g.Owner, why)
		g.Profile, g.StretchP95, g.Decided, g.Provisional, g.NotChecked = "", nil, nil, false, false
	}
}

// takeLargest gives GPUs the largest profile that is recommended for any of them. There is none that does for all if
// they are of several models, or if a smaller one has what it has not, such as media engines.
func takeLargest(list []*GPU) {
	known := slices.DeleteFunc(slices.Clone(list), func(g *GPU) bool { return g.Profile == "" })
	if len(known) == 0 {
		return
	}
	first := known[0]
	differ := func(g *GPU) bool { return g.Profile != first.Profile }
	if !slices.ContainsFunc(known, differ) {
		return
	}

	another := func(g *GPU) bool { return g.Model != first.Model || strings.Contains(g.Profile, "+") }
	if slices.ContainsFunc(known, another) {
		stayAll(list, ReasonReplicasDiffer, "no one profile is known to do for all of them")
		return
	}
	most := slices.MaxFunc(known, func(a, b *GPU) int { return cmp.Compare(a.profileSize(), b.profileSize()) })
	for _, g := range list {
		if g.Profile != most.Profile {
			g.Profile, g.StretchP95, g.Decided, g.ByReplica = most.Profile, nil, nil, true
			g.Explanation += fmt.Sprintf("; a patch moves all replicas of %s, and the one on node %s needs %s", g.Owner,
				cmp.Or(most.Node, "-"), most.Profile)
		}
	}
}

// profileSize orders profiles of a model by memory and SMs.
func (g *GPU) profileSize() int {
	at := slices.IndexFunc(g.model.Profiles, func(p gpu.Profile) bool { return p.Name == g.Profile })
	if at < 0 {
		return 0
	}
	return g.model.Profiles[at].MemorySlices<<16 + g.model.Profiles[at].SMs
}

// takeDoubts makes an answer provisional, or unchecked, for all replicas if it is for one.
func takeDoubts(list []*GPU, isProvisional bool) {
	isUnchecked := false
	for _, g := range list {
		isProvisional, isUnchecked = isProvisional || g.Provisional, isUnchecked || g.NotChecked
	}
	for _, g := range list {
		if g.Action == advise.ActionSlice {
			g.Provisional, g.NotChecked = isProvisional, isUnchecked
		}
	}
}
