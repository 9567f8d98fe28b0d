package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/poll"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/kubelet"
)

// stateVariable names the file in which the simulated node is shared with other processes: the C library of it, too.
const stateVariable = "MIG_SIM_STATE"

func startSimulated(scenario *sim.Scenario, clock sim.ClockMode) (*sim.Node, error) {
	if path := os.Getenv(stateVariable); path != "" {
		return sim.Join(scenario, clock, path)
	}
	return sim.New(scenario, sim.NewClock(clock))
}

// simulatedMetadata is the API server of a simulated node.
type simulatedMetadata struct {
	node   *sim.Node
	labels []string
}

// PodMetadata implements podresources.Metadata: a pod's owner and those of its labels that were chosen.
func (m simulatedMetadata) PodMetadata(namespace, pod string, since time.Time) (gpu.PodMetadata, bool) {
	p, ok := m.node.PodByName(namespace, pod, since)
	known := gpu.PodMetadata{UID: p.UID, Workload: p.Owner}
	for _, name := range m.labels {
		if value, has := p.Labels[name]; has {
			known.Labels = append(known.Labels, gpu.Label{Name: name, Value: value})
		}
	}
	return known, ok
}

// PodByUID implements podresources.Metadata.
func (m simulatedMetadata) PodByUID(uid string) (namespace, pod string, ok bool) {
	p, ok := m.node.PodByUID(uid)
	return p.Namespace, p.Name, ok && !p.Ended
}

// PodGone implements podresources.Metadata. The simulated API server is asked with each call: that is later than since.
func (m simulatedMetadata) PodGone(namespace, pod, uid string, _ time.Time) bool {
	return m.node.PodGone(namespace, pod, uid)
}

// AdminAccess implements podresources.Metadata.
func (m simulatedMetadata) AdminAccess(d gpu.ClaimDevice, _ time.Time) (bool, error) {
	admin, err := m.node.AdminAccess(d)
	if err != nil {
		return false, fmt.Errorf("claim %s in namespace %s: %w", d.Claim, d.Namespace, err)
	}
	return admin, nil
}

// State returns how the API server is.
func (m simulatedMetadata) State() gpu.SourceState {
	answered, up := m.node.APIServer()
	state := gpu.SourceState{Name: gpu.SourceKubernetes, Up: up, LastSuccess: answered}
	if !up {
		state.Err = fmt.Errorf("simulated API server: %w", gpu.ErrUnavailable)
	}
	return state
}

// faultyKubelet asks a simulated kubelet after the node's faults have had their way with it.
type faultyKubelet struct {
	control.Assignments
	node   *sim.Node
	server *kubelet.Server
}

// List asks who holds which device.
func (k faultyKubelet) List(ctx context.Context) (gpu.Assignments, error) {
	if err := k.server.Follow(k.node.Kubelet()); err != nil {
		return gpu.Assignments{}, fmt.Errorf("%w: %w", gpu.ErrUnavailable, err)
	}
	return k.Assignments.List(ctx)
}

// Allocatable asks which devices it can give out.
func (k faultyKubelet) Allocatable(ctx context.Context) ([]gpu.Offer, error) {
	if err := k.server.Follow(k.node.Kubelet()); err != nil {
		return nil, fmt.Errorf("%w: %w", gpu.ErrUnavailable, err)
	}
	return k.Assignments.Allocatable(ctx)
}

// stepper is the loop that is asked for a Snapshot after the clock moved.
type stepper interface {
	Poll(ctx context.Context, first func() error) error
	Current() *gpu.Snapshot
}

// advance answers POST /-/sim/advance?by=DURATION: it moves a stepped clock and answers when the Snapshot of the new time
// is published.
func advance(clock movable, loop stepper) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		by, err := time.ParseDuration(r.URL.Query().Get("by"))
		if err != nil || by < 0 {
			http.Error(w, fmt.Sprintf("by=%q: expected a duration such as 1s or 10m", r.URL.Query().Get("by")), http.StatusBadRequest)
			return
		}
		// The clock moves between two polls: readings of one poll are of one time.
		err = loop.Poll(r.Context(), func() error {
			if err := clock.Advance(by); err != nil {
				return err
			}
			clock.Settle(r.Context()) // what happened meanwhile is known to the loop before it polls
			return nil
		})
		switch {
		case errors.Is(err, poll.ErrStopped) || r.Context().Err() != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		s := loop.Current()
		fmt.Fprintf(w, "generation %d at %s\n", s.Generation, s.Time.UTC().Format(time.RFC3339Nano))
	})
}
