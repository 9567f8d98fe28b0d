package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// devicePlugin is the device plugin of a node, and its kubelet: the plugin offers the devices that
// existed when its pod started. A pod that is ended runs on for a while, and its successor
// registers as soon as it starts.
type devicePlugin struct {
	kubelet
	mu      sync.Mutex
	offers  []gpu.Offer
	pod     int
	ends    time.Time // of the pod that is being ended
	err     error
	hangs   bool
	ended   int // number of Restarts that ended a pod
	cordons []string
}

func newDevicePlugin(w *world) *devicePlugin {
	d := &devicePlugin{kubelet: kubelet{w}}
	d.register()

	return d
}

func (d *devicePlugin) register() { d.offers, _ = d.kubelet.Allocatable(context.Background()) }

// follow lets time pass for the pod.
func (d *devicePlugin) follow() {
	if !d.ends.IsZero() && !time.Now().Before(d.ends) {
		d.ends = time.Time{}
		d.pod++
		d.register()
	}
}

// Allocatable implements Assignments.
func (d *devicePlugin) Allocatable(context.Context) ([]gpu.Offer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.follow()

	return slices.Clone(d.offers), nil
}

// Restart implements DevicePlugin.
func (d *devicePlugin) Restart(ctx context.Context) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.hangs {
		d.mu.Unlock()
		defer d.mu.Lock()
		<-ctx.Done()

		return nil, fmt.Errorf("%w: %w", gpu.ErrUnavailable, gpu.ErrTimeout)
	}

	if d.err != nil {
		return nil, d.err
	}

	d.ended++
	d.cordons = append(d.cordons, d.cordonedBy)
	d.ends = time.Now().Add(5 * time.Second)

	return []string{fmt.Sprint(d.pod)}, nil
}

// Gone implements DevicePlugin.
func (d *devicePlugin) Gone(_ context.Context, pods []string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.follow()

	return !slices.Contains(pods, fmt.Sprint(d.pod)), d.err
}

// become changes the plugin while an engine runs.
func (d *devicePlugin) become(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

func (d *devicePlugin) set(o *Options) { o.Assignments, o.DevicePlugin, o.Hooks = d, d, nil }

// TestDevicePluginIsRestarted: the plugin is restarted once after a change, on a cordoned node, and
// the operation ends when its successor offers the new devices; also after a MIG mode change.
func TestDevicePluginIsRestarted(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *world, *Engine) *api.Operation{
		"layout": func(t *testing.T, _ *world, e *Engine) *api.Operation { return e.applied(t, second(two3g)) },
		"mode": func(t *testing.T, w *world, e *Engine) *api.Operation {
			w.gpu(gpu1).Instances = nil
			w.look()

			return e.switched(t)
		},
		"only destroyed": func(t *testing.T, _ *world, e *Engine) *api.Operation {
			return e.applied(t, second(map[string]api.DeviceRequest{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.mode = func(on bool) (mig.ModeChange, error) {
					w.gpus[1].MIG, w.gpus[1].Pending = gpu.Some(on), gpu.Some(on)
					return mig.ModeChange{Current: on, Pending: on}, nil
				}
				d := newDevicePlugin(w)
				e := w.engine(t, d.set)
				begun := time.Now()
				op := change(t, w, e)
				cmptest.Equal(t, "state of the operation", op.State, api.Succeeded)
				cmptest.Equal(t, "time taken", time.Since(begun), 5*time.Second)
				cmptest.Equal(t, "number of restarts", d.ended, 1)
				cmptest.Equal(t, "cordoned by, at the restart", d.cordons, []string{"me"})
				cmptest.Equal(t, "cordoned by, at last", w.cordonedBy, "")
			})
		})
	}
}

// TestDevicePluginRefuses: a plugin that cannot be restarted leaves the operation unsettled and the
// node cordoned, and is restarted as soon as that is possible.
func TestDevicePluginRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := newDevicePlugin(w)
		d.err = gpu.ErrNoPermission
		e := w.engine(t, d.set)
		op := e.applied(t, second(two3g))
		cmptest.Equal(t, "state of the operation", op.State, api.Unsettled)
		wantText(t, "op.WaitsFor", strings.Join(op.WaitsFor, "\n"), "the restart of the device plugin (no permission)")
		cmptest.Equal(t, "cordoned by", w.cordonedBy, "me")

		d.err = nil
		e = w.engine(t, d.set)
		e.run(t)
		pause(30 * time.Second)
		cmptest.Equal(t, "state of the operation at last", e.now(t, op.ID).State, api.Succeeded)
		cmptest.Equal(t, "number of restarts", d.ended, 1)
		cmptest.Equal(t, "cordoned by, at last", w.cordonedBy, "")
	})
}

// TestDevicePluginIsRestartedForAll: one restart serves all operations whose steps are done before
// it.
func TestDevicePluginIsRestartedForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.processes = map[gpu.UUID][]gpu.Process{}
		d := newDevicePlugin(w)
		d.err = gpu.ErrNoPermission
		e := w.engine(t, d.set)
		none := map[string]api.DeviceRequest{}
		ids := []string{
			e.applied(t, api.PlanRequest{Spec: api.Spec{GPUs: []api.Selector{"0"}, Devices: none}}).ID,
			e.applied(t, second(two3g)).ID,
		}
		e.run(t)
		pause(time.Minute)

		d.become(func() { d.err = nil })
		pause(time.Minute)

		for _, id := range ids {
			cmptest.Equal(t, "state of an operation", e.now(t, id).State, api.Succeeded)
		}

		cmptest.Equal(t, "number of restarts", d.ended, 1)

		// A change after the restart needs another one.
		next, err := e.start(t, second(none))
		if err != nil {
			t.Fatal(err)
		}

		pause(time.Minute)
		cmptest.Equal(t, "state of the next operation", e.now(t, next.ID).State, api.Succeeded)
		cmptest.Equal(t, "number of restarts", d.ended, 2)
	})
}

// TestDevicePluginBehindAHungAPIServer: each request has a deadline, so that the operation ends,
// and other GPUs can be changed meanwhile.
func TestDevicePluginBehindAHungAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := newDevicePlugin(w)
		d.hangs = true
		e := w.engine(t, d.set)
		begun := time.Now()
		op := e.applied(t, second(two3g))
		cmptest.Equal(t, "state of the operation", op.State, api.Unsettled)

		if took := time.Since(begun); took > 31*time.Second {
			t.Errorf("it took %s, want at most the settle timeout and one call", took)
		}

		if p := e.free(t, gpu0); p != nil {
			t.Errorf("another GPU is blocked: %v", p)
		}
	})
}

// TestDevicePluginAfterRollback: what was created again can have other ids, so that the plugin is
// restarted, too.
func TestDevicePluginAfterRollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.before = first(mig.CreateCompute, gpu1, gpu.ErrInsufficientResources)
		d := newDevicePlugin(w)
		op := w.engine(t, d.set).applied(t, second(two3g))
		cmptest.Equal(t, "state of the operation", op.State, api.RolledBack)
		cmptest.Equal(t, "number of restarts", d.ended, 1)
		cmptest.Equal(t, "number of warnings", len(op.Warnings), 0)
		cmptest.Equal(t, "cordoned by", w.cordonedBy, "")
	})
}
