package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"syscall"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/control"
)

// peer is the process at the other end of a unix socket, with the credentials that it had when it
// connected, as reported by the kernel.
type peer struct {
	uid, gid, pid uint32
	groups        []uint32
}

type peerKey struct{}

// withPeer returns a context with the peer of conn. If conn is no unix socket, or the kernel does
// not report the peer, it returns ctx.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return ctx
	}

	p, err := readPeer(unix)
	if err != nil {
		return ctx
	}

	return context.WithValue(ctx, peerKey{}, p)
}

func readPeer(conn *net.UnixConn) (peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return peer{}, err
	}

	var p peer
	var failed error

	err = raw.Control(func(fd uintptr) {
		var u *syscall.Ucred

		u, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if failed != nil {
			return
		}

		p = peer{uid: u.Uid, gid: u.Gid, pid: uint32(u.Pid), groups: peerGroups(fd)}
	})
	if err != nil {
		return peer{}, err
	}

	return p, failed
}

// soPeerGroups is SO_PEERGROUPS of asm-generic/socket.h; package syscall does not have it.
const soPeerGroups = 59

// peerGroups returns the supplementary groups that the peer had when it connected; none on kernels
// before 4.13. We don't read them from /proc: another process may have the peer's pid by then.
func peerGroups(fd uintptr) []uint32 {
	// size is in bytes. If it is too small, the kernel says how many it needs.
	for size := uint32(64 * 4); ; {
		groups := make([]uint32, size/4)

		_, _, errno := syscall.Syscall6(
			syscall.SYS_GETSOCKOPT,
			fd,
			syscall.SOL_SOCKET,
			soPeerGroups,
			uintptr(unsafe.Pointer(&groups[0])),
			uintptr(unsafe.Pointer(&size)),
			0,
		)
		switch {
		case errno == 0:
			return groups[:size/4]
		case errno != syscall.ERANGE || int(size) <= 4*len(groups):
			return nil
		}
	}
}

// peerAuthenticator authenticates the callers of a unix socket by their process credentials: root,
// and the members of the group gid, see Options.AllowGID.
type peerAuthenticator struct{ gid int }

func (a peerAuthenticator) identifyCaller(r *http.Request) (identity, error) {
	p, ok := r.Context().Value(peerKey{}).(peer)
	if !ok {
		return identity{}, errNoCredentials
	}

	id := identity{
		name:   fmt.Sprintf("uid:%d", p.uid),
		method: "peer",
		from:   fmt.Sprintf("pid:%d", p.pid),
	}
	switch {
	case p.uid == 0:
		id.rights = allRights()
	case a.gid >= 0 && (int(p.gid) == a.gid || slices.Contains(p.groups, uint32(a.gid))):
		id.rights = allRights()
		id.rights.Force = false
		id.rights.TakeOver = false
		id.rights.Release = false
	}

	return id, nil
}

// review is never called, since identifyCaller never returns errUnreviewed.
func (a peerAuthenticator) review(context.Context, string) (identity, error) {
	return identity{}, errWrongCredentials
}

func (a peerAuthenticator) from(*http.Request) string { return "socket" }

func allRights() control.Rights {
	return control.Rights{
		Read:     true,
		Plan:     true,
		Apply:    true,
		Mode:     true,
		Force:    true,
		TakeOver: true,
		Release:  true,
	}
}
