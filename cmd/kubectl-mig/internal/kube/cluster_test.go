package kube

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/drain"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/apifake"
	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
	"github.com/mig-exporter/mig-exporter/internal/control/cluster"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

const nodePath = "/api/v1/nodes/a"

// expectCordon compares whether the node is cordoned, and by which run.
func (s *fakeAPI) expectCordon(t *testing.T, cordoned bool, run any) {
	t.Helper()

	is := s.Get(nodePath, "spec", "unschedulable") == true
	if got := s.Get(nodePath, "metadata", "annotations", runMark); is != cordoned || got != run {
		t.Errorf("unschedulable %t by run %v; expected %t, %v", is, got, cordoned, run)
	}
}

// setCordon is what kubectl cordon and uncordon do.
func (s *fakeAPI) setCordon(on bool) {
	s.Lock()
	defer s.Unlock()

	patch := map[string]any{"spec": map[string]any{"unschedulable": nil}}
	if on {
		patch = map[string]any{"spec": map[string]any{"unschedulable": true}}
	}

	node := apifake.Merge(apifake.Clone(s.Objects[nodePath]), patch)
	apifake.NoteManager(node, patch, "kubectl-cordon")
	s.Put(nodePath, node)
}

func TestCordon(t *testing.T) {
	for _, test := range []struct {
		name    string
		before  string // the node
		between func(*fakeAPI)
		own     bool
		after   bool // it stays cordoned
	}{
		{"free", `{}`, nil, true, false},
		{"a person's", `{"spec": {"unschedulable": true}}`, nil, false, true},
		{"of this run, before a crash", `{"metadata": {"annotations": {"mig-exporter.io/cordoned-by-run": "r"}},
			"spec": {"unschedulable": true}}`, nil, true, false},
		{"a mark that is left", `{"metadata": {"annotations": {"mig-exporter.io/cordoned-by-run": "r"}}}`,
			nil, true, false},
		{"a person uncordons it", `{}`, func(s *fakeAPI) { s.setCordon(false) }, true, false},
		{"a person cordons it anew", `{}`, func(s *fakeAPI) { s.setCordon(false); s.setCordon(true) }, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newFakeAPI(t)
			s.add(t, nodePath, test.before)
			c := s.cluster(t)

			own, err := c.Cordon(t.Context(), "a", "r")
			if err != nil || own != test.own {
				t.Fatalf("got %t, %v", own, err)
			}

			if again, err := c.Cordon(t.Context(), "a", "r"); err != nil || again != own {
				t.Errorf("again: got %t, %v", again, err)
			}

			if test.between != nil {
				test.between(s)
			}

			for range 2 {
				if err := c.Uncordon(t.Context(), "a", "r"); err != nil {
					t.Fatal(err)
				}

				s.expectCordon(t, test.after, nil)
			}
		})
	}
}

// The annotation that shows whose cordon it is was removed: the node does not pass as uncordoned.
func TestUncordonWithoutTheAnnotation(t *testing.T) {
	s := newFakeAPI(t)
	s.add(t, nodePath, `{}`)
	c := s.cluster(t)

	if _, err := c.Cordon(t.Context(), "a", "r"); err != nil {
		t.Fatal(err)
	}

	s.Lock()
	node := apifake.Merge(apifake.Clone(s.Objects[nodePath]),
		map[string]any{"metadata": map[string]any{"annotations": map[string]any{runMark: nil}}})
	s.Put(nodePath, node)
	s.Unlock()

	if err := c.Uncordon(t.Context(), "a", "r"); !errors.Is(err, rollout.ErrRefused) ||
		!strings.Contains(err.Error(), "kubectl uncordon a") {
		t.Errorf("got %v", err)
	}

	s.expectCordon(t, true, nil)

	// Nor does it pass as another client's cordon, which would stay after the run.
	if own, err := c.Cordon(t.Context(), "a", "r"); own || !errors.Is(err, rollout.ErrRefused) {
		t.Errorf("cordoned again: got %t, %v", own, err)
	}

	s.setCordon(false) // as it says

	if err := c.Uncordon(t.Context(), "a", "r"); err != nil {
		t.Error(err)
	}
}

