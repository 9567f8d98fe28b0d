package kubelettest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// kubectlName begins the names of what the chart makes for kubectl mig.
	kubectlName = "mig-exporter-kubectl"
	// kubectlCluster begins those of the cluster.
	kubectlCluster = chartNamespace + "-" + kubectlName
)

// person is a user of kubectl mig with a kubeconfig, whose namespace is not the exporter's: a
// service account, since there is no other way to sign in here.
type person struct {
	c      *cluster
	name   string
	config string // the path of the kubeconfig
}

func (c *cluster) newPerson(t *testing.T, name string) *person {
	t.Helper()

	p := &person{c: c, name: name, config: filepath.Join(t.TempDir(), "kubeconfig")}
	text := strings.Join([]string{
		"apiVersion: v1", "kind: Config", "current-context: x",
		`clusters: [{name: c, cluster: {server: "` + apiServer + `", certificate-authority: ` + c.pki.certFile("ca") + `}}]`,
		`users: [{name: u, user: {token: "` + c.newUser(t, name).token + `"}}]`,
		"contexts: [{name: x, context: {cluster: c, user: u, namespace: ml}}]",
	}, "\n")

	if err := os.WriteFile(p.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	return p
}

func (p *person) subjects() []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "batch", Name: p.name}}
}

// bind binds the person to Roles of the exporter's namespace and to ClusterRoles, as an
// administrator does.
func (p *person) bind(t *testing.T, roles, clusterRoles []string) {
	t.Helper()
	rbac := p.c.client.RbacV1()

	for _, role := range roles {
		if _, err := rbac.RoleBindings(chartNamespace).Create(p.c.ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: p.name + "-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
			Subjects:   p.subjects(),
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	for _, role := range clusterRoles {
		if _, err := rbac.ClusterRoleBindings().Create(p.c.ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: p.name + "-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   p.subjects(),
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// command returns kubectl mig with the person's kubeconfig.
func (p *person) command(args ...string) *exec.Cmd {
	command := exec.CommandContext(p.c.ctx, filepath.Join(p.c.programs, "kubectl-mig"), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+p.config)

	return command
}

// run runs kubectl mig. It returns what it has printed in one line, and the exit code.
func (p *person) run(args ...string) (string, int) {
	out, err := p.command(args...).CombinedOutput()
	text := strings.Join(strings.Fields(string(out)), " ")

	var ended *exec.ExitError

	switch {
	case errors.As(err, &ended):
		return text, ended.ExitCode()
	case err != nil:
		return err.Error(), -1
	}

	return text, 0
}

// must runs kubectl mig, which must succeed.
func (p *person) must(t *testing.T, args ...string) string {
	t.Helper()

	out, code := p.run(args...)
	if code != 0 {
		t.Errorf("%s: kubectl mig %s: exit code %d: %s", p.name, strings.Join(args, " "), code, out)
	}

	return out
}

// mustFail runs kubectl mig, which must fail with a text.
func (p *person) mustFail(t *testing.T, want string, args ...string) {
	t.Helper()

	out, code := p.run(args...)
	if code == 0 || !strings.Contains(out, want) {
		t.Errorf("%s: kubectl mig %s: exit code %d, want an error with %q: %s", p.name, strings.Join(args, " "), code,
			want, out)
	}
}

// chartRules returns the rules of a Role of the exporter's namespace, or of a ClusterRole.
func (c *cluster) chartRules(t *testing.T, name string) []rbacv1.PolicyRule {
	t.Helper()
	m := c.installed[0]

	for i := range m.roles {
		if m.roles[i].Name == name && m.roles[i].Namespace == chartNamespace {
			return m.roles[i].DeepCopy().Rules
		}
	}

	for i := range m.clusterRoles {
		if m.clusterRoles[i].Name == name {
			return m.clusterRoles[i].DeepCopy().Rules
		}
	}

	t.Fatalf("the chart has no role %s", name)

	return nil
}

// without returns rules that lack some rights, each "<verb> <resource>", and fails if one of them
// has none of it.
func without(t *testing.T, rules []rbacv1.PolicyRule, rights ...string) []rbacv1.PolicyRule {
	t.Helper()
	var left []rbacv1.PolicyRule

	for _, right := range rights {
		verb, resource, _ := strings.Cut(right, " ")
		if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb)
		}) {
			t.Fatalf("no rule gives the right to %s", right)
		}
	}

	for _, rule := range rules {
		rule.Verbs = slices.DeleteFunc(slices.Clone(rule.Verbs), func(verb string) bool {
			return slices.Contains(rights, verb+" "+rule.Resources[0])
		})
		if len(rule.Verbs) > 0 {
			left = append(left, rule)
		}
	}

	return left
}

// newPersonWith returns a person with rules in the exporter's namespace and in the cluster.
func (c *cluster) newPersonWith(t *testing.T, name string, rules, clusterRules []rbacv1.PolicyRule) *person {
	t.Helper()

	p := c.newPerson(t, name)
	rbac := c.client.RbacV1()
	_, noRole := rbac.Roles(chartNamespace).Create(c.ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules,
	}, metav1.CreateOptions{})
	_, noClusterRole := rbac.ClusterRoles().Create(c.ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: clusterRules,
	}, metav1.CreateOptions{})

	if err := errors.Join(noRole, noClusterRole); err != nil {
		t.Fatal(err)
	}

	p.bind(t, []string{name}, []string{name})

	return p
}

