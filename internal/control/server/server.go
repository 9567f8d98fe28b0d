// Package server is the HTTP API of partition control on its own listeners: it authenticates and
// authorizes callers, writes the audit log, and passes calls to its backend, the engine.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"golang.org/x/time/rate"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/shutdown"
)

// Backend carries out the calls of the API; *control.Engine implements it. Errors that are meant
// for the caller are *api.Problem.
type Backend interface {
	Plan(ctx context.Context, by control.Actor, r api.PlanRequest) (*api.Plan, error)
	PlanByID(id string) (*api.Plan, error)
	Layouts(ctx context.Context) (*api.NamedLayouts, error)
	Start(ctx context.Context, by control.Actor, r api.OperationRequest) (*api.Operation, error)
	Rollback(ctx context.Context, by control.Actor, id string) (*api.Operation, error)
	Accept(ctx context.Context, by control.Actor, id string) (*api.Operation, error)
	EndSettling(ctx context.Context, by control.Actor, id string) (*api.Operation, error)
	ConfirmFree(ctx context.Context, by control.Actor, device string) (*api.Confirmation, error)
	SetMode(
		ctx context.Context,
		by control.Actor,
		id gpu.UUID,
		r api.ModeRequest,
	) (*api.Operation, error)
	Restore(
		ctx context.Context,
		by control.Actor,
		id gpu.UUID,
		r api.RestoreRequest,
	) (*api.Operation, error)
	ForgetLayout(ctx context.Context, by control.Actor, id gpu.UUID) (*api.ForgottenLayout, error)
	Operation(id string) (*api.Operation, error)
	Operations() *api.Operations
	Events(ctx context.Context, id string, after int) (<-chan api.Event, error)
}

var _ Backend = (*control.Engine)(nil)

// Reviewer asks the Kubernetes API server who the owner of a token is, and which rights it has on
// the partitions of this node. The error wraps gpu.ErrNoPermission if the token is invalid. Any
// other error means that the API server did not answer, or that it does not let this program review
// tokens: then errors.As finds an error whose method Refusal names the missing right.
type Reviewer interface {
	// Known returns the actor of a token that was reviewed a moment ago, without another request.
	Known(token string) (control.Actor, bool)
	Actor(ctx context.Context, token string) (control.Actor, error)
}

// Observer counts calls.
type Observer interface {
	// Read counts a call that only reads. It is safe for concurrent use.
	Read()
	// Audited is called for each line of the audit log with the error of writing it, or nil. It
	// must not call the server.
	Audited(err error)
}

// Options configure where to listen and which callers to trust. Socket or ListenAddress may be
// empty, but not both.
type Options struct {
	// Socket is the path of the unix socket. Root has all rights there.
	Socket string
	// AllowGID is a group whose members have all rights on Socket but force, take-over and release;
	// -1 is no group.
	AllowGID int
	// ListenAddress is host:port; port 0 is any free port. It is served with TLS only, configured
	// by ConfigFile.
	ListenAddress string
	ConfigFile    string
	// Reloader, if not nil, reads ConfigFile again on request. The server also reads it again when a
	// client comes and the file has changed.
	Reloader *Reloader
	// Reviewer is required if the configuration has kubernetes: true.
	Reviewer Reviewer

	// Node, NodeStream and NodeHistory answer GET of /api/v1/node, .../stream and .../history.
	Node, NodeStream, NodeHistory http.Handler
	// Health answers GET /api/v1/health, also before the first Snapshot.
	Health http.Handler
	// Recommendations returns the last report about right-sizing, or nil before the first. With a
	// UUID that is not empty, it returns the part about that GPU. A nil function means that
	// right-sizing is off.
	Recommendations func(gpu.UUID) any
	// Releaser closes GPUs in the exporter and opens them again; if it is nil, requests for that
	// are refused.
	Releaser Releaser
	// Current returns the last Snapshot, in which we look up GPUs; nil before the first.
	Current func() *gpu.Snapshot
	// Audit receives lines of JSON about calls that change something or are refused; see NewAudit.
	// If it has a method Sync, we call that before a change begins.
	Audit io.Writer
	// Observer, if not nil, counts reads and lines of the audit log.
	Observer Observer
	// ShutdownTimeout is how long calls in flight may take after the context has ended.
	ShutdownTimeout time.Duration
	Now             func() time.Time
	// Ready, if not nil, is called once with the addresses of the listeners.
	Ready func([]net.Addr)
}

