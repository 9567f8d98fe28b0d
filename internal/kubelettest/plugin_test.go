package kubelettest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The device plugin's pods, as values/device-plugin.yaml of the chart names them.
const (
	pluginNamespace = "gpu-operator"
	pluginApp       = "nvidia-device-plugin-daemonset"
)

// newPluginPod returns a pod of the device plugin's DaemonSet on the node.
func newPluginPod(name string) *corev1.Pod {
	pod := ownedBy(newPod(pluginNamespace, name, newContainer("main", "", 0)), "DaemonSet", pluginApp)
	pod.Labels = map[string]string{"app": pluginApp}

	return pod
}

// replaceExporter starts the exporter anew with further arguments.
func (c *cluster) replaceExporter(t *testing.T, suffix string, args ...string) {
	t.Helper()

	if err := c.deletePod(c.ctx, c.exporter.Namespace, c.exporter.Name); err != nil {
		t.Fatal(err)
	}

	c.createExporterPod(t, suffix, args...)
}

// startExporterAgain starts the exporter after its end, with the arguments of most tests.
func (c *cluster) startExporterAgain(t *testing.T, suffix string) {
	t.Helper()
	c.createExporterPod(t, suffix, usualArgs...)
}

func (c *cluster) createExporterPod(t *testing.T, suffix string, args ...string) {
	t.Helper()

	pod, err := c.createExporter(c.ctx, suffix, args...)
	if err != nil {
		t.Fatal(err)
	}

	c.exporter = pod
	c.awaitComplete(t, 3*time.Minute)
}

// operation is what the tests read of an operation.
type operation struct {
	ID, State string
	WaitsFor  []string
	Cordoned  bool
}

// lastOperation returns the latest operation of partition control.
func (c *cluster) lastOperation() (operation, error) {
	output, exit, err := c.migctl(c.ctx, "operations", "-o", "json")
	if err != nil || exit != 0 {
		return operation{}, fmt.Errorf("exit code %d, %w: %s", exit, err, output)
	}

	var list struct{ Operations []operation }
	if err := json.Unmarshal([]byte(output), &list); err != nil {
		return operation{}, err
	}

	if len(list.Operations) == 0 {
		return operation{}, errors.New("there is no operation")
	}

	return list.Operations[0], nil
}

// awaitOperation waits until the latest operation is in a state.
func (c *cluster) awaitOperation(t *testing.T, state string) {
	t.Helper()

	if err := await(time.Minute, func() error {
		op, err := c.lastOperation()
		if err == nil && op.State != state {
			err = fmt.Errorf("operation %+v, want it %s", op, state)
		}

		return err
	}); err != nil {
		t.Error(err)
	}
}

// checkUnsettled compares the number of unsettled operations that the exporter counts.
func checkUnsettled(want float64) error {
	families, err := scrape()
	if err != nil {
		return err
	}

	metrics := families["mig_control_unsettled_operations"].GetMetric()
	if len(metrics) != 1 || metrics[0].GetGauge().GetValue() != want {
		return fmt.Errorf("unsettled operations: %v, want %v", metrics, want)
	}

	return nil
}

// TestControlUnsettled: an operation whose destroyed devices are still on offer is unsettled, with
// exit code 6, on a cordoned node, also after a restart of the exporter. Once the device plugin was
// restarted by hand it succeeds by itself.
func TestControlUnsettled(t *testing.T) {
	c := startShared(t)
	c.awaitHolders(t, nil)
	small := c.plugins["nvidia.com/mig-1g.5gb"]
	large := c.plugins["nvidia.com/mig-3g.20gb"]
	offered, _ := small.offered()

	output, exit, err := c.migctl(c.ctx, "apply", "--yes", "--gpus=8", "--devices=1g.5gb=2")
	if err != nil || exit != 6 || !strings.Contains(output, "the kubelet to stop offering") {
		t.Fatalf("exit code %d, %v, want 6 and what is waited for: %s", exit, err, output)
	}

	if err := errors.Join(c.checkCordon(true), checkUnsettled(1)); err != nil {
		t.Error(err)
	}

	c.replaceExporter(t, "u1n5t", usualArgs...)

	if err := await(time.Minute, func() error {
		op, err := c.lastOperation()
		if err == nil && (op.State != "unsettled" || !op.Cordoned || len(op.WaitsFor) == 0) {
			err = fmt.Errorf("operation after a restart of the exporter: %+v, want it unsettled and cordoned", op)
		}

		return errors.Join(err, c.checkCordon(true), checkUnsettled(1))
	}); err != nil {
		t.Error(err)
	}

	created := c.awaitInstances(t, 8, 2)
	cured := time.Now()
	large.offer()
	small.offer(append(slices.Clone(offered), created...)...)
	c.awaitOperation(t, "succeeded")
	record("an unsettled operation succeeds %s after the device plugin has followed", time.Since(cured).Round(100*time.Millisecond))

	if err := await(time.Minute, func() error { return errors.Join(c.checkCordon(false), checkUnsettled(0)) }); err != nil {
		t.Error(err)
	}

	c.repartitionWithPlugin(t, offered)
}

