package kubelettest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// runMark is the annotation of a node that a run has cordoned.
const runMark = "mig-exporter.io/cordoned-by-run"

// fleetRig is a node whose GPU 8 a pod holds, which a PodDisruptionBudget keeps, and the file of a
// fleet that gives the GPU another layout.
type fleetRig struct {
	*cluster
	pod     *corev1.Pod
	budget  *policyv1.PodDisruptionBudget
	file    string              // by the node's name
	labeled string              // the same by a label
	offered []string            // of 1g.5gb before
	others  map[string][]string // devices of other plugins by resource
}

// newFleetRig returns the rig. The pod belongs to a DaemonSet at first.
func newFleetRig(t *testing.T, c *cluster) *fleetRig {
	t.Helper()
	c.awaitHolders(t, nil)
	c.awaitInstances(t, 8, 1) // notes its id

	r := &fleetRig{cluster: c}
	r.offered, _ = c.plugins["nvidia.com/mig-1g.5gb"].offered()

	if _, err := c.client.AppsV1().DaemonSets("ml").Create(c.ctx, trainingSet(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	pod, err := c.createPod(c.ctx, ownedBy(newPod("ml", "train", newContainer("main", "nvidia.com/mig-3g.20gb", 1)),
		"DaemonSet", "train"))
	if err != nil {
		t.Fatal(err)
	}

	r.pod = pod
	c.awaitHolders(t, c.given(t, pod, "main", "exclusive"))
	r.offerOthers()
	t.Cleanup(func() { r.restore(t) })

	dir := t.TempDir()
	r.file = filepath.Join(dir, "fleet.yaml")
	r.labeled = filepath.Join(dir, "labels.yaml")
	const head = "apiVersion: mig-exporter/v1\nkind: Fleet\nentries:\n  - "
	const layout = "\n    spec: {gpus: [8], devices: {1g.5gb: 2}}\n"

	if err := errors.Join(
		os.WriteFile(r.file, []byte(head+"node: "+nodeName+layout), 0o600),
		os.WriteFile(r.labeled, []byte(head+"selector: nvidia.com/gpu.present=true"+layout), 0o600),
	); err != nil {
		t.Fatal(err)
	}

	return r
}

// trainingSet is a DaemonSet that no controller sees.
func trainingSet() *appsv1.DaemonSet {
	labels := map[string]string{"app": "train"}

	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "train"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{newContainer("main", "", 0)}},
			},
		},
	}
}

// offerOthers has the device plugins of the MIG resources offer all other devices of these profiles
// as well, those of DRA and of other plugins: a run waits until allocatable has what the node has,
// which is one plugin's on a real node.
func (r *fleetRig) offerOthers() {
	r.others = map[string][]string{}

	for _, place := range []struct {
		resource   string
		gpu, start int
	}{
		{"nvidia.com/mig-1g.5gb", 7, 0}, {"nvidia.com/mig-1g.5gb", 7, 1}, {"nvidia.com/mig-2g.10gb", 7, 2},
		{"nvidia.com/mig-3g.20gb", 7, 4}, {"nvidia.com/mig-3g.20gb", 4, 0}, {"nvidia.com/mig-3g.20gb", 4, 4},
	} {
		_, uuids := r.layout.gpuInstance(place.gpu, place.start)
		r.others[place.resource] = append(r.others[place.resource], uuids...)
	}

	for resource, uuids := range r.others {
		offered, _ := r.plugins[resource].offered()
		r.plugins[resource].offer(append(offered, uuids...)...)
	}
}

// follow offers the instances of GPU 8 once they are these, as NVIDIA's device plugin does.
func (r *fleetRig) follow(resource, other string, count int) <-chan error {
	followed := make(chan error, 1)
	before := map[string][]string{"nvidia.com/mig-1g.5gb": r.offered, "nvidia.com/mig-3g.20gb": nil}

	go func() {
		created, err := r.instancesOf(8, count)
		r.plugins[other].offer(slices.Concat(before[other], r.others[other])...)
		r.plugins[resource].offer(slices.Concat(before[resource], r.others[resource], created)...)
		followed <- err
	}()

	return followed
}

