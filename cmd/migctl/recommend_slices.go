package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// sliceChange is a workload whose slices on this node shall become smaller or larger, all of them: they have one owner,
// whose template asks for one profile.
type sliceChange struct {
	slices []*advise.Recommendation
	to     string // profile; empty for a whole GPU
}

// slicePlan is how the slices of a node get to what is recommended for them.
type slicePlan struct {
	direct []sliceChange // those for which there are free slices or GPUs
	// moved need new slices; layouts are those of their GPUs, by index. Without room beside what stands, their pods
	// must leave first.
	moved   []sliceChange
	layouts map[int]map[string]int
	room    bool
	idle    []*advise.Recommendation
	refused []string
}

// collectChanges returns the changes of slices that are recommended, and why others are not made. An answer that is
// provisional changes nothing.
func collectChanges(report *advise.Report) (changes []sliceChange, refused []string) {
	var done []advise.Key

	for i := range report.Devices {
		r := &report.Devices[i]
		if !changesSlice(r) || slices.Contains(done, *r.Workload) {
			continue
		}

		done = append(done, *r.Workload)

		c, why := changeOfAll(report, r)
		if why != "" {
			refused = append(refused, changeText(r, r.Recommended)+": "+why)
			continue
		}

		changes = append(changes, c)
	}

	return changes, refused
}

func changesSlice(r *advise.Recommendation) bool {
	return r.Instance.Present() && r.Workload != nil &&
		(r.Action == advise.ActionGrow || r.Action == advise.ActionShrink && !r.Provisional && !r.NotChecked)
}

// changeText names a slice, its holder, and what it is to become.
func changeText(r *advise.Recommendation, to string) string {
	return fmt.Sprintf(
		"GPU %d, %s, %s: to %s",
		r.Index,
		sliceText(r),
		holderText(r),
		cmp.Or(to, "a whole GPU"),
	)
}

// changeOfAll returns the change of all slices of a workload, or why it cannot be made.
func changeOfAll(report *advise.Report, first *advise.Recommendation) (c sliceChange, why string) {
	c.to = first.Recommended
	pods := map[advise.Pod]bool{}

	for i := range report.Devices {
		r := &report.Devices[i]
		if r.Workload == nil || *r.Workload != *first.Workload {
			continue
		}

		c.slices = append(c.slices, r)
		switch {
		case r.Workload.Shared || r.MIGDevice == "":
			return c, "several containers or compute instances share it. Change it by hand."
		case r.Pod != nil && pods[*r.Pod]:
			return c, "its pod holds several slices. Change it by hand."
		case first.Action == advise.ActionShrink && r.Action != advise.ActionShrink:
			return c, "a smaller slice is not enough for another replica, and one pod template cannot request both."
		case changesSlice(r) && r.Recommended != first.Recommended:
			return c, "another replica is recommended " + cmp.Or(r.Recommended, "a whole GPU") +
				", and one pod template cannot request both. Choose the larger one."
		}

		if r.Pod != nil {
			pods[*r.Pod] = true
		}
	}

	return c, ""
}

// planSlices returns how the slices of a node get to what is recommended. What the packing uses is not touched.
func planSlices(report *advise.Report, gpus []nodedoc.GPU) slicePlan {
	p := slicePlan{layouts: map[int]map[string]int{}, room: true}

	for i := range report.Devices {
		if r := &report.Devices[i]; r.Instance.Present() && r.Action == advise.ActionIdle {
			p.idle = append(p.idle, r)
		}
	}

	var changes []sliceChange
	if changes, p.refused = collectChanges(report); report.SingleStrategy &&
		len(changes)+len(p.refused) > 0 {
		p.refused = []string{
			"under --mig-strategy=single all slices of the node have one profile, and none changes alone.",
		}

		return p
	}

	free := freeDevices(report)
	for _, c := range changes {
		if free[c.to] >= len(c.slices) {
			free[c.to] -= len(c.slices)
			p.direct = append(p.direct, c)
			continue
		}

		why := "no whole GPU is free on this node."
		if c.to != "" {
			why = p.add(report, c, gpus)
		}

		if why != "" {
			p.refused = append(p.refused, changeText(c.slices[0], c.to)+": "+why)
		}
	}

	for index := range p.layouts {
		all, ok := p.layoutWith(nodeGPU(gpus, index), p.newOn(index), nil)
		if p.room = p.room && ok; ok {
			p.layouts[index] = all
		}
	}

	if !p.room { // then all of them leave first
		for index := range p.layouts {
			p.layouts[index], _ = p.layoutWith(
				nodeGPU(gpus, index),
				p.newOn(index),
				p.leaving(index),
			)
		}
	}

	return p
}

// freeDevices counts the slices by profile, and under "" the whole GPUs, that are free and that the packing leaves.
func freeDevices(report *advise.Report) map[string]int {
	free := map[string]int{}

	for i := range report.Devices {
		r := &report.Devices[i]
		switch {
		case r.Action != advise.ActionFree:
		case r.Instance.Present() && r.MIGDevice != "":
			free[r.Profile]++
		case !r.Instance.Present() && !isTarget(report.Packing, r.Index):
			free[""]++
		}
	}

	if report.Packing != nil {
		for i := range report.Packing.GPUs {
			for _, s := range report.Packing.GPUs[i].Slices {
				if s.Exists {
					free[s.Profile]--
				}
			}
		}
	}

	return free
}

