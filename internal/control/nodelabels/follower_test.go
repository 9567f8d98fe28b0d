package nodelabels_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/nodelabels"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/sim/clusterapi"
)

const layout = "all-1g.5gb"

// TestApplies: the clients are paused while steps are done, and run again when the kubelet has to
// see the new devices.
func TestApplies(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.engine.onLook = func(now api.OperationState) {
		switch now {
		case api.Running:
			for _, key := range []string{plugin, dcgm, dcgmExporter} {
				cmptest.Equal(t, key+" while steps are done", f.server.Label(key), paused)
			}

			cmptest.Equal(t, "state while steps are done", f.server.Label(state), "pending")
			cmptest.Equal(t, "status while steps are done", f.status, nodelabels.Status{
				Read: true, Config: layout, State: nodelabels.Pending, Applied: gpu.Some(false),
				Paused: []string{plugin, dcgmExporter, dcgm},
			})
		case api.Succeeded:
			f.expectClients()
		}
	}

	f.follow()
	f.expectState("success")
	f.expectClients()
	cmptest.Equal(t, "states", f.server.States(), []string{"pending", "success"})

	const by = "label:nvidia.com/mig.config by kubectl-label"
	cmptest.Equal(t, "actor", slices.Compact(f.engine.actors), []string{by})
	cmptest.Equal(t, "rights", f.engine.rights, control.Rights{Read: true, Plan: true, Apply: true, Mode: true})

	if len(f.audit) != 2 || f.audit[0].Ended || !f.audit[1].Ended || f.audit[1].Operation != "op-1" ||
		f.audit[0].Actor != by {
		t.Errorf("audit: %+v", f.audit)
	}

	plans := f.engine.plans

	f.follow()
	f.restart()
	f.follow()
	cmptest.Equal(t, "plans after that, and after a restart", f.engine.plans, plans)
	cmptest.Equal(t, "operations", f.engine.starts, 1)
	cmptest.Equal(t, "status", f.status.State, nodelabels.Success)
}

// TestStands: a layout that stands is a success without an operation, and no client is touched. So
// it is after a reboot.
func TestStands(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.engine.current = layout
	f.follow()
	f.expectState("success")
	cmptest.Equal(t, "states", f.server.States(), []string{"success"})
	cmptest.Equal(t, "operations", f.engine.starts, 0)

	f.opts.Boot = "boot-2"
	f.engine.current = ""
	f.restart()
	f.follow()
	cmptest.Equal(t, "operations after a reboot", f.engine.starts, 1)
	f.expectState("success")
}

// TestBusy: a busy instance is tried again, less and less often, and nothing is paused for that.
func TestBusy(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.engine.problem = map[string]*api.Problem{layout: problem(api.Busy, "pod ml/train holds MIG-1")}
	f.follow()
	f.expectState("failed", "pod ml/train holds MIG-1")
	cmptest.Equal(t, "states", f.server.States(), []string{"failed"})

	for range 5 {
		f.follow()
	}

	cmptest.Equal(t, "plans at once", f.engine.plans, 1)

	patches := f.patches()
	f.now = f.now.Add(61 * time.Second)
	f.follow()
	cmptest.Equal(t, "plans after a minute", f.engine.plans, 2)
	cmptest.Equal(t, "changes of the node without news", f.patches(), patches)

	f.now = f.now.Add(61 * time.Second)
	f.follow()
	cmptest.Equal(t, "plans after two", f.engine.plans, 2)

	f.engine.problem = nil
	f.now = f.now.Add(61 * time.Second)
	f.follow()
	f.expectState("success")

	if f.Note() != "" {
		t.Errorf("note: %s", f.Note())
	}
}

