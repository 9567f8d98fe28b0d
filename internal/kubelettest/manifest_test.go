package kubelettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
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
const chartNamespace = "mig-exporter"

// manifest is what the Helm chart renders with some values: make test-chart holds that the files
// are current.
type manifest struct {
	namespace       string
	daemonSet       appsv1.DaemonSet
	accounts        []corev1.ServiceAccount
	configMaps      []corev1.ConfigMap
	clusterRoles    []rbacv1.ClusterRole
	clusterBindings []rbacv1.ClusterRoleBinding
	roles           []rbacv1.Role
	bindings        []rbacv1.RoleBinding
	policies        []admissionv1.ValidatingAdmissionPolicy
	policyBindings  []admissionv1.ValidatingAdmissionPolicyBinding
}

// readManifest reads a file as if the chart had been installed in a namespace.
func readManifest(path, namespace string) (*manifest, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}

	// The namespace has the exporter's name, which stands in many places: these are all in which it
	// is the namespace.
	for _, in := range []string{"namespace: %s", "%s-mig-exporter", "system:serviceaccount:%s:"} {
		text = bytes.ReplaceAll(text, fmt.Appendf(nil, in, chartNamespace), fmt.Appendf(nil, in, namespace))
	}

	m := &manifest{namespace: namespace}
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		if err := m.add(document); err != nil {
			return nil, fmt.Errorf("manifest %s: %w", path, err)
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
		return appendObject(document, &m.accounts)
	case "ConfigMap":
		return appendObject(document, &m.configMaps)
	case "ClusterRole":
		return appendObject(document, &m.clusterRoles)
	case "ClusterRoleBinding":
		return appendObject(document, &m.clusterBindings)
	case "Role":
		return appendObject(document, &m.roles)
	case "RoleBinding":
		return appendObject(document, &m.bindings)
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

// account is the name of the exporter's service account.
func (m *manifest) account() string { return m.daemonSet.Spec.Template.Spec.ServiceAccountName }

// user is the name by which the API server knows the exporter's service account.
func (m *manifest) user() string {
	return "system:serviceaccount:" + m.namespace + ":" + m.account()
}

// isAccount reports whether a binding is for the exporter's service account.
func (m *manifest) isAccount(subjects []rbacv1.Subject) bool {
	return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		return s.Kind == "ServiceAccount" && s.Namespace == m.namespace && s.Name == m.account()
	})
}

// rules returns the rules of the Roles and ClusterRoles that the exporter's service account has.
func (m *manifest) rules() []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule

	for _, binding := range m.clusterBindings {
		for i := range m.clusterRoles {
			if m.isAccount(binding.Subjects) && m.clusterRoles[i].Name == binding.RoleRef.Name {
				rules = append(rules, m.clusterRoles[i].Rules...)
			}
		}
	}

	for _, binding := range m.bindings {
		for i := range m.roles {
			if m.isAccount(binding.Subjects) && m.roles[i].Name == binding.RoleRef.Name &&
				m.roles[i].Namespace == binding.Namespace {
				rules = append(rules, m.roles[i].Rules...)
			}
		}
	}

	return rules
}

// install creates all objects. The DaemonSet no controller sees.
func (n *node) install(ctx context.Context, m *manifest) error {
	core, rbac, admission := n.client.CoreV1(), n.client.RbacV1(), n.client.AdmissionregistrationV1()

	if err := errors.Join(
		createAll(ctx, m.accounts, core.ServiceAccounts(m.namespace).Create),
		createAll(ctx, m.configMaps, core.ConfigMaps(m.namespace).Create),
		createAll(ctx, m.clusterRoles, rbac.ClusterRoles().Create),
		createAll(ctx, m.clusterBindings, rbac.ClusterRoleBindings().Create),
		createAll(ctx, m.policies, admission.ValidatingAdmissionPolicies().Create),
		createAll(ctx, m.policyBindings, admission.ValidatingAdmissionPolicyBindings().Create),
	); err != nil {
		return err
	}

	for i := range m.roles { // in the namespaces that they name
		if _, err := rbac.Roles(m.roles[i].Namespace).Create(ctx, &m.roles[i], metav1.CreateOptions{}); err != nil {
			return err
		}
	}

	for i := range m.bindings {
		b := &m.bindings[i]
		if _, err := rbac.RoleBindings(b.Namespace).Create(ctx, b, metav1.CreateOptions{}); err != nil {
			return err
		}
	}

	created, err := n.client.AppsV1().DaemonSets(m.namespace).Create(ctx, &m.daemonSet, metav1.CreateOptions{})
	if err != nil {
		return err
	}

	m.daemonSet = *created
	n.installed = append(n.installed, m)

	return nil
}

// createAll creates objects of one kind.
func createAll[T any](
	ctx context.Context, objects []T, create func(context.Context, *T, metav1.CreateOptions) (*T, error),
) error {
	for i := range objects {
		if _, err := create(ctx, &objects[i], metav1.CreateOptions{}); err != nil {
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
