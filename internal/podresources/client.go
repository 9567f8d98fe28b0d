// Package podresources asks the kubelet which container holds which device, and finds the container
// that a process runs in.
//
// The kubelet serves its pod-resources API, v1, on a unix socket. No scrape waits for it: the poll
// loop calls Client.List once per cycle, with a deadline.
package podresources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// DefaultSocket is where the kubelet listens.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// callTimeout bounds a call of the kubelet: other callers of the Client wait for its end.
const callTimeout = 5 * time.Second

// maxReply bounds a reply in bytes: gRPC's own limit of 4 MiB is too small for a node with
// thousands of devices.
const maxReply = 16 << 20

// Metadata looks up pods and claims in the API server. Its methods return at once. If they lack the
// answer they ask the API server in the background, and a later call returns it. The parameter
// since is a time of the Client's clock: answers to requests from before it do not count.
type Metadata interface {
	// PodMetadata returns what the API server knows about the pod of this name on this node; false
	// if there is no answer or no such pod.
	PodMetadata(namespace, pod string, since time.Time) (gpu.PodMetadata, bool)
	// PodByUID returns the name of a pod that, by the last answer, is on this node and has not
	// ended.
	PodByUID(uid string) (namespace, pod string, ok bool)
	// BoundPods returns the pods that are bound to this node and have not ended, ordered by name.
	// current is false if there is no answer since then that did not come from the API server's
	// cache; pods are then of an older answer, or none.
	BoundPods(since time.Time) (pods []gpu.PodName, current bool)
	// PodGone reports whether an answer that did not come from the API server's cache shows that
	// this node has neither a pod of that UID nor one of that name. An empty name matches no pod.
	// Pods that have ended do not count.
	PodGone(namespace, pod, uid string, since time.Time) bool
	// AdminAccess reports whether a device was allocated to a claim for administrative access,
	// which reserves nothing. An error wraps gpu.ErrUnavailable if there is no answer,
	// gpu.ErrNoPermission if the API server refuses, gpu.ErrNotFound if it has no such claim.
	AdminAccess(d gpu.ClaimDevice, since time.Time) (bool, error)
}

// Options configures a Client.
type Options struct {
	// Socket is the path of the kubelet's socket. Neither the socket nor its directory needs to
	// exist yet. New makes a relative path absolute.
	Socket string
	// ResourceNames are further names of resources that are NVIDIA devices: exact, or a prefix that
	// ends in "*".
	ResourceNames []string
	// Metadata asks the API server; nil: we do not.
	Metadata Metadata
	// Witness is a pod whose presence shows that the kubelet's list may be complete:
	// "namespace/name", or a prefix like "kube-system/nvidia-*". It must come from the API server:
	// a restarted kubelet lists static pods before it has asked the API server for the others. If
	// Witness is empty, we take no list as complete.
	Witness string
	// NodeNames are names of this node. The name of a static pod ends in one of them: such a pod is
	// no witness.
	NodeNames []string
	// Checkpoint is the path of the checkpoint of the kubelet's device manager; empty: we do not
	// read it.
	Checkpoint string
	// StaleAfter is how long the last list counts while the kubelet does not answer.
	StaleAfter time.Duration
	// Running reports whether a process of an assignment's container runs on its device; nil: we do
	// not know. It must not block.
	Running func(*gpu.Assignment) bool
	// Containers finds running containers; nil: we do not look for them. A running container still
	// holds its devices, whatever else we know. A container that we don't find may run all the
	// same.
	Containers *Containers
	// Expected is set if the node must have a kubelet. Otherwise the node counts as one without a
	// kubelet until a path of KubeletPaths exists or a kubelet has answered.
	Expected bool
	// KubeletPaths are paths that exist only on a node with a kubelet.
	KubeletPaths []string
	// Contained is set if this process is in a container, which may not see its host's kubelet. If
	// we find no kubelet then, List returns gpu.ErrNotConfigured instead of gpu.ErrNoKubelet.
	Contained bool
	// Answered is called once, after the kubelet's first answer; nil: we call nothing.
	Answered func()
	// Now is the clock of the backoff and of all times in a list.
	Now    func() time.Time
	Logger log.Logger
}

