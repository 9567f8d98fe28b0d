package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	gpuA gpu.UUID = "GPU-fb8bbc70-d551-45f9-43d4-9734f9cddb2c"
	gpuB gpu.UUID = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
)

func TestActor(t *testing.T) {
	s := newAPIServer()
	s.tokens["sa"] = fakeUser{"system:serviceaccount:ops:partitioner", []string{"system:authenticated"},
		[]string{"mig-exporter", "api"}}
	s.tokens["human"] = fakeUser{"alice", []string{"admins"}, []string{"mig-exporter"}}
	s.grants["system:serviceaccount:ops:partitioner"] = []string{"get", "plan", "apply"}
	c, _ := testCluster(t, s, "mig-exporter")
	got, err := c.Actor(t.Context(), "sa")

	want := control.Actor{Name: "serviceaccount:ops/partitioner", Credential: "JTI=1",
		Rights: control.Rights{Read: true, Plan: true, Apply: true}}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}

	if u := s.reviewing; u.UID != "u-1" || !slices.Equal(u.Groups, []string{"system:authenticated"}) {
		t.Errorf("rights were reviewed for the user %q of %q, want u-1 of system:authenticated", u.UID, u.Groups)
	}

	if pods := s.reviewing.Extra["authentication.kubernetes.io/pod-name"]; len(pods) != 1 {
		t.Errorf("rights were reviewed for the pods %q, want one", pods)
	}

	if got, err := c.Actor(t.Context(), "human"); err != nil || got != (control.Actor{Name: "user:alice", Credential: "JTI=1"}) {
		t.Errorf("without a right: %+v, %v", got, err)
	}

	all := []string{"get", "plan", "apply", "mode", "force", "take-over"}
	s.set(func() { s.grants["bob"] = all; s.tokens["bob's"] = fakeUser{"bob", nil, []string{"mig-exporter"}} })

	if got, err := c.Actor(t.Context(), "bob's"); err != nil ||
		got.Rights != (control.Rights{Read: true, Plan: true, Apply: true, Mode: true, Force: true, TakeOver: true}) {
		t.Errorf("with all rights: %+v, %v", got, err)
	}
}

func TestActorIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name  string
		token string
		make  func(s *apiServer)
		want  error
		not   error
	}{
		{"no token", "", func(*apiServer) {}, gpu.ErrNoPermission, gpu.ErrUnavailable},
		{"a token without end", strings.Repeat("x", maxToken+1), func(*apiServer) {}, gpu.ErrNoPermission,
			gpu.ErrUnavailable},
		{"an unknown token", "secret-guess", func(*apiServer) {}, gpu.ErrNoPermission, gpu.ErrUnavailable},
		{"for another audience", "other", func(*apiServer) {}, gpu.ErrNoPermission, gpu.ErrUnavailable},
		{"audiences are not checked", "good", func(s *apiServer) { s.audienceless = true }, gpu.ErrNoPermission,
			gpu.ErrUnavailable},
		{"of no account", "void-token", func(*apiServer) {}, gpu.ErrNoPermission, gpu.ErrUnavailable},
		{"the exporter may not review tokens", "good", func(s *apiServer) { s.forbidden["create tokenreviews"] = true },
			gpu.ErrUnavailable, gpu.ErrNoPermission},
		{"nor rights", "good", func(s *apiServer) { s.forbidden["create subjectaccessreviews"] = true }, gpu.ErrUnavailable,
			gpu.ErrNoPermission},
		{"the API server is down", "good", func(s *apiServer) { s.down = true }, gpu.ErrUnavailable, gpu.ErrNoPermission},
	} {
		s := newAPIServer()
		s.tokens["good"] = fakeUser{"alice", nil, []string{"mig-exporter"}}
		s.tokens["other"] = fakeUser{"alice", nil, []string{"vault"}}
		s.tokens["void-token"] = fakeUser{"", nil, []string{"mig-exporter"}}
		s.grants["alice"] = []string{"get"}
		tc.make(s)
		c, _ := testCluster(t, s, "mig-exporter")

		got, err := c.Actor(t.Context(), tc.token)
		if !errors.Is(err, tc.want) || errors.Is(err, tc.not) {
			t.Errorf("%s: got %v, want %v and not %v", tc.name, err, tc.want, tc.not)
		}

		cmptest.Equal(t, tc.name+": the actor", got, control.Actor{})
		cmptest.LacksTexts(t, fmt.Sprint(err), ownToken)

		if tc.token != "" && tc.token != "other" { // a word that an error may have
			cmptest.LacksTexts(t, fmt.Sprint(err), tc.token)
		}
	}
}