// TestKubectlRoles: to each command the Roles that the docs name for it are enough: that to reach
// the exporters, and that of one account. The account's own rights are on partitions alone.
func TestKubectlRoles(t *testing.T) {
	c := startShared(t)
	emptied := []string{nodeName, "--gpus=8", "--devices=none"}

	looker := c.newPerson(t, "looker")
	looker.bind(t, []string{kubectlName, kubectlName + "-get"}, nil)

	for _, args := range [][]string{
		{"get", nodeName}, {"get", "--all", "-o", "json"}, {"top", nodeName, "--once"}, {"profiles", nodeName},
		{"operations", nodeName}, {"layouts", nodeName}, {"recommend", nodeName},
	} {
		looker.must(t, args...)
	}

	looker.mustFail(t, "you may not create serviceaccounts/token "+kubectlName+"-plan in namespace "+chartNamespace,
		append([]string{"plan"}, emptied...)...)
	looker.mustFail(t, "serviceaccounts/token "+kubectlName+"-apply", "rollback", nodeName, "x", "--yes")

	planner := c.newPerson(t, "planner")
	planner.bind(t, []string{kubectlName, kubectlName + "-plan"}, nil)

	if out := planner.must(t, append([]string{"plan"}, emptied...)...); !strings.Contains(out, "Plan ") {
		t.Errorf("plan: %s", out)
	}

	planner.mustFail(t, "serviceaccounts/token "+kubectlName+"-get", "get", nodeName)
	planner.mustFail(t, "serviceaccounts/token "+kubectlName+"-apply", append([]string{"apply", "--yes"}, emptied...)...)

	for account, commands := range map[string][][]string{
		"mode":      {{"mode", nodeName, "on", "8", "--yes"}},
		"take-over": {{"plan", nodeName, "--gpus=7", "--devices=none", "--take-over"}},
		"release":   {{"release", nodeName, "5"}, {"reacquire", nodeName, "5"}},
		"force":     {{"confirm-free", nodeName, c.layout.GPUs[8].UUID, "--yes"}},
	} {
		p := c.newPerson(t, "may-"+account)
		p.bind(t, []string{kubectlName, kubectlName + "-" + account}, nil)

		for _, args := range commands {
			p.must(t, args...)
		}
	}

	// The accounts that people get tokens of may do nothing else in the cluster.
	for _, account := range c.installed[0].accounts {
		if account.Name == c.installed[0].account() {
			continue
		}

		token := c.newTokenOf(t, chartNamespace, account.Name)

		for _, path := range []string{"/pods", "/nodes", "/namespaces/" + chartNamespace + "/configmaps"} {
			if status, body, err := c.send("GET", apiServer+coreAPI+path, token, "", ""); err != nil || status != 403 {
				t.Errorf("%s gets %s: %d %v, want 403: %.200s", account.Name, path, status, err, body)
			}
		}
	}
}

