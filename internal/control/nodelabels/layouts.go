package nodelabels

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// configMapKey is the key under which mig-manager finds its layouts.
// https://github.com/NVIDIA/gpu-operator, assets/state-mig-manager/0400_configmap.yaml
const configMapKey = "config.yaml"

// layoutsEvery is how often the ConfigMap is read while the label does not change.
const layoutsEvery = 5 * time.Minute

// layouts are those of the ConfigMap.
type layouts struct {
	rules  map[string][]api.LayoutRule
	config string    // the label's value when they were read
	next   time.Time // when they are read again
	failed string    // why they could not be read
}

// readLayouts reads the ConfigMap if that is due. If it cannot be read, the last answer stays; a
// cluster without it is no failure, since there are other layouts.
func (f *Follower) readLayouts(ctx context.Context, config string) {
	now := f.o.Now()
	if config == f.layouts.config && now.Before(f.layouts.next) {
		return
	}

	f.layouts.config = config
	f.layouts.next = now.Add(layoutsEvery)

	rules, err := f.loadConfigMap(ctx)
	if err != nil {
		if err.Error() != f.layouts.failed {
			f.layouts.failed = err.Error()
			level.Warn(f.o.Logger).Log("msg", "cannot read the layouts of mig-manager's ConfigMap", "err", err)
		}

		return
	}

	f.layouts.failed = ""
	if reflect.DeepEqual(rules, f.layouts.rules) {
		return
	}

	f.layouts.rules = rules
	f.o.SetLayouts(rules)
}

func (f *Follower) loadConfigMap(ctx context.Context) (map[string][]api.LayoutRule, error) {
	data, err := f.o.Cluster.ConfigMap(ctx, f.o.Namespace, f.o.ConfigMap)
	if errors.Is(err, gpu.ErrNotFound) {
		return nil, nil
	}

	if err != nil {
		return nil, err
	}

	name := fmt.Sprintf("ConfigMap %s/%s", f.o.Namespace, f.o.ConfigMap)

	text, ok := data[configMapKey]
	if !ok {
		return nil, fmt.Errorf("%s has no key %s", name, configMapKey)
	}

	return spec.ReadLayouts(name, []byte(text))
}

// stands reports whether the node has a layout, by its rules; the error says why that is not known.
// A layout that cannot be planned does not stand.
func (f *Follower) stands(ctx context.Context, rules []api.LayoutRule) (bool, error) {
	if rules == nil && f.layouts.failed != "" { // the ConfigMap may have it
		return false, errUnread
	}

	if rules == nil {
		return false, nil
	}

	plan, err := f.planFromScratch(ctx, rules)
	if errors.Is(err, errUnread) {
		return false, err
	}

	return err == nil && len(plan.Steps) == 0, nil
}

// errUnread means that the GPUs, or the layouts, could not be read.
var errUnread = errors.New("it could not be read")

// planFromScratch plans a layout as if no instance were busy. Its errors are those of
// mig.PlanNode, and errUnread.
func (f *Follower) planFromScratch(ctx context.Context, layout []api.LayoutRule) (mig.NodePlan, error) {
	rules, err := spec.Rules(layout)
	if err != nil {
		return mig.NodePlan{}, err
	}

	gpus, err := f.o.ReadGPUs(ctx)
	if err != nil {
		return mig.NodePlan{}, fmt.Errorf("%w: %w", errUnread, err)
	}

	for i := range gpus {
		for n := range gpus[i].Instances {
			gpus[i].Instances[n].FillComputePlacements()
		}
	}

	return mig.PlanNode(ctx, gpus, mig.Spec{Rules: rules})
}

// fingerprint changes with each change of the layouts that a Snapshot shows.
func fingerprint(s *gpu.Snapshot) []uint64 {
	var list []uint64

	if s == nil {
		return nil
	}

	for i := range s.GPUs {
		g := &s.GPUs[i]
		mode := uint64(0)

		if g.MIG.Enabled.Or(false) {
			mode = 1
		}

		if g.MIG.Pending.Or(false) {
			mode += 2
		}

		list = append(list, g.MIG.LayoutGeneration, mode, uint64(len(g.Instances)))
	}

	return list
}

// standing is the last answer of stands.
type standing struct {
	attempt attempt
	layout  []uint64
	known   bool
	stands  bool
}

// updateStanding finds out whether the layout of an attempt stands, if that can have changed since
// the last time.
func (f *Follower) updateStanding(ctx context.Context, a attempt, rules []api.LayoutRule) {
	layout := fingerprint(f.o.Current())
	if f.standing.known && f.standing.attempt == a && slices.Equal(f.standing.layout, layout) {
		return
	}

	stands, err := f.stands(ctx, rules)
	f.standing = standing{attempt: a, layout: layout, known: err == nil, stands: stands}
}
