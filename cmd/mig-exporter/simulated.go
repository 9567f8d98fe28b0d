package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

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

// PodMetadata finds a pod's owner and the chosen ones of its labels.
func (m simulatedMetadata) PodMetadata(namespace, pod string) (gpu.PodMetadata, bool) {
	owner, labels, ok := m.node.PodMetadata(namespace, pod)
	known := gpu.PodMetadata{Workload: owner}
	for _, name := range m.labels {
		if value, has := labels[name]; has {
			known.Labels = append(known.Labels, gpu.Label{Name: name, Value: value})
		}
	}
	return known, ok
}

// faultyKubelet asks a simulated kubelet after the node's faults have had their way with it.
type faultyKubelet struct {
	devices
	node   *sim.Node
	server *kubelet.Server
}

// List asks who holds which device.
func (k faultyKubelet) List(ctx context.Context) (gpu.Assignments, error) {
	if err := k.server.Follow(k.node.Kubelet()); err != nil {
		return gpu.Assignments{}, fmt.Errorf("%w: %w", gpu.ErrUnavailable, err)
	}
	return k.devices.List(ctx)
}

// Allocatable asks which devices it can give out.
func (k faultyKubelet) Allocatable(ctx context.Context) ([]gpu.DeviceRef, error) {
	if err := k.server.Follow(k.node.Kubelet()); err != nil {
		return nil, fmt.Errorf("%w: %w", gpu.ErrUnavailable, err)
	}
	return k.devices.Allocatable(ctx)
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