// isTarget reports whether a packing, which may be nil, gives a GPU slices.
func isTarget(packing *advise.Packing, index int) bool {
	return packing != nil &&
		slices.ContainsFunc(packing.GPUs, func(g advise.PackedGPU) bool { return g.Index == index })
}

// add adds a change whose slices must be created, each on the GPU of the one before, or returns why that is impossible.
func (p *slicePlan) add(report *advise.Report, c sliceChange, gpus []nodedoc.GPU) string {
	p.moved = append(p.moved, c)
	added := map[int]map[string]int{}

	for _, r := range c.slices {
		g := nodeGPU(gpus, r.Index)
		why := ""

		switch {
		case isTarget(report.Packing, r.Index):
			why = fmt.Sprintf(
				"GPU %d gets slices by the procedure above. Run migctl recommend again after it.",
				r.Index,
			)
		case g == nil || slices.ContainsFunc(g.GPUInstances, func(i nodedoc.Instance) bool {
			return !isWhole(&i) || i.Profile == "" || !i.Placement.Present()
		}):
			why = fmt.Sprintf(
				"GPU %d has instances that are split or not known. Change it by a spec of your own.",
				r.Index,
			)
		default:
			layout, ok := p.layoutWith(g, p.newOn(r.Index), p.leaving(r.Index))
			if added[r.Index] = layout; !ok {
				why = fmt.Sprintf(
					"GPU %d has no room for it, nor is such a slice free. Free a slice, or move the pod to "+
						"another node.",
					r.Index,
				)
			}
		}

		if why != "" {
			p.moved = p.moved[:len(p.moved)-1]
			return why
		}
	}

	maps.Copy(p.layouts, added)

	return ""
}

func nodeGPU(gpus []nodedoc.GPU, index int) *nodedoc.GPU {
	at := slices.IndexFunc(gpus, func(g nodedoc.GPU) bool { return g.Index == index })
	if at < 0 {
		return nil
	}

	return &gpus[at]
}

// newOn returns the profiles that are to be created on a GPU.
func (p *slicePlan) newOn(index int) []string {
	var list []string

	for _, c := range p.moved {
		for _, r := range c.slices {
			if r.Index == index {
				list = append(list, c.to)
			}
		}
	}

	return list
}

// leaving returns the instances of a GPU whose pods move.
func (p *slicePlan) leaving(index int) []gpu.InstanceID {
	var list []gpu.InstanceID

	for _, c := range p.moved {
		for _, r := range c.slices {
			if r.Index == index {
				list = append(list, r.Instance.Or(0))
			}
		}
	}

	return list
}

// layoutWith returns the instances of a GPU by profile, without some and with new ones, and whether those fit beside
// the others. Those that nothing holds give way if they have to, unless a direct change may use them.
func (p *slicePlan) layoutWith(
	g *nodedoc.GPU,
	created []string,
	without []gpu.InstanceID,
) (map[string]int, bool) {
	for _, keepFree := range []bool{true, len(p.direct) > 0} {
		layout := map[string]int{}
		var existing []mig.Placed

		for i := range g.GPUInstances {
			inst := &g.GPUInstances[i]
			if slices.Contains(without, inst.ID) || !keepFree && !inst.Allocated.Or(true) {
				continue
			}

			layout[inst.Profile]++
			existing = append(
				existing,
				mig.Placed{ProfileID: inst.ProfileID.Or(0), Profile: inst.Profile,
					Placement: inst.Placement.Or(gpu.Placement{})},
			)
		}

		for _, profile := range created {
			layout[profile]++
		}

		if fitsBeside(g.Profiles, existing, created) {
			return layout, true
		}
	}

	return nil, false
}

// fitsBeside reports whether instances can be created beside the existing ones.
func fitsBeside(profiles []gpu.Profile, existing []mig.Placed, created []string) bool {
	if len(created) == 0 {
		return true
	}

	at := slices.IndexFunc(profiles, func(p gpu.Profile) bool { return p.Name == created[0] })
	if at < 0 {
		return false
	}

	room := mig.FreePlacements(profiles, existing, profiles[at])

	return slices.ContainsFunc(room, func(place gpu.Placement) bool {
		next := mig.Placed{
			ProfileID: profiles[at].ID,
			Profile:   profiles[at].Name,
			Placement: place,
		}

		return fitsBeside(profiles, append(slices.Clone(existing), next), created[1:])
	})
}

// layoutWords returns a layout as the value of --devices.
func layoutWords(layout map[string]int) string {
	var words []string
	for _, profile := range sortedKeys(layout) {
		words = append(words, fmt.Sprintf("%s=%d", profile, layout[profile]))
	}

	return cmp.Or(strings.Join(words, ","), "none")
}

// writeSliceProcedure writes how slices get to what is recommended for them.
func (s *session) writeSliceProcedure(ctx context.Context, w *procedure) error {
	var node nodedoc.Document
	if slices.ContainsFunc(w.report.Devices, func(r advise.Recommendation) bool {
		return changesSlice(&r)
	}) {
		if err := s.client.fetch(ctx, "/node", &node); err != nil {
			return err
		}
	}

	w.writeSlicePlan(planSlices(w.report, node.GPUs))

	return nil
}
