package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// The names of the layouts in a spec of recommendations: that of all GPUs, and that of one by its index.
const (
	layoutAll   = "recommended"
	layoutOfGPU = "gpu-%d"
)

// targetLayout is what a GPU shall have: by profile the instances that have one compute instance of all slices, and
// those that are split.
type targetLayout struct {
	gpu    *nodedoc.GPU
	whole  map[string]int
	splits map[string][][]string // by profile the compute instances of each, "1c"
}

// printRecommendedSpec prints the recommended layouts as a spec: that of one GPU as counts, which say all of it; of
// several as layouts of mig-parted's form.
func (s *session) printRecommendedSpec(ctx context.Context, report *advise.Report) error {
	var node nodedoc.Document
	if err := s.client.fetch(ctx, "/node", &node); err != nil {
		return err
	}

	chosen, err := chooseGPUs(s.opts.GPUs, &node)
	if err != nil {
		return err
	}

	targets, err := targetLayouts(report, node.GPUs)
	if err != nil {
		return err
	}

	targets, err = targetsOn(targets, chosen, report)
	if err != nil {
		return err
	}

	var document api.Spec
	if len(s.opts.GPUs) == 1 && len(targets) == 1 {
		document = targets[0].counts()
	} else if document, err = layoutsOf(targets, report.SingleStrategy); err != nil {
		return err
	}

	data, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("write the spec: %w", err)
	}

	var out bytes.Buffer
	fmt.Fprintf(
		&out,
		"# Recommended layouts of %s, %s, with the existing instances of these GPUs.\n",
		s.page.clean(node.Node.Hostname),
		report.Time.UTC().Format(time.RFC3339),
	)

	switch {
	case report.SingleStrategy:
		fmt.Fprintln(&out, "# All GPUs at once: migctl apply -f FILE. MIG mode must be on for all of them.")
	case document.MIGConfigs != nil:
		first := fmt.Sprintf(layoutOfGPU, targets[0].gpu.Index)
		fmt.Fprintf(&out, "# One GPU after the other: migctl apply -f FILE --layout %s. MIG mode must be on.\n", first)
	}

	if hasSliceChanges(report, chosen) {
		fmt.Fprintln(&out, "# "+sliceChangesApart)
	}

	if err := writeYAML(&out, data); err != nil {
		return fmt.Errorf("write the spec: %w", err)
	}

	_, err = s.out.Write(out.Bytes())

	return err
}

// targetsOn returns the layouts of the chosen GPUs. It is an error if there are none, or if these GPUs cannot have a
// spec without the others.
func targetsOn(targets []targetLayout, chosen []nodedoc.GPU, report *advise.Report) ([]targetLayout, error) {
	all := len(targets)

	targets = slices.DeleteFunc(targets, func(t targetLayout) bool {
		return !slices.ContainsFunc(chosen, func(g nodedoc.GPU) bool { return g.UUID == t.gpu.UUID })
	})

	if len(targets) == 0 {
		why := "no new slices are recommended on these GPUs: there is no spec to write"
		if hasSliceChanges(report, chosen) {
			why += ". " + sliceChangesApart
		}

		return nil, errors.New(why)
	}

	if report.SingleStrategy && len(targets) < all {
		return nil, errors.New("there is no spec to write for some of the GPUs: " + singleReason +
			" migctl recommend --spec without a GPU writes the spec of the node")
	}

	return targets, nil
}

// sliceChangesApart says what no spec has.
const sliceChangesApart = "Slices that should become smaller or larger are not part of a spec: migctl recommend " +
	"prints the commands for them."

// hasSliceChanges reports whether a slice of some GPUs should become smaller or larger.
func hasSliceChanges(report *advise.Report, gpus []nodedoc.GPU) bool {
	return slices.ContainsFunc(report.Devices, func(r advise.Recommendation) bool {
		return changesSlice(&r) &&
			slices.ContainsFunc(gpus, func(g nodedoc.GPU) bool { return g.UUID == r.GPU })
	})
}

// targetLayouts returns what each GPU that gets slices shall have: what it has now, and its new slices. Under the
// single strategy every other GPU gets as many slices of the same profile as it can have.
func targetLayouts(report *advise.Report, gpus []nodedoc.GPU) ([]targetLayout, error) {
	if report.Packing == nil {
		return nil, nil
	}

	if why := singleObstacle(report); why != "" {
		return nil, errors.New("there is no spec to write: " + why)
	}

	var targets []targetLayout

	for i := range gpus {
		g := &gpus[i]

		at := slices.IndexFunc(report.Packing.GPUs, func(p advise.PackedGPU) bool {
			return p.GPU == g.UUID
		})
		if at < 0 && !report.SingleStrategy {
			continue
		}

		t, err := existingLayout(g)
		if err != nil {
			return nil, err
		}

		if at < 0 {
			profile := singleProfile(report)
			t.whole[profile] = maxInstances(g, profile)
		} else {
			for _, slice := range report.Packing.GPUs[at].Slices {
				if !slice.Exists {
					t.whole[slice.Profile]++
				}
			}
		}

		targets = append(targets, t)
	}

	return targets, nil
}

