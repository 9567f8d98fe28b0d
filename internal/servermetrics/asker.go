// Package servermetrics asks the inference servers of a node's pods for their metrics. A pod
// chooses only the port and the path. The address is the pod's own, as the API server reports it;
// we ask over HTTP, without redirects, a proxy or credentials. A tenant decides what a server
// answers, so we do not trust it.
package servermetrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// Interval is the time between two requests to a server.
	Interval = 30 * time.Second
	// atOnce is how many servers we ask at the same time.
	atOnce = 2
	// maxPods bounds how many servers we ask. No node has more devices.
	maxPods = 256
	// answerValidFor is for how long we use an answer: a server may miss two requests.
	answerValidFor = 3 * Interval
	// warnEvery is the least time between two warnings about a server.
	warnEvery = time.Hour
	// findWithin limits the time to find the address of a pod.
	findWithin = 10 * time.Second
	// askWithin limits the time for a server's whole answer.
	askWithin = time.Second
)

// Pods finds pods.
type Pods interface {
	// PodAddress returns the address of the pod with a UID, and the addresses of its node.
	PodAddress(
		ctx context.Context,
		namespace, name, uid string,
	) (pod netip.Addr, node []netip.Addr, err error)
}

// Options configures an Asker.
type Options struct {
	Pods Pods
	// Read reads metrics in Prometheus' text format.
	Read func([]byte) (gpu.ServerFigures, error)
	// Now is the clock by which answers have their times.
	Now func() time.Time
	// Interval is the time between two requests to a server, by the machine's clock; 0 means the
	// constant Interval.
	Interval time.Duration
	// Dial connects to the address of a pod, which we have checked before. If it is nil we connect by
	// TCP, and check the address again.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Logger log.Logger
}

// Asker asks servers on a goroutine of its own. Observe and Answers are safe for concurrent use and
// do not block.
type Asker struct {
	opts   Options
	client *client

	mu      sync.Mutex
	pods    []pod               // the pods of the last Snapshot
	answers []gpu.PodServer     // the last answer of each; never modified in place
	logged  map[string]logState // by the pod's UID
}

// logState is what we have logged about a server that did not answer.
type logState struct {
	warned  time.Time // when we last warned of it
	failing bool      // we have logged nothing since that warning
}

// pod is a pod that has a server.
type pod struct {
	namespace, name, uid string
	endpoint             gpu.ServerEndpoint
}

// New returns an Asker that has asked no server.
func New(opts Options) *Asker {
	if opts.Interval == 0 {
		opts.Interval = Interval
	}

	return &Asker{opts: opts, client: newClient(opts.Dial), logged: map[string]logState{}}
}

// Observe replaces the pods to ask by those of a Snapshot that hold devices and say where their
// servers are.
func (a *Asker) Observe(s *gpu.Snapshot) {
	var pods []pod

	for d := range s.Devices() {
		for i := range d.Holders {
			h := &d.Holders[i]

			p := pod{h.Namespace, h.Pod, h.PodUID, h.Rightsizing.Server}
			if p.uid != "" && p.endpoint.Port != 0 && len(pods) < maxPods &&
				!slices.Contains(pods, p) {
				pods = append(pods, p)
			}
		}
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	a.pods = pods
}

// Answers returns the last answer of each server, by UID, unless it is too old. The caller must not
// modify the list.
func (a *Asker) Answers() []gpu.PodServer {
	oldest := a.opts.Now().Add(-answerValidFor)
	isTooOld := func(s gpu.PodServer) bool { return s.Time.Before(oldest) }

	a.mu.Lock()
	defer a.mu.Unlock()

	if !slices.ContainsFunc(a.answers, isTooOld) {
		return a.answers
	}

	return slices.DeleteFunc(slices.Clone(a.answers), isTooOld)
}

// Run asks all servers every Interval until ctx ends. It returns nil.
func (a *Asker) Run(ctx context.Context) error {
	ticker := time.NewTicker(a.opts.Interval)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			a.AskAll(ctx)
		}
	}
}