// limits bound the resources that clients can use.
type limits struct {
	header, read, write, idle time.Duration // the timeouts of http.Server

	call       time.Duration // timeout of a call of the backend
	eventWrite time.Duration // timeout of writing one event to a stream
	heartbeat  time.Duration // between signs of life on a stream without events

	headerBytes int
	bodyBytes   int64 // of a request's body
	planBytes   int64 // of the body of a request for a plan, which contains a spec

	plans          int           // that are computed at once
	plansPerCaller int           // of one caller, waiting or being computed
	planWait       time.Duration // how long a request for a plan waits for its turn

	// Connections of one listener: new ones, without a valid credential so far, and callers'.
	newConns, newConnsPerAddress    int
	knownConns, knownConnsPerCaller int

	streams, streamsPerActor int // of operations; there may be as many of the node

	callsPerSecond    rate.Limit // of one caller
	callsBurst        int
	changesPerSecond  rate.Limit // calls of one caller that start a change
	changesBurst      int
	linesPerSecond    rate.Limit // of the audit log, by caller and status; not about changes
	linesBurst        int
	failuresPerSecond rate.Limit // calls without a valid credential, from one address
	failuresBurst     int
}

func defaultLimits() limits {
	return limits{
		header: 5 * time.Second, read: 10 * time.Second, write: time.Minute, idle: time.Minute,
		call:       45 * time.Second,
		eventWrite: 10 * time.Second, heartbeat: 15 * time.Second,
		headerBytes: 16 << 10, bodyBytes: 16 << 10, planBytes: 320 << 10,
		plans: 2, plansPerCaller: 4, planWait: 15 * time.Second,
		newConns: 128, newConnsPerAddress: 64, knownConns: 256, knownConnsPerCaller: 32,
		streams: 32, streamsPerActor: 8,
		callsPerSecond: 20, callsBurst: 60,
		changesPerSecond: 0.2, changesBurst: 20,
		linesPerSecond: 1.0 / 60, linesBurst: 30,
		failuresPerSecond: 0.5, failuresBurst: 10,
	}
}

// server handles API requests; each listener adds its own authenticator.
type server struct {
	o           Options
	backend     Backend
	logger      log.Logger
	limits      limits
	audit       *auditLog
	actors      *buckets // for calls, by caller
	changes     *buckets // for calls that start a change, by caller
	lines       *buckets // for lines of the audit log, by status and caller
	fails       *buckets // for calls without a valid credential, by address
	reviewed    *reviewedTokens
	replays     *replays
	streams     *streams // of operations
	nodeStreams *streams // of the node's state
	plans       *planQueue
	router      http.Handler
}

func newServer(o Options, backend Backend, logger log.Logger, l limits) *server {
	if o.Now == nil {
		o.Now = time.Now
	}

	s := &server{
		o: o, backend: backend, logger: logger, limits: l,
		audit:       &auditLog{w: o.Audit},
		actors:      newBuckets(l.callsPerSecond, l.callsBurst, o.Now),
		changes:     newBuckets(l.changesPerSecond, l.changesBurst, o.Now),
		lines:       newBuckets(l.linesPerSecond, l.linesBurst, o.Now),
		fails:       newBuckets(l.failuresPerSecond, l.failuresBurst, o.Now),
		reviewed:    newReviewedTokens(o.Now),
		replays:     newReplays(o.Now),
		streams:     newStreams(l.streams, l.streamsPerActor),
		nodeStreams: newStreams(l.streams, l.streamsPerActor),
		plans:       newPlanQueue(l.plans, l.plansPerCaller),
	}
	if o.Observer != nil {
		s.audit.observe = o.Observer.Audited
	}

	s.router = newRouter(routes())
	if backend == nil { // see ServeReleases
		s.router = newRouter(releaseRoutes())
	}

	return s
}

// Serve serves the API on both listeners until ctx ends. It then stops listening, ends the event
// streams, waits up to ShutdownTimeout for calls in flight and closes the remaining connections. It
// returns nil after that. It returns an error if it cannot start or if a listener fails.
func Serve(ctx context.Context, o Options, backend Backend, logger log.Logger) error {
	return newServer(o, backend, logger, defaultLimits()).listenAndServe(ctx)
}

// ServeReleases is like Serve without a backend: root alone can release and reacquire GPUs on the
// socket of the options.
func ServeReleases(ctx context.Context, o Options, logger log.Logger) error {
	o.AllowGID = -1
	o.ListenAddress = ""

	return newServer(o, nil, logger, defaultLimits()).listenAndServe(ctx)
}

func (s *server) listenAndServe(ctx context.Context) error {
	listeners, err := s.openListeners(ctx)
	if errors.Is(err, context.Canceled) {
		return nil // a signal ended the program while it started
	}

	if err != nil {
		return err
	}

	return s.serve(ctx, listeners)
}

// apiListener is a listener and its HTTP server.
type apiListener struct {
	listener net.Listener
	server   *http.Server
	serve    func(net.Listener) error // server's method Serve or ServeTLS
}

