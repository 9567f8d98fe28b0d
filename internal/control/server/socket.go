package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// listenUnix creates the socket. Only root and, unless gid is -1, that group can connect. It removes
// an existing socket on which no process listens; anything else at the path is an error. Closing the
// listener removes the socket.
func listenUnix(ctx context.Context, path string, gid int) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}

	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}

	// No process may connect between bind and chmod. The umask is the whole process's, so the
	// socket is created in a folder that only this user may enter, and then moved.
	private, err := os.MkdirTemp(dir, ".control-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(private)
	created := filepath.Join(private, "s")

	l, err := new(net.ListenConfig).Listen(ctx, "unix", created)
	if err != nil {
		return nil, err
	}

	unix, ok := l.(*net.UnixListener)
	if !ok {
		_ = l.Close()
		return nil, fmt.Errorf("listener of type %T", l)
	}

	unix.SetUnlinkOnClose(false)

	if err := placeSocket(created, path, gid); err != nil {
		_ = l.Close()
		return nil, err
	}

	return &placedListener{UnixListener: unix, path: path}, nil
}

// placeSocket sets the mode and group of a socket and moves it to its path.
func placeSocket(created, path string, gid int) error {
	if err := os.Chmod(created, 0o660); err != nil {
		return err
	}

	if gid >= 0 {
		if err := os.Chown(created, -1, gid); err != nil {
			return err
		}
	}

	return os.Rename(created, path)
}

// removeStale removes the socket at path if no process listens on it. It is an error if one does,
// or if path is no socket.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}

	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("there is something else at this path: expected nothing or a socket")
	}

	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()

	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return errors.New("another process listens on it")
	}

	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("cannot determine whether another process listens on it: %w", err)
	}

	return os.Remove(path)
}

// placedListener is the listener of a socket that was moved to path. Close removes the socket there,
// unless another process listens on it by now.
type placedListener struct {
	*net.UnixListener
	path string
}

// Addr returns the path of the socket, which was created under another name.
func (l *placedListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l *placedListener) Close() error {
	if err := l.UnixListener.Close(); err != nil {
		return err
	}

	_ = removeStale(context.Background(), l.path)

	return nil
}
