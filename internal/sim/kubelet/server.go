// Package kubelet is the simulated node's kubelet as others see it: the pod-resources API, v1, on a
// real unix socket, and the files by which a process is traced to its container.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/go-kit/log"
	"google.golang.org/grpc"
	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// NodeView is what the kubelet knows of its node. The methods may be called from several
// goroutines.
type NodeView interface {
	// Containers lists what the kubelet's pod-resources API would, containers without a device
	// included.
	Containers() []sim.Container
	// Running lists all containers on the node, whatever the kubelet lists.
	Running() []sim.Container
	// Allocatable lists every device that device plugins offer, given away or not.
	Allocatable() []sim.DeviceGrant
	// Checkpoint returns what the kubelet's device manager has on disk.
	Checkpoint() sim.Checkpoint
}

// Server is a kubelet that can be stopped and started again.
type Server struct {
	dir   string
	api   *api
	files *files

	mu      sync.Mutex
	serving *grpc.Server // nil while stopped
	state   sim.KubeletState
	done    chan struct{} // closed when serving has ended
}

// New makes the directory if need be and starts to serve on dir/kubelet.sock. The path may have 99
// bytes or so: the system bounds the length of a socket's.
func New(node NodeView, dir string, logger log.Logger) (*Server, error) {
	t, err := newTree(node, dir)
	if err != nil {
		return nil, fmt.Errorf("simulated kubelet: %w", err)
	}

	f := &files{
		tree:       t,
		checkpoint: &checkpointer{node: node, path: filepath.Join(dir, checkpointName)},
	}
	if err := f.checkpoint.sync(); err != nil {
		return nil, fmt.Errorf("simulated kubelet: %w", err)
	}

	s := &Server{dir: dir, files: f, api: newAPI(node, f, logger)}
	if err := s.Start(); err != nil {
		return nil, err
	}

	return s, nil
}

// Socket is the path of the pod-resources socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "kubelet.sock") }

// ProcDir has <pid>/cgroup for the processes of the node's containers, as /proc has.
func (s *Server) ProcDir() string { return s.files.tree.procDir }

// LogDir has a link for every container, as /var/log/containers has. What the links point to does
// not exist.
func (s *Server) LogDir() string { return s.files.tree.logDir }

// Checkpoint is the path of the device manager's checkpoint.
func (s *Server) Checkpoint() string { return s.files.checkpoint.path }

// Sync brings ProcDir, LogDir and the checkpoint up to date with the node; every Follow and every
// List do so too. An error about one container does not keep the rest from being brought up to
// date.
func (s *Server) Sync() error { return s.files.sync() }

// Start makes a new socket and serves on it; it does nothing while the server runs.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.serving != nil {
		return nil
	}

	listener, err := listen(s.Socket())
	if err != nil {
		return fmt.Errorf("simulated kubelet: %w", err)
	}

	serving := grpc.NewServer()
	done := make(chan struct{})
	kubeletapi.RegisterPodResourcesListerServer(serving, s.api)
	go func() {
		defer close(done)
		// It ends when it is stopped, and what it returns then is nothing new.
		_ = serving.Serve(listener)
	}()
	s.serving = serving
	s.done = done

	return nil
}

// Stop ends the service and all connections. As with a kubelet that was stopped, the socket's file
// stays, and a client that dials it is refused.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.serving == nil {
		return
	}

	s.serving.Stop()
	<-s.done
	s.serving = nil
}

// Follow brings the server into the state that the node's faults want, and its files up to date; a
// client calls this before.
func (s *Server) Follow(state sim.KubeletState) error {
	s.api.sync()
	s.mu.Lock()
	before := s.state
	s.state = state
	s.mu.Unlock()
	s.api.delay.Store(int64(state.Delay))

	if state.Down || state.Restarts != before.Restarts {
		s.Stop()
	}

	if state.Down {
		return nil
	}

	return s.Start()
}

// Close stops the server and removes the files that it made.
func (s *Server) Close() error {
	s.Stop()

	err := os.Remove(s.Socket())
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}

	if err := errors.Join(err, s.files.remove()); err != nil {
		return fmt.Errorf("simulated kubelet: %w", err)
	}

	return nil
}

// files are what the kubelet keeps beside its socket.
type files struct {
	tree       *tree
	checkpoint *checkpointer
}

func (f *files) sync() error { return errors.Join(f.tree.sync(), f.checkpoint.sync()) }

func (f *files) remove() error {
	return errors.Join(f.tree.remove(), removed(os.Remove(f.checkpoint.path)))
}

// listen binds beside the path and moves the socket there once it accepts, so that no client finds
// a socket that does not listen yet, and tests need not wait for it.
func listen(path string) (net.Listener, error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}

	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", fresh)
	if err != nil {
		return nil, err
	}

	listener.(*net.UnixListener).SetUnlinkOnClose(false)

	if err := os.Rename(fresh, path); err != nil {
		return nil, errors.Join(err, listener.Close())
	}

	return listener, nil
}
