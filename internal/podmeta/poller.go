// Package podmeta knows what the Kubernetes API server knows of the pods of one node and the kubelet's pod-resources API does
// not tell: UIDs, owners, labels, the MIG devices that HAMi reserved, and whether a claim's devices are for administrative access.
//
// It uses the service account of the pod that it runs in, which needs by ClusterRole:
//
//	""               pods             list
//	resource.k8s.io  resourceclaims   get, if the cluster allocates GPUs dynamically (DRA)
//
// Lookups return what is known and never wait. What is not known is asked for in the background.
package podmeta

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-kit/log"
	"golang.org/x/time/rate"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

const (
	// interval is the time between two lists, spread by a tenth either way so that a cluster's exporters do not ask all at
	// once.
	interval    = 30 * time.Second
	jitterShare = 0.1
	// batchDelay is how long a list waits for other pods of the same reading of the kubelet to be asked for.
	batchDelay = 20 * time.Millisecond
	// firstList is how long the first list waits for a pod to be asked for: what is asked for later needs another list.
	firstList = time.Second
	// firstGap is the time until what was not in an answer is asked for again. It doubles up to interval.
	firstGap = time.Second
	// listEvery and listBurst bound how often lists are asked for, however many pods come and go.
	listEvery = 2 * time.Second
	listBurst = 5
)

// Options configures a Poller.
type Options struct {
	// Server is the API server's URL, as kubeapi.InClusterServer gives it.
	Server string
	// CredentialsDir has the credentials of a service account, kubeapi.DefaultCredentialsDir in a pod.
	CredentialsDir string
	// UserAgent names this program and its version to the API server.
	UserAgent string
	// Node is the name of the node whose pods count, as Kubernetes has it.
	Node string
	// Labels are the names of the pod labels to tell.
	Labels []string
	Logger log.Logger
}

// Poller reads the metadata of a node's pods now and then, and when it is asked for a pod that it does not know. Its methods
// are safe for concurrent use. It implements podresources.Metadata, over the clock of time.Now.
type Poller struct {
	api     *api
	node    string
	cancel  context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{} // the time of the next list may have changed
	limit   *rate.Limiter // of lists
	claims  *claimReader

	mu                 sync.Mutex
	pods               map[podName]podEntry
	lastList           *podList // nil before the first
	lastConsistent     *podList // the last consistent one, nil before the first
	lookups            map[podName]*lookup
	goneLookups        map[podID]*lookup // asked for by PodGone
	nextList           time.Time         // of the next list that nothing has asked for
	earliest           time.Time         // of the next list after a failure
	gap                time.Duration     // before another list after a failure; 0 after a success
	noConsistentBefore time.Time         // no consistent list is asked for before; one has failed
	err                error             // of the last list; wraps ErrNotAsked before the first
	foundByName        bool              // a pod that was asked for by name has been in an answer
	foundByUID         bool              // a pod that is on this node by its UID has been in an answer: the node's name is right
	misnamed           bool              // no pod that was asked for has been, for long
}

// ErrNotAsked is the error of State before the first answer or failure.
var ErrNotAsked = errors.New("not asked yet")

// New starts to read. It fails if the credentials cannot be read or the options lack something.
func New(opts Options) (*Poller, error) {
	client, err := kubeapi.New(kubeapi.Options{Server: opts.Server, CredentialsDir: opts.CredentialsDir, UserAgent: opts.UserAgent})
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
		lookups:     map[podName]*lookup{},
		goneLookups: map[podID]*lookup{},
		nextList:    time.Now().Add(firstList),
		err:         fmt.Errorf("list pods: %w: %w", ErrNotAsked, gpu.ErrUnavailable),
	}
	p.running.Go(func() { p.run(ctx) })
	p.running.Go(func() { p.claims.run(ctx) })
	return p
}

// Close ends requests under way.
func (p *Poller) Close() {
	p.cancel()
	p.running.Wait()
	p.api.closeConnections()
}

// State returns the state of the API server as a source. LastSuccess is when the request of the last answer was started.
func (p *Poller) State() gpu.SourceState {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := gpu.SourceState{Name: gpu.SourceKubernetes, Err: p.err}
	if p.err == nil && p.misnamed {
		s.Err = fmt.Errorf("the API server has none of the pods that the kubelet lists on node %q: is --kubernetes.node-name right?", p.node)
	}
	s.Up = s.Err == nil
	if p.lastList != nil {
		s.LastSuccess = p.lastList.started
		s.Stale = p.err != nil
	}
	return s
}

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
	at := p.nextList
	for _, q := range p.lookups {
		at = q.earlier(at)
	}
	for _, q := range p.goneLookups {
		at = q.earlier(at)
	}
	if at.Before(p.earliest) {
		return p.earliest
	}
	return at
}

// listPods lists the pods. What was known stays if it fails.
func (p *Poller) listPods(ctx context.Context) {
	consistent := p.needsConsistentList()
	got, err := p.api.listPods(ctx, consistent)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		p.recordFailure(err, consistent)
	case p.recordList(got):
		p.checkNodeName(ctx)
	}
}

// recordFailure notes that a list failed.
func (p *Poller) recordFailure(err error, consistent bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
	p.gap = nextGap(p.gap)
	p.earliest = now.Add(jitter(p.gap))
	p.nextList = p.earliest
	if consistent {
		p.noConsistentBefore = now.Add(interval)
	}
}

// recordList takes an answer. It reports whether the name of the node may be wrong.
func (p *Poller) recordList(got *podList) bool {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.gap, p.earliest = nil, 0, time.Time{}
	p.nextList = now.Add(jitter(interval))
	p.mergeList(got)
	p.rescheduleLookups(now)
	return p.isNodeNameSuspect(now)
}

// nextGap returns the gap after one of d.
func nextGap(d time.Duration) time.Duration { return min(max(2*d, firstGap), interval) }

// jitter spreads d by a tenth either way.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 - jitterShare + 2*jitterShare*rand.Float64()))
}
