package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	policyv1client "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/kubectl/pkg/drain"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
)

// retryDelay is the time between two evictions of a pod if a PodDisruptionBudget refuses them, as in
// kubectl drain.
const retryDelay = 5 * time.Second

// drainMaker returns kubectl's drain with the options of an eviction.
type drainMaker func(context.Context, kubernetes.Interface, rollout.Eviction) *drain.Helper

func newDrain(ctx context.Context, set kubernetes.Interface, o rollout.Eviction) *drain.Helper {
	return &drain.Helper{
		Ctx:                             ctx,
		Client:                          set,
		Force:                           o.Force,
		GracePeriodSeconds:              o.GracePeriodSeconds,
		IgnoreAllDaemonSets:             o.IgnoreDaemonSets,
		Timeout:                         o.Timeout,
		DeleteEmptyDirData:              o.DeleteEmptyDirData,
		PodSelector:                     o.PodSelector,
		DisableEviction:                 o.DisableEviction,
		SkipWaitForDeleteTimeoutSeconds: o.SkipWaitForDeleteAfter,
		EvictErrorRetryDelay:            retryDelay,
		Out:                             io.Discard,
		ErrOut:                          io.Discard,
	}
}

// Evict evicts the pods, as far as they are on the node, by kubectl drain's rules, and blocks until
// they are gone. If drain would leave one of them, Evict evicts none.
func (c *Cluster) Evict(
	ctx context.Context, node string, pods []rollout.Pod, options rollout.Eviction,
) error {
	holders := &holdersOnly{Interface: c.set, node: node, pods: pods}
	helper := c.newDrain(ctx, holders, options)

	var refusal lastLine
	helper.ErrOut = &refusal

	evictable, err := holders.choose(ctx, helper)
	if err != nil {
		return err
	}

	if err := helper.DeleteOrEvictPods(evictable); err != nil {
		if why := refusal.String(); why != "" {
			err = fmt.Errorf("%w; the last refusal: %s", err, why)
		}

		return holders.asRefused(ctx, err)
	}

	return nil
}

// CheckEviction returns the error of Evict if one of the pods has to stay by kubectl drain's rules. It
// evicts none. A PodDisruptionBudget is not asked.
func (c *Cluster) CheckEviction(
	ctx context.Context, node string, pods []rollout.Pod, options rollout.Eviction,
) error {
	holders := &holdersOnly{Interface: c.set, node: node, pods: pods}
	_, err := holders.choose(ctx, c.newDrain(ctx, holders, options))

	return err
}

// choose returns those of the pods that are on the node. If one of them has to stay by kubectl
// drain's rules, that is an error.
func (h *holdersOnly) choose(ctx context.Context, helper *drain.Helper) ([]corev1.Pod, error) {
	list, errs := helper.GetPodsForDeletion(h.node)
	if len(errs) > 0 {
		return nil, h.asRefused(ctx, errors.Join(errs...))
	}

	leave := list.Pods()

	var stay, ending []string

	for _, name := range h.pods {
		if _, found := h.found[name]; !found ||
			slices.ContainsFunc(leave, func(p corev1.Pod) bool { return nameOf(&p) == name }) {
			continue
		}

		if h.ending[name] {
			ending = append(ending, name.String())
		} else {
			stay = append(stay, name.String())
		}
	}

	if len(stay) > 0 {
		return nil, rollout.Refused(fmt.Errorf("these hold the devices and stay, as kubectl drain would leave "+
			"them (pods of DaemonSets, static pods, others than --pod-selector selects): %s",
			strings.Join(stay, ", ")))
	}

	if len(ending) > 0 {
		return nil, rollout.Refused(fmt.Errorf("these hold the devices and are being deleted, which is not waited "+
			"for (--skip-wait-for-delete-timeout): %s", strings.Join(ending, ", ")))
	}

	return leave, nil
}

// lastLine keeps the last line that is written to it: drain writes there, and nowhere else, why the
// API server refuses an eviction, such as for a PodDisruptionBudget. It is safe for concurrent use.
type lastLine struct {
	mu   sync.Mutex
	text string
}

// Write keeps a line.
func (l *lastLine) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.text = strings.TrimSpace(string(line))

	return len(line), nil
}

func (l *lastLine) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.text
}

// asRefused marks an error of drain with rollout.ErrRefused, since drain has tried until its timeout.
// It does not if the API server has not answered, which we cannot see in drain's error.
func (h *holdersOnly) asRefused(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}

	if h.unanswered.Load() {
		return &APIError{err}
	}

	return rollout.Refused(err)
}

func nameOf(p *corev1.Pod) rollout.Pod { return rollout.Pod{Namespace: p.Namespace, Name: p.Name} }

