package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/sim/clusterapi"
)

// The label of a layout from outside: the built program, and an API server with its node.

const (
	configLabel  = "nvidia.com/mig.config"
	stateLabel   = "nvidia.com/mig.config.state"
	dcgmLabel    = "nvidia.com/gpu.deploy.dcgm"
	reasonOnNode = "mig-exporter.io/mig-config-reason"
	pausedOnNode = "mig-exporter.io/paused-clients"
)

// labelled is a node with partition control and its API server.
type labelled struct {
	*controlled
	api      *clusterapi.Server
	scenario string
	args     []string
}

// startClusterAPI starts an API server, which the programs of this test take for that of their node.
func startClusterAPI(t *testing.T) *clusterapi.Server {
	t.Helper()

	dir := t.TempDir()

	api, err := clusterapi.Start(dir)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(api.Close)
	t.Setenv(apiServerVariable, api.URL)
	t.Setenv(credentialsVariable, dir)

	return api
}

// labelledNode starts the API server, and the program beside it.
func labelledNode(t *testing.T, scenario string, args ...string) *labelled {
	t.Helper()

	api := startClusterAPI(t)
	api.SetLabel(dcgmLabel, "true", "gpu-operator")
	api.AddDaemonSet(clusterapi.DaemonSet{
		Namespace: "gpu-operator", Name: "nvidia-dcgm", NodeSelector: map[string]string{dcgmLabel: "true"},
	})

	n := &labelled{api: api, scenario: write(t, "s.yaml", scenario), args: append([]string{
		"--kubernetes.node-name=" + clusterapi.NodeName,
	}, args...)}
	if !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "node-labels") }) {
		n.args = append(n.args, "--kubernetes.node-labels=follow")
	}

	n.controlled = controlNode(t, n.scenario, n.args...)

	return n
}

// await waits until a label of the node has a value.
func (n *labelled) await(key, value string) {
	n.t.Helper()

	end := time.Now().Add(testTimeout)
	for n.api.Label(key) != value {
		if time.Now().After(end) {
			n.t.Fatalf("%s=%s, want %s; %s\n%s", key, n.api.Label(key), value, n.api.Annotation(reasonOnNode),
				n.logText())
		}

		time.Sleep(10 * time.Millisecond) // the program writes the label on its own, and tells nothing
	}
}

