package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
)

const (
	// leaseDuration is how long after a renewal other clients leave the Lease to its holder.
	leaseDuration = 30 * time.Second
	// leaseUse is how long after a renewal its holder itself relies on it. It is shorter, since
	// clocks run at different speeds, and a change that is under way takes time.
	leaseUse = 20 * time.Second

	renewEvery     = 8 * time.Second
	leasePoll      = 2 * time.Second // between looks at a Lease, or attempts to renew it
	requestTimeout = 5 * time.Second // of a renewal
)

// Lease is the ownership of one run. It is safe for concurrent use.
type Lease struct {
	cluster *Cluster
	clock   rollout.Clock
	name    string
	holder  string

	mu      sync.Mutex
	renewed time.Time // when we sent the last successful renewal, by this machine's clock
	failed  error     // error of the last renewal, or nil
	lost    error     // an ErrLost, which says why the Lease is lost; nil if it is not
}

// Holder returns the client that a run's Lease names, for a message; "" if there is none, or the
// Lease cannot be read.
func (c *Cluster) Holder(ctx context.Context, name string) string {
	object, err := c.set.CoordinationV1().Leases(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ""
	}

	return holderOf(object)
}

// OwnedError says that another client owns a run.
type OwnedError struct{ Run, Holder string }

func (e *OwnedError) Error() string {
	return fmt.Sprintf("%s runs %s now: end it there first; after a crash it can be resumed %s later",
		e.Holder, e.Run, leaseDuration)
}

// acquire acquires the Lease of a run for holder. If another client has it, acquire watches it for
// leaseDuration by our own clock, since clocks of two machines may differ. If the other client renews
// it in that time, acquire returns an *OwnedError; else it takes the Lease over.
//
// owner is the client that has saved the run last, or empty for a new run. If there is no Lease, it
// may have been deleted while that client works on the run. So we create one in that client's name,
// and wait whether it renews it.
func (c *Cluster) acquire(
	ctx context.Context, clock rollout.Clock, name, holder, owner string,
) (*Lease, error) {
	l := &Lease{cluster: c, clock: clock, name: name, holder: holder}

	var seen *coordinationv1.Lease // another client's, at our first look
	var since time.Time            // time of that look

	for {
		now := clock.Now()

		object, err := c.set.CoordinationV1().Leases(c.namespace).Get(ctx, name, metav1.GetOptions{})

		switch {
		case apierrors.IsNotFound(err):
			object = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: c.namespace, Labels: map[string]string{runLabel: "true"},
			}}

			if owner != "" {
				former := &Lease{cluster: c, clock: clock, name: name, holder: owner}
				if _, err := former.write(ctx, object, now); err != nil {
					return nil, err
				}

				continue
			}
		case err != nil:
			return nil, explain(err, "get", "leases in namespace "+c.namespace)
		case seen == nil || seen.ResourceVersion != object.ResourceVersion:
			if seen != nil && holderOf(object) != "" {
				return nil, &OwnedError{name, holderOf(object)}
			}

			seen = object
			since = now
		}

		isFree := holderOf(object) == "" || holderOf(object) == holder ||
			now.Sub(since) >= leaseDuration
		if isFree {
			acquired, err := l.write(ctx, object, now)
			if acquired || err != nil {
				return l, err
			}
		}

		if err := clock.Sleep(ctx, leasePoll); err != nil {
			return nil, err
		}
	}
}

func holderOf(object *coordinationv1.Lease) string {
	if object.Spec.HolderIdentity == nil {
		return ""
	}

	return *object.Spec.HolderIdentity
}

// write makes l.holder the holder of the Lease, or renews it. object is the Lease as it was read. It
// returns false if the Lease has changed since.
func (l *Lease) write(ctx context.Context, object *coordinationv1.Lease, at time.Time) (bool, error) {
	leases := l.cluster.set.CoordinationV1().Leases(l.cluster.namespace)
	now := metav1.NewMicroTime(at)
	seconds := int32(leaseDuration.Seconds())

	if holderOf(object) != l.holder {
		transitions := int32(0)
		if t := object.Spec.LeaseTransitions; t != nil {
			transitions = *t + 1
		}

		object.Spec.LeaseTransitions = &transitions
		object.Spec.AcquireTime = &now
	}

	object.Spec.HolderIdentity = &l.holder
	object.Spec.LeaseDurationSeconds = &seconds
	object.Spec.RenewTime = &now

	verb := "update"

	var err error

	if object.ResourceVersion == "" {
		verb = "create"
		_, err = leases.Create(ctx, object, metav1.CreateOptions{FieldManager: manager})
	} else {
		_, err = leases.Update(ctx, object, metav1.UpdateOptions{FieldManager: manager})
	}

	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return false, nil
	}

	if err != nil {
		return false, explain(err, verb, "leases in namespace "+l.cluster.namespace)
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.renewed = at

	return true, nil
}

// held returns ErrLost unless this client can rely on the Lease. After the machine was asleep, it
// cannot.
func (l *Lease) held() error {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.lost == nil && elapsed(l.renewed, l.clock.Now()) >= leaseUse {
		l.lost = fmt.Errorf("%w: its Lease was not renewed for %s", rollout.ErrLost, leaseUse)
		if l.failed != nil {
			l.lost = &APIError{fmt.Errorf("%w: %w", l.lost, l.failed)}
		}
	}

	return l.lost
}

// elapsed returns the longest time that can have passed, by the monotonic or by the wall clock: the
// wall clock can be set back, and the monotonic clock stands still while the machine is asleep.
func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// keep renews the Lease until ctx ends, or it is lost.
func (l *Lease) keep(ctx context.Context) error {
	pause := renewEvery

	for {
		if err := l.clock.Sleep(ctx, pause); err != nil {
			return err
		}

		if err := l.held(); err != nil {
			return err
		}

		err := l.renew(ctx)
		if errors.Is(err, rollout.ErrLost) {
			return err
		}

		// After an error we try again soon, until held says that the Lease is lost.
		l.mu.Lock()
		l.failed = err
		l.mu.Unlock()

		pause = renewEvery
		if err != nil {
			pause = leasePoll
		}
	}
}

// renew renews the Lease. It returns ErrLost if another client has it.
func (l *Lease) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()

	at := l.clock.Now()

	object, err := l.cluster.set.CoordinationV1().Leases(l.cluster.namespace).
		Get(ctx, l.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return l.lose("its Lease was deleted")
	}

	if err == nil && holderOf(object) != l.holder {
		return l.lose(fmt.Sprintf("%q has taken it over", holderOf(object)))
	}

	if err != nil {
		return explain(err, "get", "leases in namespace "+l.cluster.namespace)
	}

	_, err = l.write(ctx, object, at)

	return err
}

// lose records why this client has lost the Lease, and returns that as an ErrLost.
func (l *Lease) lose(why string) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.lost = fmt.Errorf("%w: %s", rollout.ErrLost, why)

	return l.lost
}

// release gives the Lease up, unless it is lost.
func (l *Lease) release(ctx context.Context) {
	if l.held() != nil {
		return
	}

	_ = l.lose("it was released")

	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()

	leases := l.cluster.set.CoordinationV1().Leases(l.cluster.namespace)

	object, err := leases.Get(ctx, l.name, metav1.GetOptions{})
	if err != nil || holderOf(object) != l.holder {
		return // it expires
	}

	object.Spec.HolderIdentity = nil
	_, _ = leases.Update(ctx, object, metav1.UpdateOptions{FieldManager: manager}) // or it expires
}