// A right of this program's that is missing is named, and not reported as a missing answer.
func TestRefusalsNameTheRights(t *testing.T) {
	for right, ask := range map[string]func(*Cluster) error{
		"create tokenreviews":         func(c *Cluster) error { _, err := c.Actor(t.Context(), "good"); return err },
		"create subjectaccessreviews": func(c *Cluster) error { _, err := c.Actor(t.Context(), "good"); return err },
		"get nodes":                   func(c *Cluster) error { _, err := c.Cordon(t.Context()); return err },
		"patch nodes":                 func(c *Cluster) error { _, err := c.Cordon(t.Context()); return err },
		"list resourceslices":         func(c *Cluster) error { _, err := c.Owners(t.Context()); return err },
		"list instaslices":            func(c *Cluster) error { _, err := c.Owners(t.Context()); return err },
	} {
		s := newAPIServer()
		s.tokens["good"] = fakeUser{"alice", nil, nil}
		s.groups["resource.k8s.io"], s.groups["inference.redhat.com"] = "v1", "v1alpha1"
		s.forbidden[strings.Replace(right, "list ", "get ", 1)] = true
		c, _ := testCluster(t, s)
		err := ask(c)

		var refused interface{ Refusal() string }
		if !errors.As(err, &refused) || !strings.Contains(refused.Refusal(), "needs the right to "+right) {
			t.Errorf("%s: %v", right, err)
		}

		if err == nil || !strings.Contains(err.Error(), right) {
			t.Errorf("got %v, want an error that names %q", err, right)
		}

		if strings.Contains(fmt.Sprint(err), "does not answer") {
			t.Errorf("without the right %q the API server does not answer: %v", right, err)
		}

		if right == "get nodes" {
			s.set(func() { s.forbidden["get resourceslices"] = true })
			_, err := c.Owners(t.Context())
			want := "the service account needs the right to get nodes; the service account needs the right to list " +
				"resourceslices.resource.k8s.io"

			if !errors.As(err, &refused) || !errors.Is(err, gpu.ErrNoPermission) {
				t.Fatalf("two rights: got %v, want a refusal", err)
			}

			if got := refused.Refusal(); got != want {
				t.Errorf("two rights: got %q, want %q", got, want)
			}
		}

		s.set(func() { s.down = true })

		if err := ask(c); errors.As(err, &refused) {
			t.Errorf("%s: the server is down, and the error is a refusal: %v", right, err)
		}
	}
}

func TestActorNeedsNoAudience(t *testing.T) {
	s := newAPIServer()
	s.tokens["good"] = fakeUser{"alice", nil, []string{"api"}}

	c, _ := testCluster(t, s)
	if got, err := c.Actor(t.Context(), "good"); err != nil || got.Name != "user:alice" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestActorIsBelievedForAWhile(t *testing.T) {
	s := newAPIServer()
	s.tokens["good"] = fakeUser{"alice", nil, nil}
	s.grants["alice"] = []string{"get"}
	c, now := testCluster(t, s)
	actor := func() control.Actor {
		t.Helper()

		a, err := c.Actor(t.Context(), "good")
		if err != nil {
			t.Fatal(err)
		}

		return a
	}
	actor()
	s.set(func() { s.grants["alice"] = nil })
	now.advance(cacheTTL - 1)

	if known, ok := c.Known("good"); !ok || !known.Rights.Read {
		t.Errorf("known: %+v, %t", known, ok)
	}

	if _, ok := c.Known("another"); ok {
		t.Error("a token that was never reviewed is known")
	}

	if !actor().Rights.Read || s.count("POST") != 8 {
		t.Errorf("asked %d times", s.count("POST"))
	}

	now.advance(1)

	if actor().Rights.Read {
		t.Error("a right that was taken away is there for ever")
	}

	s.set(func() { delete(s.tokens, "good") })
	now.advance(cacheTTL)

	for range 2 {
		if _, err := c.Actor(t.Context(), "good"); !errors.Is(err, gpu.ErrNoPermission) {
			t.Errorf("a token that is void: %v", err)
		}
	}

	for i := range 3 * maxCached {
		c.remember(tokenHash{byte(i), byte(i >> 8)}, control.Actor{})
	}

	if len(c.known) > maxCached {
		t.Errorf("%d tokens are remembered", len(c.known))
	}
}

func (s *apiServer) unschedulable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, _ := s.node["spec"].(map[string]any)["unschedulable"].(bool)

	return v
}

