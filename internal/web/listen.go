package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/coreos/go-systemd/v22/activation"
)

// listen opens all addresses or none, or takes the sockets that systemd passes.
func listen(ctx context.Context, opts ServerOptions) ([]net.Listener, error) {
	if !opts.SystemdSocket {
		return listenAll(ctx, opts.Addresses)
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
		return nil, fmt.Errorf("systemd passes %s: expected stream sockets", plural(len(listeners), "socket"))
	}
	return listeners, nil
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
