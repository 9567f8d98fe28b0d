package kubelettest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// allocatedVariable is the variable of a container in which the device plugin tells it the ids of
// its devices: the truth about who holds what, since it is not read from the kubelet.
const allocatedVariable = "ALLOCATED_DEVICES"

// devicePlugin offers the devices of one resource. It registers again whenever the kubelet has
// restarted.
type devicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	resource string
	socket   string        // its file name
	delay    time.Duration // of each allocation

	mu         sync.Mutex
	ids        []string
	changed    chan struct{} // closed when ids change
	allocating int           // allocations under way
}

func newDevicePlugin(resource string, ids ...string) *devicePlugin {
	return &devicePlugin{
		resource: resource, socket: strings.ReplaceAll(resource, "/", "-") + ".sock", ids: ids,
		changed: make(chan struct{}),
	}
}

// offer replaces the devices.
func (p *devicePlugin) offer(ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = ids
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *devicePlugin) offered() ([]string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()

	return slices.Clone(p.ids), p.changed
}

func (p *devicePlugin) countAllocating(by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allocating += by
}

// isAllocating reports whether the kubelet waits for an allocation.
func (p *devicePlugin) isAllocating() bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.allocating > 0
}

// run serves the kubelet, and the next one after a restart, until ctx ends.
func (p *devicePlugin) run(ctx context.Context, failed func(error)) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var server *grpc.Server
	var kubelet fs.FileInfo
	stop := func() {
		if server != nil {
			server.Stop()
		}
	}
	defer func() { stop() }()

	for {
		now, err := os.Stat(pluginapi.KubeletSocket)
		if err == nil && (kubelet == nil || !os.SameFile(now, kubelet) || !now.ModTime().Equal(kubelet.ModTime())) {
			stop()

			if server, err = p.register(ctx); err == nil {
				kubelet = now
			} else {
				failed(fmt.Errorf("device plugin %s: %w", p.resource, err))
			}
		}

		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (p *devicePlugin) register(ctx context.Context) (*grpc.Server, error) {
	path := filepath.Join(pluginapi.DevicePluginPath, p.socket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}

	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}

	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }() // until Stop

	conn, err := grpc.NewClient("unix://"+pluginapi.KubeletSocket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		defer conn.Close()
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
			Version: pluginapi.Version, Endpoint: p.socket, ResourceName: p.resource,
		})
	}

	if err != nil {
		server.Stop()
		return nil, err
	}

	return server, nil
}

// GetDevicePluginOptions implements the device plugin.
func (p *devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions,
	error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// ListAndWatch implements the device plugin.
func (p *devicePlugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	for {
		ids, changed := p.offered()

		reply := &pluginapi.ListAndWatchResponse{}
		for _, id := range ids {
			reply.Devices = append(reply.Devices, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
		}

		if err := stream.Send(reply); err != nil {
			return err
		}

		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Allocate implements the device plugin.
func (p *devicePlugin) Allocate(ctx context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse,
	error) {
	if p.delay > 0 {
		p.countAllocating(1)
		defer p.countAllocating(-1)

		select {
		case <-time.After(p.delay):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}

	reply := &pluginapi.AllocateResponse{}
	for _, container := range r.GetContainerRequests() {
		reply.ContainerResponses = append(reply.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs: map[string]string{allocatedVariable: strings.Join(container.GetDevicesIds(), ",")},
		})
	}

	return reply, nil
}
