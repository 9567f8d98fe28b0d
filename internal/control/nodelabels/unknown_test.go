package nodelabels_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/nodelabels"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/sim/clusterapi"
)

// What could not be read is neither applied nor reported as a fact.

// TestUnreadConfigMap: while the ConfigMap cannot be read, it may have another layout under a
// built-in name. The operator's file counts before it.
func TestUnreadConfigMap(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.server.Forbid("get configmaps", true)
	f.follow()
	f.expectState("failed", "default-mig-parted-config", "the right to get configmaps")
	f.expectClients()
	cmptest.Equal(t, "plans", f.engine.plans, 0)
	cmptest.Equal(t, "whether it stands is known", f.status.Applied.Present(), false)

	f.server.Forbid("get configmaps", false)

	f.now = f.now.Add(61 * time.Second)
	f.follow()
	f.expectState("success")

	f = newFixture(t, "ours")
	f.file = map[string][]api.LayoutRule{"ours": {{MIGEnabled: true, MIGDevices: map[string]int{"1g.5gb": 1}}}}
	f.server.Forbid("get configmaps", true)
	f.follow()
	f.expectState("success")

	f = newFixture(t, layout)
	f.server.SetConfigMap("gpu-operator/default-mig-parted-config", "mig-configs: [")
	f.follow()
	f.expectState("failed", "default-mig-parted-config")
	cmptest.Equal(t, "plans with an invalid ConfigMap", f.engine.plans, 0)
}

// TestUnknownLayoutOfMIGManager: a mig-manager at work may have layouts that we do not know.
func TestUnknownLayoutOfMIGManager(t *testing.T) {
	t.Parallel()

	f := newFixture(t, "theirs", func(o *nodelabels.Options) { o.Engine = nil })
	f.server.SetLabel(state, "success", "nvidia-mig-manager")
	f.follow()
	cmptest.Equal(t, "whether it stands is known", f.status.Applied.Present(), false)
	cmptest.Equal(t, "state", f.status.State, nodelabels.Success)
}

// TestUnreadGPUs: no layout is applied to a part of the GPUs, and none stands on GPUs that are not
// seen.
func TestUnreadGPUs(t *testing.T) {
	t.Parallel()

	for name, read := range map[string]func(context.Context) ([]mig.GPULayout, error){
		"a GPU that does not answer": func(context.Context) ([]mig.GPULayout, error) { return nil, gpu.ErrTimeout },
		"no GPU":                     func(context.Context) ([]mig.GPULayout, error) { return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			broken := true
			f := newFixture(t, layout)
			whole := f.opts.ReadGPUs
			f.opts.ReadGPUs = func(ctx context.Context) ([]mig.GPULayout, error) {
				if broken {
					return read(ctx)
				}

				return whole(ctx)
			}
			f.engine.current = layout
			f.restart()
			f.follow()
			f.expectState("failed", "the layouts of the GPUs")
			f.expectClients()
			cmptest.Equal(t, "plans", f.engine.plans, 0)
			cmptest.Equal(t, "whether it stands is known", f.status.Applied.Present(), false)

			broken = false
			f.now = f.now.Add(61 * time.Second)
			f.follow()
			f.expectState("success")
		})
	}
}

// TestStandingOfAGPUThatIsDown: a layout that stood is not known to stand while a GPU does not answer.
func TestStandingOfAGPUThatIsDown(t *testing.T) {
	t.Parallel()

	s := &gpu.Snapshot{GPUs: []gpu.GPU{{Device: gpu.Device{Up: true}}}}
	f := newFixture(t, layout, func(o *nodelabels.Options) { o.Current = func() *gpu.Snapshot { return s } })
	f.follow()
	cmptest.Equal(t, "known", f.status.Applied.Present(), true)

	s = &gpu.Snapshot{GPUs: []gpu.GPU{{}}}
	f.follow()
	cmptest.Equal(t, "known while it is down", f.status.Applied.Present(), false)
}