func (s *apiServer) mark() any {
	s.mu.Lock()
	defer s.mu.Unlock()
	annotations, _ := s.metadata()["annotations"].(map[string]any)

	return annotations[markName]
}

// actors asks for the actors of all tokens at once. The server knows a user of the same name for each.
func (s *apiServer) actors(t *testing.T, c *Cluster, tokens []string) {
	t.Helper()

	c.timeout = time.Hour // so many TLS handshakes at once take long on a busy machine
	errs := make(chan error, len(tokens))

	for _, token := range tokens {
		s.set(func() { s.tokens[token] = fakeUser{name: token} })

		go func() {
			_, err := c.Actor(t.Context(), token)
			errs <- err
		}()
	}

	for range tokens {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// TestReviewsAtOnceAreBounded: many callers come at once, each with a token of its own. We review
// maxReviews of them, and each other one only when one of these has ended.
func TestReviewsAtOnceAreBounded(t *testing.T) {
	s := newAPIServer()
	s.reviews = &reviewCounter{left: map[string]int{}, limit: maxReviews, passed: make(chan struct{})}
	c, _ := testCluster(t, s)

	var tokens []string
	for n := range 4 * maxReviews {
		tokens = append(tokens, fmt.Sprint("user ", n))
	}

	s.actors(t, c, tokens)
	cmptest.Equal(t, "requests", s.count("POST"), len(tokens)*(1+verbs))

	if n := s.reviews.max(); n > maxReviews {
		t.Errorf("%d tokens were under review at once, want at most %d", n, maxReviews)
	}
}

// TestOneTokenIsNotReviewedByEachCaller: callers that waited for a review take its result.
func TestOneTokenIsNotReviewedByEachCaller(t *testing.T) {
	s := newAPIServer()
	c, _ := testCluster(t, s)
	s.actors(t, c, slices.Repeat([]string{"t"}, 8*maxReviews))

	if n := s.count("POST"); n > maxReviews*(1+verbs) {
		t.Errorf("%d requests for one token, want at most %d", n, maxReviews*(1+verbs))
	}
}

// TestCallerGivesUpBeforeItsReview: while maxReviews tokens are under review, a call whose context ends
// has had no answer, which is no refusal.
func TestCallerGivesUpBeforeItsReview(t *testing.T) {
	c, _ := testCluster(t, newAPIServer())

	for range maxReviews {
		c.reviews <- struct{}{}
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if _, err := c.Actor(ctx, "another"); !errors.Is(err, gpu.ErrUnavailable) || errors.Is(err, gpu.ErrNoPermission) {
		t.Errorf("no place: %v", err)
	}
}

// wantCordon checks whether the node is unschedulable, and its annotation, nil for none.
func wantCordon(t *testing.T, what string, s *apiServer, unschedulable bool, mark any) {
	t.Helper()
	cmptest.Equal(t, what+": unschedulable", s.unschedulable(), unschedulable)
	cmptest.Equal(t, what+": annotation", s.mark(), mark)
}

func TestCordon(t *testing.T) {
	s := newAPIServer()
	s.metadata()["annotations"] = map[string]any{"other": "stays"}
	s.meddle = maxTries - 1

	c, _ := testCluster(t, s)
	if ok, err := c.Cordon(t.Context()); !ok || err != nil {
		t.Fatalf("cordon: got %v, %v, want true", ok, err)
	}

	wantCordon(t, "cordon", s, true, markValue)

	if ok, err := c.Cordon(t.Context()); ok || err != nil {
		t.Errorf("cordon again: %v, %v", ok, err)
	}

	// After a crash another process finds its predecessor's mark.
	successor, _ := testCluster(t, s)
	s.set(func() { s.meddle = 1 })

	if err := successor.Uncordon(t.Context()); err != nil {
		t.Errorf("uncordon: %v", err)
	}

	wantCordon(t, "uncordon", s, false, nil)

	if got := s.metadata()["annotations"].(map[string]any)["other"]; got != "stays" {
		t.Errorf("another's annotation is %v", got)
	}

	if got := s.node["spec"].(map[string]any)["podCIDR"]; got != "10.0.0.0/24" {
		t.Errorf("podCIDR is %v", got)
	}
}

func TestUncordonLeavesOthersAlone(t *testing.T) {
	s := newAPIServer()
	s.node["spec"].(map[string]any)["unschedulable"] = true

	c, _ := testCluster(t, s)
	if ok, err := c.Cordon(t.Context()); ok || err != nil {
		t.Errorf("cordon of a cordoned node: %v, %v", ok, err)
	}

	if err := c.Uncordon(t.Context()); err != nil || !s.unschedulable() {
		t.Errorf("the operator's cordon is gone: %v", err)
	}

	if n := s.count("PATCH"); n != 0 {
		t.Errorf("%d patches", n)
	}
}

// A node that this program has left cordoned, by a crash, and that an operator has taken back and
// cordoned for himself: his cordon stays.
func TestUncordonLeavesALaterCordonAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		operator func(s *apiServer)
		want     bool // cordoned afterwards
	}{
		"cordoned again": {func(s *apiServer) { s.manage("kubectl-cordon", true) }, true},
		"uncordoned": {func(s *apiServer) {
			delete(s.node["spec"].(map[string]any), "unschedulable")
			s.manage("kubectl-uncordon", nil)
		}, false},
		"no manager recorded": {func(s *apiServer) { delete(s.metadata(), "managedFields") }, false},
	} {
		s := newAPIServer()

		c, _ := testCluster(t, s)
		if ok, err := c.Cordon(t.Context()); !ok || err != nil {
			t.Fatalf("%s: cordon: %v, %v", name, ok, err)
		}

		s.set(func() { tc.operator(s); s.version++ })

		if err := c.Uncordon(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}

		wantCordon(t, name, s, tc.want, nil)
	}
}

func TestCordonFails(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(s *apiServer)
		want error
	}{
		"always changed": {func(s *apiServer) { s.meddle = 1000 }, gpu.ErrUnavailable},
		"may not patch":  {func(s *apiServer) { s.forbidden["patch nodes"] = true }, gpu.ErrNoPermission},
		"may not get":    {func(s *apiServer) { s.forbidden["get nodes"] = true }, gpu.ErrNoPermission},
		"server is down": {func(s *apiServer) { s.down = true }, gpu.ErrUnavailable},
		"node has no name": {func(s *apiServer) {
			s.node = map[string]any{"metadata": map[string]any{}, "spec": map[string]any{}}
			s.meddle = 1000
		}, gpu.ErrUnavailable},
	} {
		s := newAPIServer()
		tc.make(s)

		c, _ := testCluster(t, s)
		if ok, err := c.Cordon(t.Context()); ok || !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, %v, want %v", name, ok, err, tc.want)
		}
	}
}

