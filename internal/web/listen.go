package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// openListeners returns listeners on all addresses, or on the sockets that systemd passes. If one of
// them fails, it closes the others and returns an error.
func openListeners(ctx context.Context, opts ServerOptions) ([]net.Listener, error) {
	if !opts.SystemdSocket {
		return listenTCP(ctx, opts.Addresses)
	}

	listeners, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("sockets of systemd: %w", err)
	}

	if len(listeners) == 0 || slices.Contains(listeners, nil) { // nil stands for a datagram socket
		for _, l := range listeners {
			if l != nil {
				_ = l.Close()
			}
		}

		return nil, fmt.Errorf(
			"systemd passes %s: expected stream sockets",
			nodedoc.Count(len(listeners), "socket", "sockets"),
		)
	}

	return listeners, nil
}

// listenTCP returns a listener on each address, or an error and no listener.
func listenTCP(ctx context.Context, addresses []string) ([]net.Listener, error) {
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

			return nil, fmt.Errorf("listen on %s: %w", address, unwrapListenError(err))
		}

		listeners = append(listeners, l)
	}

	return listeners, nil
}

// unwrapListenError returns the cause within the errors of net and os, such as "address already in
// use", without the operation and the address: our own error has both.
func unwrapListenError(err error) error {
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
