package kubelettest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// chartNamespace is the namespace for which deploy/manifests is rendered.
const chartNamespace = "monitoring"

// manifest is what the Helm chart renders with one of its values files, as deploy/manifests has it:
// make test-chart holds that those files are current.
type manifest struct {
	namespace string
	daemonSet appsv1.DaemonSet
	account   corev1.ServiceAccount
	roles     []rbacv1.ClusterRole
	bindings  []rbacv1.ClusterRoleBinding

	// What limits the right to restart the device plugin.
	pluginRoles    []rbacv1.Role
	pluginBindings []rbacv1.RoleBinding
	policies       []admissionv1.ValidatingAdmissionPolicy
	policyBindings []admissionv1.ValidatingAdmissionPolicyBinding
}

// readManifest reads a file of deploy/manifests as if the chart had been installed in a namespace:
// its templates write no other word that contains the name of chartNamespace.
func readManifest(profile, namespace string) (*manifest, error) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "manifests", profile+".yaml"))
	if err != nil {
		return nil, err
	}

	text = bytes.ReplaceAll(text, []byte(chartNamespace), []byte(namespace))

	m := &manifest{namespace: namespace}
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		if err := m.add(document); err != nil {
			return nil, fmt.Errorf("manifest %s: %w", profile, err)
		}
	}

	return m, nil
}

func (m *manifest) add(document []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}

	switch kind.Kind {
	case "DaemonSet":
		return yaml.UnmarshalStrict(document, &m.daemonSet)
	case "ServiceAccount":
		return yaml.UnmarshalStrict(document, &m.account)
	case "ClusterRole":
		return appendObject(document, &m.roles)
	case "ClusterRoleBinding":
		return appendObject(document, &m.bindings)
	case "Role":
		return appendObject(document, &m.pluginRoles)
	case "RoleBinding":
		return appendObject(document, &m.pluginBindings)
	case "ValidatingAdmissionPolicy":
		return appendObject(document, &m.policies)
	case "ValidatingAdmissionPolicyBinding":
		return appendObject(document, &m.policyBindings)
	case "Service", "NetworkPolicy", "": // nothing here implements them, and the first line is a comment
		return nil
	}

	return fmt.Errorf("kind %q is not known here", kind.Kind)
}

func appendObject[T any](document []byte, list *[]T) error {
	var one T
	if err := yaml.UnmarshalStrict(document, &one); err != nil {
		return err
	}

	*list = append(*list, one)

	return nil
}

// user is the name by which the API server knows the exporter's service account.
func (m *manifest) user() string {
	return "system:serviceaccount:" + m.namespace + ":" + m.account.Name
}

// install creates the service account, the roles and their bindings, and the DaemonSet, which no
// controller sees.
func (n *node) install(ctx context.Context, m *manifest) error {
	if _, err := n.client.CoreV1().ServiceAccounts(m.namespace).Create(ctx, &m.account,
		metav1.CreateOptions{}); err != nil {
		return err
	}

	for i := range m.roles {
		if _, err := n.client.RbacV1().ClusterRoles().Create(ctx, &m.roles[i], metav1.CreateOptions{}); err != nil {
			return err
		}
	}

	for i := range m.bindings {
		if _, err := n.client.RbacV1().ClusterRoleBindings().Create(ctx, &m.bindings[i],
			metav1.CreateOptions{}); err != nil {
			return err
		}
	}

	if err := n.installPluginRights(ctx, m); err != nil {
		return err
	}

	created, err := n.client.AppsV1().DaemonSets(m.namespace).Create(ctx, &m.daemonSet, metav1.CreateOptions{})
	if err != nil {
		return err
	}

	m.daemonSet = *created
	n.installed = append(n.installed, m)

	return nil
}

// installPluginRights creates the rights to restart the device plugin, and the admission policies
// that limit them.
func (n *node) installPluginRights(ctx context.Context, m *manifest) error {
	opts := metav1.CreateOptions{}
	for i := range m.policies {
		if _, err := n.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, &m.policies[i],
			opts); err != nil {
			return err
		}
	}

	for i := range m.policyBindings {
		if _, err := n.client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx,
			&m.policyBindings[i], opts); err != nil {
			return err
		}
	}

	for i := range m.pluginRoles {
		role := &m.pluginRoles[i]
		if _, err := n.client.RbacV1().Roles(role.Namespace).Create(ctx, role, opts); err != nil {
			return err
		}
	}

	for i := range m.pluginBindings {
		binding := &m.pluginBindings[i]
		if _, err := n.client.RbacV1().RoleBindings(binding.Namespace).Create(ctx, binding, opts); err != nil {
			return err
		}
	}

	return nil
}

// pod returns the pod that the controller of DaemonSets would create on the node. args are added to
// those of the chart, as its value args is; one for a flag that the chart sets replaces that.
func (m *manifest) pod(suffix string, args ...string) *corev1.Pod {
	template := m.daemonSet.Spec.Template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace = m.namespace
	pod.Name = m.daemonSet.Name + "-" + suffix
	pod.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(&m.daemonSet, appsv1.SchemeGroupVersion.WithKind("DaemonSet")),
	}
	pod.Spec.NodeName = nodeName
	c := &pod.Spec.Containers[0]

	for _, arg := range args {
		flag, _, _ := strings.Cut(arg, "=")
		c.Args = slices.DeleteFunc(c.Args, func(set string) bool { return strings.HasPrefix(set, flag+"=") })
	}

	c.Args = append(c.Args, args...)

	return pod
}
