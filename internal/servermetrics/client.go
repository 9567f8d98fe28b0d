package servermetrics

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"syscall"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Bounds of an answer in bytes.
const (
	maxBody   = 1 << 20
	maxHeader = 16 << 10
)

// client asks servers. It keeps no connections, which a server that is asked twice a minute does
// not need.
type client struct{ http *http.Client }

func newClient(dial func(ctx context.Context, network, address string) (net.Conn, error)) *client {
	if dial == nil {
		dialer := net.Dialer{Timeout: askWithin, ControlContext: checkDialed}
		dial = dialer.DialContext
	}

	return &client{http: &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            dial,
			DisableKeepAlives:      true,
			DisableCompression:     true, // a small answer could become a large one
			MaxResponseHeaderBytes: maxHeader,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// get requests a path from a server and returns the body of the answer.
func (c *client) get(ctx context.Context, server netip.AddrPort, path string) ([]byte, error) {
	target := url.URL{Scheme: "http", Host: server.String(), Path: path}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, gpu.ErrInvalidArgument)
	}

	request.Header.Set("Accept", "text/plain;version=0.0.4")
	request.Header.Set("User-Agent", "mig-exporter")

	response, err := c.http.Do(request)
	if err != nil {
		return nil, unansweredError(ctx, err)
	}
	defer response.Body.Close()

	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf(
			"it answers with status %d; expected 200, redirects are not followed: %w",
			response.StatusCode,
			gpu.ErrUnavailable,
		)
	}

	if encoding := response.Header.Get("Content-Encoding"); encoding != "" &&
		encoding != "identity" {
		return nil, fmt.Errorf(
			"its answer is encoded (%.20q); expected plain text: %w",
			encoding,
			gpu.ErrUnavailable,
		)
	}

	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, unansweredError(ctx, err)
	case len(body) > maxBody:
		return nil, fmt.Errorf("its answer has more than %d bytes: %w", maxBody, gpu.ErrUnavailable)
	}

	return body, nil
}

// unansweredError returns the error of a question without a complete answer.
func unansweredError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}

	return fmt.Errorf("%w: %w", err, gpu.ErrUnavailable)
}

// checkAddress returns an error if an address, or the IPv4 address that an IPv6 address contains,
// cannot be one that a pod has to itself. own are the addresses of the node.
func checkAddress(address netip.Addr, own []netip.Addr) error {
	plain := address.Unmap()

	kind := refusedKind(plain, own)
	if v4 := embeddedIPv4(plain); kind == "" && v4.IsValid() {
		kind = refusedKind(v4, own)
	}

	if kind == "" {
		return nil
	}

	return fmt.Errorf(
		"address %s is %s, which is not asked: %w",
		address,
		kind,
		gpu.ErrInvalidArgument,
	)
}

// refusedKind says what an address is that a pod cannot have to itself; empty if it can have it.
func refusedKind(plain netip.Addr, own []netip.Addr) string {
	isOwn := func(a netip.Addr) bool { return a.Unmap().WithZone("") == plain.WithZone("") }
	switch {
	case !plain.IsValid(), plain.IsUnspecified():
		return "no address of a host"
	case plain.IsLoopback():
		return "a loopback address"
	case plain.IsLinkLocalUnicast(), plain.Zone() != "":
		return "a link-local address"
	case plain.IsMulticast(), plain == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "an address of several hosts"
	case slices.ContainsFunc(own, isOwn):
		return "an address of this node"
	default:
		return ""
	}
}

// embeddedIPv4 returns the IPv4 address that an IPv6 address contains: one for a translator
// (64:ff9b::/96), or an IPv4-compatible one (::/96). It returns the zero address if there is none.
//
// https://www.rfc-editor.org/rfc/rfc6052, https://www.rfc-editor.org/rfc/rfc4291#section-2.5.5.1
func embeddedIPv4(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return netip.Addr{}
	}

	bytes := a.As16()

	prefix := netip.AddrFrom16([16]byte(append(slices.Clone(bytes[:12]), 0, 0, 0, 0)))
	if prefix != netip.MustParseAddr("64:ff9b::") && prefix != netip.IPv6Unspecified() {
		return netip.Addr{}
	}

	return netip.AddrFrom4([4]byte(bytes[12:]))
}

// checkDialed checks the address that a connection is made to, right before.
func checkDialed(_ context.Context, network, address string, _ syscall.RawConn) error {
	dialed, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s %.100q: %w", network, address, gpu.ErrInvalidArgument)
	}

	own, err := ownAddresses()
	if err != nil {
		return err
	}

	return checkAddress(dialed.Addr(), own)
}

// ownAddresses returns the addresses of this process' network.
func ownAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read own addresses: %w", err)
	}

	var own []netip.Addr

	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if address, ok := netip.AddrFromSlice(n.IP); ok {
				own = append(own, address)
			}
		}
	}

	return own, nil
}
