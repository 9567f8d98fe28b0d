package kubelettest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// The conditions that the exporter writes.
const (
	gpuHealthy       = corev1.NodeConditionType("GPUHealthy")
	migLayoutApplied = corev1.NodeConditionType("MIGLayoutApplied")
)

// condition returns a condition of the node, or an error if it has none of that type.
func (c *cluster) condition(kind corev1.NodeConditionType) (corev1.NodeCondition, error) {
	node, err := c.client.CoreV1().Nodes().Get(c.ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return corev1.NodeCondition{}, err
	}

	for _, condition := range node.Status.Conditions {
		if condition.Type == kind {
			return condition, nil
		}
	}

	return corev1.NodeCondition{}, fmt.Errorf("the node has no condition %s: %v", kind, node.Status.Conditions)
}

// awaitCondition waits until a condition of the node is as check wants it.
func (c *cluster) awaitCondition(
	t *testing.T, kind corev1.NodeConditionType, timeout time.Duration, check func(corev1.NodeCondition) bool,
) corev1.NodeCondition {
	t.Helper()
	var found corev1.NodeCondition

	if err := await(timeout, func() (err error) {
		found, err = c.condition(kind)
		if err == nil && !check(found) {
			err = fmt.Errorf("condition %+v", found)
		}

		return err
	}); err != nil {
		t.Fatal(err)
	}

	return found
}

// TestNodeConditions: the exporter writes its conditions on the real Node, with a heartbeat, and
// Unknown when it ends in order. The kubelet goes on with its own, and neither takes away the
// other's.
func TestNodeConditions(t *testing.T) {
	c := startShared(t)
	is := func(status corev1.ConditionStatus) func(corev1.NodeCondition) bool {
		return func(condition corev1.NodeCondition) bool { return condition.Status == status }
	}

	// The tests before have ended exporters: better is shown after five minutes.
	healthy := c.awaitCondition(t, gpuHealthy, 7*time.Minute, is(corev1.ConditionTrue))
	if healthy.Reason != "GPUsHealthy" || healthy.Message == "" {
		t.Errorf("condition %+v, want the reason GPUsHealthy and a message", healthy)
	}

	// So is the end of the operations of the tests before.
	c.awaitCondition(t, migLayoutApplied, time.Minute, func(condition corev1.NodeCondition) bool {
		return condition.Status == corev1.ConditionTrue ||
			condition.Reason == "OperationUnderWay" && time.Since(condition.LastTransitionTime.Time) < 6*time.Minute
	})

	beat := c.awaitCondition(t, gpuHealthy, 2*time.Minute, func(condition corev1.NodeCondition) bool {
		return condition.LastHeartbeatTime.After(healthy.LastHeartbeatTime.Time)
	})
	if !beat.LastTransitionTime.Equal(&healthy.LastTransitionTime) || beat.Status != corev1.ConditionTrue {
		t.Errorf("after a heartbeat %+v, before %+v: want another heartbeat alone", beat, healthy)
	}

	record("the heartbeat of GPUHealthy comes after %s", beat.LastHeartbeatTime.Sub(healthy.LastHeartbeatTime.Time))
	c.awaitCondition(t, corev1.NodeReady, time.Minute, is(corev1.ConditionTrue))

	if err := c.deletePod(c.ctx, c.exporter.Namespace, c.exporter.Name); err != nil {
		t.Fatal(err)
	}

	for _, kind := range []corev1.NodeConditionType{gpuHealthy, migLayoutApplied} {
		stopped := c.awaitCondition(t, kind, time.Minute, is(corev1.ConditionUnknown))
		if stopped.Reason != "ExporterStopped" || !stopped.LastTransitionTime.After(beat.LastTransitionTime.Time) {
			t.Errorf("after the exporter's end: %+v, want ExporterStopped and another transition", stopped)
		}
	}

	c.startExporterAgain(t, "n2c8s")
	// Better is shown after five minutes: until then the heartbeat goes on.
	stopped, err := c.condition(gpuHealthy)
	if err != nil {
		t.Fatal(err)
	}

	c.awaitCondition(t, gpuHealthy, 2*time.Minute, func(condition corev1.NodeCondition) bool {
		return condition.LastHeartbeatTime.After(stopped.LastHeartbeatTime.Time)
	})
}

