package kubelettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// controlPage documents the role of a scheduler, from the folder of this package.
var controlPage = filepath.Join("..", "..", "docs", "partition-control.md")

// profiles are the manifests that are installed, each in the namespace: the exporter's of these
// tests first, which is that of control-plugin.yaml with all rights besides. Those of GKE and
// OpenShift need what only these have.
var profiles = []struct{ manifest, namespace string }{
	{"testdata/all-rights.yaml", chartNamespace},
	{"../../deploy/manifests/mig-exporter.yaml", "plain"},
	{"../../deploy/manifests/mig.yaml", "slices"},
	{"../../deploy/manifests/beside-dcgm-exporter.yaml", "beside"},
	{"../../deploy/manifests/gpu-operator.yaml", "operator"},
}

// monitorsNamespace has pods with claims for administrative access.
const monitorsNamespace = "monitoring"

// createObjects creates what controllers of a whole cluster would, namespaces with their service
// accounts and the certificate authority, and installs the exporter.
func (n *node) createObjects() error {
	ctx := context.Background()

	ca, err := os.ReadFile(n.pki.certFile("ca"))
	if err != nil {
		return err
	}

	namespaces := []string{"ml", "chat", "batch", monitorsNamespace, pluginNamespace}
	for _, profile := range profiles {
		namespaces = append(namespaces, profile.namespace)
	}

	for _, name := range namespaces {
		labels := map[string]string{}
		if name == monitorsNamespace {
			labels["resource.kubernetes.io/admin-access"] = "true"
		}

		_, err := n.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}

		if err := errors.Join(n.createServiceAccount(ctx, name, "default"), n.createRootCA(ctx, name, ca)); err != nil {
			return err
		}
	}

	_, err = n.client.NodeV1().RuntimeClasses().Create(ctx, &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "nvidia"}, Handler: "nvidia",
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}

	for _, profile := range profiles {
		m, err := readManifest(profile.manifest, profile.namespace)
		if err == nil {
			for i := range m.configMaps { // that of kubectl mig
				m.configMaps[i].Data["ca.crt"] = string(ca)
			}

			err = n.install(ctx, m)
		}

		if err != nil {
			return fmt.Errorf("install %s: %w", profile.manifest, err)
		}
	}

	return nil
}

func (n *node) createServiceAccount(ctx context.Context, namespace, name string) error {
	_, err := n.client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}, metav1.CreateOptions{})

	return err
}

// createRootCA creates the config map that the projected volume of a service account mounts.
func (n *node) createRootCA(ctx context.Context, namespace string, ca []byte) error {
	_, err := n.client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": string(ca)},
	}, metav1.CreateOptions{})

	return err
}

var yamlFence = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")

// documentedRoles returns the cluster roles of a page.
func documentedRoles(page string) (roles []rbacv1.ClusterRole, err error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}

	for _, fence := range yamlFence.FindAllSubmatch(text, -1) {
		for document := range bytes.SplitSeq(fence[1], []byte("\n---\n")) {
			var role rbacv1.ClusterRole
			if yaml.Unmarshal(document, &role) != nil || role.Kind != "ClusterRole" {
				continue // another kind, or a part of a document
			}

			if err := yaml.UnmarshalStrict(document, &role); err != nil {
				return nil, fmt.Errorf("%s: %w", page, err)
			}

			roles = append(roles, role)
		}
	}

	return roles, nil
}

// createPod creates a pod and waits until its containers run, or it has ended.
func (n *node) createPod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	created, err := n.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}

	return n.awaitPod(ctx, created, "Running")
}

// awaitPod waits for a phase of the pod; in Running all of its containers must be ready.
func (n *node) awaitPod(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase) (*corev1.Pod, error) {
	var now *corev1.Pod
	err := await(2*time.Minute, func() (err error) {
		now, err = n.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}

		ready := true
		for i := range now.Status.ContainerStatuses {
			ready = ready && (phase != corev1.PodRunning || now.Status.ContainerStatuses[i].Ready)
		}

		if now.Status.Phase != phase || !ready {
			return fmt.Errorf("pod %s/%s is %s: %s %s %+v", pod.Namespace, pod.Name, now.Status.Phase, now.Status.Reason,
				now.Status.Message, now.Status.ContainerStatuses)
		}

		return nil
	})

	return now, err
}

// deletePod deletes a pod and waits until the kubelet has let the API server forget it.
func (n *node) deletePod(ctx context.Context, namespace, name string) error {
	if err := n.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}

	return await(2*time.Minute, func() error {
		_, err := n.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}

		return fmt.Errorf("pod %s/%s is not gone", namespace, name)
	})
}
