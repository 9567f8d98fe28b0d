package control

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// collectFacts returns what a plan depends on, as lines that we show to an operator if they have
// changed when the plan is applied: the node and its boot, the driver, the number of changes by
// other clients, every instance of the plan's GPUs and the pods and jobs that hold it, every holder
// of an instance that the plan destroys, and the plan itself. We count changes since UUIDs are not
// enough: an instance that replaces another in the same placement gets the same one.
func (e *Engine) collectFacts(u *usage, p *api.Plan) []string {
	list := []string{"node " + e.o.Hostname, "boot " + e.o.BootID}
	generations := map[gpu.UUID]uint64{}

	if s := e.o.Poller.Current(); s != nil {
		if d, ok := s.Driver.Get(); ok {
			list = append(list, "driver "+d.Version)
		}

		for n := range s.GPUs {
			generations[s.GPUs[n].UUID] = s.GPUs[n].MIG.LayoutGeneration
		}
	}

	destroyed := placesDestroyed(p.Steps)

	for _, s := range p.Steps {
		list = append(list, "step "+stepText(s))
	}

	list = append(list, "force "+strings.Join(p.Forced, ","), "owners "+strings.Join(p.Owners, ","),
		"take over "+strconv.FormatBool(p.TakeOver))
	for _, pg := range p.GPUs {
		at := slices.IndexFunc(u.gpus, func(g mig.GPULayout) bool { return g.UUID == pg.UUID })
		if at < 0 {
			continue
		}

		g := u.gpus[at]
		list = append(list, fmt.Sprintf("GPU %s with MIG mode %s, pending %s, in layout %d", g.UUID,
			mig.OnOff(g.MIG.Or(false)), mig.OnOff(g.Pending.Or(g.MIG.Or(false))), generations[g.UUID]))
		m := u.marks[g.UUID]

		list = append(
			list,
			fmt.Sprintf(
				"GPU %s changed by other clients %d times, reports of the driver lost %d times",
				g.UUID,
				m.Foreign,
				m.Gaps,
			),
		)
		for _, i := range g.Instances {
			list = append(list, u.instanceFacts(g, i, destroyed)...)
		}
	}

	return list
}

// instanceFacts returns the facts about a GPU instance and its compute instances.
func (u *usage) instanceFacts(
	g mig.GPULayout,
	i mig.Instance,
	destroyed map[instancePlace]bool,
) []string {
	name := fmt.Sprintf("GPU instance %d (%s at %s) of %s", i.ID, i.Profile, i.Placement, g.UUID)
	list := []string{name}
	p := instancePlace{gpu: g.UUID, profile: i.ProfileID, at: i.Placement}
	holds := u.holds[holdKey{gpu: g.UUID, instance: i.ID}]
	list = append(list, holdFacts(name, holds, destroyed[p])...)

	for n, at := range mig.ComputePlacements(i) {
		ci := i.ComputeInstances[n]
		p.compute = gpu.Some(at)
		name := fmt.Sprintf("compute instance %d (%s at %s) in %s", ci.ID, ci.UUID, at, name)
		list = append(list, name)
		list = append(
			list,
			holdFacts(name, u.holds[holdKey{g.UUID, i.ID, gpu.Some(ci.ID)}], destroyed[p])...)
	}

	return list
}

// holdFacts returns facts about the pods and jobs that hold an instance. If the plan destroys the
// instance, it returns facts about all holders.
func holdFacts(name string, holds []api.Hold, destroyed bool) []string {
	var list []string

	for _, h := range holds {
		if destroyed || h.Kind == api.HoldPod || h.Kind == api.HoldJob {
			what := h.What
			if h.Unconfirmed() { // without the reason, whose words may differ each time
				what, _, _ = strings.Cut(what, ": ")
			}

			list = append(list, fmt.Sprintf("%s %s on %s", h.Kind, what, name))
		}
	}

	slices.Sort(list)

	return list
}

func hashFacts(facts []string) string {
	sum := sha256.New()
	for _, f := range facts {
		fmt.Fprintf(sum, "%d:%s\n", len(f), f)
	}

	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}

// describeChanges describes how facts differ, at most six of them.
func describeChanges(before, now []string) string {
	const most = 6
	var parts []string

	for _, f := range before {
		if !slices.Contains(now, f) {
			parts = append(parts, "no longer: "+f)
		}
	}

	for _, f := range now {
		if !slices.Contains(before, f) {
			parts = append(parts, "now: "+f)
		}
	}

	if more := len(parts) - most; more > 0 {
		parts = append(parts[:most], fmt.Sprintf("and %d more", more))
	}

	return strings.Join(parts, "; ")
}

// gpusOfRules returns the GPUs that the rules of a layout match.
func gpusOfRules(gpus []mig.GPULayout, wanted mig.Spec) []gpu.UUID {
	list := []gpu.UUID{}

	for _, g := range gpus {
		if slices.ContainsFunc(wanted.Rules, func(r mig.Rule) bool { return ruleMatches(r, g) }) {
			list = append(list, g.UUID)
		}
	}

	return list
}

// mayConcern reports whether a spec may be about a GPU. We don't know the GPU's PCI device, so a
// rule's PCIDevices exclude nothing.
func mayConcern(wanted mig.Spec, f gpu.Facts) bool {
	return len(wanted.Demand) > 0 || slices.ContainsFunc(wanted.Rules, func(r mig.Rule) bool {
		r.PCIDevices = nil
		return ruleMatches(r, mig.GPULayout{Facts: f})
	})
}

// listNamed lists the GPUs that a spec names. It returns nil if the spec may be about any GPU, or
// names one that the last Snapshot doesn't have or could not read: then we have to read all GPUs. An
// index is one of the last Snapshot, which the operator sees.
func (e *Engine) listNamed(wanted mig.Spec) []gpu.UUID {
	s := e.o.Poller.Current()
	if s == nil || len(wanted.Demand) > 0 {
		return nil
	}

	var list []gpu.UUID
	seen := map[string]bool{}

	for _, r := range wanted.Rules {
		for _, name := range r.GPUs {
			if seen[name] {
				continue
			}

			seen[name] = true

			g := findNamed(s, name)
			if g == nil {
				return nil
			}

			list = append(list, g.UUID)
		}
	}

	return list
}

// findNamed returns the GPU of a Snapshot that name means, nil if there is none or it could not be
// read.
func findNamed(s *gpu.Snapshot, name string) *gpu.GPU {
	for n := range s.GPUs {
		if g := &s.GPUs[n]; g.Up && g.UUID != "" && mig.Names(name, &g.Facts) {
			return g
		}
	}

	return nil
}

// ruleMatches reports whether a rule names a GPU and is for its model.
func ruleMatches(r mig.Rule, g mig.GPULayout) bool {
	if r.PCIDevices != nil && !slices.Contains(r.PCIDevices, g.PCIDevice) {
		return false
	}

	return slices.ContainsFunc(r.GPUs, func(name string) bool {
		return name == mig.AllGPUs || mig.Names(name, &g.Facts)
	})
}