// awaitEvent waits for an Event on the node about an operation.
func (c *cluster) awaitEvent(t *testing.T, reason, operation string) {
	t.Helper()
	// By the name as the UID, as kubectl describe looks for them.
	selector := fields.Set{"involvedObject.kind": "Node", "involvedObject.uid": nodeName, "reason": reason}

	if err := await(time.Minute, func() error {
		list, err := c.client.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{
			FieldSelector: selector.String(),
		})
		if err != nil {
			return err
		}

		for i := range list.Items {
			if strings.Contains(list.Items[i].Message, operation) {
				return nil
			}
		}

		return fmt.Errorf("%d Events %s on the node, none of operation %s", len(list.Items), reason, operation)
	}); err != nil {
		t.Error(err)
	}
}

// TestNodePolicy: of the rights to patch nodes and nodes/status, the admission policy leaves an
// exporter its own node, and of that what it needs.
func TestNodePolicy(t *testing.T) {
	c := startShared(t)
	c.createNode(t, "another-node")

	own := c.ownToken(t)
	another := c.tokenFor(t, c.bind(t, c.installed[0].pod("elsewhere")))
	unbound := c.tokenFor(t, nil)

	const (
		merge     = "application/merge-patch+json"
		strategic = "application/strategic-merge-patch+json"
		cordon    = `{"spec": {"unschedulable": true}, "metadata": {"annotations": {"mig-exporter.io/cordoned-by": "x"}}}`
		health    = `{"status": {"conditions": [{"type": "GPUHealthy", "status": "True", "reason": "r", "message": "m"}]}}`
		ready     = `{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m"}]}}`
		paused    = `{"metadata": {"labels": {"nvidia.com/gpu.deploy.dcgm": "paused-for-mig-change"}}}`
		wanted    = `{"metadata": {"labels": {"nvidia.com/mig.config": "all-disabled"}}}`
		taint     = `{"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}`
		wrongNode = "may only change the node that its token was issued for"
		elsewhere = coreAPI + "/nodes/another-node"
	)

	for _, call := range []struct {
		about, token, path, kind, body string
		status                         int
		says                           string
	}{
		{"cordon its own node", own, nodePath, merge, cordon, 200, ""},
		{"its own node's health", own, nodePath + "/status", strategic, health, 200, ""},
		{"pause a client of its own node", own, nodePath, merge, paused, 200, ""},
		{"cordon another node", own, elsewhere, merge, cordon, 403, wrongNode},
		{"another node's health", own, elsewhere + "/status", strategic, health, 403, wrongNode},
		{"pause a client of another node", own, elsewhere, merge, paused, 403, wrongNode},
		{"cordon this node by another node's token", another, nodePath, merge, cordon, 403, wrongNode},
		{"this node's health by another node's token", another, nodePath + "/status", strategic, health, 403, wrongNode},
		{"another node by its own token", another, elsewhere, merge, cordon, 200, ""},
		{"a token of no node", unbound, nodePath, merge, cordon, 403, wrongNode},
		{"health by a token of no node", unbound, nodePath + "/status", strategic, health, 403, wrongNode},
		{"a taint", own, nodePath, merge, taint, 403, "may only change unschedulable"},
		{"the layout that is wanted", own, nodePath, merge, wanted, 403, "of the labels of its node"},
		{"the kubelet's condition", own, nodePath + "/status", strategic, ready, 403, "may only change the conditions"},
	} {
		status, body, err := c.send("PATCH", apiServer+call.path+"?dryRun=All", call.token, call.kind, call.body)
		if err != nil || status != call.status || !strings.Contains(body, call.says) {
			t.Errorf("%s: %d %v, want %d with %q: %.300s", call.about, status, err, call.status, call.says, body)
		}
	}
}

// createNode creates a Node without a kubelet until the test ends.
func (c *cluster) createNode(t *testing.T, name string) {
	t.Helper()

	nodes := c.client.CoreV1().Nodes()
	if _, err := nodes.Create(c.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := nodes.Delete(c.ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}