// setOwner makes a ReplicaSet the owner of the pod.
func (r *fleetRig) setOwner(t *testing.T) {
	t.Helper()
	pods := r.client.CoreV1().Pods("ml")

	pod, err := pods.Get(r.ctx, r.pod.Name, metav1.GetOptions{})
	if err == nil {
		_, err = pods.Update(r.ctx, ownedBy(pod, "ReplicaSet", "train"), metav1.UpdateOptions{})
	}

	if err != nil {
		t.Fatal(err)
	}
}

// createBudget creates a PodDisruptionBudget for the pod that allows no eviction.
func (r *fleetRig) createBudget(t *testing.T) {
	t.Helper()

	one := intstr.FromInt32(1)

	budget, err := r.client.PolicyV1().PodDisruptionBudgets("ml").Create(r.ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "train"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: r.pod.Labels},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	r.budget = budget
	r.allowEvictions(t, 0)
}

// allowEvictions does what the controller of PodDisruptionBudgets does: it says how many evictions
// are allowed.
func (r *fleetRig) allowEvictions(t *testing.T, count int32) {
	t.Helper()
	budgets := r.client.PolicyV1().PodDisruptionBudgets("ml")

	budget, err := budgets.Get(r.ctx, r.budget.Name, metav1.GetOptions{})
	if err == nil {
		budget.Status = policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: budget.Generation, CurrentHealthy: 1 + count, DesiredHealthy: 1, ExpectedPods: 1 + count,
			DisruptionsAllowed: count,
		}
		_, err = budgets.UpdateStatus(r.ctx, budget, metav1.UpdateOptions{})
	}

	if err != nil {
		t.Fatal(err)
	}
}

// checkRunCordon returns an error unless a run keeps the node cordoned, or nothing does.
func (r *fleetRig) checkRunCordon(want bool) error {
	node, err := r.client.CoreV1().Nodes().Get(r.ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}

	if by := node.Annotations[runMark]; node.Spec.Unschedulable != want || (by != "") != want {
		return fmt.Errorf("cordoned %v by the run %q, want %v", node.Spec.Unschedulable, by, want)
	}

	return nil
}

// awaitRun waits for a run whose node is in a phase, and returns its name.
func (r *fleetRig) awaitRun(t *testing.T, phase string) string {
	t.Helper()
	name := ""

	if err := await(time.Minute, func() error {
		list, err := r.client.CoreV1().ConfigMaps(chartNamespace).List(r.ctx, metav1.ListOptions{
			LabelSelector: "mig-exporter.io/run",
		})
		if err != nil {
			return err
		}

		var phases []string

		for i := range list.Items {
			var run struct{ Nodes []struct{ Phase string } }
			if err := json.Unmarshal([]byte(list.Items[i].Data["run.json"]), &run); err != nil || len(run.Nodes) != 1 {
				return fmt.Errorf("ConfigMap %s is not a run of one node: %w", list.Items[i].Name, err)
			}

			phases = append(phases, run.Nodes[0].Phase)
			if run.Nodes[0].Phase == phase {
				name = list.Items[i].Name
				return nil
			}
		}

		return fmt.Errorf("runs with nodes that are %v, want one that is %s", phases, phase)
	}); err != nil {
		t.Fatal(err)
	}

	return name
}

// The rules that docs/kubectl-mig-runs.md gives for runs with --evict: in the exporter's namespace
// those to reach the exporters and to plan and apply, and those of the run.
func (r *fleetRig) runRules(t *testing.T) (reach, runs, cluster []rbacv1.PolicyRule) {
	t.Helper()
	reach = slices.Concat(r.chartRules(t, kubectlName), r.chartRules(t, kubectlName+"-plan"), r.chartRules(t, kubectlName+"-apply"))
	cluster = slices.Concat(r.chartRules(t, kubectlCluster+"-runs"), r.chartRules(t, kubectlCluster+"-evict"))

	return reach, r.chartRules(t, kubectlName+"-runs"), cluster
}

