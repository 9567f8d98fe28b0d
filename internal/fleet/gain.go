package fleet

import "github.com/mig-exporter/mig-exporter/internal/advise"

// weighGains fills in what the slice of each GPU gains if all slices of its cluster and model are
// packed together. A slice that would have a GPU for itself frees no GPU. It makes room for other
// slices, which is a gain unless a whole GPU is free already: then the GPU stays as it is. We don't
// consider room on GPUs that are in MIG mode, which the history does not show.
func weighGains(gpus []GPU) {
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
		profiles := list[0].model.Profiles
		wanted := make([]string, 0, len(list))

		for _, g := range list {
			wanted = append(wanted, g.Profile)
		}

		for _, packed := range pack(profiles, wanted) {
			gain := advise.SharedGain(len(packed.wanted), 1)
			if gain.FreedGPUs == 0 && !free[key] {
				gain.Room = advise.RoomBeside(profiles, &profiles[packed.profiles[0]], nil)
			}

			for _, i := range packed.wanted {
				list[i].setGain(gain)
			}
		}
	}
}

// setGain fills in the gain. Without a gain, the GPU stays as it is, unless the advisor of its node
// decided: the advisor itself weighs what its node gains, once its answer is not provisional any
// more.
func (g *GPU) setGain(gain advise.Gain) {
	if gain != (advise.Gain{}) {
		g.Gain = &gain
		g.Explanation += "; " + gain.String()

		return
	}

	if g.Advised {
		return
	}

	g.Explanation = g.Profile + " would do, and " + advise.NoGainText
	g.Action = advise.ActionKeep
	g.Reason = advise.ReasonNoGain
	g.clearPrediction()
}