const labelledScenario = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus:
- {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0"]}
- {model: A100-40GB, mig: true}
`

// TestNodeLabelsApply: the label becomes an operation with its manager as the actor, and the state
// is mig-manager's. Another label afterwards is taken up, the same one after a restart is not.
func TestNodeLabelsApply(t *testing.T) {
	t.Setenv(stateVariable, filepath.Join(t.TempDir(), "node.json"))

	n := labelledNode(t, labelledScenario)
	n.idle()
	n.api.SetLabel(configLabel, "all-1g.5gb", "kubectl-label")
	n.await(stateLabel, "success")
	cmptest.Equal(t, "states", n.api.States(), []string{"pending", "success"})
	cmptest.Equal(t, "DCGM", n.api.Label(dcgmLabel), "true")

	n.until("the layout is served as applied", func(s series) bool {
		return slices.Equal(s.of("mig_node_config_applied"), []float64{1}) &&
			slices.Equal(s.of("mig_node_config_info", `config="all-1g.5gb"`, `state="success"`), []float64{1})
	})

	if s := n.scrape(); len(s.of("nvidia_mig_gpu_instance_processes", `mig_profile="1g.5gb"`)) != 14 {
		t.Error("not 14 instances of 1g.5gb")
	}

	_, states := n.operations()
	cmptest.Equal(t, "operations", states, []string{"apply succeeded"})
	n.expectAudit("label:nvidia.com/mig.config by kubectl-label", "begin apply all-1g.5gb", "end apply all-1g.5gb")

	n.stop()

	n.controlled = controlNodeIn(t, n.dir, n.scenario, n.args...)
	n.idle()
	n.api.SetLabel(configLabel, "all-disabled", "argocd")
	n.until("the GPUs are out of MIG mode", func(s series) bool {
		return slices.Equal(s.of("mig_node_config_info", `config="all-disabled"`, `state="success"`), []float64{1}) &&
			slices.Equal(s.of("mig_node_config_applied"), []float64{1})
	})

	_, states = n.operations()
	cmptest.Equal(t, "operations", len(states), 1+2*2) // each GPU is emptied, and its mode set
	n.expectAudit("label:nvidia.com/mig.config by argocd", "begin mig-mode GPU-")
}

// expectAudit wants lines of an actor in the audit log: each is the phase and the beginning of the
// request.
func (n *labelled) expectAudit(actor string, lines ...string) {
	n.t.Helper()

	text, err := os.ReadFile(filepath.Join(n.dir, "state", auditFile))
	if err != nil {
		n.t.Fatal(err)
	}

	var have []string

	for line := range strings.Lines(string(text)) {
		var e struct{ Actor, Phase, Request, Method string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			n.t.Error(err)
		}

		if e.Actor == actor && e.Method == "label" {
			have = append(have, e.Phase+" "+e.Request)
		}
	}

	for _, line := range lines {
		if !slices.ContainsFunc(have, func(h string) bool { return strings.HasPrefix(h, line) }) {
			n.t.Errorf("the audit log lacks %q of %s: %q\n%s", line, actor, have, text)
		}
	}
}

// heldScenario is a node on which a pod holds the larger instance.
const heldScenario = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
- {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0"]}
workloads:
- {name: serve, memory: 2GiB, sm: 10}
pods:
- {namespace: ml, name: stays, container: main, resource: nvidia.com/mig-3g.20gb, workload: serve}
`

// TestNodeLabelsBusy: a busy instance is not destroyed: the state is failed with the reason, and no
// client was paused for that. Where a mig-manager runs, nothing is done at all.
func TestNodeLabelsBusy(t *testing.T) {
	n := labelledNode(t, heldScenario)
	n.idle()
	n.advance(time.Second)
	n.api.SetLabel(configLabel, "all-1g.5gb", "kubectl-label")
	n.await(stateLabel, "failed")
	cmptest.Equal(t, "states", n.api.States(), []string{"failed"})

	if why := n.api.Annotation(reasonOnNode); !strings.Contains(why, "3g.20gb@4:4, busy") {
		t.Errorf("reason: %s", why)
	}

	// The follower reports to the program after it has written to the node.
	n.until("the layout is served as failed", func(s series) bool {
		return slices.Equal(s.of("mig_node_config_info", `config="all-1g.5gb"`, `state="failed"`), []float64{1}) &&
			slices.Equal(s.of("mig_node_config_applied"), []float64{0})
	})

	r := n.get("/-/ready")
	cmptest.Equal(t, "ready", r.status, http.StatusOK)
	cmptest.HasTexts(t, string(r.body), "the layout of the node's label is not applied: ")
}

// TestNodeLabelsBesideMIGManager: the exporter leaves the label to a mig-manager on its node, and
// refuses all other changes as well.
func TestNodeLabelsBesideMIGManager(t *testing.T) {
	n := labelledNode(t, labelledScenario)
	n.idle()
	n.api.AddDaemonSet(clusterapi.DaemonSet{
		Namespace: "gpu-operator", Name: "nvidia-mig-manager",
		Labels: map[string]string{"app": "nvidia-mig-manager"},
	})
	n.api.SetLabel(configLabel, "all-1g.5gb", "kubectl-label")
	n.waitFor("mig-manager follows the label")
	cmptest.Equal(t, "state", n.api.Label(stateLabel), "")

	out := n.must(1, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=7")
	cmptest.HasTexts(t, strings.Join(strings.Fields(out), " "), "mig-manager (pod gpu-operator/nvidia-mig-manager-x1)")

	n.api.RemoveDaemonSet("nvidia-mig-manager")
	n.must(0, "apply", "--yes", "--gpus", "0", "--devices", "1g.5gb=7")
}

// TestNodeLabelsPlanOnly: the node is not changed, and readiness says what would be done.
func TestNodeLabelsPlanOnly(t *testing.T) {
	n := labelledNode(t, labelledScenario, planOnly)
	n.api.SetLabel(configLabel, "all-1g.5gb", "kubectl-label")
	n.waitFor("--control.mode=plan changes nothing")
	n.expectNote("steps would be done on 2 GPUs")
	cmptest.Equal(t, "state", n.api.Label(stateLabel), "")
	n.until("it does not stand", func(s series) bool {
		return slices.Equal(s.of("mig_node_config_applied"), []float64{0})
	})

	for _, r := range n.api.Requests() {
		if strings.HasPrefix(r, http.MethodPatch) {
			t.Errorf("the node was changed: %s", r)
		}
	}
}

// TestNodeLabelsAfterKill: the process is killed in mid-operation, while the clients are paused.
// The next one rolls back, restores them, and applies the layout.
func TestNodeLabelsAfterKill(t *testing.T) {
	t.Setenv(stateVariable, filepath.Join(t.TempDir(), "node.json"))

	n := labelledNode(t, labelledScenario+"faults: [{for: 10s, gpu: 0, kind: hang, on: create-gi, after: 1}]\n")
	n.idle()
	n.api.SetLabel(configLabel, "all-1g.5gb", "kubectl-label")
	n.await(stateLabel, "pending")
	n.until("the operation runs", func(s series) bool {
		return slices.Equal(s.of("mig_control_state", `state="running"`), []float64{1})
	})
	cmptest.Equal(t, "DCGM", n.api.Label(dcgmLabel), "paused-for-mig-change")

	n.signal(syscall.SIGKILL)
	n.exitCode()

	n.controlled = controlNodeIn(t, n.dir, n.scenario, n.args...)
	n.advance(11 * time.Second)
	n.await(dcgmLabel, "true")
	n.await(stateLabel, "success")
	cmptest.Equal(t, "left to restore", n.api.Annotation(pausedOnNode), "")
	cmptest.Equal(t, "DCGM", n.api.Label(dcgmLabel), "true")
}

// TestNodeLabelsOnlyRead: without partition control, the metrics say whether mig-manager's layout
// stands.
func TestNodeLabelsOnlyRead(t *testing.T) {
	api := startClusterAPI(t)
	api.SetLabel(configLabel, "all-balanced", "kubectl-label")
	api.SetLabel(stateLabel, "failed", "nvidia-mig-manager")

	p := launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+write(t, "s.yaml", labelledScenario),
		"--kubernetes.node-name="+clusterapi.NodeName, "--kubernetes.node-labels=read")
	p.until("it has failed", func(s series) bool {
		return slices.Equal(s.of("mig_node_config_info", `config="all-balanced"`, `state="failed"`), []float64{1}) &&
			slices.Equal(s.of("mig_node_config_applied"), []float64{0})
	})
}

// TestNodeLabelsFlag: what cannot be is refused with the flag that says it.
func TestNodeLabelsFlag(t *testing.T) {
	for args, want := range map[string]string{
		"--kubernetes.node-labels=read":                                              "expected --kubernetes.node-name with it",
		"--kubernetes.node-labels=follow --kubernetes.node-name=n":                   "expected --control.enabled with it",
		"--kubernetes.node-labels=yes":                                               "expected off, read or follow",
		"--kubernetes.node-labels=read:nowhere --kubernetes.node-name=n":             "perhaps with :NAMESPACE/NAME",
		"--kubernetes.node-labels=read:a/b --kubernetes.node-name=n":                 "",
		"--kubernetes.node-labels=follow --kubernetes.node-name=n --control.enabled": "",
		`--control.enabled --control.hook={"reboot":["reboot"]}`:                     "",
		`--control.enabled --control.hook={"reboot":"reboot"}`:                       "--control.hook",
		`--control.enabled --control.hook={"boot":["reboot"]}`:                       "--control.hook",
	} {
		_, err := parseCommandLine(strings.Fields(args), nil)
		expectError(t, args, err, want)
	}

	p := launchAnyhow(t, "--driver=sim", "--kubernetes.node-name=n", "--kubernetes.node-labels=read")
	p.lines()
	cmptest.Equal(t, "exit code without a cluster", p.exitCode(), exitFailure)
	cmptest.HasTexts(t, p.logText(), "--kubernetes.node-labels=read: expected a Kubernetes cluster around this process")
}
