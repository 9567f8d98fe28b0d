package promtest

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/sim/clusterapi"
)

// labelled is a node with two GPUs of the same layout, which the ConfigMap calls mixed.
const labelled = `version: 1
node: {hostname: gpu-node-1, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus:
  - {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0"]}
  - {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0"]}
`

const mixed = `version: v1
mig-configs:
  mixed:
  - {devices: all, mig-enabled: true, mig-devices: {3g.20gb: 1, 2g.10gb: 1}}
`

// TestRulesOnTheLabelOfTheLayout: mig-manager cannot apply the layout that a node's label names.
// After a while that is an alert, until the label names one that stands. So are clients that it has
// left paused.
func TestRulesOnTheLabelOfTheLayout(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()

	api, err := clusterapi.Start(dir)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(api.Close)
	api.SetConfigMap("gpu-operator/default-mig-parted-config", mixed)
	api.SetLabel("nvidia.com/mig.config", "mixed", "kubectl-label")
	api.SetLabel("nvidia.com/mig.config.state", "success", "nvidia-mig-manager")

	r := newRollout(t, labelled, "--kubernetes.node-name="+clusterapi.NodeName, "--kubernetes.node-labels=read")
	r.env = append(r.env, "MIG_SIM_API_SERVER="+api.URL, "MIG_SIM_API_CREDENTIALS="+dir)
	r.start("gpu-node-1", "mig-exporter-a")
	r.run(time.Minute)
	r.serves(`mig_node_config_applied 1`)
	r.run(20 * time.Minute)
	api.SetLabel("nvidia.com/mig.config", "all-1g.5gb", "kubectl-label")
	api.SetLabel("nvidia.com/mig.config.state", "failed", "nvidia-mig-manager")
	r.serves(`mig_node_config_info{config="all-1g.5gb",state="failed"} 1`)
	r.serves(`mig_node_config_applied 0`)
	r.run(45 * time.Minute)
	api.SetLabel("nvidia.com/mig.config", "mixed", "kubectl-label")
	api.SetLabel("nvidia.com/mig.config.state", "success", "nvidia-mig-manager")
	r.serves(`mig_node_config_applied 1`)
	r.run(60 * time.Minute)
	api.SetLabel("nvidia.com/gpu.deploy.dcgm", "paused-for-mig-change", "nvidia-mig-manager")
	r.serves(`mig_node_paused_clients 1`)
	r.run(100 * time.Minute)
	api.SetLabel("nvidia.com/gpu.deploy.dcgm", "true", "kubectl-label")
	r.serves(`mig_node_paused_clients 0`)
	r.run(120 * time.Minute)
	r.expectStory("MigConfigNotApplied", "MigClientsPaused")
	r.expectSummary("MigConfigNotApplied", "gpu-node-1 lacks the layout all-1g.5gb that its label asks for.")
}

// serves waits until the exporter serves a line, or until go test ends the test.
func (r *rollout) serves(line string) {
	r.t.Helper()

	for !bytes.Contains(r.exporters[0].request(http.MethodGet, "/metrics"), []byte(line)) {
	}
}