// ownerCase is a cluster, and who owns GPUs of node-1 in it.
type ownerCase struct {
	name string
	make func(*apiServer)
	want map[gpu.UUID][]string
}

func wantOwners(t *testing.T, cases []ownerCase) {
	t.Helper()

	for _, tc := range cases {
		s := newAPIServer()
		tc.make(s)
		c, _ := testCluster(t, s)

		got, err := c.Owners(t.Context())
		if want := fmt.Sprint(tc.want); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: got %v, %v, want %s", tc.name, got, err, want)
		}

		for _, selector := range s.selectors {
			if !strings.Contains(selector, "node-1") {
				t.Errorf("%s: all nodes' objects are asked for: %q", tc.name, selector)
			}
		}
	}
}

func TestOwnersByMarksOfTheNode(t *testing.T) {
	labels := func(pairs ...string) func(*apiServer) {
		return func(s *apiServer) {
			m := map[string]any{}
			for i := 0; i < len(pairs); i += 2 {
				m[pairs[i]] = pairs[i+1]
			}

			s.metadata()["labels"] = m
		}
	}
	hami := func(register string) func(*apiServer) {
		return func(s *apiServer) {
			s.metadata()["annotations"] = map[string]any{"hami.io/node-nvidia-register": register}
		}
	}
	wantOwners(t, []ownerCase{
		{"none", labels("nvidia.com/mig.strategy", "mixed", "nvidia.com/gpu.product", "A100"), nil},
		{"mig-manager", labels("nvidia.com/mig.config", "all-balanced", "nvidia.com/mig.config.state", "success"),
			map[gpu.UUID][]string{"": {"mig-manager (label nvidia.com/mig.config=all-balanced, state success)"}}},
		{"mig-manager before it began", labels("nvidia.com/mig.config", "all-balanced"),
			map[gpu.UUID][]string{"": {"mig-manager (label nvidia.com/mig.config=all-balanced, state unknown)"}}},
		{"GKE", labels("cloud.google.com/gke-gpu-partition-size", "3g.40gb"),
			map[gpu.UUID][]string{"": {"GKE (label cloud.google.com/gke-gpu-partition-size=3g.40gb)"}}},
		{"nos", labels("nos.nebuly.com/gpu-partitioning", "mig"),
			map[gpu.UUID][]string{"": {"nos (label nos.nebuly.com/gpu-partitioning=mig)"}}},
		{"nos with MPS", labels("nos.nebuly.com/gpu-partitioning", "mps"), nil},
		{"HAMi", hami(`[{"id": "` + string(gpuA) + `", "mode": "mig", "count": 10}, {"id": "` + string(gpuB) +
			`", "mode": "hami-core"}]`),
			map[gpu.UUID][]string{gpuA: {"HAMi (annotation hami.io/node-nvidia-register, mode mig)"}}},
		{"HAMi's former form", hami(string(gpuA) + ",10,40960,100,NVIDIA-A100,0,true,0,mig:" + string(gpuB) +
			",10,32768,100,NVIDIA-V100,0,true,1,hami-core:"),
			map[gpu.UUID][]string{gpuA: {"HAMi (annotation hami.io/node-nvidia-register, mode mig)"}}},
		{"HAMi without a UUID", hami(`[{"id": "?", "mode": "mig"}]`),
			map[gpu.UUID][]string{"": {"HAMi (annotation hami.io/node-nvidia-register, mode mig)"}}},
		{"HAMi's first form", hami(string(gpuA) + ",10,40960,100,NVIDIA-A100,0,true:"), nil},
	})
}

