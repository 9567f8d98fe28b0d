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
	failed error     // why they could not be read the last time
}

// wanted is the layout that the label names.
type wanted struct {
	attempt
	rules []api.LayoutRule // nil if no layout has the name
	// unread is why the rules are not known: the ConfigMap, which may have the name, cannot be read.
	unread error
}

// findLayout finds the layout of a name. The file of the operator counts before the ConfigMap, and
// that before the built-in layouts: while it cannot be read, a built-in one may be the wrong one.
func (f *Follower) findLayout(ctx context.Context, config string) wanted {
	f.readLayouts(ctx, config)

	rules, fromFile := f.o.Layout(config)
	w := wanted{attempt: newAttempt(config, rules, f.o.Boot), rules: rules}

	if !fromFile {
		w.unread = f.layouts.failed
	}

	return w
}

// readLayouts reads the ConfigMap if that is due. A cluster without it is no failure, since there
// are other layouts.
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

// stands reports whether the node has a layout; the error says why that is not known. A layout that
// cannot be planned does not stand.
func (f *Follower) stands(ctx context.Context, w wanted) (bool, error) {
	if w.unread != nil {
		return false, w.unread
	}

	// mig-manager may know layouts that we do not: it can have others than those of the ConfigMap.
	if w.rules == nil && f.o.Engine == nil {
		return false, errUnread
	}

	if w.rules == nil {
		return false, nil
	}

	plan, err := f.planFromScratch(ctx, w.rules)
	if errors.Is(err, errUnread) || ctx.Err() != nil {
		return false, errUnread
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

// readGPUs reads the layouts of all GPUs. Its errors are errUnread. A node without GPUs may have lost
// them, and a layout of all GPUs would stand there.
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

// fingerprint changes with each change of the layouts that a Snapshot shows. It is false while a GPU
// is down: its layout is not known.
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

// standing is the last answer of stands.
type standing struct {
	attempt attempt
	layout  []uint64
	known   bool
	stands  bool
}

// updateStanding finds out whether the layout of an attempt stands, if that can have changed since
// the last time.
func (f *Follower) updateStanding(ctx context.Context, w wanted) {
	layout, ok := fingerprint(f.o.Current())
	if !ok {
		f.standing = standing{}
		return
	}

	if f.standing.known && w.unread == nil && f.standing.attempt == w.attempt &&
		slices.Equal(f.standing.layout, layout) {
		return
	}

	stands, err := f.stands(ctx, w)
	f.standing = standing{attempt: w.attempt, layout: layout, known: err == nil, stands: stands}
}
