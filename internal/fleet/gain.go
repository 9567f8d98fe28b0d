package fleet

import (
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// weighGains fills in what each final slice gains if all of its cluster and model are packed
// together. A slice that would have a GPU for itself frees no GPU. It makes room for other slices,
// which is a gain unless a whole GPU is free already: then the GPU stays as it is. We don't consider
// room on GPUs that are in MIG mode, which the history does not show. As an Advisor does, we refuse a
// slice that is not final yet if it would gain nothing even with all others that are not.
func weighGains(gpus []GPU) {
	joinReplicas(gpus)

	members := map[Key][]*GPU{}
	free := map[Key]bool{}

	for i := range gpus {
		g := &gpus[i]
		key := Key{g.Cluster, g.Model, ""}

		switch g.Action {
		case advise.ActionSlice:
			if g.Profile != "" { // else an advisor's provisional answer, which names no profile
				members[key] = append(members[key], g)
			}
		case advise.ActionFree:
			free[key] = true
		}
	}

	for key, list := range members {
		gains := gainsOf(list, free[key])
		owners := ownersThatGain(list, gains)

		for at, gain := range gains {
			if g := list[at]; !g.isFinal() && gain == (advise.Gain{}) && !owners[g.Owner] {
				g.refuseWithoutGain()
			}
		}

		final := slices.DeleteFunc(list, func(g *GPU) bool { return !g.isFinal() })
		gains = gainsOf(final, free[key])
		owners = ownersThatGain(final, gains)

		for at, gain := range gains {
			final[at].setGain(gain, owners[final[at].Owner])
		}
	}
}

// joinReplicas makes slices of the GPUs that their advisors keep since a slice gains nothing there, if other
// replicas of the owner have final ones: if those gain, a patch moves all.
func joinReplicas(gpus []GPU) {
	type key struct{ cluster, owner, model string }
	final := map[key]*GPU{}

	for i := range gpus {
		if g := &gpus[i]; g.Owner != "" && g.isFinal() {
			final[key{g.Cluster, g.Owner, g.Model}] = g
		}
	}

	for i := range gpus {
		g := &gpus[i]

		other := final[key{g.Cluster, g.Owner, g.Model}]
		if other == nil || g.fits == "" || g.Reason != advise.ReasonNoGain || g.hasLeft {
			continue
		}

		g.Action = advise.ActionSlice
		g.Reason = advise.ReasonNone
		g.Profile = other.Profile
		g.NotChecked = g.fitsNotChecked
		g.Advised = false
		g.ByReplica = true
		g.Explanation = fmt.Sprintf("a patch moves all replicas of %s", g.Owner)
	}
}

// isWeighed reports whether the advisor of a GPU's node has weighed what its slice gains there: not if the
// profile is another replica's.
func (g *GPU) isWeighed() bool { return g.Advised && !g.ByReplica }

// ownersThatGain returns the owners of which the slice of a replica gains something, by the packing or by the
// word of its node's advisor. The others move with it.
func ownersThatGain(list []*GPU, gains []advise.Gain) map[string]bool {
	owners := map[string]bool{}

	for at, gain := range gains {
		g := list[at]

		if g.Owner != "" && (g.isWeighed() || gain != (advise.Gain{})) {
			owners[g.Owner] = true
		}
	}

	return owners
}

// gainsOf returns what each slice gains if all are packed together. isFree says that a GPU of the
// model stands free.
func gainsOf(list []*GPU, isFree bool) []advise.Gain {
	if len(list) == 0 {
		return nil
	}

	profiles := list[0].model.Profiles
	gains := make([]advise.Gain, len(list))
	wanted := make([]string, 0, len(list))

	for _, g := range list {
		wanted = append(wanted, g.Profile)
	}

	for _, packed := range pack(profiles, wanted) {
		gain := advise.SharedGain(len(packed.wanted), 1)
		if gain.FreedGPUs == 0 && !isFree {
			gain.Room = advise.RoomBeside(profiles, &profiles[packed.profiles[0]], nil)
		}

		for _, at := range packed.wanted {
			gains[at] = gain
		}
	}

	return gains
}

// setGain fills in the gain of a final slice. Without a gain, the GPU stays as it is, unless another replica
// of its owner gains something.
func (g *GPU) setGain(gain advise.Gain, ownerGains bool) {
	if gain == (advise.Gain{}) && (g.isWeighed() || !ownerGains) {
		g.refuseWithoutGain()
		return
	}

	g.Gain = &gain
	g.Explanation += "; " + gain.String()
}

// refuseWithoutGain keeps a GPU whole whose slice gains nothing, unless the advisor of its node
// decided: that weighs what its node gains itself.
func (g *GPU) refuseWithoutGain() {
	if g.isWeighed() {
		return
	}

	g.Explanation = g.Profile + " would do, and " + advise.NoGainText
	g.Action = advise.ActionKeep
	g.Reason = advise.ReasonNoGain
	g.ByReplica = false
	g.clearPrediction()
}
