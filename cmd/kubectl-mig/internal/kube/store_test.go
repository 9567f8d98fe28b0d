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

// ownedRun is a run that the client "laptop" has just begun.
type ownedRun struct {
	*rollout.Run
	api     *fakeAPI
	cluster *Cluster
	clock   *clock
	store   *Store
}

func newOwnedRun(t *testing.T) *ownedRun {
	t.Helper()

	o := &ownedRun{api: newFakeAPI(t), clock: newClock()}
	o.cluster = o.api.cluster(t)
	o.Run = newTestRun(t, o.clock)

	var err error
	if o.store, err = o.cluster.CreateRun(t.Context(), o.clock, "laptop", o.Run); err != nil {
		t.Fatal(err)
	}

	return o
}

// leasePath is the path of the run's Lease.
func (o *ownedRun) leasePath() string {
	return "/apis/coordination.k8s.io/v1/namespaces/gpu/leases/" + o.Name
}

// open opens the run as another client.
func (o *ownedRun) open(t *testing.T) (*rollout.Run, *Store, error) {
	t.Helper()

	return o.cluster.OpenRun(t.Context(), o.clock, "other", o.Name)
}

func TestRunsAreKept(t *testing.T) {
	o := newOwnedRun(t)
	run := o.Run
	store := o.store

	run.Nodes[0].Phase = rollout.Running
	if err := store.Save(t.Context(), run); err != nil {
		t.Fatal(err)
	}

	store.Close(t.Context())

	if err := store.Save(t.Context(), run); !errors.Is(err, rollout.ErrLost) {
		t.Errorf("saved after the end: got %v", err)
	}

	again, other, err := o.open(t)
	if err != nil {
		t.Fatal(err)
	}

	if again.Nodes[0].Phase != rollout.Running || again.Owner != "other" || !o.clock.Now().Equal(newClock().now) {
		t.Errorf("got %+v at %v", again, o.clock.Now())
	}

	if err := other.Save(t.Context(), again); err != nil {
		t.Error(err)
	}

	if runs, err := o.cluster.ListRuns(t.Context()); err != nil || len(runs) != 1 || runs[0].Name != run.Name {
		t.Errorf("got %v, %v", runs, err)
	}

	if _, _, err := o.cluster.OpenRun(t.Context(), o.clock, "other", "mig-x"); err == nil ||
		!strings.Contains(err.Error(), "no run mig-x") || o.api.Get("/apis/coordination.k8s.io/v1/namespaces/gpu/leases/mig-x", "spec") != nil {
		t.Errorf("a run that does not exist: got %v", err)
	}
}

// A client that was killed leaves its Lease: another one waits until it is expired.
func TestTakesOverAnExpiredRun(t *testing.T) {
	o := newOwnedRun(t)
	start := o.clock.Now()

	again, store, err := o.open(t)
	if err != nil {
		t.Fatal(err)
	}

	if waited := o.clock.Now().Sub(start); waited < leaseDuration || waited > 2*leaseDuration {
		t.Errorf("it was taken over after %s", waited)
	}

	if err := o.store.Held(); !errors.Is(err, rollout.ErrLost) {
		t.Errorf("the first client: got %v", err)
	}

	if err := store.Save(t.Context(), again); err != nil {
		t.Error(err)
	}
}

// A client that renews its Lease keeps the run.
func TestOwnedRun(t *testing.T) {
	o := newOwnedRun(t)
	sleeps := 0
	o.clock.sleep = func() {
		if sleeps++; sleeps%4 == 0 {
			if err := o.store.lease.renew(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	}

	var owned *OwnedError
	if _, _, err := o.open(t); !errors.As(err, &owned) ||
		owned.Holder != "laptop" {
		t.Errorf("got %v", err)
	}

	if err := o.store.Held(); err != nil {
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
	o := newOwnedRun(t)
	store := o.store
	o.Nodes[0].Phase = rollout.Running
	before := store.version

	for range 2 {
		store.version = before // the client does not know the answer
		if err := store.Save(t.Context(), o.Run); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKeep(t *testing.T) {
	o := newOwnedRun(t)

	// It renews the Lease for an hour; then the API server refuses.
	end := o.clock.Now().Add(time.Hour)
	o.api.Before = func(r *http.Request) {
		o.api.Lock()
		defer o.api.Unlock()

		if o.clock.Now().After(end) {
			o.api.Forbidden["PUT "+o.leasePath()] = true
		}
	}

	// The error names the right that is missing.
	if err := o.store.Keep(t.Context()); !errors.Is(err, rollout.ErrLost) ||
		!strings.Contains(err.Error(), "you may not update leases in namespace gpu") {
		t.Errorf("got %v", err)
	}

	if lasted := o.clock.Now().Sub(end); lasted < 0 || lasted > leaseUse {
		t.Errorf("it was lost %s after the last renewal", lasted)
	}
}

// A Lease that a person deletes does not hand the run over: its owner has it again.
func TestDeletedLease(t *testing.T) {
	for _, works := range []bool{true, false} {
		o := newOwnedRun(t)
		start := o.clock.Now()

		o.api.Lock()
		delete(o.api.Objects, o.leasePath())
		o.api.Unlock()

		o.clock.sleep = func() {
			if works {
				if err := o.store.lease.renew(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			}
		}

		_, _, err := o.open(t)

		var owned *OwnedError
		if works && (!errors.As(err, &owned) || owned.Holder != "laptop") {
			t.Errorf("its owner works: got %v", err)
		}

		if waited := o.clock.Now().Sub(start); !works && (err != nil || waited < leaseDuration) {
			t.Errorf("its owner is gone: got %v after %s", err, waited)
		}
	}
}

// An owner whose Lease is deleted does nothing further until it has found that out, and then stops.
func TestOwnerOfADeletedLease(t *testing.T) {
	o := newOwnedRun(t)

	o.api.Lock()
	delete(o.api.Objects, o.leasePath())
	o.api.Unlock()

	if err := o.store.Keep(t.Context()); !errors.Is(err, rollout.ErrLost) {
		t.Errorf("got %v", err)
	}

	if waited := o.clock.Now().Sub(newClock().now); waited > renewEvery {
		t.Errorf("it went on for %s", waited)
	}
}

// While renewals fail, the Lease is given up before it can be another client's.
func TestLeaseIsGivenUpInTime(t *testing.T) {
	o := newOwnedRun(t)
	o.api.Forbidden["GET "+o.leasePath()] = true
	o.api.Before = func(*http.Request) { // a request that takes long
		o.clock.mu.Lock()
		defer o.clock.mu.Unlock()

		o.clock.now = o.clock.now.Add(requestTimeout)
	}

	err := o.store.Keep(t.Context())
	if !errors.Is(err, rollout.ErrLost) || !errors.As(err, new(*APIError)) || !strings.Contains(err.Error(), "Forbidden") {
		t.Errorf("got %v; expected why", err)
	}

	if lasted := o.clock.Now().Sub(newClock().now); lasted > leaseUse+requestTimeout {
		t.Errorf("it was lost after %s", lasted)
	}
}
