package main

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/podmeta"
	"github.com/mig-exporter/mig-exporter/internal/podresources"
	"github.com/mig-exporter/mig-exporter/internal/poll"
)

// metadata is an API server with the state that the exporter shows of it.
type metadata interface {
	podresources.Metadata
	State() gpu.SourceState
}

// openKubelet opens the kubelet that opts describe, with what all kinds of nodes have in common.
func (n *node) openKubelet(cfg *Config, opts podresources.Options) {
	opts.ResourceNames, opts.StaleAfter = cfg.ResourceNames, cfg.PodsStaleAfter*cfg.speed()
	opts.Now, opts.Logger = n.now, n.logger
	opts.Running = func(a *gpu.Assignment) bool { return n.running.has(n.containers, a) }
	if n.metadata != nil {
		opts.Metadata = n.metadata
	}
	n.kubelet = podresources.New(opts)
	n.onClose(n.kubelet.Close)
	n.pods, n.devices = n.kubelet, n.kubelet
}

// sources returns the states of those sources that the poll loop does not ask itself.
func (n *node) sources() []gpu.SourceState {
	var list []gpu.SourceState
	if n.kubelet != nil {
		if state, ok := n.kubelet.CheckpointState(); ok {
			list = append(list, state)
		}
	}
	if n.metadata != nil {
		if state := n.metadata.State(); !errors.Is(state.Err, podmeta.ErrNotAsked) {
			list = append(list, state)
		}
	}
	return list
}

// kubeletMark remembers in a file that a kubelet has answered since the node has booted: then its silence, or that of its
// empty folders, is no sign that there is none.
type kubeletMark struct {
	path, boot string
	logger     log.Logger
}

func (m kubeletMark) isSet() bool {
	text, err := os.ReadFile(m.path)
	return err == nil && string(text) == m.boot
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
		level.Warn(m.logger).Log("msg", "cannot remember that this node has a kubelet", "err", err)
	}
}

// runningContainers tells which containers have a process on which device, by the last Snapshot.
type runningContainers struct {
	current func() *gpu.Snapshot // nil before there is a loop

	mu         sync.Mutex
	generation uint64
	devices    *gpu.Devices
	on         map[placed]bool
}

// placed is a container with a process on a GPU, in a GPU instance, in a compute instance: Whole stands for any.
type placed struct {
	device    gpu.Device
	container gpu.Container
}

// has reports whether the container of an assignment had a process on its device when the GPUs were read last.
func (r *runningContainers) has(containers poll.Containers, a *gpu.Assignment) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == nil || containers == nil {
		return false
	}
	s := r.current()
	if s == nil {
		return false
	}
	if s.Generation != r.generation {
		r.index(s, containers)
	}
	d, match := r.devices.Resolve(a.Device)
	return match != gpu.MatchNothing && r.on[placed{d, a.Holder.Container}]
}

func (r *runningContainers) index(s *gpu.Snapshot, containers poll.Containers) {
	r.generation, r.devices, r.on = s.Generation, gpu.NewDevices(s.GPUs), map[placed]bool{}
	for g := range s.GPUs {
		for _, p := range s.GPUs[g].Readings.Processes.Or(nil) {
			c, ok := containers.ContainerOf(p.PID)
			if !ok {
				continue
			}
			d, _ := r.devices.Resolve(gpu.DeviceRef{GPU: s.GPUs[g].UUID, Instance: p.Instance, Compute: p.Compute})
			r.on[placed{gpu.Device{GPU: g, Instance: gpu.Whole, Compute: gpu.Whole}, c}] = true
			r.on[placed{gpu.Device{GPU: g, Instance: d.Instance, Compute: gpu.Whole}, c}] = true
			r.on[placed{d, c}] = true
		}
	}
}