// Client calls one kubelet. It is safe for concurrent use; one call runs at a time.
type Client struct {
	socket string
	now    func() time.Time
	watch  *socketWatch
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	replies      replyReader
	staleAfter   time.Duration
	expected     bool
	kubeletPaths []string
	contained    bool
	onAnswer     func() // Options.Answered; nil once called

	mu              sync.Mutex // held during a call
	conn            *grpc.ClientConn
	socketFile      os.FileInfo // the socket at the last call; nil for none
	backoff         backoff
	kubeletAnswered bool        // a kubelet has answered
	loggedNoKubelet bool        // we have logged that the node has no kubelet
	checkpoint      *checkpoint // nil: it is not read
	ledger          ledger

	// checkpointState is what CheckpointState returns without a lock; nil if there is no checkpoint
	// that we may read.
	checkpointState atomic.Pointer[gpu.SourceState]
}

// New starts to watch the socket's directory. The first List connects.
func New(opts Options) *Client {
	ctx, cancel := context.WithCancel(context.Background())

	// gRPC needs an absolute path, and so does the watch, which reports files by the path that we
	// give it.
	socket, err := filepath.Abs(opts.Socket)
	if err != nil { // there is no working directory
		socket = opts.Socket
	}

	names := newResourceNames(opts.ResourceNames)

	c := &Client{
		socket:       socket,
		now:          opts.Now,
		watch:        newSocketWatch(socket, opts.Logger),
		ctx:          ctx,
		cancel:       cancel,
		replies:      replyReader{names},
		staleAfter:   opts.StaleAfter,
		expected:     opts.Expected,
		kubeletPaths: opts.KubeletPaths,
		contained:    opts.Contained,
		onAnswer:     opts.Answered,
	}
	if opts.Checkpoint != "" {
		c.checkpoint = &checkpoint{path: opts.Checkpoint, names: names, now: opts.Now}
	}

	c.ledger = ledger{
		metadata:     opts.Metadata,
		running:      opts.Running,
		checkpoint:   c.checkpoint,
		logger:       opts.Logger,
		completeness: completeness{witness: opts.Witness, nodes: opts.NodeNames},
	}
	if opts.Containers != nil {
		c.ledger.live = opts.Containers.readLive
	}

	return c
}

// List asks the kubelet for all holders and returns those that we know afterwards, sorted. Together
// with an error it returns the holders that we know from earlier answers.
//
// An error wraps gpu.ErrUnavailable, and besides
//   - gpu.ErrNotFound if there is no socket,
//   - gpu.ErrTimeout if the kubelet did not answer before ctx ended,
//   - gpu.ErrNoKubelet if the node has no kubelet: then the empty result is complete.
//
// In a container that sees no kubelet the error wraps gpu.ErrNotConfigured instead, and the result
// is empty but not complete. After a failure List returns the same error at once until the backoff
// is over or a new socket appears.
func (c *Client) List(ctx context.Context) (gpu.Assignments, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	now := c.now()
	defer c.publishCheckpoint()

	// We read the checkpoint before and after the call: if it has not changed, it belongs to the
	// list.
	c.checkpoint.readIfChanged()
	version := c.checkpoint.currentVersion()

	var reply *kubeletapi.ListPodResourcesResponse

	err := c.callKubelet(ctx, "list pod resources",
		func(ctx context.Context, kubelet kubeletapi.PodResourcesListerClient) (err error) {
			reply, err = kubelet.List(ctx, &kubeletapi.ListPodResourcesRequest{})
			return err
		})
	switch {
	case errors.Is(err, gpu.ErrNoKubelet):
		if !c.loggedNoKubelet {
			level.Info(c.ledger.logger).Log(
				"msg", "this node has no kubelet: no container holds a device through one",
				"socket", c.socket,
			)
			c.loggedNoKubelet = true
		}

		return gpu.Assignments{}, err
	case err == nil:
		c.recordAnswer()

		list := c.replies.readReply(reply)
		if c.resetIfSocketReplaced(now) {
			list.pods = nil // they may be the former kubelet's: they do not show what the new one lists
		}

		c.checkpoint.readIfChanged()
		c.ledger.recordList(&list, version == c.checkpoint.currentVersion(), now)
	default:
		if now.Sub(c.ledger.lastAnswer) > c.staleAfter {
			c.ledger.markAllMissing(now)
		}

		c.ledger.unlisted.compareWithLedger(&c.ledger, now)
	}

	return c.ledger.assignmentsAt(err, now), err
}

