package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	toolkit "github.com/prometheus/exporter-toolkit/web"
)

// ServerOptions say where and how to listen.
type ServerOptions struct {
	// Addresses are host:port each; port 0 takes a free one. They are not used with SystemdSocket.
	Addresses []string
	// ConfigFile is exporter-toolkit's web configuration (TLS, basic auth, headers, rate limit); empty is none.
	ConfigFile string
	// SystemdSocket serves on the sockets that systemd passes.
	SystemdSocket bool
	// ShutdownTimeout is how long requests in flight may go on once the context has ended.
	ShutdownTimeout time.Duration
	// Listening is told the addresses in use, before the first request is served; nil tells nobody. It is not called
	// with SystemdSocket.
	Listening func([]net.Addr)
}

// Limits that a scrape, a browser or a profile never reaches. Answers are bounded where they are written.
const (
	readHeaderTimeout = 10 * time.Second
	readTimeout       = 30 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
)

// Serve serves handler until ctx ends, then stops listening, lets requests in flight finish for ShutdownTimeout and
// closes the rest. It returns nil after that, or the error for which it could not start or go on.
func Serve(ctx context.Context, opts ServerOptions, handler http.Handler, logger log.Logger) error {
	if err := CheckConfig(opts.ConfigFile); err != nil {
		return err
	}
	if opts.SystemdSocket {
		server := newServer(handler, logger)
		return serveAll(ctx, []*http.Server{server}, opts.ShutdownTimeout, logger, func(int) error {
			return toolkit.ListenAndServe(server, opts.flags(), toolkitLogger(logger, false))
		})
	}
	listeners, err := listenAll(ctx, opts.Addresses)
	if err != nil {
		return err
	}
	// A server for each listener: the toolkit wraps a server's handler anew, without a lock, for each one it serves.
	servers := make([]*http.Server, len(listeners))
	addrs := make([]net.Addr, len(listeners))
	for i, l := range listeners {
		servers[i], addrs[i] = newServer(handler, logger), l.Addr()
		_ = level.Info(logger).Log("msg", "Listening", "address", l.Addr())
	}
	if opts.Listening != nil {
		opts.Listening(addrs)
	}
	return serveAll(ctx, servers, opts.ShutdownTimeout, logger, func(i int) error {
		defer listeners[i].Close() // the toolkit leaves it open if it cannot begin
		return toolkit.Serve(listeners[i], servers[i], opts.flags(), toolkitLogger(logger, true))
	})
}

func newServer(handler http.Handler, logger log.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          serverErrorLog(logger),
	}
}

// flags are the toolkit's own form of the options.
func (o ServerOptions) flags() *toolkit.FlagConfig {
	return &toolkit.FlagConfig{
		WebListenAddresses: &o.Addresses,
		WebSystemdSocket:   &o.SystemdSocket,
		WebConfigFile:      &o.ConfigFile,
	}
}

// serveAll runs serve(i) for each server until ctx ends or one fails, then shuts all of them down and joins them.
func serveAll(ctx context.Context, servers []*http.Server, timeout time.Duration, logger log.Logger, serve func(i int) error) error {
	ended := make(chan error, len(servers))
	for i := range servers {
		go func() { ended <- serve(i) }()
	}
	running := len(servers)
	var failure error
	select {
	case <-ctx.Done():
	case failure = <-ended:
		running--
	}
	shutdown(servers, timeout, logger)
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

// shutdown ends all servers, the patient way until the timeout.
func shutdown(servers []*http.Server, timeout time.Duration, logger log.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for _, server := range servers {
		if err := server.Shutdown(ctx); err != nil {
			_ = level.Warn(logger).Log("msg", "Requests in flight were cut off at shutdown", "after", timeout, "err", err)
			_ = server.Close()
		}
	}
}

// listenAll opens all addresses or none.
func listenAll(ctx context.Context, addresses []string) ([]net.Listener, error) {
	if len(addresses) == 0 {
		return nil, errors.New("no address to listen on")
	}
	var listeners []net.Listener
	for _, address := range addresses {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			for _, open := range listeners {
				_ = open.Close()
			}
			return nil, fmt.Errorf("listen on %s: %w", address, listenCause(err))
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// listenCause takes off what net and os wrap around the reason: the operation and the address, said already.
func listenCause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	var addr *net.AddrError
	if errors.As(err, &addr) {
		return errors.New(addr.Err)
	}
	var syscall *os.SyscallError
	if errors.As(err, &syscall) {
		return syscall.Err
	}
	return err
}
