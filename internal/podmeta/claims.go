package podmeta

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"golang.org/x/time/rate"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// We read at most one claim every claimEvery, after a burst of claimBurst.
const (
	claimEvery = 200 * time.Millisecond
	claimBurst = 20
)

// claimVersions are the versions of resource.k8s.io that have status.allocation.devices, the latest
// first.
func claimVersions() []string { return []string{"v1", "v1beta2", "v1beta1"} }

// errNoSuchDevice: the claim has no allocation with the device, or does not have it yet.
var errNoSuchDevice = errors.New("the claim has no such device")

type claimName struct{ namespace, name string }

// allocatedDevice is one device in a claim's status.
type allocatedDevice struct {
	Driver      string `json:"driver"`
	Pool        string `json:"pool"`
	Device      string `json:"device"`
	AdminAccess bool   `json:"adminAccess"`
}

// resourceClaim has the decoded fields of a ResourceClaim.
type resourceClaim struct {
	Status struct {
		Allocation struct {
			Devices struct {
				Results []allocatedDevice `json:"results"`
			} `json:"devices"`
		} `json:"allocation"`
	} `json:"status"`
}

// claimState is what we know about a ResourceClaim that callers ask about.
type claimState struct {
	lookup
	started time.Time // when we started the last request that was answered, also with "no such claim"
	devices []allocatedDevice
	err     error // of the last request; nil if it returned devices
}

// claimReader reads the ResourceClaims that callers ask about. It reads a claim again once a caller
// asks with a later since than before.
type claimReader struct {
	api     *api
	logger  log.Logger
	wake    chan struct{} // a claim may have become due
	limit   *rate.Limiter // of requests
	version int           // index in claimVersions of the version to try first; only run uses it

	mu       sync.Mutex
	states   map[claimName]*claimState
	refusals map[string]refusal // by namespace
}

// refusal is the API server's refusal to let us read the claims of a namespace.
type refusal struct {
	err   error
	until time.Time // when we try again
}

func newClaimReader(api *api, logger log.Logger) *claimReader {
	return &claimReader{
		api:      api,
		logger:   logger,
		wake:     make(chan struct{}, 1),
		limit:    rate.NewLimiter(rate.Every(claimEvery), claimBurst),
		states:   map[claimName]*claimState{},
		refusals: map[string]refusal{},
	}
}

// AdminAccess implements podresources.Metadata. If a claim has no allocation with the device, the
// error wraps gpu.ErrNotFound, and we read the claim again.
func (p *Poller) AdminAccess(d gpu.ClaimDevice, since time.Time) (bool, error) {
	return p.claims.adminAccess(d, since, time.Now())
}

func (c *claimReader) adminAccess(d gpu.ClaimDevice, since, now time.Time) (bool, error) {
	name := claimName{d.Namespace, d.Claim}
	c.mu.Lock()
	defer c.mu.Unlock()

	known := c.states[name]
	if known == nil {
		known = &claimState{
			err: fmt.Errorf(
				"claim %s/%s: not asked for yet: %w",
				d.Namespace,
				d.Claim,
				gpu.ErrUnavailable,
			),
		}
		c.states[name] = known
	}

	known.renew(since, now)

	if known.started.IsZero() || known.started.Before(since) {
		c.schedule(known, now)

		if refused, ok := c.refusals[d.Namespace]; ok {
			return false, refused.err
		}

		if !known.started.IsZero() { // the old answer may be about an earlier claim of the same name
			return false, fmt.Errorf(
				"claim %s/%s: not asked for since: %w",
				d.Namespace,
				d.Claim,
				gpu.ErrUnavailable,
			)
		}

		return false, known.err
	}

	if known.err != nil {
		c.schedule(known, now)
		return false, known.err
	}

	admin, ok := hasAdminAccess(known.devices, d)
	if !ok {
		c.schedule(known, now)

		return false, fmt.Errorf(
			"claim %s/%s: %w: %w",
			d.Namespace,
			d.Claim,
			errNoSuchDevice,
			gpu.ErrNotFound,
		)
	}

	return admin, nil
}

// hasAdminAccess reports whether all allocations of device d are for administrative access; ok is
// false if d has none.
func hasAdminAccess(devices []allocatedDevice, d gpu.ClaimDevice) (admin, ok bool) {
	admin = true

	for _, a := range devices {
		if a.Driver == d.Driver && a.Pool == d.Pool && a.Device == d.Device {
			admin = admin && a.AdminAccess
			ok = true
		}
	}

	return admin && ok, ok
}

