package kubelettest

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// user is a caller of partition control: a service account with rights on the partitions of the
// node.
type user struct {
	name, token string
}

// newUser creates a service account with some verbs on the node's partitions, and a token for it.
func (c *cluster) newUser(t *testing.T, name string, verbs ...string) user {
	t.Helper()

	if err := c.createServiceAccount(c.ctx, "batch", name); err != nil {
		t.Fatal(err)
	}

	if len(verbs) > 0 {
		c.grant(t, name, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"mig-exporter.io"}, Resources: []string{"partitions"}, ResourceNames: []string{nodeName},
			Verbs: verbs,
		}}})
	}

	return user{name, c.newToken(t, name)}
}

// grant gives a service account of the namespace batch a new role.
func (c *cluster) grant(t *testing.T, account string, role *rbacv1.ClusterRole) {
	t.Helper()

	if _, err := c.client.RbacV1().ClusterRoles().Create(c.ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	_, err := c.client.RbacV1().ClusterRoleBindings().Create(c.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "batch", Name: account}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) newToken(t *testing.T, account string, audiences ...string) string {
	t.Helper()

	return c.newTokenOf(t, "batch", account, audiences...)
}

func (c *cluster) newTokenOf(t *testing.T, namespace, account string, audiences ...string) string {
	t.Helper()

	reply, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(c.ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	return reply.Status.Token
}

// send sends a request to a server of the node's authority with a bearer token, and returns status
// and body.
func (n *node) send(method, url, token, contentType, body string) (int, string, error) {
	ca, err := os.ReadFile(n.pki.certFile("ca"))
	if err != nil {
		return 0, "", err
	}

	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}

	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}

	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}

	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}

	reply, err := (&http.Client{Transport: transport, Timeout: 30 * time.Second}).Do(request)
	if err != nil {
		return 0, "", err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)

	return reply.StatusCode, string(text), err
}

// control sends a request to partition control's network listener.
func (c *cluster) control(method, path, token, body string) (int, string, error) {
	contentType := ""
	if body != "" {
		contentType = "application/json"
	}

	return c.send(method, "https://"+controlAddress+path, token, contentType, body)
}

// emptyGPU8 asks for a plan that destroys the instance of GPU 8.
const emptyGPU8 = `{"spec": {"gpus": [8], "devices": {}}}`

// TestControlReviewsTokens: a real TokenReview says who a caller is, and a SubjectAccessReview for
// each verb what it may do.
func TestControlReviewsTokens(t *testing.T) {
	c := startShared(t)
	stranger := c.newUser(t, "stranger")
	reader := c.newUser(t, "reader", "get")
	scheduler := c.newUser(t, "scheduler")
	c.grantDocumented(t, scheduler.name)

	for _, call := range []struct {
		about, method, path, token, body string
		status                           int
	}{
		{"no token", "GET", "/api/v1/node", "", "", 401},
		{"a token of no account", "GET", "/api/v1/node", "eyJhbGciOiJub25lIn0.e30.", "", 401},
		{"a token for another audience", "GET", "/api/v1/node", c.newToken(t, "reader", "vault"), "", 401},
		{"a token for another node", "GET", "/api/v1/node", c.newToken(t, "reader", "mig-exporter/another-node"), "", 401},
		{"a token for this node", "GET", "/api/v1/node", c.newToken(t, "reader", "mig-exporter/"+nodeName), "", 200},
		{"an account without rights reads", "GET", "/api/v1/node", stranger.token, "", 403},
		{"a reader reads", "GET", "/api/v1/node", reader.token, "", 200},
		{"a reader plans", "POST", "/api/v1/plans", reader.token, emptyGPU8, 403},
		{"a scheduler reads", "GET", "/api/v1/node", scheduler.token, "", 200},
		{"a scheduler plans", "POST", "/api/v1/plans", scheduler.token, emptyGPU8, 201},
		{"a scheduler applies", "POST", "/api/v1/operations", scheduler.token, `{"plan": "p", "hash": "h"}`, 403},
		{"a scheduler confirms a free device", "POST", "/api/v1/devices/" + c.layout.GPUs[8].UUID + "/confirm-free",
			scheduler.token, "", 403},
	} {
		status, body, err := c.control(call.method, call.path, call.token, call.body)
		if err != nil || status != call.status {
			t.Errorf("%s: %d %s %v, want %d", call.about, status, body, err, call.status)
		}
	}

	// A review is believed for ten seconds.
	if err := c.client.RbacV1().ClusterRoleBindings().Delete(c.ctx, "reader", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	withdrawn := time.Now()

	if err := await(time.Minute, func() error {
		status, _, err := c.control("GET", "/api/v1/node", reader.token, "")
		if err == nil && status != 403 {
			err = fmt.Errorf("status %d", status)
		}

		return err
	}); err != nil {
		t.Errorf("a right that was withdrawn: %v", err)
	}

	record("a right that is withdrawn ends after %s", time.Since(withdrawn).Round(100*time.Millisecond))
}

// grantDocumented gives an account the role of docs/partition-control.md, for this node.
func (c *cluster) grantDocumented(t *testing.T, account string) {
	t.Helper()

	roles, err := documentedRoles(controlPage)
	if err != nil || len(roles) != 1 {
		t.Fatalf("%s has %d roles, expected 1: %v", controlPage, len(roles), err)
	}

	roles[0].Rules[0].ResourceNames = []string{nodeName}
	c.grant(t, account, &roles[0])
}

// TestControlWithoutAPIServer: no answer of the API server is never a right.
func TestControlWithoutAPIServer(t *testing.T) {
	c := startShared(t)

	operator := c.newUser(t, "absent-operator", "get", "plan", "apply")
	if err := c.apiserver.stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}

	status, body, err := c.control("POST", "/api/v1/plans", operator.token, emptyGPU8)
	if err != nil || status != 503 {
		t.Errorf("%d %s %v, want 503", status, body, err)
	}

	output, exit, err := c.migctl(c.ctx, "plan", "--gpus=8", "--devices=none")
	if err != nil || exit != 1 || !strings.Contains(output, "foreign-owner") && !strings.Contains(output, "take-over") {
		t.Errorf("a plan while it cannot be found out who else manages the GPU: exit code %d, %v: %s; want 1 with foreign-owner or "+
			"take-over", exit, err, output)
	}

	if err := c.apiserver.start(); err != nil {
		t.Fatal(err)
	}

	if err := c.awaitAPIServer(); err != nil {
		t.Fatal(err)
	}

	c.awaitComplete(t, 3*time.Minute)
}