// openListeners opens all configured listeners or none.
func (s *server) openListeners(ctx context.Context) ([]apiListener, error) {
	var all []apiListener

	if s.o.Socket == "" && s.o.ListenAddress == "" {
		return nil, errors.New("--control.socket: expected a path, or --control.listen-address")
	}

	if s.o.ListenAddress != "" {
		tcp, err := s.openTCP(ctx)
		if err != nil {
			return nil, err
		}

		all = append(all, tcp)
	}

	if s.o.Socket != "" {
		l, err := listenUnix(ctx, s.o.Socket, s.o.AllowGID)
		if err != nil {
			for _, open := range all {
				_ = open.listener.Close()
			}

			return nil, fmt.Errorf("%s=%s: %w", s.socketFlag(), s.o.Socket, err)
		}

		unix := apiListener{listener: newConnPool(s.limits).listen(l),
			server: s.newHTTPServer(s.newHandler(peerAuthenticator{gid: s.o.AllowGID}))}
		unix.serve = unix.server.Serve
		all = append(all, unix)
	}

	return all, nil
}

func (s *server) openTCP(ctx context.Context) (apiListener, error) {
	config, err := newConfigFile(s.o.ConfigFile, s.logger)
	if err != nil {
		return apiListener{}, err
	}

	current, _ := config.currentConfig()
	if current.kubernetes && s.o.Reviewer == nil {
		return apiListener{}, fmt.Errorf(
			"--control.config.file=%s: kubernetes: true: expected a Kubernetes cluster around "+
				"this process",
			s.o.ConfigFile,
		)
	}

	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.o.ListenAddress)
	if err != nil {
		return apiListener{}, fmt.Errorf("--control.listen-address=%s: %w", s.o.ListenAddress, err)
	}

	tcp := apiListener{
		listener: newConnPool(s.limits).listen(l),
		server: s.newHTTPServer(
			s.newHandler(&tlsAuthenticator{config: config, reviewer: s.o.Reviewer}),
		),
	}
	s.o.Reloader.set(config)
	tcp.server.TLSConfig = config.tlsConfig()
	tcp.serve = func(l net.Listener) error { return tcp.server.ServeTLS(l, "", "") }

	return tcp, nil
}

func (s *server) newHTTPServer(h http.Handler) *http.Server {
	server := &http.Server{
		Handler:           h,
		ConnContext:       withConn,
		ReadHeaderTimeout: s.limits.header, // net/http also limits the TLS handshake to it
		ReadTimeout:       s.limits.read,
		WriteTimeout:      s.limits.write,
		IdleTimeout:       s.limits.idle,
		MaxHeaderBytes:    s.limits.headerBytes,
		ErrorLog:          newErrorLog(s.logger),
		Protocols:         new(http.Protocols),
		// OPTIONS * is a call like any other: it is authenticated and written to the audit log.
		DisableGeneralOptionsHandler: true,
	}

	// HTTP/1 has one request at a time on a connection, so limits on connections limit calls.
	server.Protocols.SetHTTP1(true)
	server.RegisterOnShutdown(s.streams.close)
	shutdown.Prepare(server)

	return server
}

// serve blocks until ctx ends or a listener fails, then shuts all servers down and waits for them.
func (s *server) serve(ctx context.Context, listeners []apiListener) error {
	ended := make(chan error, len(listeners))
	addresses := make([]net.Addr, 0, len(listeners))

	for _, e := range listeners {
		addresses = append(addresses, e.listener.Addr())
		_ = level.Info(s.logger).Log("msg", s.listeningText(), "address", e.listener.Addr())
		go func() { ended <- e.serve(e.listener) }()
	}

	if s.o.Ready != nil {
		s.o.Ready(addresses)
	}

	running := len(listeners)

	var failure error
	select {
	case <-ctx.Done():
	case failure = <-ended:
		running--
	}

	s.shutdown(listeners)

	for range running {
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			failure = errors.Join(failure, err)
		}
	}

	if failure != nil {
		return fmt.Errorf("serve partition control: %w", failure)
	}

	return nil
}

// socketFlag is the flag that names the unix socket.
func (s *server) socketFlag() string {
	if s.backend == nil {
		return "--release.socket"
	}

	return "--control.socket"
}

func (s *server) listeningText() string {
	if s.backend == nil {
		return "listening for requests to release GPUs"
	}

	return "partition control is listening"
}

func (s *server) shutdown(listeners []apiListener) {
	servers := make([]*http.Server, 0, len(listeners))
	for _, e := range listeners {
		servers = append(servers, e.server)
	}

	shutdown.All(servers, s.o.ShutdownTimeout, s.logger)

	for _, e := range listeners {
		_ = e.listener.Close() // still open if its server could not start
	}

	s.streams.waitAll()
}
