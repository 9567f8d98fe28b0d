// Package podres asks the kubelet which container holds which device, and finds the container that a process runs in.
//
// The kubelet answers on a unix socket with its pod-resources API, v1. Nothing here is on the path of a scrape: the
// poll loop calls Client.List once per cycle, with a deadline.
package podres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-kit/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// DefaultSocket is where the kubelet listens.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// maxReply bounds a reply in bytes: gRPC's own limit of 4 MiB is too small for a node with thousands of devices.
const maxReply = 16 << 20

// settling is how long after its first reply on a new socket a kubelet's having no device at all is not believed: one
// that has just started answers before it knows its pods again.
const settling = 2 * time.Second

// Metadata tells what the pod-resources API does not. It is called for every pod that holds a device in every List, and
// must not block. It returns false for a pod that is not known (yet).
type Metadata interface {
	PodMetadata(namespace, pod string) (gpu.PodMetadata, bool)
}

// Options configures a Client.
type Options struct {
	// Socket is the path of the kubelet's socket, relative to the directory in which New is called if it is. Neither the
	// socket nor its directory need exist yet.
	Socket string
	// ResourceNames are counted as NVIDIA devices beside the usual names: exact, or a prefix that ends in "*".
	ResourceNames []string
	// Metadata adds owners and labels, and the MIG devices of HAMi; nil for none.
	Metadata Metadata
	// Now is the clock of the backoff, and of how long what a restarted kubelet does not list yet is remembered.
	Now    func() time.Time
	Logger log.Logger
}

// Client asks one kubelet. Its methods may be called from several goroutines; one call runs at a time.
type Client struct {
	socket string
	now    func() time.Time
	watch  *socketWatch
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu      sync.Mutex // held during a call
	conn    *grpc.ClientConn
	file    os.FileInfo // the socket at the last call; nil for none
	settled time.Time   // when having no device is believed of who listens on it; zero before the first reply
	backoff backoff
	reader  reader
}

// New starts to watch the socket's directory. It does not connect: the first List does.
func New(opts Options) *Client {
	ctx, cancel := context.WithCancel(context.Background())
	// The watch names files as it was told, and gRPC takes no relative path. Without a working directory it stays as it is.
	socket, err := filepath.Abs(opts.Socket)
	if err != nil {
		socket = opts.Socket
	}
	return &Client{
		socket: socket,
		now:    opts.Now,
		watch:  newSocketWatch(socket, opts.Logger),
		ctx:    ctx,
		cancel: cancel,
		reader: newReader(opts),
	}
}

// List asks who holds which device. The result is sorted; it does not depend on the order of the kubelet's answer.
//
// An error wraps gpu.ErrUnavailable; gpu.ErrNotFound too where there is no socket, gpu.ErrTimeout where the kubelet did
// not answer before ctx ended. After a failure List returns the same error at once until the backoff is over or a new
// socket shows.
func (c *Client) List(ctx context.Context) (gpu.Assignments, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var reply *podresources.ListPodResourcesResponse
	err := c.try(ctx, "list pod resources", func(ctx context.Context, kubelet podresources.PodResourcesListerClient) (err error) {
		reply, err = kubelet.List(ctx, &podresources.ListPodResourcesRequest{})
		return err
	})
	if err != nil {
		return gpu.Assignments{}, err
	}
	now := c.now()
	if c.settled.IsZero() {
		c.settled = now.Add(settling)
	}
	return c.reader.read(reply, now, now.Before(c.settled)), nil
}

// Allocatable asks which devices the kubelet can give out, given out already or not: sorted, each once, though it may
// stand for several replicas. Devices of dynamic resource allocation are not among them, which the kubelet does not know
// until they are claimed. Errors are as of List, and the backoff is the same.
func (c *Client) Allocatable(ctx context.Context) ([]gpu.DeviceRef, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var reply *podresources.AllocatableResourcesResponse
	err := c.try(ctx, "allocatable resources", func(ctx context.Context, kubelet podresources.PodResourcesListerClient) (err error) {
		reply, err = kubelet.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
		return err
	})
	if err != nil {
		return nil, err
	}
	return c.reader.allocatable(reply), nil
}

