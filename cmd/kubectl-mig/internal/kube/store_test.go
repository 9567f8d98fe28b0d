package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

func newTestRun(t *testing.T, clock *clock) *rollout.Run {
	t.Helper()

	run, err := rollout.NewRun(
		clock.Now(), []rollout.Target{{Node: "a"}}, []api.Spec{{Layout: "new"}}, rollout.Options{},
	)
	if err != nil {
		t.Fatal(err)
	}

	return run
}

func TestRunsAreKept(t *testing.T) {
	s := newFakeAPI(t)
	c := s.cluster(t)
	clock := newClock()
	run := newTestRun(t, clock)

	store, err := c.CreateRun(t.Context(), clock, "laptop", run)
	if err != nil {
		t.Fatal(err)
	}

	run.Nodes[0].Phase = rollout.Running
	if err := store.Save(t.Context(), run); err != nil {
		t.Fatal(err)
	}

	store.Close(t.Context())

	if err := store.Save(t.Context(), run); !errors.Is(err, rollout.ErrLost) {
		t.Errorf("saved after the end: got %v", err)
	}

	again, other, err := c.OpenRun(t.Context(), clock, "other", run.Name)
	if err != nil {
		t.Fatal(err)
	}

	if again.Nodes[0].Phase != rollout.Running || again.Owner != "other" || !clock.Now().Equal(newClock().now) {
		t.Errorf("got %+v at %v", again, clock.Now())
	}

	if err := other.Save(t.Context(), again); err != nil {
		t.Error(err)
	}

	if runs, err := c.ListRuns(t.Context()); err != nil || len(runs) != 1 || runs[0].Name != run.Name {
		t.Errorf("got %v, %v", runs, err)
	}

	if _, _, err := c.OpenRun(t.Context(), clock, "other", "mig-x"); err == nil ||
		!strings.Contains(err.Error(), "no run mig-x") || s.get("/apis/coordination.k8s.io/v1/namespaces/gpu/leases/mig-x", "spec") != nil {
		t.Errorf("a run that does not exist: got %v", err)
	}
}

// A client that was killed leaves its Lease: another one waits until it is expired.
func TestTakesOverAnExpiredRun(t *testing.T) {
	s := newFakeAPI(t)
	c := s.cluster(t)
	clock := newClock()
	run := newTestRun(t, clock)

	killed, err := c.CreateRun(t.Context(), clock, "laptop", run)
	if err != nil {
		t.Fatal(err)
	}

	start := clock.Now()

	again, store, err := c.OpenRun(t.Context(), clock, "other", run.Name)
	if err != nil {
		t.Fatal(err)
	}

	if waited := clock.Now().Sub(start); waited < leaseDuration || waited > 2*leaseDuration {
		t.Errorf("it was taken over after %s", waited)
	}

	if err := killed.Held(); !errors.Is(err, rollout.ErrLost) {
		t.Errorf("the first client: got %v", err)
	}

	if err := store.Save(t.Context(), again); err != nil {
		t.Error(err)
	}
}

// A client that renews its Lease keeps the run.
func TestOwnedRun(t *testing.T) {
	s := newFakeAPI(t)
	c := s.cluster(t)
	clock := newClock()
	run := newTestRun(t, clock)

	store, err := c.CreateRun(t.Context(), clock, "laptop", run)
	if err != nil {
		t.Fatal(err)
	}

	sleeps := 0
	clock.sleep = func() {
		if sleeps++; sleeps%4 == 0 {
			if err := store.lease.renew(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	}

	var owned *OwnedError
	if _, _, err := c.OpenRun(t.Context(), clock, "other", run.Name); !errors.As(err, &owned) ||
		owned.Holder != "laptop" {
		t.Errorf("got %v", err)
	}

	if err := store.Held(); err != nil {
		t.Error(err)
	}
}

// What another client has saved is not overwritten, even by a client whose clock stood still.
func TestSavedByAnother(t *testing.T) {
	s := newFakeAPI(t)
	c := s.cluster(t)
	clock := newClock()
	run := newTestRun(t, clock)

	slow, err := c.CreateRun(t.Context(), newClock(), "laptop", run)
	if err != nil {
		t.Fatal(err)
	}

	if _, _, err := c.OpenRun(t.Context(), clock, "other", run.Name); err != nil {
		t.Fatal(err)
	}

	if err := slow.Held(); err != nil {
		t.Fatal("its clock stands still")
	}

	run.Nodes[0].Phase = rollout.Done
	if err := slow.Save(t.Context(), run); !errors.Is(err, rollout.ErrLost) {
		t.Errorf("got %v", err)
	}

	if err := slow.lease.renew(t.Context()); !errors.Is(err, rollout.ErrLost) {
		t.Errorf("renewed: got %v", err)
	}
}

// A state that was saved without an answer is saved.
func TestSavedWithoutAnAnswer(t *testing.T) {
	s := newFakeAPI(t)
	c := s.cluster(t)
	clock := newClock()
	run := newTestRun(t, clock)

	store, err := c.CreateRun(t.Context(), clock, "laptop", run)
	if err != nil {
		t.Fatal(err)
	}

	run.Nodes[0].Phase = rollout.Running
	before := store.version

	for range 2 {
		store.version = before // the client does not know the answer
		if err := store.Save(t.Context(), run); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKeep(t *testing.T) {
	s := newFakeAPI(t)
	c := s.cluster(t)
	clock := newClock()
	run := newTestRun(t, clock)

	store, err := c.CreateRun(t.Context(), clock, "laptop", run)
	if err != nil {
		t.Fatal(err)
	}

	// It renews the Lease for an hour; then the API server refuses.
	end := clock.Now().Add(time.Hour)
	lease := "/apis/coordination.k8s.io/v1/namespaces/gpu/leases/" + run.Name
	s.intercept = func(r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()

		if clock.Now().After(end) {
			s.forbidden["PUT "+lease] = true
		}
	}

	// The error names the right that is missing.
	if err := store.Keep(t.Context()); !errors.Is(err, rollout.ErrLost) ||
		!strings.Contains(err.Error(), "you may not update leases in namespace gpu") {
		t.Errorf("got %v", err)
	}

	if lasted := clock.Now().Sub(end); lasted < 0 || lasted > leaseDuration {
		t.Errorf("it was lost %s after the last renewal", lasted)
	}
}