// TestFailureThatStays: it is tried again with another label, or another layout of that name, and
// neither in time nor after a restart.
func TestFailureThatStays(t *testing.T) {
	t.Parallel()

	f := newFixture(t, "ours")
	f.engine.problem = map[string]*api.Problem{"ours": problem(api.BadSpec, "no layout ours")}
	f.follow()
	f.expectState("failed", "no layout ours")
	f.now = f.now.Add(time.Hour)
	f.follow()
	f.restart()
	f.follow()
	cmptest.Equal(t, "plans", f.engine.plans, 1)

	if applied, known := f.status.Applied.Get(); applied || !known {
		t.Errorf("a layout that no file has is applied: %v, %v", applied, known)
	}

	f.engine.problem = nil
	f.server.SetConfigMap("gpu-operator/default-mig-parted-config",
		"version: v1\nmig-configs:\n  ours:\n  - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 2}}\n")
	f.now = f.now.Add(6 * time.Minute)
	f.follow()
	f.expectState("success")
	cmptest.Equal(t, "plans once there is such a layout", f.engine.plans, 3)
}

// TestFailedOperation: the clients are restored, and it is not repeated.
func TestFailedOperation(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.engine.ends = []api.OperationState{api.Running, api.RollingBack, api.RolledBack}
	f.engine.failure = problem(api.DriverFailed, "create 1g.5gb")
	f.follow()
	f.expectState("failed", "op-1 is rolled-back", "create 1g.5gb")
	f.expectClients()
	f.now = f.now.Add(time.Hour)
	f.follow()
	cmptest.Equal(t, "operations", f.engine.starts, 1)
	f.server.SetLabel(config, "all-balanced", "")

	f.engine.ends = []api.OperationState{api.Unsettled}
	f.follow()
	f.expectState("success", "op-1 is unsettled", "the kubelet")
}

// TestMIGManagerRuns: its state is left alone, also while it is not known whether it runs.
func TestMIGManagerRuns(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.server.SetLabel(state, "success", "nvidia-mig-manager")
	f.server.AddDaemonSet(clusterapi.DaemonSet{
		Namespace: "gpu-operator", Name: "nvidia-mig-manager",
		Labels: map[string]string{"app": "nvidia-mig-manager"},
	})
	f.follow()
	f.expectState("success")
	cmptest.Equal(t, "plans", f.engine.plans, 0)
	cmptest.Equal(t, "changes of the node", f.patches(), 0)
	cmptest.HasTexts(t, f.Note(), "mig-manager follows the label (pod gpu-operator/nvidia-mig-manager-x1)")

	owners, err := f.opts.Cluster.(interface {
		Owners(context.Context) (map[gpu.UUID][]string, error)
	}).Owners(t.Context())
	cmptest.Equal(t, "owners", fmt.Sprint(owners, err), "map[:[mig-manager (pod gpu-operator/nvidia-mig-manager-x1)]] <nil>")

	f.server.Forbid("list pods", true)

	f.now = f.now.Add(2 * time.Minute)
	f.follow()
	f.expectState("success")
	cmptest.Equal(t, "plans while it is not known", f.engine.plans, 0)
	cmptest.Equal(t, "changes of the node while it is not known", f.patches(), 0)
	cmptest.HasTexts(t, f.Note(), "whether mig-manager runs on this node is not known", "list pods")

	f.server.Forbid("list pods", false)
	f.server.RemoveDaemonSet("nvidia-mig-manager")

	f.now = f.now.Add(20 * time.Minute)
	f.follow()
	f.expectState("success")
}

// TestPlanOnly: with --control.mode=plan the node is not changed.
func TestPlanOnly(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout, func(o *nodelabels.Options) { o.Apply = false })
	f.follow()
	f.follow()
	cmptest.Equal(t, "changes of the node", f.patches(), 0)
	cmptest.Equal(t, "plans", f.engine.plans, 1)
	cmptest.Equal(t, "operations", f.engine.starts, 0)
	cmptest.HasTexts(t, f.Note(), "1 steps would be done on 1 GPUs")

	f.engine.problem = map[string]*api.Problem{layout: problem(api.Busy, "in use")}
	f.now = f.now.Add(time.Hour)
	f.follow()
	cmptest.HasTexts(t, f.Note(), "in use")
	cmptest.Equal(t, "changes of the node", f.patches(), 0)
}

