package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
	"github.com/mig-exporter/mig-exporter/internal/podmeta"
	"github.com/mig-exporter/mig-exporter/internal/podresources"
	"github.com/mig-exporter/mig-exporter/internal/poll"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/kubelet"
)

// metadata is an API server with the state that the exporter shows of it.
type metadata interface {
	podresources.Metadata
	State() gpu.SourceState
}

// openPods makes the node's kubelet the one that is asked. A recording has none.
func (n *node) openPods(cfg *Config) error {
	switch {
	case n.simulated != nil && n.simulated.Scenario().Node.Kubernetes:
		return n.startKubelet(cfg)
	case n.clock != nil:
		return nil
	}
	if err := n.openMetadata(cfg); err != nil {
		return err
	}
	n.containers = podresources.NewContainers(podresources.ContainersOptions{
		ProcDir: cfg.ProcDir, LogDir: cfg.ContainerLogs, Now: time.Now, Logger: n.logger,
	})
	if cfg.KubeletSocket == "" {
		return nil
	}
	opts := podresources.Options{
		Socket: cfg.KubeletSocket, Checkpoint: cfg.Checkpoint, Witness: n.witness(cfg), NodeNames: n.names(cfg),
		Expected: n.inCluster || cfg.kubeletSocketSet, Traces: append(kubeletTraces(), filepath.Dir(cfg.KubeletSocket)),
	}
	if cfg.Control.Enabled {
		boot, err := n.bootID()
		if err != nil {
			return err
		}
		mark := kubeletMark{path: filepath.Join(cfg.Control.StateDir, "kubelet-boot"), boot: boot, logger: n.logger}
		opts.Expected = opts.Expected || mark.isSet()
		opts.Answered = mark.set
	}
	n.askKubelet(cfg, opts)
	return nil
}

// openMetadata starts to ask the API server about the node's pods, if the node is named.
func (n *node) openMetadata(cfg *Config) error {
	if cfg.NodeName == "" {
		return nil
	}
	server, err := kubeapi.InClusterServer(os.Getenv)
	if err != nil {
		return fmt.Errorf("--kubernetes.node-name=%s: %w", cfg.NodeName, err)
	}
	m, err := podmeta.New(podmeta.Options{
		Server: server, CredentialsDir: kubeapi.DefaultCredentialsDir, UserAgent: userAgent(), Node: cfg.NodeName, Labels: cfg.PodLabelNames, Logger: n.logger,
	})
	if err != nil {
		return err
	}
	n.onClose(m.Close)
	n.metadata = m
	return nil
}

// startKubelet runs the simulated kubelet on a socket of its own and asks it instead of this machine's, unless the node is to have
// none.
func (n *node) startKubelet(cfg *Config) error {
	if cfg.KubeletSocket == "" {
		return nil
	}
	dir, err := os.MkdirTemp("", "mig-exporter-sim-")
	if err != nil {
		return fmt.Errorf("simulated kubelet: %w", err)
	}
	n.closers = append(n.closers, func() error { return os.RemoveAll(dir) })
	server, err := kubelet.New(n.simulated, dir, n.logger)
	if err != nil {
		return err
	}
	n.closers = append(n.closers, server.Close)
	n.metadata = simulatedMetadata{node: n.simulated, labels: cfg.PodLabelNames}
	n.containers = podresources.NewContainers(podresources.ContainersOptions{
		ProcDir: server.ProcDir(), LogDir: server.LogDir(), Now: time.Now, Logger: n.logger,
	})
	checkpoint := server.Checkpoint()
	if cfg.Checkpoint == "" {
		checkpoint = ""
	}
	n.askKubelet(cfg, podresources.Options{
		Socket: server.Socket(), Checkpoint: checkpoint, Witness: cmp.Or(cfg.WitnessPod, sim.OwnNamespace+"/"+sim.OwnPod), Expected: true,
	})
	faulty := faultyKubelet{Assignments: n.devices, node: n.simulated, server: server}
	n.pods, n.devices = faulty, faulty
	return nil
}

// askKubelet asks the kubelet that opts describe, with what the node and the configuration have for all.
func (n *node) askKubelet(cfg *Config, opts podresources.Options) {
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

// kubeletTraces are the folders of kubelets (Kubernetes', microk8s', k0s'), and what a container has that cannot see its host's.
func kubeletTraces() []string {
	return []string{
		"/var/lib/kubelet", "/var/snap/microk8s/common/var/lib/kubelet", "/var/lib/k0s/kubelet",
		"/.dockerenv", "/run/.containerenv",
	}
}

// names returns the names that the kubelet may have for this node: it ends the names of static pods with its own.
func (n *node) names(cfg *Config) []string {
	short, _, _ := strings.Cut(n.hostname, ".")
	var names []string
	for _, name := range []string{cfg.NodeName, n.hostname, short} {
		if name != "" {
			names = append(names, strings.ToLower(name))
		}
	}
	return names
}

// ownPod returns "namespace/name" of the pod that this process runs in, as the downward API, or else the service account and
// the host name tell; empty if they do not.
func ownPod(getenv func(string) string, credentialsDir, hostname string) string {
	namespace, name := getenv("POD_NAMESPACE"), cmp.Or(getenv("POD_NAME"), hostname)
	if namespace == "" {
		text, err := os.ReadFile(filepath.Join(credentialsDir, "namespace"))
		if err != nil {
			return ""
		}
		namespace = strings.TrimSpace(string(text))
	}
	if namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}

// witness returns the pod whose presence in the kubelet's list shows that the list is complete: the configured one or, in a
// cluster, the own one.
func (n *node) witness(cfg *Config) string {
	if cfg.WitnessPod != "" || !n.inCluster {
		return cfg.WitnessPod
	}
	return ownPod(os.Getenv, kubeapi.DefaultCredentialsDir, n.hostname)
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