// holdersOnly is a client for drain that shows it only some pods of a node, the holders, so that
// drain applies its rules to these alone. It evicts and deletes a pod only if it is the one that was
// listed: drain names pods by their names, and tries for minutes if a PodDisruptionBudget refuses. By
// then a pod may be gone, and its owner may have created another of the same name on another node.
type holdersOnly struct {
	kubernetes.Interface
	node  string
	pods  []rollout.Pod
	found map[rollout.Pod]types.UID // those of the pods that were on the node when they were listed
	// ending are those of them that drain may leave out because they are being deleted.
	ending map[rollout.Pod]bool
	// unanswered: the API server did not answer a request about a pod, or could not.
	unanswered atomic.Bool
}

// noteAnswer sets unanswered if err says that the API server has not answered. It returns err.
func (h *holdersOnly) noteAnswer(err error) error {
	var status apierrors.APIStatus
	if err != nil && (!errors.As(err, &status) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)) {
		h.unanswered.Store(true)
	}

	return err
}

// preconditions returns the condition that a pod is the one that was listed.
func (h *holdersOnly) preconditions(namespace, name string) *metav1.Preconditions {
	uid := h.found[rollout.Pod{Namespace: namespace, Name: name}]
	return &metav1.Preconditions{UID: &uid}
}

// asGone turns the conflict with a precondition into "not found": another pod has the name, so the
// one that was listed is gone.
func asGone(err error, name string) error {
	if apierrors.IsConflict(err) {
		return apierrors.NewNotFound(corev1.Resource("pods"), name)
	}

	return err
}

// CoreV1 returns the client of the core group.
func (h *holdersOnly) CoreV1() corev1client.CoreV1Interface {
	return &holdersCore{CoreV1Interface: h.Interface.CoreV1(), holders: h}
}

// PolicyV1 returns the client of evictions.
func (h *holdersOnly) PolicyV1() policyv1client.PolicyV1Interface {
	return &holdersPolicy{PolicyV1Interface: h.Interface.PolicyV1(), holders: h}
}

type holdersPolicy struct {
	policyv1client.PolicyV1Interface
	holders *holdersOnly
}

func (p *holdersPolicy) Evictions(namespace string) policyv1client.EvictionInterface {
	return &holdersEvictions{EvictionInterface: p.PolicyV1Interface.Evictions(namespace), holders: p.holders}
}

type holdersEvictions struct {
	policyv1client.EvictionInterface
	holders *holdersOnly
}

// Evict evicts a pod that was listed.
func (e *holdersEvictions) Evict(ctx context.Context, eviction *policyv1.Eviction) error {
	eviction.DeleteOptions.Preconditions = e.holders.preconditions(eviction.Namespace, eviction.Name)
	return asGone(e.holders.noteAnswer(e.EvictionInterface.Evict(ctx, eviction)), eviction.Name)
}

type holdersCore struct {
	corev1client.CoreV1Interface
	holders *holdersOnly
}

// Pods returns the client of pods.
func (c *holdersCore) Pods(namespace string) corev1client.PodInterface {
	return &holdersPods{
		PodInterface: c.CoreV1Interface.Pods(namespace),
		holders:      c.holders,
		namespace:    namespace,
	}
}

type holdersPods struct {
	corev1client.PodInterface
	holders   *holdersOnly
	namespace string
}

// Delete deletes a pod that was listed.
func (p *holdersPods) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	o.Preconditions = p.holders.preconditions(p.namespace, name)
	return asGone(p.holders.noteAnswer(p.PodInterface.Delete(ctx, name, o)), name)
}

// Get gets a pod.
func (p *holdersPods) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Pod, error) {
	pod, err := p.PodInterface.Get(ctx, name, o)
	return pod, p.holders.noteAnswer(err)
}

// List returns the holders, of all namespaces. It gets them one by one, which needs no right to list
// pods.
func (p *holdersPods) List(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	selector, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return nil, err
	}

	h := p.holders
	h.found = map[rollout.Pod]types.UID{}
	h.ending = map[rollout.Pod]bool{}
	list := &corev1.PodList{}

	for _, name := range h.pods {
		pod, err := h.Interface.CoreV1().Pods(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && pod.Spec.NodeName != h.node {
			continue
		}

		if h.noteAnswer(err) != nil {
			return nil, explain(err, "get", "pods")
		}

		h.found[name] = pod.UID

		if selector.Matches(labels.Set(pod.Labels)) {
			h.ending[name] = pod.DeletionTimestamp != nil
			list.Items = append(list.Items, *pod)
		}
	}

	return list, nil
}