// ConfirmFree records that an operator confirmed devices to be free: List no longer returns the
// named unconfirmed assignments, and returns the devices in Free for ten minutes, or until the
// kubelet restarts or its list is complete. It returns false, and records nothing, if the kubelet
// has restarted since the List of the epoch.
func (c *Client) ConfirmFree(
	epoch uint64,
	devices []gpu.DeviceRef,
	unconfirmed []gpu.Assignment,
) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.ledger.confirmFree(epoch, devices, unconfirmed, c.now())
}

// CheckpointState returns the state of the kubelet's checkpoint; false if there is none that we may
// read. It does not block.
func (c *Client) CheckpointState() (gpu.SourceState, bool) {
	if state := c.checkpointState.Load(); state != nil {
		return *state, true
	}

	return gpu.SourceState{}, false
}

func (c *Client) publishCheckpoint() {
	if c.checkpoint == nil {
		return
	}

	if state, ok := c.checkpoint.sourceState(); ok {
		c.checkpointState.Store(&state)
	}
}

func (c *Client) recordAnswer() {
	c.kubeletAnswered = true
	if c.onAnswer != nil {
		c.onAnswer()
		c.onAnswer = nil
	}
}

// resetIfSocketReplaced reports whether the socket was replaced since the call began. If so it
// closes the connection and tells the ledger that the kubelet has restarted.
func (c *Client) resetIfSocketReplaced(now time.Time) bool {
	file, err := os.Stat(c.socket)
	if err == nil && sameFile(file, c.socketFile) {
		return false
	}

	c.socketFile = nil
	if err == nil {
		c.socketFile = file
	}

	c.disconnect()
	c.ledger.resetForRestart(now)

	return true
}