// repartitionWithPlugin gives GPU 8 its layout again by an exporter that knows which pods are the
// device plugin's: it ends the plugin's pod, and the operation succeeds when the successor offers
// what exists.
func (c *cluster) repartitionWithPlugin(t *testing.T, offered []string) {
	t.Helper()
	c.replaceExporter(t, "p1u9n")

	former, err := c.createPod(c.ctx, newPluginPod("plugin-a"))
	if err != nil {
		t.Fatal(err)
	}

	replaced := make(chan error, 1)
	go func() { replaced <- c.replacePlugin(former, offered) }()

	output, exit, err := c.migctl(c.ctx, "apply", "--yes", "--gpus=8", "--devices=3g.20gb=1")
	if err != nil || exit != 0 {
		t.Errorf("exit code %d, %v, want 0: %s", exit, err, output)
	}

	if err := <-replaced; err != nil {
		t.Errorf("the device plugin: %v; migctl: %s", err, output)
	}

	if err := await(time.Minute, func() error { return errors.Join(c.checkCordon(false), checkUnsettled(0)) }); err != nil {
		t.Error(err)
	}

	if err := c.deletePod(c.ctx, pluginNamespace, "plugin-b"); err != nil {
		t.Error(err)
	}

	c.replaceExporter(t, "x8k2p", usualArgs...)

	if err := c.awaitResources(); err != nil {
		t.Error(err)
	}
}

// replacePlugin does what the controller of DaemonSets does, and the plugin in its pods: when the
// former pod is gone its devices are, and another one is created, which offers what exists then.
// The node must be cordoned until then.
func (c *cluster) replacePlugin(former *corev1.Pod, offered []string) error {
	pods := c.client.CoreV1().Pods(pluginNamespace)

	if err := await(2*time.Minute, func() error {
		_, err := pods.Get(c.ctx, former.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}

		return errors.New("the former pod was not ended")
	}); err != nil {
		return err
	}

	ended := time.Now()
	small := c.plugins["nvidia.com/mig-1g.5gb"]
	large := c.plugins["nvidia.com/mig-3g.20gb"]
	small.offer()

	if _, err := c.createPod(c.ctx, newPluginPod("plugin-b")); err != nil {
		return err
	}

	uuids, err := c.awaitLayout(8, "3g.20gb")
	if err := errors.Join(err, c.checkCordon(true)); err != nil {
		return err
	}

	large.offer(uuids...)
	small.offer(offered...)
	record("the device plugin's pod was replaced within %s", time.Since(ended).Round(100*time.Millisecond))

	return nil
}

// tokenFor returns a token of the exporter's service account that was issued to a pod; to none if
// it is nil.
func (c *cluster) tokenFor(t *testing.T, pod *corev1.Pod) string {
	t.Helper()

	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name,
			UID: pod.UID}
	}

	reply, err := c.client.CoreV1().ServiceAccounts(chartNamespace).CreateToken(c.ctx, c.installed[0].account(), request,
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	return reply.Status.Token
}

// bind creates a pod that another node is to run, which does not exist: it stays pending.
func (c *cluster) bind(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	pod.Spec.NodeName = "another-node"

	created, err := c.client.CoreV1().Pods(pod.Namespace).Create(c.ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		opts := metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}
		if err := c.client.CoreV1().Pods(pod.Namespace).Delete(c.ctx, pod.Name, opts); err != nil {
			t.Error(err)
		}
	})

	return created
}

// TestDevicePluginPolicy: of the right to delete the pods of a namespace, the admission policy
// leaves an exporter the device plugin's pods of its own node.
func TestDevicePluginPolicy(t *testing.T) {
	c := startShared(t)
	plugin := c.run(t, newPluginPod("plugin-here"))
	elsewhere := c.bind(t, newPluginPod("plugin-elsewhere"))
	bare := newPluginPod("bare")
	bare.OwnerReferences = nil
	c.run(t, bare)
	other := newPluginPod("other")
	other.Labels["app"] = "nvidia-dcgm"
	c.run(t, other)

	exporter := c.bind(t, c.installed[0].pod("elsewhere"))
	own := c.ownToken(t)
	another := c.tokenFor(t, exporter)
	unbound := c.tokenFor(t, nil)

	const node, labels, owner = "pods of the node that its token was issued for", "device plugin's pods", "a DaemonSet owns"
	for _, call := range []struct {
		about, token, pod string
		status            int
		says              string
	}{
		{"its own node's", own, plugin.Name, 200, ""},
		{"its own node's, by another node's token", another, plugin.Name, 403, node},
		{"its own node's, by a token of no node", unbound, plugin.Name, 403, node},
		{"another node's", own, elsewhere.Name, 403, node},
		{"another node's, by that node's token", another, elsewhere.Name, 200, ""},
		{"a bare pod", own, bare.Name, 403, owner},
		{"another DaemonSet's", own, other.Name, 403, labels},
	} {
		path := coreAPI + "/namespaces/" + pluginNamespace + "/pods/" + call.pod + "?dryRun=All"

		status, body, err := c.send("DELETE", apiServer+path, call.token, "", "")
		if err != nil || status != call.status || !strings.Contains(body, call.says) {
			t.Errorf("%s: %d %v, want %d with %q: %.300s", call.about, status, err, call.status, call.says, body)
		}
	}
}