func TestOwnersByObjects(t *testing.T) {
	list := func(group, version, path, answer string) func(*apiServer) {
		return func(s *apiServer) {
			s.groups[group] = version
			s.lists[path] = answer
		}
	}
	dra := "DRA (ResourceSlice of gpu.nvidia.com with MIG devices)"
	slice := `{"spec": {"driver": "gpu.nvidia.com", "nodeName": "node-1", "devices": [%s]}}`
	wantOwners(t, []ownerCase{
		{"DRA", list("resource.k8s.io", "v1", "/apis/resource.k8s.io/v1/resourceslices", `{"items": [`+fmt.Sprintf(slice,
			`{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}, "uuid": {"string": "`+string(gpuB)+`"}}},
			{"name": "gpu-1-mig-1g5gb-19-0", "attributes": {"type": {"string": "mig"}, "parentUUID": {"string": "`+string(gpuA)+`"}, "sms": {"int": 14}}},
			{"name": "gpu-1-mig-1g5gb-19-1", "attributes": {"type": {"string": "mig"}, "parentUUID": {"string": "`+string(gpuA)+`"}}}`)+`]}`),
			map[gpu.UUID][]string{gpuA: {dra}}},
		{"DRA in v1beta1", list("resource.k8s.io", "v1beta1", "/apis/resource.k8s.io/v1beta1/resourceslices",
			`{"items": [`+fmt.Sprintf(slice,
				`{"name": "x", "basic": {"attributes": {"type": {"string": "mig"}}}}`)+`]}`), map[gpu.UUID][]string{"": {dra}}},
		{"DRA without MIG", list("resource.k8s.io", "v1", "/apis/resource.k8s.io/v1/resourceslices", `{"items": [`+fmt.Sprintf(slice, `{"name": "gpu-0"}`)+`,
			{"spec": {"driver": "dra.example.com", "nodeName": "node-1", "devices": [{"name": "a-mig-b"}]}},
			{"spec": {"driver": "gpu.nvidia.com", "nodeName": "node-2", "devices": [{"name": "gpu-0-mig-1g5gb-19-0"}]}}]}`), nil},
		{"InstaSlice", list("inference.redhat.com", "v1alpha1", "/apis/inference.redhat.com/v1alpha1/instaslices",
			`{"items": [{"metadata": {"name": "node-2"}}, {"metadata": {"name": "node-1"}, "status": {"nodeResources": {"nodeGpus": [{"gpuUuid": "`+string(gpuA)+`"}]}}}]}`),
			map[gpu.UUID][]string{gpuA: {"InstaSlice (instaslices.inference.redhat.com node-1)"}}},
		{"InstaSlice's later form", list("inference.redhat.com", "v1alpha1",
			"/apis/inference.redhat.com/v1alpha1/nodeaccelerators", `{"items": [{"metadata": {"name": "node-1"}}]}`),
			map[gpu.UUID][]string{"": {"InstaSlice (nodeaccelerators.inference.redhat.com node-1)"}}},
	})
}