// call is one call of the kubelet's API.
type call func(ctx context.Context, kubelet podresources.PodResourcesListerClient) error

// try makes a call over the connection to who listens on the socket now, unless it is too early after a failure.
func (c *Client) try(ctx context.Context, op string, call call) error {
	if c.ctx.Err() != nil {
		return fmt.Errorf("%s: client is closed: %w", op, gpu.ErrUnavailable)
	}
	// The watch stands before the socket is looked at, so that a kubelet that starts in between is seen.
	c.watch.ensure()
	renewed := c.watch.takeRenewed()
	file, err := c.stat(op)
	if !sameSocket(file, c.file) {
		renewed = true
		c.file, c.settled = file, time.Time{}
	}
	if renewed {
		c.disconnect()
		c.backoff.reset() // looking for a file is cheap, and whoever makes it means it
	}
	if err != nil {
		return err
	}
	if err := c.backoff.pending(c.now()); err != nil {
		return err
	}
	if err := c.ask(ctx, op, call); err != nil {
		// gRPC would wait by its own schedule before it connects again: a new connection starts afresh.
		c.disconnect()
		if !errors.Is(err, context.Canceled) {
			c.backoff.fail(c.now(), err)
		}
		return err
	}
	c.backoff.reset()
	return nil
}

// Close ends a call under way, the connection and the watch.
func (c *Client) Close() {
	c.cancel()
	c.watch.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disconnect()
}

func (c *Client) ask(ctx context.Context, op string, call call) error {
	if err := c.connect(); err != nil {
		return fmt.Errorf("%s: %w: %w", op, err, gpu.ErrUnavailable)
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	err := call(asking, podresources.NewPodResourcesListerClient(c.conn))
	if err == nil {
		return nil
	}
	switch {
	case asking.Err() != nil && errors.Is(context.Cause(asking), context.Canceled):
		return fmt.Errorf("%s: %w: %w", op, gpu.ErrUnavailable, context.Canceled)
	case asking.Err() != nil || status.Code(err) == codes.DeadlineExceeded:
		return fmt.Errorf("%s: kubelet at %s does not answer: %w: %w", op, c.socket, gpu.ErrUnavailable, gpu.ErrTimeout)
	}
	return fmt.Errorf("%s: kubelet at %s: %s: %w", op, c.socket, status.Convert(err).Message(), gpu.ErrUnavailable)
}

func (c *Client) connect() error {
	if c.conn != nil {
		return nil
	}
	// As a URL, so that a path with a percent sign survives gRPC's parsing.
	conn, err := grpc.NewClient((&url.URL{Scheme: "unix", Path: c.socket}).String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply), grpc.ForceCodecV2(newReplyCodec())),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", c.socket, err)
	}
	c.conn = conn
	return nil
}

func (c *Client) disconnect() {
	if c.conn != nil {
		// Its error says that it is closed already.
		_ = c.conn.Close()
		c.conn = nil
	}
}

// stat looks at the socket. An error says why it cannot be there to answer.
func (c *Client) stat(op string) (os.FileInfo, error) {
	info, err := os.Stat(c.socket)
	switch {
	case err == nil:
		return info, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: no kubelet socket at %s: %w: %w", op, c.socket, gpu.ErrUnavailable, gpu.ErrNotFound)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s: kubelet socket %s: %w: %w", op, c.socket, gpu.ErrUnavailable, gpu.ErrNoPermission)
	}
	return nil, fmt.Errorf("%s: kubelet socket: %w: %w", op, err, gpu.ErrUnavailable)
}

// sameSocket tells whether no new socket was made between two looks, which the watch misses where a directory above the
// socket's was replaced. A new file may have the number of the old one, but not its time.
func sameSocket(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}