// TestPausedByADeadProcess: what it has paused is restored, and nothing else. Until partition
// control has finished what that process has left, they stay paused, but not for ever.
func TestPausedByADeadProcess(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.server.SetLabel(dcgmExporter, "false", "admin")
	f.engine.ends = []api.OperationState{api.Running}
	ctx, kill := context.WithCancel(t.Context())

	// The process dies with the clients paused: its last requests do not arrive.
	f.engine.onLook = func(api.OperationState) {
		f.server.Forbid("patch nodes", true)
		kill()
	}

	_ = f.Follow(ctx)
	cmptest.Equal(t, "DCGM", f.server.Label(dcgm), paused)
	cmptest.Equal(t, "off by the administrator", f.server.Label(dcgmExporter), "false")

	f.server.Forbid("patch nodes", false)
	f.engine.onLook = nil
	f.engine.recovering = true
	f.server.SetLabel(plugin, "paused-for-driver-upgrade", "k8s-driver-manager")
	f.restart()
	f.follow()
	cmptest.Equal(t, "DCGM during the recovery", f.server.Label(dcgm), paused)

	f.now = f.now.Add(3 * time.Minute)
	f.follow()
	cmptest.Equal(t, "DCGM", f.server.Label(dcgm), "true")
	cmptest.Equal(t, "paused by another program", f.server.Label(plugin), "paused-for-driver-upgrade")
	cmptest.Equal(t, "off by the administrator", f.server.Label(dcgmExporter), "false")
	cmptest.Equal(t, "left to restore", f.server.Annotation(pausedBefore), "")

	f.engine.recovering = false
	f.engine.ends = []api.OperationState{api.Succeeded}
	f.follow()
	f.expectState("success")
}

// TestOwnPodIsNotPaused: a label that this process is scheduled by is left alone, and so is the
// device plugin's if the engine restarts that.
func TestOwnPodIsNotPaused(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout, func(o *nodelabels.Options) { o.KeepsPlugin = true })
	f.server.AddDaemonSet(clusterapi.DaemonSet{
		Namespace: "monitoring", Name: "mig-exporter", NodeSelector: map[string]string{dcgmExporter: "true"},
	})
	f.engine.onLook = func(now api.OperationState) {
		if now == api.Running {
			cmptest.Equal(t, "ours", f.server.Label(dcgmExporter), "true")
			cmptest.Equal(t, "device plugin", f.server.Label(plugin), "true")
			cmptest.Equal(t, "DCGM", f.server.Label(dcgm), paused)
		}
	}
	f.follow()
	f.expectState("success")
}

// TestLabelChangesMeanwhile: the state of the former layout is not written, and the next one is
// taken up after it.
func TestLabelChangesMeanwhile(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.engine.onLook = func(now api.OperationState) {
		if now == api.Running {
			f.server.SetLabel(config, "all-balanced", "argocd")
		}
	}
	f.follow()
	cmptest.Equal(t, "state", f.server.Label(state), "pending")

	f.engine.onLook = nil
	f.server.Meddle(2)
	f.follow()
	f.expectState("success")
	cmptest.Equal(t, "layout", f.engine.current, "all-balanced")
	cmptest.Equal(t, "the last actor", f.engine.actors[len(f.engine.actors)-1],
		"label:nvidia.com/mig.config by argocd")
	cmptest.Equal(t, "states", f.server.States(), []string{"pending", "success"})
}

// TestWaitsForOthers: while another client's operation is under way, nothing is done.
func TestWaitsForOthers(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)

	for _, s := range []api.OperationState{api.Running, api.RollingBack, api.Settling} {
		f.engine.others = []api.Operation{{ID: "theirs", State: s}}
		f.follow()
	}

	cmptest.Equal(t, "plans", f.engine.plans, 0)
	cmptest.Equal(t, "changes of the node", f.patches(), 0)

	f.engine.others = nil
	f.follow()
	f.expectState("success")
}

