// Package podmeta knows owners and labels of the pods of one node, and the MIG devices that HAMi reserved for them, which
// the kubelet's pod-resources API does not tell.
//
// It asks the Kubernetes API server for the metadata of the node's pods, with the service account of the pod that it
// runs in, which must be allowed to list pods. Whoever looks a pod up gets what was read last and never waits.
package podmeta

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

const (
	// interval is the time between two readings, spread by a tenth either way so that a cluster's exporters do not ask
	// all at once.
	interval = 30 * time.Second
	spread   = 0.1
	// minGap is the time that an unknown pod cannot shorten.
	minGap = 5 * time.Second
	// timeout bounds one reading.
	timeout = 10 * time.Second
	// maxAsked bounds the unknown pods that are remembered to have been asked for.
	maxAsked = 1000
)

// Options configures a Poller.
type Options struct {
	// Server is the API server's URL, as kubeapi.InClusterServer gives it.
	Server string
	// CredentialsDir has the credentials of a service account, kubeapi.DefaultCredentialsDir in a pod.
	CredentialsDir string
	// Node is the name of the node whose pods count, as Kubernetes has it.
	Node string
	// Labels are the names of the pod labels to tell.
	Labels []string
	Logger log.Logger
}

// Poller reads the metadata of a node's pods now and then.
type Poller struct {
	api    *api
	logger log.Logger
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
	wake   chan struct{} // a pod is not known

	mu    sync.Mutex
	pods  map[podName]entry
	asked map[podName]struct{} // unknown pods that have woken the poller once
}

// podName identifies a pod at a time. A successor may have the same.
type podName struct{ namespace, name string }

// entry is a pod and whether the last reading had it no more: the kubelet lists a pod for a moment longer than the API
// server, so that it is kept for one reading.
type entry struct {
	gpu.PodMetadata
	gone bool
}

// New starts to read. It fails if the credentials cannot be read or the options lack something.
func New(opts Options) (*Poller, error) {
	client, err := kubeapi.New(kubeapi.Options{Server: opts.Server, CredentialsDir: opts.CredentialsDir})
	if err != nil {
		return nil, fmt.Errorf("pod metadata: %w", err)
	}
	api, err := newAPI(opts, client)
	if err != nil {
		return nil, fmt.Errorf("pod metadata: %w", err)
	}
	return start(api, opts.Logger), nil
}

func start(api *api, logger log.Logger) *Poller {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Poller{
		api:    api,
		logger: logger,
		cancel: cancel,
		done:   make(chan struct{}),
		wake:   make(chan struct{}, 1),
		asked:  map[podName]struct{}{},
	}
	go p.run(ctx)
	return p
}

// Close ends a reading under way.
func (p *Poller) Close() {
	p.cancel()
	<-p.done
	p.api.close()
}

// PodMetadata tells a pod's owner, those of its labels that were chosen, and what HAMi reserved for it. It returns false
// for a pod that is not known; a pod that is asked for the first time is then looked for soon.
func (p *Poller) PodMetadata(namespace, pod string) (gpu.PodMetadata, bool) {
	name := podName{namespace, pod}
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.pods[name]; ok {
		return known.PodMetadata, true
	}
	if _, again := p.asked[name]; !again {
		if len(p.asked) >= maxAsked {
			clear(p.asked)
		}
		p.asked[name] = struct{}{}
		select {
		case p.wake <- struct{}{}:
		default: // it is awake
		}
	}
	return gpu.PodMetadata{}, false
}

func (p *Poller) run(ctx context.Context) {
	defer close(p.done)
	next := time.NewTimer(0)
	defer next.Stop()
	var last time.Time
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			next.Reset(minGap - time.Since(last))
			continue
		case <-next.C:
		}
		err := p.refresh(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			level.Warn(p.logger).Log("msg", "no owners and labels of pods; trying again", "err", err)
		case err == nil && failing:
			level.Info(p.logger).Log("msg", "owners and labels of pods are known again")
		}
		failing = err != nil
		last = time.Now()
		next.Reset(time.Duration(float64(interval) * (1 - spread + 2*spread*rand.Float64())))
	}
}

// refresh reads all pods. What was known stays when it fails.
func (p *Poller) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNoAnswer)
	defer cancel()
	now, err := p.api.pods(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pods := make(map[podName]entry, len(now))
	for name, known := range p.pods {
		if !known.gone {
			pods[name] = entry{PodMetadata: known.PodMetadata, gone: true}
		}
	}
	for name, m := range now {
		pods[name] = entry{PodMetadata: m}
	}
	p.pods = pods
	maps.DeleteFunc(p.asked, func(name podName, _ struct{}) bool { _, known := now[name]; return known })
	return nil
}

// errNoAnswer is why a reading that took too long was given up.
var errNoAnswer = errors.New("the API server did not answer in time")