// A run that is resumed does not take a cordon for its own that a person has made since.
func TestCordonOfAPersonAfterACrash(t *testing.T) {
	s := newFakeAPI(t)
	s.add(t, nodePath, `{}`)
	c := s.cluster(t)

	if own, err := c.Cordon(t.Context(), "a", "r"); !own || err != nil {
		t.Fatal(own, err)
	}

	s.setCordon(false)
	s.setCordon(true)

	if own, err := c.Cordon(t.Context(), "a", "r"); own || err != nil {
		t.Errorf("got %t, %v", own, err)
	}
}

func TestOtherRunsCordon(t *testing.T) {
	s := newFakeAPI(t)
	s.add(t, nodePath, `{}`)
	c := s.cluster(t)

	if _, err := c.Cordon(t.Context(), "a", "first"); err != nil {
		t.Fatal(err)
	}

	if own, err := c.Cordon(t.Context(), "a", "second"); own || err == nil || errors.Is(err, rollout.ErrRefused) {
		t.Errorf("got %t, %v", own, err)
	}

	if err := c.Uncordon(t.Context(), "a", "second"); err != nil {
		t.Fatal(err)
	}

	s.expectCordon(t, true, "first")
}

func TestNodesThatChangeMeanwhile(t *testing.T) {
	s := newFakeAPI(t)
	s.add(t, nodePath, `{}`)
	changes := 2
	s.Before = func(r *http.Request) {
		if r.Method == http.MethodPatch && changes > 0 {
			changes--
			s.setCordon(false)
		}
	}

	if own, err := s.cluster(t).Cordon(t.Context(), "a", "r"); !own || err != nil {
		t.Errorf("got %t, %v", own, err)
	}

	s.expectCordon(t, true, "r")
}