// TestOwnersDoesNotGuess: what cannot be asked may be an owner; what is known is reported
// nevertheless.
func TestOwnersDoesNotGuess(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(*apiServer)
		want error
	}{
		"node":       {func(s *apiServer) { s.forbidden["get nodes"] = true }, gpu.ErrNoPermission},
		"groups":     {func(s *apiServer) { s.forbidden["get apis"] = true }, gpu.ErrNoPermission},
		"slices":     {func(s *apiServer) { s.forbidden["get resourceslices"] = true }, gpu.ErrNoPermission},
		"InstaSlice": {func(s *apiServer) { s.forbidden["get instaslices"] = true }, gpu.ErrNoPermission},
		"everything": {func(s *apiServer) { s.down = true }, gpu.ErrUnavailable},
		"no JSON": {func(s *apiServer) { s.lists["/apis/resource.k8s.io/v1/resourceslices"] = "<html>" },
			gpu.ErrUnavailable},
	} {
		s := newAPIServer()
		s.groups["resource.k8s.io"], s.groups["inference.redhat.com"] = "v1", "v1alpha1"
		s.metadata()["labels"] = map[string]any{"cloud.google.com/gke-gpu-partition-size": "1g.5gb"}
		tc.make(s)
		c, _ := testCluster(t, s)

		got, err := c.Owners(t.Context())
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}

		if known := name != "node" && name != "everything"; (len(got[""]) == 1) != known {
			t.Errorf("%s: owners %v", name, got)
		}
	}
}

func TestNewNeedsTheNodesName(t *testing.T) {
	if _, err := New(Options{}); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("got %v", err)
	}
}

// TestNodeAudience: a token for this node's audience is accepted, whatever is configured, and one
// for another node's is not. The audit log gets the token's id.
func TestNodeAudience(t *testing.T) {
	jwt := func(audience string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"aud":`+audience+`}`)) + ".c2ln"
	}

	for name, c := range map[string]struct {
		token      string // what it says
		audiences  []string
		configured []string
		credential string
		want       error
	}{
		"this node's":                {`["mig-exporter/node-1"]`, []string{"mig-exporter/node-1"}, nil, "JTI=1", nil},
		"as one text":                {`"mig-exporter/node-1"`, []string{"mig-exporter/node-1"}, nil, "JTI=1", nil},
		"beside a configured one":    {`["mig-exporter/node-1"]`, []string{"mig-exporter/node-1"}, []string{"x"}, "JTI=1", nil},
		"the configured one":         {`["x"]`, []string{"x"}, []string{"x"}, "JTI=1", nil},
		"the API server's":           {`["api"]`, []string{"api"}, nil, "JTI=1", nil},
		"another node's":             {`["mig-exporter/node-2"]`, []string{"mig-exporter/node-2"}, []string{"x"}, "", gpu.ErrNoPermission},
		"another node's, no setting": {`["mig-exporter/node-2"]`, []string{"mig-exporter/node-2"}, nil, "", gpu.ErrNoPermission},
		"a forged audience":          {`["mig-exporter/node-1"]`, []string{"api"}, nil, "", gpu.ErrNoPermission},
	} {
		s := newAPIServer()
		s.own = "api"
		token := jwt(c.token)
		s.tokens[token] = fakeUser{"system:serviceaccount:mig:get", nil, c.audiences}
		cluster, _ := testCluster(t, s, c.configured...)

		actor, err := cluster.Actor(t.Context(), token)
		if !errors.Is(err, c.want) || actor.Credential != c.credential {
			t.Errorf("%s: %+v, %v", name, actor, err)
		}
	}
}