// TestModes: MIG modes are set before; one that waits for a reset is a failure, or a reboot if
// there is a command for that, once.
func TestModes(t *testing.T) {
	t.Parallel()

	off := func(f *fixture) {
		f.engine.gpus[0].MIG = gpu.Some(false)
		f.engine.gpus[0].Pending = gpu.Some(false)
		f.engine.problem = map[string]*api.Problem{layout: problem(api.ModeDiffers, "MIG is off")}
	}

	f := newFixture(t, layout)
	off(f)
	f.follow()
	f.expectState("success")
	cmptest.Equal(t, "modes", f.engine.modes, 1)

	f = newFixture(t, layout)
	off(f)

	f.engine.waits = true
	f.follow()
	f.expectState("failed", "until the next reset", "reset the GPU or reboot the node")
	f.expectClients()

	reboots := 0
	f = newFixture(t, layout, func(o *nodelabels.Options) {
		o.Reboot = func(context.Context) error {
			reboots++
			return nil
		}
	})
	off(f)

	f.engine.waits = true
	f.follow()
	cmptest.Equal(t, "state", f.server.Label(state), "rebooting")
	cmptest.Equal(t, "reboots", reboots, 1)
	f.expectClients()
	f.follow()

	f.opts.Boot = "boot-2"
	f.restart()
	f.follow()
	f.expectState("failed", "was started before")
	f.restart()
	f.follow()
	cmptest.Equal(t, "reboots", reboots, 1)
}

// TestReads: without an engine the node is only read; whether the layout stands is known.
func TestReads(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout, func(o *nodelabels.Options) { o.Engine = nil })
	f.server.SetLabel(state, "success", "nvidia-mig-manager")
	f.follow()

	if applied, known := f.status.Applied.Get(); applied || !known || f.status.State != nodelabels.Success {
		t.Errorf("an empty GPU: %+v", f.status)
	}

	profile := f.engine.gpus[0].Profiles[slices.IndexFunc(f.engine.gpus[0].Profiles,
		func(p gpu.Profile) bool { return p.Name == "1g.5gb" })]

	for i, at := range profile.Placements {
		f.engine.gpus[0].Instances = append(f.engine.gpus[0].Instances, mig.Instance{
			ID: gpu.InstanceID(i), Placed: mig.Placed{Profile: profile.Name, ProfileID: profile.ID, Placement: at},
			ComputeInstances: []mig.ComputeInstance{{Slices: 1}},
		})
	}

	f.restart()
	f.follow()

	if applied, known := f.status.Applied.Get(); !applied || !known {
		t.Errorf("seven instances: %+v", f.status)
	}

	f.server.Forbid("get configmaps", true)
	f.server.SetLabel(config, "theirs", "")
	f.restart()
	f.follow()

	if f.status.Applied.Present() {
		t.Errorf("a layout that may be in the ConfigMap: %+v", f.status)
	}

	cmptest.Equal(t, "changes of the node", f.patches(), 0)

	f.server.Forbid("get nodes", true)

	if err := f.Follow(t.Context()); !errors.Is(err, gpu.ErrNoPermission) {
		t.Errorf("a node that may not be read: %v", err)
	}
}

// TestNothingIsAskedForNothing: a node whose layout stands is read with one request.
func TestNothingIsAskedForNothing(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout)
	f.engine.current = layout
	f.follow()

	before := len(f.server.Requests())

	for range 10 {
		f.follow()
	}

	after := f.server.Requests()[before:]
	cmptest.Equal(t, "requests", strings.Join(slices.Compact(after), ", "), "GET /api/v1/nodes/node-1")
	cmptest.Equal(t, "number of requests", len(after), 10)
}

// TestAuditLogThatCannotBeWritten: nothing is done without its line.
func TestAuditLogThatCannotBeWritten(t *testing.T) {
	t.Parallel()

	f := newFixture(t, layout, func(o *nodelabels.Options) {
		o.Audit = func(nodelabels.AuditEntry) error { return errWriting }
	})
	f.follow()
	f.expectState("failed", "the audit log cannot be written")
	f.expectClients()
	cmptest.Equal(t, "operations", f.engine.starts, 0)
}