// AskAll asks all servers once, two at a time, and returns when all have answered or failed. It is
// not safe for concurrent use with itself.
func (a *Asker) AskAll(ctx context.Context) {
	a.mu.Lock()
	pods := a.pods
	a.mu.Unlock()

	answers := make([]gpu.Opt[gpu.PodServer], len(pods))
	slots := make(chan struct{}, atOnce)

	var running sync.WaitGroup

	for i := range pods {
		slots <- struct{}{} // waits until less than atOnce servers are asked

		running.Go(func() {
			defer func() { <-slots }()

			figures, err := a.askPod(ctx, &pods[i])
			a.logChange(&pods[i], err)

			if err == nil {
				answers[i] = gpu.Some(
					gpu.PodServer{PodUID: pods[i].uid, Time: a.opts.Now(), ServerFigures: figures},
				)
			}
		})
	}

	running.Wait()
	a.storeAnswers(pods, answers)
}

// storeAnswers stores the new answers of pods. A pod without a new answer keeps its last one; pods
// that are not in the list lose theirs.
func (a *Asker) storeAnswers(pods []pod, answers []gpu.Opt[gpu.PodServer]) {
	a.mu.Lock()
	defer a.mu.Unlock()

	var next []gpu.PodServer // a new list: callers of Answers may have the last one

	stillLogged := map[string]logState{}

	for i := range pods {
		uid := pods[i].uid
		if state, ok := a.logged[uid]; ok {
			stillLogged[uid] = state
		}

		if answer, ok := answers[i].Get(); ok {
			next = append(next, answer)
			continue
		}

		at := slices.IndexFunc(a.answers, func(s gpu.PodServer) bool { return s.PodUID == uid })
		if at >= 0 {
			next = append(next, a.answers[at])
		}
	}

	a.answers = next
	a.logged = stillLogged
}

// askPod finds a pod and asks its server.
func (a *Asker) askPod(ctx context.Context, p *pod) (gpu.ServerFigures, error) {
	address, err := a.findServer(ctx, p)
	if err != nil {
		return gpu.ServerFigures{}, err
	}

	ctx, cancel := context.WithTimeoutCause(ctx, askWithin, errNoAnswer)
	defer cancel()

	body, err := a.client.get(ctx, address, p.endpoint.Path)
	if err != nil {
		return gpu.ServerFigures{}, err
	}

	return a.opts.Read(body)
}

// errNoAnswer is the cancellation cause of a request that was not answered in time.
var errNoAnswer = errors.New("it did not answer within " + askWithin.String())

// findServer returns the address of a pod's server. It returns an error if we must not ask that
// address.
func (a *Asker) findServer(ctx context.Context, p *pod) (netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, findWithin)
	defer cancel()

	address, node, err := a.opts.Pods.PodAddress(ctx, p.namespace, p.name, p.uid)
	if err != nil {
		return netip.AddrPort{}, err
	}

	// A pod on the host's network would let us ask a service of the node.
	own, err := ownAddresses()
	if err != nil {
		return netip.AddrPort{}, err
	}

	if err := checkAddress(address, append(node, own...)); err != nil {
		return netip.AddrPort{}, err
	}

	return netip.AddrPortFrom(address.Unmap(), p.endpoint.Port), nil
}

// logChange logs that a server does not answer any more, or that it does again. It warns of a server at
// most once in warnEvery, so that a server that restarts for ever, or that answers something else each
// time, does not fill the log.
func (a *Asker) logChange(p *pod, err error) {
	now := a.opts.Now()
	name := p.namespace + "/" + p.name

	a.mu.Lock()
	defer a.mu.Unlock()

	last, known := a.logged[p.uid]
	mayWarn := !last.failing && (!known || now.Sub(last.warned) >= warnEvery)

	switch {
	case err != nil && mayWarn && !errors.Is(err, context.Canceled): // canceled: the program ends
		a.logged[p.uid] = logState{warned: now, failing: true}
		level.Warn(a.opts.Logger).Log(
			"msg", "cannot read the metrics of a pod's inference server",
			"pod", name,
			"err", fmt.Sprintf("%.300s", err),
			"see", "--advise.server-metrics",
		)
	case err == nil && last.failing:
		a.logged[p.uid] = logState{warned: last.warned}
		level.Info(a.opts.Logger).Log(
			"msg", "the metrics of a pod's inference server can be read again",
			"pod", name,
		)
	}
}
