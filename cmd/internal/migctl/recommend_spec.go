package migctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// The names of the layouts in a spec of recommendations.
const (
	layoutAll   = "recommended" // the layout for all GPUs
	layoutOfGPU = "gpu-%d"      // the layout for one GPU, by its index
)

// printRecommendedSpec prints the recommended layouts as a spec. For one GPU it has counts of
// devices, which can express every layout; for several it has layouts of mig-parted's form.
func (s *session) printRecommendedSpec(ctx context.Context, report *advise.Report) error {
	var node nodedoc.Document
	if err := s.client.fetch(ctx, "/node", &node); err != nil {
		return err
	}

	chosen, err := chooseGPUs(s.opts.GPUs, &node)
	if err != nil {
		return err
	}

	if obstacle := specObstacle(report); obstacle != "" {
		return errors.New("there is no spec to write: " + obstacle)
	}

	layouts, err := report.Layouts(gpusToPlan(node.GPUs))
	if err != nil {
		return err
	}

	targets, err := targetsOn(layouts, chosen, report)
	if err != nil {
		return err
	}

	var document api.Spec
	if len(s.opts.GPUs) == 1 && len(targets) == 1 {
		document = countsSpec(&targets[0])
	} else if document, err = layoutsSpec(targets, report.SingleStrategy); err != nil {
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
		first := fmt.Sprintf(layoutOfGPU, targets[0].Index)
		fmt.Fprintf(
			&out,
			"# One GPU after the other: migctl apply -f FILE --layout %s. MIG mode must be on.\n",
			first,
		)
	}

	if hasSliceChanges(report, chosen) {
		fmt.Fprintln(&out, "# "+sliceChangesApart)
	}

	if err := writeYAML(&out, data); err != nil {
		return fmt.Errorf("write the spec: %w", err)
	}

	_, err = io.WriteString(s.out, s.page.renameCommands(out.String()))

	return err
}

// specObstacle says why no spec of a report can be written; it is empty if nothing is in the way.
func specObstacle(report *advise.Report) string {
	if why := report.GPUsUnknown; why != "" {
		return gpu.DescribeUnknownGPUs(why)
	}

	if report.Packing == nil {
		return ""
	}

	return singleObstacle(report)
}

// targetsOn returns the layouts of the chosen GPUs. It is an error if there are none, or if these
// GPUs cannot have a spec without the others.
func targetsOn(
	targets []advise.Layout,
	chosen []nodedoc.GPU,
	report *advise.Report,
) ([]advise.Layout, error) {
	all := len(targets)

	targets = slices.DeleteFunc(targets, func(t advise.Layout) bool {
		return !slices.ContainsFunc(chosen, func(g nodedoc.GPU) bool { return g.UUID == t.GPU })
	})

	if len(targets) == 0 {
		why := "no new slices are recommended on these GPUs: there is no spec to write"
		if elsewhere := slicesElsewhere(report, chosen); elsewhere != "" {
			why += ". " + elsewhere
		}

		if hasSliceChanges(report, chosen) {
			why += ". " + sliceChangesApart
		}

		return nil, errors.New(why)
	}

	if report.SingleStrategy && len(targets) < all {
		return nil, errors.New("there is no spec to write for some of the GPUs: " + singleReason +
			" migctl recommend -o spec without a GPU writes the spec of the node")
	}

	return targets, nil
}

// slicesElsewhere says on which other GPUs the workloads of some GPUs get their slices; "" if they get
// none.
func slicesElsewhere(report *advise.Report, gpus []nodedoc.GPU) string {
	var moves []string
	var targets []int

	for i := range gpus {
		target := report.Packing.TargetOf(gpus[i].Index)
		if target < 0 {
			continue
		}

		moves = append(moves, fmt.Sprintf("that of GPU %d on GPU %d", gpus[i].Index, target))

		if !slices.Contains(targets, target) {
			targets = append(targets, target)
		}
	}

	if len(moves) == 0 {
		return ""
	}

	return fmt.Sprintf(
		"The slices for their workloads are created on other GPUs, %s: see migctl recommend -o spec %s",
		strings.Join(moves, ", "),
		strings.ReplaceAll(joinNumbers(targets), ",", ""),
	)
}

// sliceChangesApart says which recommendations a spec leaves out.
const sliceChangesApart = "Slices that should become smaller or larger are not part of a spec: " +
	"migctl recommend prints the commands for them."

// hasSliceChanges reports whether a slice of some GPUs should become smaller or larger.
func hasSliceChanges(report *advise.Report, gpus []nodedoc.GPU) bool {
	return slices.ContainsFunc(report.Devices, func(r advise.Recommendation) bool {
		return r.ChangesSlice() &&
			slices.ContainsFunc(gpus, func(g nodedoc.GPU) bool { return g.UUID == r.GPU })
	})
}

// countsSpec returns a layout as a spec of counts of devices. It has each split GPU instance as an
// entry of its own.
func countsSpec(t *advise.Layout) api.Spec {
	devices := map[string]api.DeviceRequest{}
	for profile, n := range t.Whole {
		devices[profile] = api.DeviceRequest{Count: n}
	}

	for profile, splits := range t.Splits {
		var each []api.DeviceRequest
		if n := t.Whole[profile]; n > 0 {
			each = append(each, api.DeviceRequest{Count: n})
		}

		for _, sizes := range splits {
			each = append(each, api.DeviceRequest{Count: 1, Compute: sizes})
		}

		devices[profile] = api.DeviceRequest{Each: each}
	}

	return api.Spec{GPUs: []api.Selector{api.Selector(t.GPU)}, Devices: devices}
}

// layoutsSpec returns a spec with one layout for all GPUs and, unless they must be partitioned at
// once, a layout for each GPU.
func layoutsSpec(targets []advise.Layout, atOnce bool) (api.Spec, error) {
	document := api.Spec{
		Layout:     layoutAll,
		Version:    "v1",
		MIGConfigs: map[string][]api.LayoutRule{},
	}

	for i := range targets {
		rule, err := layoutRule(&targets[i])
		if err != nil {
			return document, err
		}

		if !atOnce {
			document.MIGConfigs[fmt.Sprintf(layoutOfGPU, targets[i].Index)] = []api.LayoutRule{
				rule,
			}
		}

		document.MIGConfigs[layoutAll] = append(document.MIGConfigs[layoutAll], rule)
	}

	return document, nil
}

// layoutRule returns a layout as a rule of mig-parted's form. Such a rule has the compute instances
// of split GPU instances, as in "1c.3g.20gb: 3", and packs those of a profile into as few GPU
// instances as it can. It cannot express how several GPU instances are split, nor that one has no
// compute instance: layoutRule returns an error for these.
func layoutRule(t *advise.Layout) (api.LayoutRule, error) {
	rule := api.LayoutRule{
		Devices: api.DeviceList{
			Indexes: []int{t.Index},
		},
		MIGEnabled: true,
		MIGDevices: map[string]int{},
	}
	for profile, n := range t.Whole {
		rule.MIGDevices[profile] = n
	}

	for profile, splits := range t.Splits {
		if len(splits) > 1 || len(splits[0]) == 0 {
			return rule, usageError{
				fmt.Sprintf(
					"GPU %d has instances of %s that are split in ways which a spec of several "+
						"GPUs cannot keep: migctl recommend -o spec %d writes one for it alone",
					t.Index,
					profile,
					t.Index,
				),
			}
		}

		for _, size := range splits[0] {
			rule.MIGDevices[size+"."+profile]++
		}
	}

	return rule, nil
}
