// Package kubelet is the simulated node's kubelet as clients see it: the pod-resources API, v1, on a
// real unix socket, and the files by which they trace a process to its container.
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

// NodeView is what the kubelet knows of its node. Its methods are safe for concurrent use.
type NodeView interface {
	// Containers lists the containers that the pod-resources API shows, also those without a device.
	Containers() []sim.Container
	// Running lists all containers on the node, also those that the API does not show.
	Running() []sim.Container
	// Allocatable lists every device that device plugins offer, allocated or not.
	Allocatable() []sim.DeviceGrant
	// Checkpoint returns the content of the device manager's checkpoint.
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

// New creates the directory if it does not exist, and starts to serve on dir/kubelet.sock. The
// system bounds the length of a socket's path: dir can have about 99 bytes.
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

// Socket returns the path of the pod-resources socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "kubelet.sock") }

// ProcDir returns a directory that has <pid>/cgroup for the processes of the node's containers, like
// /proc.
func (s *Server) ProcDir() string { return s.files.tree.procDir }

// LogDir returns a directory that has a link for every container, like /var/log/containers. The
// targets of the links do not exist.
func (s *Server) LogDir() string { return s.files.tree.logDir }

// Checkpoint returns the path of the device manager's checkpoint.
func (s *Server) Checkpoint() string { return s.files.checkpoint.path }

// Sync brings ProcDir, LogDir and the checkpoint up to date with the node, as Follow and every List
// do, too. After an error about one container it goes on with the others.
func (s *Server) Sync() error { return s.files.sync() }

// Start creates a new socket and serves on it. It does nothing if the server runs.
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
		_ = serving.Serve(listener) // it only returns when Stop stops it
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

// Follow brings the server into a state, as the node's faults want it, and its files up to date.
// Callers do this before a client asks the server.
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

// Close stops the server and removes the files that it has created.
func (s *Server) Close() error {
	s.Stop()

	err := ignoreMissing(os.Remove(s.Socket()))
	if err := errors.Join(err, s.files.remove()); err != nil {
		return fmt.Errorf("simulated kubelet: %w", err)
	}

	return nil
}

// files are the files that the kubelet keeps beside its socket.
type files struct {
	tree       *tree
	checkpoint *checkpointer
}

func (f *files) sync() error { return errors.Join(f.tree.sync(), f.checkpoint.sync()) }

func (f *files) remove() error {
	return errors.Join(f.tree.remove(), ignoreMissing(os.Remove(f.checkpoint.path)))
}

// listen listens on a socket beside the path, and then renames it to the path. So no client finds a
// socket that does not accept connections yet, and tests need not wait.
func listen(path string) (net.Listener, error) {
	temporary := path + ".new"
	if err := ignoreMissing(os.Remove(temporary)); err != nil {
		return nil, err
	}

	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", temporary)
	if err != nil {
		return nil, err
	}

	listener.(*net.UnixListener).SetUnlinkOnClose(false)

	if err := os.Rename(temporary, path); err != nil {
		return nil, errors.Join(err, listener.Close())
	}

	return listener, nil
}