// exporter returns what the exporter of the node cordons with.
func (s *fakeAPI) exporter(t *testing.T) *cluster.Cluster {
	t.Helper()

	dir := t.TempDir()
	for name, content := range map[string][]byte{"ca.crt": s.ca(), "token": []byte("the-exporter's")} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	api, err := kubeapi.New(kubeapi.Options{Server: s.server.URL, CredentialsDir: dir})
	if err != nil {
		t.Fatal(err)
	}

	c, err := cluster.New(cluster.Options{API: api, Node: "a", Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}

	return c
}

// While a run keeps a node cordoned, its exporter neither cordons it nor lifts that.
func TestExportersCordonWithinARun(t *testing.T) {
	s := newFakeAPI(t)
	s.add(t, nodePath, `{}`)
	c := s.cluster(t)
	exporter := s.exporter(t)

	if _, err := c.Cordon(t.Context(), "a", "r"); err != nil {
		t.Fatal(err)
	}

	if done, err := exporter.Cordon(t.Context()); done || err != nil {
		t.Errorf("the exporter's cordon: got %t, %v", done, err)
	}

	if err := exporter.Uncordon(t.Context()); err != nil {
		t.Fatal(err)
	}

	s.expectCordon(t, true, "r")

	if err := c.Uncordon(t.Context(), "a", "r"); err != nil {
		t.Fatal(err)
	}

	s.expectCordon(t, false, nil)
}

// A run does not count on the cordon of an exporter, which lifts it when its operation ends.
func TestExportersCordonBeforeARun(t *testing.T) {
	s := newFakeAPI(t)
	s.add(t, nodePath, `{}`)
	c := s.cluster(t)
	exporter := s.exporter(t)

	if done, err := exporter.Cordon(t.Context()); !done || err != nil {
		t.Fatal(done, err)
	}

	if _, err := c.Cordon(t.Context(), "a", "r"); err == nil || errors.Is(err, rollout.ErrRefused) {
		t.Errorf("got %v; expected an error for now", err)
	}

	if err := c.Uncordon(t.Context(), "a", "r"); err != nil {
		t.Fatal(err)
	}

	s.expectCordon(t, true, nil)

	if err := exporter.Uncordon(t.Context()); err != nil {
		t.Fatal(err)
	}

	if own, err := c.Cordon(t.Context(), "a", "r"); !own || err != nil {
		t.Errorf("got %t, %v", own, err)
	}
}

func TestNodes(t *testing.T) {
	s := newFakeAPI(t)
	s.add(t, nodePath, `{"metadata": {"labels": {"pool": "h100"}}}`)
	s.add(t, "/api/v1/nodes/b", `{}`)
	c := s.cluster(t)

	if names, err := c.Select(t.Context(), "pool=h100"); err != nil || !slices.Equal(names, []string{"a"}) {
		t.Errorf("got %v, %v", names, err)
	}

	for name, want := range map[string]bool{"a": true, "c": false} {
		if got, err := c.Exists(t.Context(), name); got != want || err != nil {
			t.Errorf("node %s: got %t, %v", name, got, err)
		}
	}

	if _, err := c.Cordon(t.Context(), "c", "r"); !errors.Is(err, rollout.ErrRefused) {
		t.Errorf("a node that is gone: got %v", err)
	}

	s.Forbidden["PATCH "+nodePath] = true

	if _, err := c.Cordon(t.Context(), "a", "r"); !errors.Is(err, rollout.ErrRefused) ||
		!strings.Contains(err.Error(), "you may not patch nodes") {
		t.Errorf("a right that is missing: got %v", err)
	}
}

const replicaSet = `"ownerReferences": [{"controller": true, "kind": "ReplicaSet", "apiVersion": "apps/v1", "name": "x"}]`

// Eviction is by kubectl drain's rules, and of no other pod than those that hold the devices.
func TestEvict(t *testing.T) {
	daemonSet := strings.Replace(replicaSet, "ReplicaSet", "DaemonSet", 1)
	holder := rollout.Pod{Namespace: "ml", Name: "train-0"}

	for _, test := range []struct {
		name, pod string
		options   rollout.Eviction
		budget    bool
		want      string // the error
	}{
		{name: "of a controller", pod: `{"metadata": {` + replicaSet + `}, "spec": {"nodeName": "a"}}`},
		{name: "a budget", pod: `{"metadata": {` + replicaSet + `}, "spec": {"nodeName": "a"}}`, budget: true,
			want: "Cannot evict pod as it would violate the pod's disruption budget."},
		{name: "a bare pod", pod: `{"spec": {"nodeName": "a"}}`, want: "use --force"},
		{name: "a bare pod by force", pod: `{"spec": {"nodeName": "a"}}`, options: rollout.Eviction{Force: true}},
		{name: "emptyDir", pod: `{"metadata": {` + replicaSet + `}, "spec": {"nodeName": "a", "volumes": [{"emptyDir": {}}]}}`,
			want: "--delete-emptydir-data"},
		{name: "emptyDir that may be deleted", options: rollout.Eviction{DeleteEmptyDirData: true},
			pod: `{"metadata": {` + replicaSet + `}, "spec": {"nodeName": "a", "volumes": [{"emptyDir": {}}]}}`},
		{name: "of a DaemonSet", pod: `{"metadata": {` + daemonSet + `}, "spec": {"nodeName": "a"}}`,
			want: "--ignore-daemonsets"},
		{name: "of a DaemonSet that is ignored", options: rollout.Eviction{IgnoreDaemonSets: true},
			pod: `{"metadata": {` + daemonSet + `}, "spec": {"nodeName": "a"}}`, want: "stay"},
		{name: "static", options: rollout.Eviction{Force: true}, want: "stay",
			pod: `{"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {"nodeName": "a"}}`},
		{name: "being deleted, and not waited for", options: rollout.Eviction{SkipWaitForDeleteAfter: 1}, want: "being deleted",
			pod: `{"metadata": {` + replicaSet + `, "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": "a"}}`},
		{name: "not selected", options: rollout.Eviction{PodSelector: "team=x"}, want: "stay",
			pod: `{"metadata": {` + replicaSet + `}, "spec": {"nodeName": "a"}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newFakeAPI(t)
			podPath := "/api/v1/namespaces/ml/pods/train-0"
			s.add(t, podPath, test.pod)
			s.Get(podPath)
			s.Lock()
			s.Objects[podPath]["metadata"].(map[string]any)["namespace"] = "ml"
			s.Unlock()
			s.add(t, "/api/v1/namespaces/ml/pods/other", `{"metadata": {"namespace": "ml"}, "spec": {"nodeName": "a"}}`)
			s.add(t, "/api/v1/namespaces/ml/pods/train-1", `{"metadata": {"namespace": "ml"}, "spec": {"nodeName": "b"}}`)
			s.add(t, "/apis/apps/v1/namespaces/ml/daemonsets/x", `{}`)
			s.Budgets[podPath] = test.budget

			c := s.cluster(t)
			c.newDrain = func(ctx context.Context, set kubernetes.Interface, o rollout.Eviction) *drain.Helper {
				helper := newDrain(ctx, set, o)
				helper.EvictErrorRetryDelay = 20 * time.Millisecond

				return helper
			}

			test.options.GracePeriodSeconds = -1
			test.options.Timeout = 100 * time.Millisecond
			pods := []rollout.Pod{holder, {Namespace: "ml", Name: "train-1"}, {Namespace: "ml", Name: "gone"}}

			// A plan finds all that an eviction does but for budgets.
			found := c.CheckEviction(t.Context(), "a", pods, test.options)
			if (found == nil) != (test.want == "" || test.budget) ||
				found != nil && (!strings.Contains(found.Error(), test.want) || !errors.Is(found, rollout.ErrRefused)) {
				t.Errorf("the plan: got %v; expected %q", found, test.want)
			}

			if len(s.Evicted) > 0 {
				t.Errorf("the plan has evicted %v", s.Evicted)
			}

			err := c.Evict(t.Context(), "a", pods, test.options)

			want := []string{podPath}
			if test.want != "" {
				want = nil
			}

			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; expected %q", err, test.want)
			}

			if err != nil && !errors.Is(err, rollout.ErrRefused) {
				t.Errorf("%v is not final", err)
			}

			if !slices.Equal(s.Evicted, want) {
				t.Errorf("evicted %v; expected %v", s.Evicted, want)
			}
		})
	}
}

// A pod that is gone while a PodDisruptionBudget refuses its eviction is not mistaken for another of
// its name, which its owner has made on another node.
func TestEvictNoPodOfTheSameName(t *testing.T) {
	const podPath = "/api/v1/namespaces/ml/pods/train-0"

	for _, disable := range []bool{false, true} {
		s := newFakeAPI(t)
		s.add(t, podPath, `{"metadata": {"namespace": "ml", `+replicaSet+`}, "spec": {"nodeName": "a"}}`)
		s.Before = func(r *http.Request) {
			if r.Method == http.MethodPost || r.Method == http.MethodDelete {
				s.add(t, podPath, `{"metadata": {"namespace": "ml"}, "spec": {"nodeName": "b"}}`)
			}
		}

		err := s.cluster(t).Evict(t.Context(), "a", []rollout.Pod{{Namespace: "ml", Name: "train-0"}},
			rollout.Eviction{GracePeriodSeconds: -1, Timeout: time.Minute, DisableEviction: disable})
		if err != nil || len(s.Evicted) != 0 {
			t.Errorf("without evictions %t: got %v, evicted %v", disable, err, s.Evicted)
		}
	}
}

// An API server that cannot answer is no refusal: the eviction can be tried again.
func TestEvictWithoutAnAnswer(t *testing.T) {
	const podPath = "/api/v1/namespaces/ml/pods/train-0"

	for _, unanswered := range []string{"POST " + podPath + "/eviction", "GET " + podPath} {
		s := newFakeAPI(t)
		s.add(t, podPath, `{"metadata": {"namespace": "ml", `+replicaSet+`}, "spec": {"nodeName": "a"}}`)
		s.Unavailable = unanswered

		err := s.cluster(t).Evict(t.Context(), "a", []rollout.Pod{{Namespace: "ml", Name: "train-0"}},
			rollout.Eviction{GracePeriodSeconds: -1, Timeout: time.Minute})
		if err == nil || errors.Is(err, rollout.ErrRefused) {
			t.Errorf("%s: got %v; expected an error for now", unanswered, err)
		}
	}
}
