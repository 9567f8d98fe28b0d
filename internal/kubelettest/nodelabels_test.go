package kubelettest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	configLabel = "nvidia.com/mig.config"
	stateLabel  = "nvidia.com/mig.config.state"
	dcgmLabel   = "nvidia.com/gpu.deploy.dcgm"
)

// labelLayouts are those of the ConfigMap: both are of GPU 8 alone.
const labelLayouts = `version: v1
mig-configs:
  small: [{devices: [8], mig-enabled: true, mig-devices: {1g.5gb: 2}}]
  large: [{devices: [8], mig-enabled: true, mig-devices: {3g.20gb: 1}}]
`

// TestNodeLabels: a layout that the node's label names is applied in the place of mig-manager, with
// the manager of the label, as the real API server records it, as the actor; the state is that of
// mig-manager, and a paused client runs again before the kubelet has to see the new devices.
func TestNodeLabels(t *testing.T) {
	c := startShared(t)
	c.awaitHolders(t, nil)
	c.createLayouts(t)

	small := c.plugins["nvidia.com/mig-1g.5gb"]
	large := c.plugins["nvidia.com/mig-3g.20gb"]
	offered, _ := small.offered()

	states := c.watchStates(t)
	c.label(t, map[string]any{dcgmLabel: "true", configLabel: "small"})

	created := c.awaitInstances(t, 8, 2)
	if err := await(time.Minute, func() error { return c.checkLabels("small", "pending") }); err != nil {
		t.Errorf("while the kubelet does not offer the new devices: %v", err)
	}

	large.offer()
	small.offer(append(slices.Clone(offered), created...)...)

	if err := await(time.Minute, func() error { return c.checkLabels("small", "success") }); err != nil {
		t.Error(err)
	}

	want := []string{"pending true", "pending paused-for-mig-change", "pending true", "success true"}
	if got := states(); !slices.Equal(got, want) && !slices.Equal(got, want[1:]) { // both labels may come at once
		t.Errorf("the state and a client were %q, want %q", got, want)
	}

	output, exit, err := c.migctl(c.ctx, "operations", "-o", "json")
	if err != nil || exit != 0 || !strings.Contains(output, `"label:`+configLabel+` by kubectl-label"`) {
		t.Errorf("exit code %d, %v: %s", exit, err, output)
	}

	c.label(t, map[string]any{configLabel: "none-such"})

	if err := await(time.Minute, func() error { return c.checkLabels("none-such", "failed") }); err != nil {
		t.Error(err)
	}

	small.offer(offered...)
	c.label(t, map[string]any{configLabel: "large"})

	uuids, err := c.awaitLayout(8, "3g.20gb")
	if err != nil {
		t.Error(err)
	}

	large.offer(uuids...)

	if err := await(time.Minute, func() error { return c.checkLabels("large", "success") }); err != nil {
		t.Error(err)
	}

	c.label(t, map[string]any{configLabel: nil, stateLabel: nil, dcgmLabel: nil})

	if err := c.awaitResources(); err != nil {
		t.Error(err)
	}
}

// createLayouts creates mig-manager's ConfigMap, as the chart's value nodeLabels.configMap names it.
func (c *cluster) createLayouts(t *testing.T) {
	t.Helper()

	_, err := c.client.CoreV1().ConfigMaps(pluginNamespace).Create(c.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "default-mig-parted-config"},
		Data:       map[string]string{"config.yaml": labelLayouts},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// watchStates records the state of the node with the value of a client's label, whenever one of them
// changes. states ends that and returns them.
func (c *cluster) watchStates(t *testing.T) (states func() []string) {
	t.Helper()

	// From the version that the node has now: to find the newest one the API server would ask etcd,
	// which Debian's does not answer.
	node, err := c.client.CoreV1().Nodes().Get(c.ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	w, err := c.client.CoreV1().Nodes().Watch(c.ctx, metav1.SingleObject(node.ObjectMeta))
	if err != nil {
		t.Fatal(err)
	}

	stop := make(chan struct{})
	done := make(chan []string, 1)

	go func() {
		var seen []string

		for event := range w.ResultChan() {
			node, ok := event.Object.(*corev1.Node)

			switch {
			case !ok && !isClosed(stop): // the end of the watch may be an error, too
				seen = append(seen, fmt.Sprint(event))
			case ok && node.Labels[stateLabel] != "":
				seen = append(seen, node.Labels[stateLabel]+" "+node.Labels[dcgmLabel])
			}
		}

		done <- slices.Compact(seen)
	}()

	return func() []string {
		close(stop)
		w.Stop()

		return <-done
	}
}

// isClosed reports whether a channel that nothing is sent to is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// label sets labels of the node as kubectl label does; nil removes one.
func (c *cluster) label(t *testing.T, labels map[string]any) {
	t.Helper()

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := c.client.CoreV1().Nodes().Patch(c.ctx, nodeName, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: "kubectl-label"}); err != nil {
		t.Fatal(err)
	}
}

// checkLabels returns an error unless the node has a layout in a state, and its client is not
// paused.
func (c *cluster) checkLabels(config, state string) error {
	node, err := c.client.CoreV1().Nodes().Get(c.ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}

	for label, want := range map[string]string{configLabel: config, stateLabel: state, dcgmLabel: "true"} {
		if got := node.Labels[label]; got != want {
			return fmt.Errorf("%s=%s, want %s: %s", label, got, want, node.Annotations["mig-exporter.io/mig-config-reason"])
		}
	}

	return nil
}