// schedule makes a claim due, at once or after its backoff, unless it is due already.
func (c *claimReader) schedule(known *claimState, now time.Time) {
	if known.due.IsZero() {
		known.due = now.Add(known.retry.Wait)
		wakeUp(c.wake)
	}
}

// run reads the claims that are due until ctx ends.
func (c *claimReader) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()

	for {
		name, due := c.nextDue()
		timer.Reset(time.Until(due))

		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			continue
		case <-timer.C:
		}

		if name == (claimName{}) { // no claim is due
			continue
		}

		if c.limit.Wait(ctx) != nil {
			return // ctx has ended
		}

		c.readClaim(ctx, name)
	}
}

// nextDue returns the claim that is due first, and when; a zero claimName if none is due within
// interval. While the API server refuses the claims of a namespace, they are not due. nextDue also
// forgets the claims that no caller has asked about for forgetAfter.
func (c *claimReader) nextDue() (first claimName, firstDue time.Time) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()

	maps.DeleteFunc(c.states, func(_ claimName, known *claimState) bool {
		return now.Sub(known.lastAsked) > forgetAfter
	})

	firstDue = now.Add(interval)

	for name, known := range c.states {
		if known.due.IsZero() {
			continue
		}

		due := known.due
		if until := c.refusals[name.namespace].until; due.Before(until) {
			due = until
		}

		if due.Before(firstDue) {
			first = name
			firstDue = due
		}
	}

	return first, firstDue
}

// readClaim reads a claim from the API server and updates its state.
func (c *claimReader) readClaim(ctx context.Context, name claimName) {
	started := time.Now()

	devices, err := c.getDevices(ctx, name)
	if ctx.Err() != nil {
		return
	}

	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()

	before, wasRefused := c.refusals[name.namespace]
	if errors.Is(err, gpu.ErrNoPermission) {
		c.refusals[name.namespace] = refusal{err, now.Add(retry.Spread(interval, jitterShare))}
		if !wasRefused || before.err.Error() != err.Error() {
			level.Warn(c.logger).Log(
				"msg", "cannot find out whether claims have administrative access; trying again",
				"namespace", name.namespace,
				"err", err,
			)
		}

		return
	}

	delete(c.refusals, name.namespace)

	if wasRefused {
		level.Info(c.logger).Log("msg", "claims can be read again", "namespace", name.namespace)
	}

	known := c.states[name]
	if known == nil {
		return // nextDue has forgotten it
	}

	known.err = err
	if err == nil || errors.Is(err, gpu.ErrNotFound) {
		known.started = started
		known.devices = devices
	}

	if started.Before(known.firstAsked) {
		return // a caller has asked with a later since meanwhile: the claim stays due
	}

	known.retry.PostponeApart(now, firstGap, interval, jitterShare)
	known.due = time.Time{}

	if err != nil && !errors.Is(err, gpu.ErrNotFound) {
		known.due = known.retry.Next
	}
}

// getDevices returns the devices of a claim, by the latest API version that the API server serves.
// An error wraps exactly one of gpu.ErrNoPermission, gpu.ErrNotFound (there is no such claim) and
// gpu.ErrUnavailable.
func (c *claimReader) getDevices(ctx context.Context, name claimName) ([]allocatedDevice, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNoAnswer)
	defer cancel()

	versions := claimVersions()
	for range versions {
		var got resourceClaim

		err := c.api.client.Do(ctx, kubeapi.Request{
			Method: http.MethodGet,
			Path: "/apis/resource.k8s.io/" + versions[c.version] +
				"/namespaces/" + url.PathEscape(name.namespace) +
				"/resourceclaims/" + url.PathEscape(name.name),
		}, &got)
		switch {
		case errors.Is(err, kubeapi.ErrNotServed):
			c.version = (c.version + 1) % len(versions)
			continue
		case errors.Is(err, gpu.ErrNoPermission):
			return nil, err // without the claim's name: the API server refuses all of the namespace
		case errors.Is(err, gpu.ErrNotFound):
			return nil, fmt.Errorf("claim %s/%s: %w", name.namespace, name.name, gpu.ErrNotFound)
		case err != nil:
			return nil, fmt.Errorf("claim %s/%s: %w", name.namespace, name.name, err)
		}

		return got.Status.Allocation.Devices.Results, nil
	}

	return nil, fmt.Errorf(
		"claim %s/%s: the API server serves resource.k8s.io in none of the versions %v: %w",
		name.namespace,
		name.name,
		versions,
		gpu.ErrUnavailable,
	)
}