// TestUnreadNode: the last status stays for a while, and is not known then.
func TestUnreadNode(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.follow()
	f.server.Forbid("get nodes", true)

	for _, step := range []struct {
		wait time.Duration
		read bool
	}{{time.Minute, true}, {3 * time.Minute, true}, {2 * time.Minute, false}} {
		f.now = f.now.Add(step.wait)

		if err := f.Follow(t.Context()); !errors.Is(err, gpu.ErrNoPermission) {
			t.Fatalf("a node that may not be read: %v", err)
		}

		cmptest.Equal(t, "read", f.status.Read, step.read)
	}
}

// TestAppliesSoonAfterTheAPIServerIsBack: however long it was not known whether mig-manager runs, the
// layout is applied soon after the API server says that it does not.
func TestAppliesSoonAfterTheAPIServerIsBack(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.server.Forbid("list pods", true)

	for range 50 {
		f.follow()

		f.now = f.now.Add(time.Minute)
	}

	cmptest.Equal(t, "plans while it is not known", f.engine.plans, 0)
	f.server.Forbid("list pods", false)

	for range 4 { // readings of the node
		f.now = f.now.Add(nodelabels.DefaultInterval)
		f.follow()
	}

	f.expectState("success")
}

// TestUnknownMIGManagerWhilePlanning: with --control.mode=plan, too, a mig-manager may have applied the
// layout while we cannot know, so the note says that instead of what would be done.
func TestUnknownMIGManagerWhilePlanning(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout, func(o *nodelabels.Options) { o.Apply = false })
	f.server.Forbid("list pods", true)
	f.follow()
	cmptest.HasTexts(t, f.Note(), "whether mig-manager runs on this node is not known")
	cmptest.Equal(t, "plans", f.engine.plans, 0)

	f.server.Forbid("list pods", false)

	f.now = f.now.Add(time.Hour)
	f.follow()
	cmptest.HasTexts(t, f.Note(), "1 steps would be done on 1 GPUs")
	cmptest.Equal(t, "changes of the node", f.patches(), 0)
}

// TestUnknownMIGManagerKeepsTheWait: while it is not known whether mig-manager runs, no attempt fails,
// so the wait after attempts that failed before, which may pause clients, neither ends nor grows.
func TestUnknownMIGManagerKeepsTheWait(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.engine.problem = map[string]*api.Problem{layout: problem(api.Busy, "in use")}
	f.follow()

	for _, wait := range []time.Duration{time.Minute, 2 * time.Minute} {
		f.now = f.now.Add(wait)
		f.follow()
	}

	cmptest.Equal(t, "plans", f.engine.plans, 3)
	f.server.Forbid("list pods", true)

	for range 3 { // the first time after the wait of the third plan
		f.now = f.now.Add(4 * time.Minute)
		f.follow()
	}

	cmptest.Equal(t, "plans while it is not known", f.engine.plans, 3)
	f.server.Forbid("list pods", false)

	for _, step := range []struct {
		wait  time.Duration
		plans int
	}{{time.Minute, 4}, {7 * time.Minute, 4}, {time.Minute, 5}} {
		f.now = f.now.Add(step.wait)
		f.follow()
		cmptest.Equal(t, fmt.Sprintf("plans %s later", step.wait), f.engine.plans, step.plans)
	}
}

// TestStateThatCannotBeWritten: an operation that has failed is not repeated because the API server
// did not take the result.
func TestStateThatCannotBeWritten(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.engine.ends = []api.OperationState{api.Running, api.Settling, api.RolledBack}
	f.engine.failure = problem(api.DriverFailed, "create 1g.5gb")
	f.engine.onLook = func(now api.OperationState) { f.server.Forbid("patch nodes", now == api.RolledBack) }

	if f.Follow(t.Context()) == nil {
		t.Error("a state that cannot be written is no error")
	}

	for range 3 {
		_ = f.Follow(t.Context())
	}

	f.engine.onLook = nil
	f.server.Forbid("patch nodes", false)
	f.follow()
	f.expectState("failed", "op-1 is rolled-back")
	f.follow()
	cmptest.Equal(t, "operations", f.engine.starts, 1)
}

