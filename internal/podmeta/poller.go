// Package podmeta reads from the Kubernetes API server what the kubelet's pod-resources API does
// not report about the pods of one node: UIDs, owners, labels, the MIG devices that HAMi reserved,
// and whether a claim's devices are for administrative access.
//
// It uses the service account of the pod that it runs in, which needs by ClusterRole:
//
//	""               pods             list
//	resource.k8s.io  resourceclaims   get, if the cluster allocates GPUs dynamically (DRA)
//
// Lookups never wait: they return what the last list had, and ask for the rest in the background.
package podmeta

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-kit/log"
	"golang.org/x/time/rate"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

const (
	// interval is the time between two lists. It varies by jitterShare, so that the exporters of a
	// cluster do not list at the same time.
	interval    = 30 * time.Second
	jitterShare = 0.1
	// batchDelay is how long a list waits for further lookups: the caller looks up all pods of a
	// kubelet's list.
	batchDelay = 20 * time.Millisecond
	// firstListDelay is how long the first list waits for lookups, to avoid a second list.
	firstListDelay = time.Second
	// firstGap is the time until the next list if a list fails or does not answer a lookup. It
	// doubles each time, up to interval.
	firstGap = time.Second
	// listEvery and listBurst limit the rate of lists, however many pods come and go.
	listEvery = 2 * time.Second
	listBurst = 5
)

// Options configures a Poller.
type Options struct {
	// Server is the API server's URL, as kubeapi.InClusterServer gives it.
	Server string
	// CredentialsDir has the credentials of a service account, kubeapi.DefaultCredentialsDir in a
	// pod.
	CredentialsDir string
	// UserAgent names this program and its version to the API server.
	UserAgent string
	// Node is the Kubernetes name of the node.
	Node string
	// Labels are the names of the pod labels to return.
	Labels []string
	// WorkloadLabel is the pod label that names the workload for right-sizing; empty: we use no
	// label.
	WorkloadLabel string
	Logger        log.Logger
}

// Poller reads the metadata of a node's pods periodically, and when a caller looks up a pod that it
// does not know. Its methods are safe for concurrent use. It implements podresources.Metadata with
// the clock of time.Now.
type Poller struct {
	api     *api
	node    string
	cancel  context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{} // the time of the next list may have changed
	limit   *rate.Limiter // of lists
	claims  *claimReader
	logger  log.Logger
	// Only run uses these two.
	invalid      map[invalidAnnotation]bool // the invalid annotations of the last list
	formerLogged bool                       // we have logged that pods have annotations of the former domain

	mu             sync.Mutex
	pods           map[podName]podEntry
	lastList       *podList // nil before the first
	lastConsistent *podList // the last consistent list; nil before the first
	lookups        map[podName]*lookup
	goneLookups    map[podID]*lookup // the lookups of PodGone
	boundLookup    lookup            // the lookup of BoundPods
	nextList       time.Time         // when the next periodic list is due
	retry          retry.Backoff     // after a failed list: when we may list again; zero after a success
	err            error             // of the last list; wraps ErrNotAsked before the first
	// noConsistentBefore is set after a failed consistent list: until then we list from the cache.
	noConsistentBefore time.Time
	// foundByName is set once a list has had a pod that a caller looked up by name. foundByUID is
	// set once a list has had a pod whose UID shows that it is on this node: the node's name is
	// right.
	foundByName, foundByUID bool
	misnamed                bool // the name of the node seems to be wrong: see checkNodeName
}

// ErrNotAsked is the error of State before the first list has ended.
var ErrNotAsked = errors.New("not asked yet")

// New starts to read pods. It fails if the credentials cannot be read or an option is missing.
func New(opts Options) (*Poller, error) {
	client, err := kubeapi.New(
		kubeapi.Options{Server: opts.Server, CredentialsDir: opts.CredentialsDir,
			UserAgent: opts.UserAgent},
	)
	if err != nil {
		return nil, fmt.Errorf("pod metadata: %w", err)
	}

	api, err := newAPI(opts, client)
	if err != nil {
		return nil, fmt.Errorf("pod metadata: %w", err)
	}

	return startPoller(api, opts.Node, opts.Logger), nil
}

func startPoller(api *api, node string, logger log.Logger) *Poller {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Poller{
		api:         api,
		node:        node,
		cancel:      cancel,
		wake:        make(chan struct{}, 1),
		limit:       rate.NewLimiter(rate.Every(listEvery), listBurst),
		claims:      newClaimReader(api, logger),
		logger:      logger,
		lookups:     map[podName]*lookup{},
		goneLookups: map[podID]*lookup{},
		nextList:    time.Now().Add(firstListDelay),
		err:         fmt.Errorf("list pods: %w: %w", ErrNotAsked, gpu.ErrUnavailable),
	}
	p.running.Go(func() { p.run(ctx) })
	p.running.Go(func() { p.claims.run(ctx) })

	return p
}

// Close cancels requests under way and waits for their end.
func (p *Poller) Close() {
	p.cancel()
	p.running.Wait()
	p.api.closeConnections()
}

// State returns the state of the API server as a source. LastSuccess is when we started the last
// successful list.
func (p *Poller) State() gpu.SourceState {
	p.mu.Lock()
	defer p.mu.Unlock()

	s := gpu.SourceState{Name: gpu.SourceKubernetes, Err: p.err}
	if p.err == nil && p.misnamed {
		s.Err = fmt.Errorf(
			"the API server has none of the pods that the kubelet lists on node %q: is "+
				"--kubernetes.node-name right?",
			p.node,
		)
	}

	s.Up = s.Err == nil
	if p.lastList != nil {
		s.LastSuccess = p.lastList.started
		s.Stale = p.err != nil
	}

	return s
}

// run lists the pods periodically, and when a lookup needs it, until ctx ends.
func (p *Poller) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()

	for {
		timer.Reset(time.Until(p.nextListTime()))

		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			continue
		case <-timer.C:
		}

		if p.limit.Wait(ctx) != nil {
			return // ctx has ended
		}

		p.listPods(ctx)
	}
}

// nextListTime returns when the next list is to start.
func (p *Poller) nextListTime() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()

	due := p.nextList
	for _, l := range p.lookups {
		due = l.earlierDue(due)
	}

	for _, l := range p.goneLookups {
		due = l.earlierDue(due)
	}

	due = p.boundLookup.earlierDue(due)
	if !p.retry.IsDue(due) {
		return p.retry.Next
	}

	return due
}

// listPods lists the pods and merges them. If that fails, the known pods stay.
func (p *Poller) listPods(ctx context.Context) {
	consistent := p.needsConsistentList()

	got, err := p.api.listPods(ctx, consistent)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		p.recordFailure(err, consistent)
		return
	}

	p.logInvalid(got.invalid)
	p.logFormer(got.former)

	if p.recordList(got) {
		p.checkNodeName(ctx)
	}
}

// recordFailure schedules the next list after a failed one.
func (p *Poller) recordFailure(err error, consistent bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()

	p.err = err
	p.retry.PostponeApart(now, firstGap, interval, jitterShare)
	p.nextList = p.retry.Next

	if consistent {
		p.noConsistentBefore = now.Add(interval)
	}
}

// recordList merges a list, and reports whether we must check the name of the node.
func (p *Poller) recordList(got *podList) (nameSuspect bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()

	p.err = nil
	p.retry = retry.Backoff{}
	p.nextList = now.Add(retry.Spread(interval, jitterShare))
	p.mergeList(got)
	p.rescheduleLookups(now)

	return p.isNodeNameSuspect(now)
}
