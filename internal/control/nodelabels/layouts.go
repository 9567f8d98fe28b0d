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

// layoutsEvery is the time between two readings of the ConfigMap while the label does not change.
const layoutsEvery = 5 * time.Minute

// layouts are the layouts of the ConfigMap.
type layouts struct {
	rules  map[string][]api.LayoutRule // as read last without an error
	config string                      // the label's value at the last reading
	next   time.Time                   // when to read them again
	failed error                       // why the last reading failed; nil if it did not
}

// wanted is the layout that the label names.
type wanted struct {
	attempt
	rules []api.LayoutRule // nil if no layout has the name
	// unread is set if we don't know the rules: the ConfigMap, which may have the name, could not be
	// read.
	unread error
}

// findLayout finds the layout of a name: first in the operator's file, then in the ConfigMap, then
// among the built-in ones. While the ConfigMap cannot be read, a built-in one may be the wrong one.
func (f *Follower) findLayout(ctx context.Context, config string) wanted {
	f.readLayouts(ctx, config)

	rules, fromFile := f.o.Layout(config)
	w := wanted{attempt: newAttempt(config, rules, f.o.Boot), rules: rules}

	if !fromFile {
		w.unread = f.layouts.failed
	}

	return w
}

// readLayouts reads the ConfigMap if that is due.
func (f *Follower) readLayouts(ctx context.Context, config string) {
	now := f.o.Now()
	if config == f.layouts.config && now.Before(f.layouts.next) {
		return
	}

	f.layouts.config = config
	f.layouts.next = now.Add(layoutsEvery)

	before := f.layouts.failed
	rules, err := f.loadConfigMap(ctx)
	f.layouts.failed = err

	if err != nil {
		f.layouts.next = now.Add(firstRetry)

		if before == nil || before.Error() != err.Error() {
			level.Warn(f.o.Logger).Log("msg", "cannot read the layouts of mig-manager's ConfigMap", "err", err)
		}

		return
	}

	if reflect.DeepEqual(rules, f.layouts.rules) {
		return
	}

	f.layouts.rules = rules
	f.o.SetLayouts(rules)
}

// loadConfigMap reads the layouts of the ConfigMap. A cluster without the ConfigMap has none.
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

// stands reports whether the node has a layout; the error says why we don't know. The node does not
// have a layout that cannot be planned.
func (f *Follower) stands(ctx context.Context, w wanted) (bool, error) {
	if w.unread != nil {
		return false, w.unread
	}

	// Without an engine, mig-manager may follow the label. It can know a layout that is not in the
	// ConfigMap.
	if w.rules == nil && f.o.Engine == nil {
		return false, errUnread
	}

	if w.rules == nil {
		return false, nil
	}

	plan, err := f.planIdle(ctx, w.rules)
	if errors.Is(err, errUnread) || ctx.Err() != nil {
		return false, errUnread
	}

	return err == nil && len(plan.Steps) == 0, nil
}

// errUnread means that the GPUs, or the layouts, could not be read.
var errUnread = errors.New("it could not be read")

// planIdle plans a layout as if no instance were busy. Its errors are those of mig.PlanNode, and
// errUnread.
func (f *Follower) planIdle(ctx context.Context, layout []api.LayoutRule) (mig.NodePlan, error) {
	rules, err := spec.Rules(layout)
	if err != nil {
		return mig.NodePlan{}, err
	}

	gpus, err := f.readGPUs(ctx)
	if err != nil {
		return mig.NodePlan{}, err
	}

	for i := range gpus {
		for n := range gpus[i].Instances {
			gpus[i].Instances[n].FillComputePlacements()
		}
	}

	return mig.PlanNode(ctx, gpus, mig.Spec{Rules: rules})
}

// readGPUs reads the layouts of all GPUs. Its errors wrap errUnread. It is an error if there are no
// GPUs: the node may have lost them, and would seem to have every layout for "all" GPUs.
func (f *Follower) readGPUs(ctx context.Context) ([]mig.GPULayout, error) {
	gpus, err := f.o.ReadGPUs(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnread, err)
	}

	if len(gpus) == 0 {
		return nil, fmt.Errorf("%w: the driver lists no GPU", errUnread)
	}

	return gpus, nil
}

// fingerprint returns numbers that differ once the layouts in the Snapshot have changed. ok is false
// while a GPU is down: we don't know its layout.
func fingerprint(s *gpu.Snapshot) (list []uint64, ok bool) {
	if s == nil {
		return nil, true
	}

	for i := range s.GPUs {
		g := &s.GPUs[i]
		if !g.Up && !g.Released.Present() {
			return nil, false
		}

		mode := uint64(0)

		if g.MIG.Enabled.Or(false) {
			mode = 1
		}

		if g.MIG.Pending.Or(false) {
			mode += 2
		}

		list = append(list, g.MIG.LayoutGeneration, mode, uint64(len(g.Instances)))
	}

	return list, true
}

// standing is the last answer of stands, and what it was about.
type standing struct {
	attempt  attempt
	snapshot []uint64 // fingerprint of the Snapshot
	known    bool
	stands   bool
}

// updateStanding finds out whether the node has the wanted layout, if that can have changed since
// the last time.
func (f *Follower) updateStanding(ctx context.Context, w wanted) {
	snapshot, ok := fingerprint(f.o.Current())
	if !ok {
		f.standing = standing{}
		return
	}

	if f.standing.known && w.unread == nil && f.standing.attempt == w.attempt &&
		slices.Equal(f.standing.snapshot, snapshot) {
		return
	}

	stands, err := f.stands(ctx, w)
	f.standing = standing{attempt: w.attempt, snapshot: snapshot, known: err == nil, stands: stands}
}