// TestControlRefuses: what pods hold is not destroyed, and GPUs of another controller are left
// alone.
func TestControlRefuses(t *testing.T) {
	c := startShared(t)
	c.run(t, newPod("ml", "slice", newContainer("main", "nvidia.com/mig-1g.5gb", 1)))
	c.run(t, newPod("chat", "compute", newContainer("main", "nvidia.com/mig-2c.3g.20gb", 1)))

	for _, refused := range []struct{ about, gpu, want string }{
		{"an instance of a pod", "9", "ml/slice"},
		{"a compute instance of a pod", "2", "chat/compute"},
		{"a GPU that a DRA driver partitions", "7", "gpu.nvidia.com"},
	} {
		if err := await(time.Minute, func() error {
			output, exit, err := c.migctl(c.ctx, "plan", "--gpus="+refused.gpu, "--devices=none")
			if err == nil && (exit != 1 || !strings.Contains(output, refused.want)) {
				err = fmt.Errorf("exit code %d: %s", exit, output)
			}

			return err
		}); err != nil {
			t.Errorf("%s: %v", refused.about, err)
		}
	}
}

// TestControlRepartitions: an operator's token repartitions GPU 8. The node is cordoned until the
// kubelet offers the new devices and no longer the old ones.
func TestControlRepartitions(t *testing.T) {
	c := startShared(t)
	operator := c.newUser(t, "operator", "get", "plan", "apply")
	c.awaitHolders(t, nil)
	before := c.plugins["nvidia.com/mig-1g.5gb"]
	offered, _ := before.offered()
	done := make(chan string, 1)
	go func() {
		output, exit, err := c.migctlAs(operator, "apply", "--yes", "--gpus=8", "--devices=1g.5gb=2")
		done <- fmt.Sprintf("exit code %d, %v: %s", exit, err, output)
	}()

	if err := await(time.Minute, func() error { return c.checkCordon(true) }); err != nil {
		t.Fatalf("%v; migctl: %s", err, <-done)
	}

	created := c.awaitInstances(t, 8, 2)
	if err := c.checkCordon(true); err != nil {
		t.Errorf("before the kubelet offers the new devices: %v", err)
	}

	c.plugins["nvidia.com/mig-3g.20gb"].offer()
	before.offer(append(slices.Clone(offered), created...)...)

	if output := <-done; !strings.HasPrefix(output, "exit code 0") || strings.Contains(output, "warning") {
		t.Error(output)
	}

	if err := await(time.Minute, func() error { return c.checkCordon(false) }); err != nil {
		t.Error(err)
	}

	// Only the new devices are offered, so that a pod gets one of them.
	before.offer(created...)

	if err := c.awaitResources(); err != nil {
		t.Fatal(err)
	}

	pod, err := c.createPod(c.ctx, newPod("ml", "after", newContainer("main", "nvidia.com/mig-1g.5gb", 1)))
	if err != nil {
		t.Fatal(err)
	}

	c.awaitHolders(t, c.given(t, pod, "main", "exclusive"))
	c.restoreLayout(t, operator, offered)
}