// TestKubectlApplies: kubectl mig repartitions a GPU by port-forward with a TokenRequest, and rolls
// it back. The token's id in the exporter's audit log is the one that the API server's has beside
// the person.
func TestKubectlApplies(t *testing.T) {
	c := startShared(t)
	c.awaitHolders(t, nil)

	ann := c.newPerson(t, "ann")
	ann.bind(t, []string{kubectlName, kubectlName + "-apply"}, nil)

	small := c.plugins["nvidia.com/mig-1g.5gb"]
	large := c.plugins["nvidia.com/mig-3g.20gb"]
	offered, _ := small.offered()
	followed := make(chan error, 1)
	go func() {
		created, err := c.instancesOf(8, 2)
		large.offer()
		small.offer(append(slices.Clone(offered), created...)...)
		followed <- err
	}()

	out := ann.must(t, "apply", nodeName, "--yes", "--gpus=8", "--devices=1g.5gb=2", "--reason=ticket 17")
	if err := <-followed; err != nil {
		t.Fatal(err)
	}

	undo := regexp.MustCompile(`To undo: kubectl mig rollback ` + nodeName + ` (\S+)`).FindStringSubmatch(out)
	if undo == nil {
		t.Fatalf("apply does not say how to undo it: %s", out)
	}

	c.awaitEvent(t, "MIGOperationSucceeded", undo[1])
	go func() {
		uuids, err := c.awaitLayout(8, "3g.20gb")
		small.offer(offered...)
		large.offer(uuids...)
		followed <- err
	}()

	ann.must(t, "rollback", nodeName, undo[1], "--yes")

	if err := errors.Join(<-followed, c.awaitResources()); err != nil {
		t.Error(err)
	}

	credential := valueOf(t, "/var/lib/mig-exporter/audit.jsonl", func(line map[string]any) string {
		if line["actor"] != "serviceaccount:"+chartNamespace+"/"+kubectlName+"-apply" {
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

// TestKubectlRights: each right to reach an exporter that is missing is named, and so is each verb
// that the account of the token lacks.
func TestKubectlRights(t *testing.T) {
	c := startShared(t)
	reach := slices.Concat(c.chartRules(t, kubectlName), c.chartRules(t, kubectlName+"-get"))

	for i, missing := range []struct {
		rights []string
		want   string // empty: the others are enough
	}{
		{[]string{"get configmaps"}, "you may not get configmaps " + kubectlName + " in namespace " + chartNamespace},
		{[]string{"list pods"}, "you may not list pods in namespace " + chartNamespace},
		{[]string{"get pods/portforward", "create pods/portforward"}, "you may not get and create pods/portforward"},
		{[]string{"create serviceaccounts/token"}, "you may not create serviceaccounts/token " + kubectlName + "-get"},
		// A websocket takes get alone before Kubernetes 1.35, SPDY create.
		{[]string{"create pods/portforward"}, ""},
		{[]string{"get pods/portforward"}, ""},
	} {
		p := c.newPersonWith(t, fmt.Sprintf("lacks-%d", i), without(t, reach, missing.rights...), nil)
		if missing.want == "" {
			p.must(t, "get", nodeName)
		} else {
			p.mustFail(t, missing.want, "get", nodeName)
		}
	}

	for verb, args := range map[string][]string{
		"get":   {"get", nodeName},
		"plan":  {"plan", nodeName, "--gpus=8", "--devices=none"},
		"apply": {"apply", nodeName, "--yes", "--gpus=8", "--devices=none"},
	} {
		account := c.newAccountWithout(t, verb)
		p := c.newPersonWith(t, "weak-"+verb, append(slices.Clone(c.chartRules(t, kubectlName)), rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{account},
			Verbs: []string{"create"},
		}), nil)
		p.mustFail(t, "serviceaccount:"+chartNamespace+"/"+account+" may not "+verb+" partitions.mig-exporter.io",
			append([]string{"--service-account=" + account}, args...)...)
	}
}

// newAccountWithout creates an account in the exporter's namespace as that for apply, but for a
// verb.
func (c *cluster) newAccountWithout(t *testing.T, verb string) string {
	t.Helper()

	name := "without-" + verb
	if err := c.createServiceAccount(c.ctx, chartNamespace, name); err != nil {
		t.Fatal(err)
	}

	rbac := c.client.RbacV1()
	_, noRole := rbac.ClusterRoles().Create(c.ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      without(t, c.chartRules(t, kubectlCluster+"-apply"), verb+" partitions"),
	}, metav1.CreateOptions{})
	_, noBinding := rbac.ClusterRoleBindings().Create(c.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: chartNamespace, Name: name}},
	}, metav1.CreateOptions{})

	if err := errors.Join(noRole, noBinding); err != nil {
		t.Fatal(err)
	}

	return name
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
