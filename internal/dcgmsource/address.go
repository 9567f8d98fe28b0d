package dcgmsource

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// defaultPort is nv-hostengine's.
const defaultPort = "5555"

// maxSocketPath is the longest path of a unix socket (sockaddr_un, without its NUL).
const maxSocketPath = 107

// Address is where a host engine listens: a host and a port, or a path.
type Address struct {
	Target string
	Unix   bool
}

// String returns the address with its scheme, in a form that ParseAddress reads.
func (a Address) String() string {
	if a.Unix {
		return "unix://" + a.Target
	}

	return a.Target
}

// ParseAddress reads host:port, host, [::1]:5555 or the path of a unix socket.
func ParseAddress(s string) (Address, error) {
	invalid := func(why string) (Address, error) {
		return Address{}, fmt.Errorf(
			"address of a DCGM host engine %q: %s: expected host:port, host (port %s), [::1]:%s "+
				"or the path of a unix socket, /run/nvidia/dcgm.sock or unix:///run/nvidia/dcgm.sock",
			s,
			why,
			defaultPort,
			defaultPort,
		)
	}

	if path, scheme := strings.CutPrefix(s, "unix://"); scheme || strings.HasPrefix(s, "/") {
		switch {
		case !strings.HasPrefix(path, "/") || path == "/":
			return invalid("no absolute path")
		case len(path) > maxSocketPath || strings.ContainsRune(path, 0):
			return invalid(fmt.Sprintf("no path of a socket: at most %d bytes", maxSocketPath))
		}

		return Address{Target: path, Unix: true}, nil
	}

	if strings.Contains(s, "/") {
		return invalid("neither a host nor an absolute path")
	}

	if !strings.Contains(s, ":") || strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		withPort := s + ":" + defaultPort
		if host, _, err := net.SplitHostPort(withPort); err == nil && isHost(host, s) {
			return Address{Target: withPort}, nil
		}

		return invalid("no host")
	}

	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return invalid("no host and port")
	}

	if !isHost(host, s) {
		return invalid("no host")
	}

	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return invalid("no port from 1 to 65535")
	}

	return Address{Target: s}, nil
}

// isHost reports whether the host of an address is valid. Only IPv6 addresses have brackets.
func isHost(host, address string) bool {
	if strings.HasPrefix(address, "[") {
		ip := net.ParseIP(host)
		return ip != nil && strings.Contains(host, ":")
	}

	valid := func(r rune) bool {
		return r == '.' || r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' ||
			r >= 'A' && r <= 'Z'
	}

	return host != "" && strings.IndexFunc(host, func(r rune) bool { return !valid(r) }) < 0
}