// restoreLayout ends the pod of TestControlRepartitions, which is in the way, and gives GPU 8 its
// layout again.
func (c *cluster) restoreLayout(t *testing.T, operator user, offered []string) {
	t.Helper()

	output, exit, err := c.migctlAs(operator, "plan", "--gpus=8", "--devices=3g.20gb=1")
	if err != nil || exit != 1 || !strings.Contains(output, "ml/after") {
		t.Errorf("a plan for a GPU on which a pod has a new device: exit code %d, %v: %s; want 1 with ml/after", exit, err, output)
	}

	if err := c.deletePod(c.ctx, "ml", "after"); err != nil {
		t.Fatal(err)
	}

	c.plugins["nvidia.com/mig-1g.5gb"].offer(offered...)
	c.awaitHolders(t, nil)
	go func() {
		uuids, err := c.awaitLayout(8, "3g.20gb")
		if err != nil {
			reportError(err)
		}

		c.plugins["nvidia.com/mig-3g.20gb"].offer(uuids...)
	}()

	output, exit, err = c.migctlAs(operator, "apply", "--yes", "--gpus=8", "--devices=3g.20gb=1")
	if err != nil || exit != 0 {
		t.Errorf("the previous layout: exit code %d, %v: %s", exit, err, output)
	}

	if err := c.awaitResources(); err != nil {
		t.Error(err)
	}
}

// migctlAs runs migctl with a user's token on the network listener.
func (c *cluster) migctlAs(u user, args ...string) (output string, exit int, err error) {
	token := filepath.Join(c.workspace, "token-"+u.name)
	if err := os.WriteFile(token, []byte(u.token), 0o600); err != nil {
		return "", 0, err
	}

	return c.migctl(c.ctx, append([]string{"--address=https://" + controlAddress, "--ca-file=" + c.pki.certFile("ca"),
		"--token-file=" + token}, args...)...)
}

// checkCordon returns an error unless the node is cordoned, with the annotation of partition
// control, or not at all.
func (c *cluster) checkCordon(want bool) error {
	object, err := c.client.CoreV1().Nodes().Get(c.ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}

	by := object.Annotations["mig-exporter.io/cordoned-by"]
	if object.Spec.Unschedulable != want || (by != "") != want {
		return fmt.Errorf("cordoned %v by %q, want %v", object.Spec.Unschedulable, by, want)
	}

	return nil
}

// awaitInstances waits until a GPU has a number of GPU instances, and returns the ids by which a
// device plugin offers them.
func (c *cluster) awaitInstances(t *testing.T, gpu, count int) []string {
	t.Helper()

	ids, err := c.instancesOf(gpu, count)
	if err != nil {
		t.Fatal(err)
	}

	return ids
}

// instancesOf does what awaitInstances does, outside of the test's goroutine.
func (c *cluster) instancesOf(gpu, count int) (ids []string, err error) {
	err = await(time.Minute, func() error {
		document, err := readNodeDocument()
		if err != nil {
			return err
		}

		instances := document.GPUs[gpu].GPUInstances
		ids = nil

		for _, instance := range instances {
			for _, compute := range instance.ComputeInstances {
				ids = append(ids, compute.UUID)
				c.devices[compute.UUID] = fmt.Sprintf("%s/%d", document.GPUs[gpu].UUID, instance.ID)
			}
		}

		if len(instances) != count || len(ids) != count {
			return fmt.Errorf("GPU %d has %d GPU instances, expected %d", gpu, len(instances), count)
		}

		return nil
	})

	return ids, err
}

// awaitLayout waits until a GPU has one GPU instance, of a profile.
func (c *cluster) awaitLayout(gpu int, profile string) (uuids []string, err error) {
	err = await(time.Minute, func() error {
		document, err := readNodeDocument()
		if err != nil {
			return err
		}

		instances := document.GPUs[gpu].GPUInstances
		if len(instances) != 1 || instances[0].Profile != profile || len(instances[0].ComputeInstances) != 1 {
			return fmt.Errorf("GPU %d has %v, expected one %s with one compute instance", gpu, instances, profile)
		}

		uuids = []string{instances[0].ComputeInstances[0].UUID}

		return nil
	})

	return uuids, err
}
