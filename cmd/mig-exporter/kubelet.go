package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/podmeta"
	"github.com/mig-exporter/mig-exporter/internal/podresources"
	"github.com/mig-exporter/mig-exporter/internal/poll"
)

// openKubelet opens the kubelet that opts describe. It sets the options that are the same for all
// kinds of nodes.
func (n *node) openKubelet(resourceNames []string, opts podresources.Options) {
	opts.ResourceNames = resourceNames
	opts.StaleAfter = podsStaleAfter * n.speed
	opts.Now = n.now
	opts.Logger = n.logger
	opts.Running = func(a *gpu.Assignment) bool { return n.running.isRunning(n.poll.Containers, a) }

	kubelet := podresources.New(opts)
	n.onClose(kubelet.Close)
	n.poll.Pods = kubelet
	n.control.Assignments = kubelet
	n.states = slices.Insert(n.states, 0, kubelet.CheckpointState)
}

// noKubelet are the pods of a node without a kubelet, as a user says of it with an empty socket.
type noKubelet struct{}

// List implements poll.Pods.
func (noKubelet) List(context.Context) (gpu.Assignments, error) {
	return gpu.Assignments{}, gpu.ErrNoKubelet
}

// addMetadataState adds the API server to the sources. It is none while we do not ask it.
func (n *node) addMetadataState(read func() gpu.SourceState) {
	n.states = append(n.states, func() (gpu.SourceState, bool) {
		state := read()
		return state, !errors.Is(state.Err, podmeta.ErrNotAsked)
	})
}

// setContainers sets what finds the containers of processes, unless we run outside of the host's PID
// namespace: then the driver's process ids mean nothing in our process table.
func (n *node) setContainers(containers poll.Containers) {
	if n.processesHidden == nil {
		n.poll.Containers = containers
	}
}

// sources returns the states of the sources that the poll loop does not read itself.
func (n *node) sources() []gpu.SourceState {
	var list []gpu.SourceState

	for _, read := range n.states {
		if state, ok := read(); ok {
			list = append(list, state)
		}
	}

	return list
}

// kubeletMark is a file that says that a kubelet has answered since the node booted. Without it we
// could take a kubelet that does not answer after our restart for a node without kubelet.
type kubeletMark struct {
	path, boot string
	logger     log.Logger
}

// isSet reports whether a kubelet has answered in this boot, or may have: the file cannot be read.
func (m kubeletMark) isSet() bool {
	text, err := os.ReadFile(m.path)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}

	return string(text) == m.boot
}

func (m kubeletMark) set() {
	if m.isSet() {
		return
	}

	err := os.MkdirAll(filepath.Dir(m.path), 0o700)
	if err == nil {
		err = os.WriteFile(m.path, []byte(m.boot), 0o600)
	}

	if err != nil {
		level.Warn(m.logger).Log("msg", "cannot record that this node has a kubelet", "err", err)
	}
}

// runningContainers knows from the last Snapshot which containers have processes on which devices.
type runningContainers struct {
	current func() *gpu.Snapshot // returns nil before the first poll

	mu         sync.Mutex
	generation uint64 // of the Snapshot that the fields below are from
	devices    *gpu.Resolver
	running    map[containerOnDevice]bool
}

// containerOnDevice is a container with a process on a device, or anywhere in it: on a GPU if the
// instances are gpu.Whole.
type containerOnDevice struct {
	device    gpu.DeviceIndex
	container gpu.Container
}

// isRunning reports whether the container of an assignment had a process on its device when the
// GPUs were read last.
func (r *runningContainers) isRunning(containers poll.Containers, a *gpu.Assignment) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	s := r.current()
	if s == nil || containers == nil {
		return false
	}

	if s.Generation != r.generation {
		r.index(s, containers)
	}

	d, match := r.devices.Resolve(a.Device)

	return match != gpu.MatchNothing && r.running[containerOnDevice{d, a.Holder.Container}]
}

// index finds the containers of all processes in a Snapshot.
func (r *runningContainers) index(s *gpu.Snapshot, containers poll.Containers) {
	r.generation = s.Generation
	r.devices = gpu.NewResolver(s.GPUs)
	r.running = map[containerOnDevice]bool{}

	for g := range s.GPUs {
		for _, p := range s.GPUs[g].Readings.Processes.Or(nil) {
			c, ok := containers.ContainerOf(p.PID)
			if !ok {
				continue
			}

			d, _ := r.devices.Resolve(
				gpu.DeviceRef{GPU: s.GPUs[g].UUID, Instance: p.Instance, Compute: p.Compute},
			)
			r.running[containerOnDevice{gpu.DeviceIndex{GPU: g, Instance: gpu.Whole, Compute: gpu.Whole}, c}] = true
			r.running[containerOnDevice{gpu.DeviceIndex{GPU: g, Instance: d.Instance, Compute: gpu.Whole}, c}] = true
			r.running[containerOnDevice{d, c}] = true
		}
	}
}
