package kubelettest

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubectlName is the name of the ConfigMap and the beginning of the accounts' names, as
// docs/kubectl-mig.md has them.
const kubectlName = "mig-exporter-kubectl"

// createKubectl creates what docs/kubectl-mig.md asks for, for the right plan, and returns the
// kubeconfig of an operator who may use it.
func (c *cluster) createKubectl(t *testing.T) string {
	t.Helper()

	ca, err := os.ReadFile(c.pki.certFile("ca"))
	if err != nil {
		t.Fatal(err)
	}

	account := kubectlName + "-plan"
	operator := c.newUser(t, "ann")
	_, noConfigMap := c.client.CoreV1().ConfigMaps(chartNamespace).Create(c.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: kubectlName},
		Data:       map[string]string{"ca.crt": string(ca), "server-name": exporterHost},
	}, metav1.CreateOptions{})
	_, noRole := c.client.RbacV1().Roles(chartNamespace).Create(c.ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: kubectlName},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{kubectlName}, Verbs: []string{"get"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
			{APIGroups: []string{""}, Resources: []string{"pods/portforward"}, Verbs: []string{"get", "create"}},
			{
				APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{account},
				Verbs: []string{"create"},
			},
		},
	}, metav1.CreateOptions{})
	_, noBinding := c.client.RbacV1().RoleBindings(chartNamespace).Create(c.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: kubectlName},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: kubectlName},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "batch", Name: operator.name}},
	}, metav1.CreateOptions{})
	_, noClusterRole := c.client.RbacV1().ClusterRoles().Create(c.ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"mig-exporter.io"}, Resources: []string{"partitions"}, Verbs: []string{"get", "plan"},
		}},
	}, metav1.CreateOptions{})
	_, noClusterBinding := c.client.RbacV1().ClusterRoleBindings().Create(c.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: chartNamespace, Name: account}},
	}, metav1.CreateOptions{})

	config := filepath.Join(t.TempDir(), "kubeconfig")
	text := strings.Join([]string{
		"apiVersion: v1", "kind: Config", "current-context: x",
		`clusters: [{name: c, cluster: {server: "` + apiServer + `", certificate-authority: ` + c.pki.certFile("ca") + `}}]`,
		`users: [{name: u, user: {token: "` + operator.token + `"}}]`,
		"contexts: [{name: x, context: {cluster: c, user: u, namespace: " + chartNamespace + "}}]",
	}, "\n")

	if err := errors.Join(
		noConfigMap, noRole, noBinding, noClusterRole, noClusterBinding,
		c.createServiceAccount(c.ctx, chartNamespace, account),
		os.WriteFile(config, []byte(text), 0o600),
	); err != nil {
		t.Fatal(err)
	}

	return config
}

// TestKubectlMIG: kubectl mig by port-forward with a TokenRequest. The token's id in the exporter's
// audit log is the one that the API server's has beside the operator.
func TestKubectlMIG(t *testing.T) {
	c := startShared(t)
	config := c.createKubectl(t)

	run := func(args ...string) (string, error) {
		program := exec.CommandContext(c.ctx, filepath.Join(c.programs, "kubectl-mig"), args...)
		program.Env = append(os.Environ(), "KUBECONFIG="+config)
		out, err := program.CombinedOutput()

		return string(out), err
	}

	out, err := run("plan", nodeName, "--gpus=8", "--devices=none")
	if err != nil || !strings.Contains(out, "Plan ") {
		t.Fatalf("plan: %v: %s", err, out)
	}

	// The operator has no token of the account that may apply.
	out, err = run("rollback", nodeName, "x", "--yes")
	if err == nil || !strings.Contains(strings.Join(strings.Fields(out), " "), "serviceaccounts/token "+kubectlName+"-apply") {
		t.Errorf("without the right to the account's tokens: %v: %s", err, out)
	}

	credential := valueOf(t, "/var/lib/mig-exporter/audit.jsonl", func(line map[string]any) string {
		if line["actor"] != "serviceaccount:"+chartNamespace+"/"+kubectlName+"-plan" {
			return ""
		}

		id, _ := line["credential"].(string)

		return id
	})
	issued := valueOf(t, c.auditLog(), func(line map[string]any) string {
		user, _ := line["user"].(map[string]any)
		annotations, _ := line["annotations"].(map[string]any)
		id, _ := annotations["authentication.kubernetes.io/issued-credential-id"].(string)

		if user["username"] != "system:serviceaccount:batch:ann" {
			return ""
		}

		return id
	})

	if credential == "" || credential != issued {
		t.Errorf("the exporter's audit log has the token %q, the API server's %q", credential, issued)
	}
}

// valueOf returns the last value that find finds in a log of JSON lines.
func valueOf(t *testing.T, path string, find func(map[string]any) string) string {
	t.Helper()

	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	value := ""
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)

	for lines.Scan() {
		var line map[string]any
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}

		if found := find(line); found != "" {
			value = found
		}
	}

	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}

	return value
}