// newRunner returns a person with the Roles that the docs name for runs.
func (r *fleetRig) newRunner(t *testing.T, name string) *person {
	t.Helper()

	p := r.newPerson(t, name)
	p.bind(t, []string{kubectlName, kubectlName + "-plan", kubectlName + "-apply", kubectlName + "-runs"},
		[]string{kubectlCluster + "-runs", kubectlCluster + "-evict"})

	return p
}

// TestKubectlRun: a run cordons the node, evicts the pod that holds the device as soon as its
// PodDisruptionBudget allows, repartitions, waits for the node's allocatable and lifts its cordon;
// after a kill another person resumes it with a kubeconfig of their own. Before that, each right of
// the docs that is missing is named, and the others are enough.
func TestKubectlRun(t *testing.T) {
	c := startShared(t)
	r := newFleetRig(t, c)
	carol := r.newRunner(t, "carol")
	short := []string{"apply", "-f", r.file, "--evict", "--yes", "--eviction-timeout=1s", "--node-timeout=10s"}

	// A plan refuses what the eviction would.
	carol.mustFail(t, "stay, as kubectl drain would leave them", "plan", "-f", r.file, "--evict", "--ignore-daemonsets")
	carol.mustFail(t, "DaemonSet", "plan", "-f", r.labeled, "--evict")
	carol.mustFail(t, "pods hold the devices: ml/train; --evict evicts them", "plan", "-f", r.file)
	carol.mustFail(t, "DaemonSet", short...)
	r.checkDaemonSetRight(t, short)

	r.setOwner(t)

	if out := carol.must(t, "plan", "-f", r.labeled, "--evict"); !strings.Contains(out, "has to leave: pod ml/train") {
		t.Errorf("plan: %s", out)
	}

	r.createBudget(t)
	carol.mustFail(t, "disruption budget", short...)

	stopped := r.awaitRun(t, "failed")
	if err := r.checkRunCordon(false); err != nil {
		t.Errorf("after a run whose eviction was refused: %v", err)
	}

	r.checkRunRights(t, stopped, short)
	name := r.killRun(t, carol)
	r.resumeRun(t, name)
	r.rollBackRun(t, name)
}

// checkDaemonSetRight: kubectl drain's rules ask for the DaemonSet of a pod.
func (r *fleetRig) checkDaemonSetRight(t *testing.T, apply []string) {
	t.Helper()

	reach, runs, all := r.runRules(t)
	p := r.newPersonWith(t, "lacks-daemonsets", slices.Concat(reach, runs), without(t, all, "get daemonsets"))
	p.mustFail(t, "daemonsets", apply...)
}

// checkRunRights: each right of a run that is missing is named, and nothing is done then.
func (r *fleetRig) checkRunRights(t *testing.T, run string, apply []string) {
	t.Helper()
	reach, runs, all := r.runRules(t)

	for i, missing := range []struct {
		right string // in the exporter's namespace if it is about ConfigMaps or Leases
		args  []string
	}{
		{"get nodes", []string{"plan", "-f", r.file, "--evict"}},
		{"list nodes", []string{"plan", "-f", r.labeled, "--evict"}},
		{"patch nodes", apply},
		{"create configmaps", apply},
		{"update configmaps", apply},
		{"get configmaps", []string{"runs", run}},
		{"list configmaps", []string{"runs"}},
		{"get leases", apply},
		{"create leases", apply},
		{"update leases", []string{"apply", "--resume", run, "--yes"}},
		{"get pods", apply},
		{"create pods/eviction", apply},
	} {
		lessRuns, lessAll := runs, all
		_, resource, _ := strings.Cut(missing.right, " ")

		if resource == "configmaps" || resource == "leases" {
			lessRuns = without(t, runs, missing.right)
		} else {
			lessAll = without(t, all, missing.right)
		}

		p := r.newPersonWith(t, fmt.Sprint("lacks-of-run-", i), slices.Concat(reach, lessRuns), lessAll)
		want := "you may not " + missing.right

		if resource == "pods/eviction" { // kubectl drain's own words
			want = `cannot create resource "pods/eviction"`
		}

		p.mustFail(t, want, missing.args...)

		if err := r.checkRunCordon(false); err != nil {
			t.Errorf("without the right to %s: %v", missing.right, err)
		}
	}
}