// singleProfile returns the profile of all slices of a node under the single strategy.
func singleProfile(report *advise.Report) string {
	for i := range report.Packing.GPUs {
		for _, slice := range report.Packing.GPUs[i].Slices {
			return slice.Profile
		}
	}

	return ""
}

// maxInstances returns how many instances of a profile an empty GPU can have.
func maxInstances(g *nodedoc.GPU, profile string) int {
	for _, c := range mig.CapacityOf(g.Profiles, nil).Profiles {
		if c.Name == profile {
			return c.Max
		}
	}

	return 0
}

// existingLayout returns what a GPU has now.
func existingLayout(g *nodedoc.GPU) (targetLayout, error) {
	t := targetLayout{gpu: g, whole: map[string]int{}, splits: map[string][][]string{}}
	for i := range g.GPUInstances {
		inst := &g.GPUInstances[i]
		if inst.Profile == "" {
			return t, fmt.Errorf(
				"GPU instance %d of GPU %d has a profile that is not known: a spec could not keep it",
				inst.ID,
				g.Index,
			)
		}

		if isWhole(inst) {
			t.whole[inst.Profile]++
			continue
		}

		sizes := []string{}

		for k := range inst.ComputeInstances {
			part, _, _ := strings.Cut(inst.ComputeInstances[k].Profile, ".")
			sizes = append(sizes, part)
		}

		t.splits[inst.Profile] = append(t.splits[inst.Profile], sizes)
	}

	return t, nil
}

// counts returns the layout as a spec of counts, which can say every split.
func (t *targetLayout) counts() api.Spec {
	devices := map[string]api.DeviceRequest{}
	for profile, n := range t.whole {
		devices[profile] = api.DeviceRequest{Count: n}
	}

	for profile, splits := range t.splits {
		var each []api.DeviceRequest
		if n := t.whole[profile]; n > 0 {
			each = append(each, api.DeviceRequest{Count: n})
		}

		for _, sizes := range splits {
			each = append(each, api.DeviceRequest{Count: 1, Compute: sizes})
		}

		devices[profile] = api.DeviceRequest{Each: each}
	}

	return api.Spec{GPUs: []api.Selector{api.Selector(t.gpu.UUID)}, Devices: devices}
}

// layoutsOf returns a spec with one layout for all GPUs and, unless they must be partitioned at once, one for each.
func layoutsOf(targets []targetLayout, atOnce bool) (api.Spec, error) {
	document := api.Spec{
		Layout:     layoutAll,
		Version:    "v1",
		MIGConfigs: map[string][]api.LayoutRule{},
	}

	for i := range targets {
		rule, err := targets[i].rule()
		if err != nil {
			return document, err
		}

		if !atOnce {
			document.MIGConfigs[fmt.Sprintf(layoutOfGPU, targets[i].gpu.Index)] = []api.LayoutRule{
				rule,
			}
		}

		document.MIGConfigs[layoutAll] = append(document.MIGConfigs[layoutAll], rule)
	}

	return document, nil
}

// rule returns the layout as a rule of mig-parted's form. That names split instances by their compute instances, and
// packs those of a profile into as few instances as it can: it cannot say how several are split, nor that one has no
// compute instance.
func (t *targetLayout) rule() (api.LayoutRule, error) {
	rule := api.LayoutRule{
		Devices: api.DeviceList{
			Indexes: []int{t.gpu.Index},
		},
		MIGEnabled: true,
		MIGDevices: map[string]int{},
	}
	for profile, n := range t.whole {
		rule.MIGDevices[profile] = n
	}

	for profile, splits := range t.splits {
		if len(splits) > 1 || len(splits[0]) == 0 {
			return rule, usageError{
				fmt.Sprintf(
					"GPU %d has instances of %s that are split in ways which a spec of several "+
						"GPUs cannot keep: migctl recommend --spec %d writes one for it alone",
					t.gpu.Index,
					profile,
					t.gpu.Index,
				),
			}
		}

		for _, size := range splits[0] {
			rule.MIGDevices[size+"."+profile]++
		}
	}

	return rule, nil
}
