package web

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// withLocalHost refuses requests that arrive on a loopback address for a host name that is not the
// node's. A web site can resolve its own name to 127.0.0.1 and then read what is served there, as
// its own origin, in the browser of a user of the node (DNS rebinding). The Host header is then the
// site's name, which the site cannot change. Requests for an IP address are served, since a site
// cannot resolve those, and so are requests with TLS, since the certificate is not valid for the
// site's name.
//
// hosts are the node's names. Metrics are served for any host: the targets of a Prometheus may have
// any names.
func withLocalHost(hosts []string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil && onLoopback(r) && !isLocalHost(r.Host, hosts) {
			w.Header().Set("Cache-Control", "no-store")
			writeProblem(
				w,
				http.StatusMisdirectedRequest,
				"host",
				"The host name is not one of this node",
				fmt.Sprintf(
					"on a loopback address only localhost, IP addresses and the node's own name are served, not %.128q",
					r.Host,
				),
			)

			return
		}

		h.ServeHTTP(w, r)
	})
}

// onLoopback reports whether the connection's local address is a loopback address. It is not if
// there is none, as in tests.
func onLoopback(r *http.Request) bool {
	address, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && address.IP.IsLoopback()
}

// isLocalHost reports whether the Host header is localhost, an IP address or one of hosts, with or
// without a port.
func isLocalHost(header string, hosts []string) bool {
	name, _, err := net.SplitHostPort(header)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	}

	name = strings.TrimSuffix(name, ".")
	if _, err := netip.ParseAddr(name); err == nil || strings.EqualFold(name, "localhost") {
		return true
	}

	return name != "" &&
		slices.ContainsFunc(hosts, func(host string) bool { return strings.EqualFold(host, name) })
}
