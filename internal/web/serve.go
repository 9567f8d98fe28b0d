package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	toolkit "github.com/prometheus/exporter-toolkit/web"

	"github.com/mig-exporter/mig-exporter/internal/shutdown"
)

// ServerOptions configure where and how to listen.
type ServerOptions struct {
	// Addresses are of the form host:port; port 0 is any free port. They are ignored with
	// SystemdSocket.
	Addresses []string
	// ConfigFile is exporter-toolkit's web configuration (TLS, basic auth, headers, rate limit);
	// empty is none.
	ConfigFile string
	// SystemdSocket serves on the sockets that systemd passes.
	SystemdSocket bool
	// ShutdownTimeout is how long requests in flight may take after the context has ended.
	ShutdownTimeout time.Duration
	// OnListening is called once connections are accepted; it may be nil.
	OnListening func()
	// OnShutdown is called when the servers begin to wait for the requests in flight, to end those
	// that would not end by themselves; it may be nil.
	OnShutdown func()
}

// Limits of requests, which scrapes, browsers and profiles never reach. Answers have a limit of their
// own, writeTimeout.
const (
	readHeaderTimeout = 10 * time.Second
	readTimeout       = 30 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
)

// Serve serves handler until ctx ends. It then stops listening, waits up to ShutdownTimeout for
// requests in flight and closes the remaining connections. It returns nil after that, or the error
// because of which it could not start or continue.
func Serve(ctx context.Context, opts ServerOptions, handler http.Handler, logger log.Logger) error {
	if err := CheckConfig(opts.ConfigFile); err != nil {
		return err
	}

	listeners, err := openListeners(ctx, opts)
	if errors.Is(err, context.Canceled) {
		return nil // a signal ended the program while it started
	}

	if err != nil {
		return err
	}

	return serveOn(ctx, listeners, opts, handler, logger)
}

// serveOn serves on the listeners, which it closes, until ctx ends or one fails. Then it shuts all
// servers down and waits for them.
func serveOn(
	ctx context.Context,
	listeners []net.Listener,
	opts ServerOptions,
	handler http.Handler,
	logger log.Logger,
) error {
	ended := make(chan error, len(listeners)) // with room for all, so that no goroutine blocks

	// Each listener gets a server of its own. For each listener the toolkit wraps the handler of its
	// server, without a lock: with a single server these would be data races.
	servers := make([]*http.Server, len(listeners))
	for i, l := range listeners {
		server := newServer(handler, logger)
		if opts.OnShutdown != nil {
			server.RegisterOnShutdown(opts.OnShutdown)
		}

		servers[i] = server

		_ = level.Info(logger).Log("msg", "listening", "address", l.Addr())
		go func() {
			defer l.Close() // the toolkit does not close it if it cannot start
			ended <- toolkit.Serve(
				l,
				server,
				&toolkit.FlagConfig{WebConfigFile: &opts.ConfigFile},
				toolkitLogger(logger),
			)
		}()
	}

	if opts.OnListening != nil {
		opts.OnListening()
	}

	// Wait for the end of the program, or of the first server. A server ends by itself only if it
	// fails.
	running := len(servers)

	var failure error
	select {
	case <-ctx.Done():
	case failure = <-ended:
		running--
	}

	shutdown.All(servers, opts.ShutdownTimeout, logger)

	for range running {
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			failure = errors.Join(failure, err)
		}
	}

	if failure != nil {
		return fmt.Errorf("serve: %w", failure)
	}

	return nil
}

func newServer(handler http.Handler, logger log.Logger) *http.Server {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       withConn,
		ErrorLog:          serverErrorLog(logger),
	}
	shutdown.Prepare(server)

	return server
}
