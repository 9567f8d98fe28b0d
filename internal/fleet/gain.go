package fleet

import "github.com/mig-exporter/mig-exporter/internal/advise"

// weighGains fills in what the slice of each GPU gains, packed with those of all GPUs of its
// cluster and model. One that would have a GPU for itself frees none. It makes room, unless a GPU
// stands free: then nothing comes of it, and the GPU stays as it is. What has room beside the
// slices of GPUs in MIG mode is not in the history.
func weighGains(gpus []GPU) {
	members := map[Key][]*GPU{}
	free := map[Key]bool{}

	for i := range gpus {
		g := &gpus[i]
		key := Key{g.Cluster, g.Model, ""}

		switch g.Action {
		case advise.ActionSlice:
			if g.Profile != "" { // of an advisor's provisional answer it is unknown
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

		for _, on := range pack(profiles, wanted) {
			gain := advise.SharedGain(len(on.wanted), 1)
			if gain.FreedGPUs == 0 && !free[key] {
				gain.Room = advise.RoomBeside(profiles, &profiles[on.profiles[0]], nil)
			}

			for _, at := range on.wanted {
				list[at].setGain(gain)
			}
		}
	}
}

// setGain fills in the gain; without any, the GPU stays as it is, unless the advisor of its node
// decided: that one weighs what its node gains, once its answer is not provisional any more.
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
