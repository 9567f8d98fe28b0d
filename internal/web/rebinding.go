package web

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// withLocalHost refuses requests that came in on a loopback address for a host name that is not one of the node's. A page on
// the internet can point its own name at 127.0.0.1 and then read, in the browser of a user of the node and as its own origin,
// what is served there (DNS rebinding). Its name is then in the Host header, which it cannot change. IP addresses are no names
// that it could point elsewhere, and with TLS the certificate is not for its name: these are served.
//
// hosts are further names that are the node's. Metrics are served for any host: the jobs of a Prometheus may have any names.
func withLocalHost(hosts []string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil && onLoopback(r) && !isLocalHost(r.Host, hosts) {
			w.Header().Set("Cache-Control", "no-store")
			writeProblem(w, http.StatusMisdirectedRequest, "host", "The host name is not one of this node",
				fmt.Sprintf("on a loopback address only localhost, IP addresses and the node's own name are served, not %.128q", r.Host))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// onLoopback reports whether the connection came in on a loopback address. Without an address, as in tests, it did not.
func onLoopback(r *http.Request) bool {
	address, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && address.IP.IsLoopback()
}

// isLocalHost reports whether the Host header is localhost, an IP address or one of hosts, with or without a port.
func isLocalHost(header string, hosts []string) bool {
	name, _, err := net.SplitHostPort(header)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	}
	name = strings.TrimSuffix(name, ".")
	if _, err := netip.ParseAddr(name); err == nil || strings.EqualFold(name, "localhost") {
		return true
	}
	return name != "" && slices.ContainsFunc(hosts, func(host string) bool { return strings.EqualFold(host, name) })
}