// TestStopsInMidOperation: the clients stay paused if the program stops before the steps of an
// operation are done, and are restored if these end in time.
func TestStopsInMidOperation(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.engine.ends = []api.OperationState{api.Running}
	ctx, stop := context.WithCancel(t.Context())
	f.engine.onLook = func(api.OperationState) { stop() }
	_ = f.Follow(ctx)
	cmptest.Equal(t, "DCGM in mid-operation", f.server.Label(dcgm), paused)
	cmptest.Equal(t, "state", f.server.Label(state), "pending")

	for end, want := range map[api.OperationState]string{api.Settling: "pending", api.Succeeded: "success"} {
		f = newFixture(t, layout)
		f.AwaitStop(time.Hour)

		f.engine.ends = []api.OperationState{api.Running, api.Running, end}
		ctx, stop = context.WithCancel(t.Context())
		f.engine.onLook = func(api.OperationState) { stop() }
		_ = f.Follow(ctx)
		f.expectClients()
		cmptest.Equal(t, "state", f.server.Label(state), want)
	}
}

// TestLeftPaused: an exporter that does not follow the label changes nothing, and says what another
// one has left paused, and what to do.
func TestLeftPaused(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.engine.ends = []api.OperationState{api.Running}
	ctx, kill := context.WithCancel(t.Context())
	f.engine.onLook = func(api.OperationState) { kill() }
	_ = f.Follow(ctx)

	patches := f.patches()
	f.opts.Apply = false
	f.restart()
	f.follow()
	cmptest.Equal(t, "changes of the node by --control.mode=plan", f.patches(), patches)
	cmptest.HasTexts(t, f.Note(), "clients of the GPUs are paused", dcgm+"=true")

	f.opts.Engine = nil
	f.restart()
	f.follow()
	cmptest.Equal(t, "changes of the node by an exporter that reads", f.patches(), patches)
	cmptest.Equal(t, "paused", f.status.Paused, []string{plugin, dcgmExporter, dcgm})
	cmptest.HasTexts(t, f.Note(), "clients of the GPUs are paused", dcgm+"=true", "mig-exporter.io/paused-clients")

	notes := make(chan string, 8)
	ended := make(chan error, 1)
	ctx, end := context.WithCancel(t.Context())

	go func() {
		ended <- nodelabels.WatchPaused(ctx, f.opts.Cluster, func(note string) { notes <- note })
	}()

	cmptest.Equal(t, "note of an exporter that is off", <-notes, f.Note())
	end()
	cmptest.Equal(t, "end", <-ended, nil)

	for _, key := range []string{plugin, dcgmExporter, dcgm} {
		f.server.SetLabel(key, "true", "kubectl-label")
	}

	f.follow()
	cmptest.Equal(t, "paused after that", len(f.status.Paused), 0)
	cmptest.Equal(t, "note after that", f.Note(), "")
}

// TestLeftPausedByMIGManager: what a mig-manager that was removed in the middle of a change has left
// paused is restored, as its own next change would. One that runs is not interfered with.
func TestLeftPausedByMIGManager(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.server.AddDaemonSet(clusterapi.DaemonSet{
		Namespace: "gpu-operator", Name: "nvidia-mig-manager", Labels: map[string]string{"app": "nvidia-mig-manager"},
	})
	f.server.SetLabel(dcgm, paused, "nvidia-mig-manager")
	f.server.SetLabel(plugin, "paused-for-driver-upgrade", "k8s-driver-manager")
	f.follow()
	cmptest.Equal(t, "DCGM while it runs", f.server.Label(dcgm), paused)
	cmptest.Equal(t, "paused", f.status.Paused, []string{dcgm})

	f.server.RemoveDaemonSet("nvidia-mig-manager")
	f.server.Forbid("list pods", true)

	if f.Follow(t.Context()) == nil {
		t.Error("pods that may not be listed are no error")
	}

	cmptest.Equal(t, "DCGM while it is not known whether it runs", f.server.Label(dcgm), paused)
	f.server.Forbid("list pods", false)

	f.now = f.now.Add(20 * time.Minute)
	f.follow()
	cmptest.Equal(t, "DCGM", f.server.Label(dcgm), "true")
	cmptest.Equal(t, "paused by another program", f.server.Label(plugin), "paused-for-driver-upgrade")
	f.expectState("success")

	if slices.Contains(f.server.States(), "") {
		t.Error("the state was removed")
	}
}
