package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

const (
	runLabel = "mig-exporter.io/run" // label of ConfigMaps and Leases of runs
	runKey   = "run.json"            // key in the ConfigMap
)

// Store keeps the state of one run, which this client owns by its Lease, in a ConfigMap.
type Store struct {
	cluster *Cluster
	lease   *Lease
	version string // the ConfigMap's resourceVersion, as this client has read or written it last
}

var _ rollout.Store = (*Store)(nil)

// CreateRun saves a new run, which this client then owns. The caller must close the store.
func (c *Cluster) CreateRun(
	ctx context.Context, clock rollout.Clock, holder string, run *rollout.Run,
) (*Store, error) {
	lease, err := c.acquire(ctx, clock, run.Name, holder, "")
	if err != nil {
		return nil, err
	}

	s := &Store{cluster: c, lease: lease}

	object, err := s.object(run)
	if err == nil {
		object, err = c.set.CoreV1().ConfigMaps(c.namespace).Create(
			ctx, object, metav1.CreateOptions{FieldManager: manager},
		)
	}

	if err != nil {
		lease.release(context.WithoutCancel(ctx))
		return nil, explain(err, "create", "configmaps in namespace "+c.namespace)
	}

	s.version = object.ResourceVersion

	return s, nil
}

// OpenRun takes a run over, once its owner has released it or its Lease has expired. The caller must
// close the store.
func (c *Cluster) OpenRun(
	ctx context.Context, clock rollout.Clock, holder, name string,
) (*rollout.Run, *Store, error) {
	before, err := c.ReadRun(ctx, name) // if there is none, we must not create a Lease
	if err != nil {
		return nil, nil, err
	}

	lease, err := c.acquire(ctx, clock, name, holder, before.Owner)
	if err != nil {
		return nil, nil, err
	}

	s := &Store{cluster: c, lease: lease}

	object, run, err := c.readRun(ctx, name)
	if err == nil {
		s.version = object.ResourceVersion
		// This changes the ConfigMap's version, so that the former owner can save nothing any more.
		err = s.Save(ctx, run)
	}

	if err != nil {
		lease.release(context.WithoutCancel(ctx))
		return nil, nil, err
	}

	return run, s, nil
}

// ReadRun reads a run.
func (c *Cluster) ReadRun(ctx context.Context, name string) (*rollout.Run, error) {
	_, run, err := c.readRun(ctx, name)
	return run, err
}

func (c *Cluster) readRun(ctx context.Context, name string) (*corev1.ConfigMap, *rollout.Run, error) {
	object, err := c.set.CoreV1().ConfigMaps(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil, rollout.Refused(fmt.Errorf(
			"there is no run %s in namespace %s: kubectl mig runs lists them", name, c.namespace,
		))
	}

	if err != nil {
		return nil, nil, explain(err, "get", "configmaps in namespace "+c.namespace)
	}

	run, err := decodeRun(object)

	return object, run, err
}

func decodeRun(object *corev1.ConfigMap) (*rollout.Run, error) {
	var run rollout.Run

	err := json.Unmarshal([]byte(object.Data[runKey]), &run)
	if err != nil || run.APIVersion != api.Version || run.Name != object.Name {
		return nil, rollout.Refused(fmt.Errorf(
			"ConfigMap %s/%s is not a run that this kubectl mig can read", object.Namespace, object.Name,
		))
	}

	return &run, nil
}

// ListRuns returns the runs, the latest first. If some cannot be read, it returns the others and an
// error that joins their errors.
func (c *Cluster) ListRuns(ctx context.Context) ([]*rollout.Run, error) {
	list, err := c.set.CoreV1().ConfigMaps(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: runLabel})
	if err != nil {
		return nil, explain(err, "list", "configmaps in namespace "+c.namespace)
	}

	var runs []*rollout.Run
	var errs []error

	for i := range list.Items {
		run, err := decodeRun(&list.Items[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}

		runs = append(runs, run)
	}

	slices.SortFunc(runs, func(a, b *rollout.Run) int { return strings.Compare(b.Name, a.Name) })

	return runs, errors.Join(errs...)
}

// object returns the ConfigMap of a run, with this client as the run's owner.
func (s *Store) object(run *rollout.Run) (*corev1.ConfigMap, error) {
	run.Owner = s.lease.holder

	data, err := json.Marshal(run)
	if err != nil {
		return nil, fmt.Errorf("write the run: %w", err)
	}

	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name:            run.Name,
			Namespace:       s.cluster.namespace,
			ResourceVersion: s.version, // refused if another client has saved it since
			Labels:          map[string]string{runLabel: "true", "app.kubernetes.io/managed-by": manager},
		},
		Data: map[string]string{runKey: string(data)},
	}, nil
}

// Save implements rollout.Store.
func (s *Store) Save(ctx context.Context, run *rollout.Run) error {
	if err := s.Held(); err != nil {
		return err
	}

	object, err := s.object(run)
	if err != nil {
		return err
	}

	configMaps := s.cluster.set.CoreV1().ConfigMaps(s.cluster.namespace)

	saved, err := configMaps.Update(ctx, object, metav1.UpdateOptions{FieldManager: manager})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: its ConfigMap is deleted", rollout.ErrLost)
	}

	if apierrors.IsConflict(err) {
		// An earlier attempt of ours may have saved it although we got no answer.
		saved, err = configMaps.Get(ctx, run.Name, metav1.GetOptions{})
		if err == nil && saved.Data[runKey] != object.Data[runKey] {
			return s.lease.lose("another client has saved it")
		}
	}

	if err != nil {
		return explain(err, "update", "configmaps in namespace "+s.cluster.namespace)
	}

	s.version = saved.ResourceVersion

	return nil
}

// Held implements rollout.Store.
func (s *Store) Held() error { return s.lease.held() }

// Keep renews the Lease until ctx ends, or until it is lost: then it returns ErrLost.
func (s *Store) Keep(ctx context.Context) error { return s.lease.keep(ctx) }

// Close releases the run, so that another client can go on with it at once.
func (s *Store) Close(ctx context.Context) { s.lease.release(ctx) }
