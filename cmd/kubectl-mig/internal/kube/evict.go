package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubectl/pkg/drain"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
)

// retryDelay is kubectl drain's own between evictions that a PodDisruptionBudget refuses.
const retryDelay = 5 * time.Second

// drainMaker returns kubectl's drain with some options.
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

// Evict evicts those of the pods that are on the node, by kubectl drain's rules, and returns when
// they are gone. If one of them has to stay by these rules, it evicts none.
func (c *Cluster) Evict(
	ctx context.Context, node string, pods []rollout.Pod, options rollout.Eviction,
) error {
	holders := &holdersOnly{Interface: c.set, node: node, pods: pods}
	helper := c.newDrain(ctx, holders, options)

	var refusal lastLine
	helper.ErrOut = &refusal

	list, errs := helper.GetPodsForDeletion(node)
	if len(errs) > 0 {
		return refused(ctx, errors.Join(errs...))
	}

	leave := list.Pods()

	var stay []string

	for _, name := range holders.found {
		if !slices.ContainsFunc(leave, func(p corev1.Pod) bool { return nameOf(&p) == name }) {
			stay = append(stay, name.String())
		}
	}

	if len(stay) > 0 {
		return refused(ctx, fmt.Errorf("these hold the devices and stay, as kubectl drain would leave them "+
			"(pods of DaemonSets, static pods, others than --pod-selector selects): %s", strings.Join(stay, ", ")))
	}

	if err := helper.DeleteOrEvictPods(leave); err != nil {
		if why := refusal.String(); why != "" {
			err = fmt.Errorf("%w; the last refusal: %s", err, why)
		}

		return refused(ctx, err)
	}

	return nil
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

// refused makes an error of kubectl's drain final: it has tried until its timeout.
func refused(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}

	return fmt.Errorf("%w: %w", rollout.ErrRefused, err)
}

func nameOf(p *corev1.Pod) rollout.Pod { return rollout.Pod{Namespace: p.Namespace, Name: p.Name} }

// holdersOnly is a client that lists no other pods of a node than some: so drain's rules are about
// these alone.
type holdersOnly struct {
	kubernetes.Interface
	node  string
	pods  []rollout.Pod
	found []rollout.Pod // those of the pods that were on the node when they were listed
}

// CoreV1 returns the client of the core group.
func (h *holdersOnly) CoreV1() corev1client.CoreV1Interface {
	return &holdersCore{CoreV1Interface: h.Interface.CoreV1(), holders: h}
}

type holdersCore struct {
	corev1client.CoreV1Interface
	holders *holdersOnly
}

// Pods returns the client of pods: of all namespaces, it lists the holders.
func (c *holdersCore) Pods(namespace string) corev1client.PodInterface {
	pods := c.CoreV1Interface.Pods(namespace)
	if namespace != metav1.NamespaceAll {
		return pods
	}

	return &holdersPods{PodInterface: pods, holders: c.holders}
}

type holdersPods struct {
	corev1client.PodInterface
	holders *holdersOnly
}

// List gets the holders one by one, which needs no right to list pods.
func (p *holdersPods) List(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	selector, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return nil, err
	}

	h := p.holders
	h.found = nil
	list := &corev1.PodList{}

	for _, name := range h.pods {
		pod, err := h.Interface.CoreV1().Pods(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && pod.Spec.NodeName != h.node {
			continue
		}

		if err != nil {
			return nil, explain(err, "get", "pods")
		}

		h.found = append(h.found, name)

		if selector.Matches(labels.Set(pod.Labels)) {
			list.Items = append(list.Items, *pod)
		}
	}

	return list, nil
}