// killRun starts a run, which waits for the PodDisruptionBudget, kills it there, and returns its
// name.
func (r *fleetRig) killRun(t *testing.T, p *person) string {
	t.Helper()

	command := p.command("apply", "-f", r.file, "--evict", "--yes", "--node-timeout=2m")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}

	name := r.awaitRun(t, "evicting")
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}

	_ = command.Wait() // it was killed

	if err := r.checkRunCordon(true); err != nil {
		t.Errorf("after the run was killed: %v", err)
	}

	return name
}

// resumeRun: another person goes on with the run by a kubeconfig of their own, while the budget
// comes to allow the eviction.
func (r *fleetRig) resumeRun(t *testing.T, name string) {
	t.Helper()

	dora := r.newRunner(t, "dora")
	dora.mustFail(t, "there is no run mig-none", "apply", "--resume", "mig-none", "--yes")
	r.allowEvictions(t, 1)

	followed := r.follow("nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb", 2)
	began := time.Now()
	out := dora.must(t, "apply", "--resume", name, "--yes")

	if err := errors.Join(<-followed, r.checkRunCordon(false)); err != nil {
		t.Error(err)
	}

	record("a run that was killed is done %s after another client has taken it up: %s", time.Since(began).Round(time.Second), out)
	r.awaitHolders(t, nil)

	if out := dora.must(t, "runs", name); !regexp.MustCompile(nodeName + ` done \S+`).MatchString(out) {
		t.Errorf("runs %s: %s", name, out)
	}

	if out := dora.must(t, "runs"); !strings.Contains(out, name+" 1 0 0 0") {
		t.Errorf("runs: %s", out)
	}
}

// rollBackRun: the operation of the run is undone by the run's name.
func (r *fleetRig) rollBackRun(t *testing.T, name string) {
	t.Helper()

	erik := r.newRunner(t, "erik")
	followed := r.follow("nvidia.com/mig-3g.20gb", "nvidia.com/mig-1g.5gb", 1)
	out := erik.must(t, "rollback", "--run", name, "--yes")

	if err := errors.Join(<-followed, r.checkRunCordon(false)); err != nil {
		t.Error(err)
	}

	if !strings.Contains(out, "rolled back") {
		t.Errorf("rollback: %s", out)
	}
}

// restore removes what the rig has created, and has the device plugins offer what they did before.
func (r *fleetRig) restore(t *testing.T) {
	t.Helper()

	err := r.deletePod(r.ctx, "ml", r.pod.Name)
	if !apierrors.IsNotFound(err) { // it was not evicted
		t.Errorf("the pod was still there: %v", err)
	}

	errs := []error{r.client.AppsV1().DaemonSets("ml").Delete(r.ctx, "train", metav1.DeleteOptions{})}
	if r.budget != nil {
		errs = append(errs, r.client.PolicyV1().PodDisruptionBudgets("ml").Delete(r.ctx, r.budget.Name, metav1.DeleteOptions{}))
	}

	for resource, others := range r.others {
		offered, _ := r.plugins[resource].offered()
		r.plugins[resource].offer(slices.DeleteFunc(offered, func(id string) bool { return slices.Contains(others, id) })...)
	}

	if err := errors.Join(append(errs, r.awaitResources())...); err != nil {
		t.Error(err)
	}
}