// hasKubelet reports whether the node has a kubelet, as far as we know. A path that we cannot read
// counts as present.
func (c *Client) hasKubelet() bool {
	if c.expected || c.kubeletAnswered {
		return true
	}

	return slices.ContainsFunc(c.kubeletPaths, func(path string) bool {
		_, err := os.Stat(path)
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// notConfiguredError says what to configure in a container that sees no kubelet.
func (c *Client) notConfiguredError() error {
	return fmt.Errorf(
		"%w: this container sees no kubelet: set --kubernetes.socket= (empty) if the node has none, "+
			"or mount %s",
		gpu.ErrNotConfigured,
		filepath.Dir(c.socket),
	)
}

// Allocatable returns the devices that the kubelet can assign, also those that it has assigned
// already. They are sorted, each once for each resource, even if it has several replicas. Devices
// of dynamic resource allocation are missing: the kubelet does not know them before they are
// claimed. Allocatable returns the same errors as List and shares its backoff.
func (c *Client) Allocatable(ctx context.Context) ([]gpu.Offer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	var reply *kubeletapi.AllocatableResourcesResponse

	err := c.callKubelet(ctx, "allocatable resources",
		func(ctx context.Context, kubelet kubeletapi.PodResourcesListerClient) (err error) {
			reply, err = kubelet.GetAllocatableResources(
				ctx,
				&kubeletapi.AllocatableResourcesRequest{},
			)

			return err
		})
	if err != nil {
		return nil, err
	}

	return c.replies.readAllocatable(reply), nil
}

// kubeletCall is one call of the kubelet's API.
type kubeletCall func(ctx context.Context, kubelet kubeletapi.PodResourcesListerClient) error

// callKubelet calls the kubelet that listens on the socket now, unless a backoff is pending. If it
// is another one than at the last call, it tells the ledger. The caller holds c.mu.
func (c *Client) callKubelet(ctx context.Context, op string, call kubeletCall) error {
	if c.ctx.Err() != nil {
		return fmt.Errorf("%s: client is closed: %w", op, gpu.ErrUnavailable)
	}

	if ctx.Err() != nil {
		return fmt.Errorf(
			"%s: another call took too long: %w: %w",
			op,
			gpu.ErrUnavailable,
			gpu.ErrTimeout,
		)
	}

	// We start the watch before we examine the socket: a kubelet may start in between.
	c.watch.startWatching()
	renewed := c.watch.resetSocketCreated()

	file, err := c.statSocket(op)
	if !sameFile(file, c.socketFile) {
		renewed = true
		c.socketFile = file
		c.ledger.resetForRestart(c.now())
	}

	if renewed {
		c.disconnect()
		c.backoff.reset() // the new kubelet has not failed yet
	}

	if errors.Is(err, gpu.ErrNotFound) && !c.hasKubelet() {
		if c.contained {
			return c.notConfiguredError()
		}

		return fmt.Errorf("%w: %w", err, gpu.ErrNoKubelet)
	}

	if err != nil {
		return err
	}

	if err := c.backoff.pendingError(c.now()); err != nil {
		return err
	}

	if err := c.callOnce(ctx, op, call); err != nil {
		// gRPC would delay the next attempt by a backoff of its own; a new connection has none.
		c.disconnect()

		if !errors.Is(err, context.Canceled) {
			c.backoff.recordFailure(c.now(), err)
		}

		return err
	}

	c.backoff.reset()

	return nil
}

// Close cancels a call under way and closes the connection and the watch.
func (c *Client) Close() {
	c.cancel()
	c.watch.close()
	c.mu.Lock()
	defer c.mu.Unlock()

	c.disconnect()
}

// callOnce connects, calls the kubelet, and says in the error why it did not answer.
func (c *Client) callOnce(ctx context.Context, op string, call kubeletCall) error {
	if err := c.connect(); err != nil {
		return fmt.Errorf("%s: %w: %w", op, err, gpu.ErrUnavailable)
	}

	callCtx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()

	err := call(callCtx, kubeletapi.NewPodResourcesListerClient(c.conn))
	if err == nil {
		return nil
	}

	switch {
	case errors.Is(callCtx.Err(), context.Canceled):
		return fmt.Errorf("%s: %w: %w", op, gpu.ErrUnavailable, context.Canceled)
	case callCtx.Err() != nil || status.Code(err) == codes.DeadlineExceeded:
		return fmt.Errorf(
			"%s: kubelet at %s does not answer: %w: %w",
			op,
			c.socket,
			gpu.ErrUnavailable,
			gpu.ErrTimeout,
		)
	}

	return fmt.Errorf(
		"%s: kubelet at %s: %s: %w",
		op,
		c.socket,
		status.Convert(err).Message(),
		gpu.ErrUnavailable,
	)
}

func (c *Client) connect() error {
	if c.conn != nil {
		return nil
	}

	// gRPC parses the target as a URL: a percent sign in the path must be escaped.
	conn, err := grpc.NewClient(
		(&url.URL{Scheme: "unix", Path: c.socket}).String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(maxReply),
			grpc.ForceCodecV2(newReplyCodec()),
		),
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
		_ = c.conn.Close() // it only fails if it is closed already
		c.conn = nil
	}
}

// statSocket returns the socket's file, or an error that says why the kubelet cannot answer there.
func (c *Client) statSocket(op string) (os.FileInfo, error) {
	info, err := os.Stat(c.socket)
	switch {
	case err == nil:
		return info, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf(
			"%s: no kubelet socket at %s: %w: %w",
			op,
			c.socket,
			gpu.ErrUnavailable,
			gpu.ErrNotFound,
		)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf(
			"%s: kubelet socket %s: %w: %w",
			op,
			c.socket,
			gpu.ErrUnavailable,
			gpu.ErrNoPermission,
		)
	}

	return nil, fmt.Errorf("%s: kubelet socket: %w: %w", op, err, gpu.ErrUnavailable)
}

// sameFile reports whether both are the same file, unchanged. We compare, because the watch misses
// a new socket if a directory above it was replaced. A new file may reuse the inode number, but not
// the time.
func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}

	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}
