package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// verb is the name of a right.
type verb string

const (
	verbRead     verb = "read"
	verbPlan     verb = "plan"
	verbApply    verb = "apply"
	verbMode     verb = "mode"
	verbForce    verb = "force"
	verbTakeOver verb = "take-over"
	verbRelease  verb = "release"
)

// kubernetes returns the verb on partitions that gives the right in Kubernetes.
func (v verb) kubernetes() string {
	if v == verbRead {
		return "get"
	}

	return string(v)
}

// methodKube is the method of callers with Kubernetes tokens.
const methodKube = "kube"

// UnmarshalText reads the name of a right.
func (v *verb) UnmarshalText(text []byte) error {
	switch *v = verb(text); *v {
	case verbRead, verbPlan, verbApply, verbMode, verbForce, verbTakeOver, verbRelease:
		return nil
	}

	return errors.New("one of read, plan, apply, mode, force, take-over, release")
}

// identity is the caller's name, how it was authenticated, and its rights.
type identity struct {
	name       string
	method     string // "peer", "mtls", "token" or methodKube
	from       string // "pid:123" of a peer, for the audit log; else empty
	credential string // the id of a Kubernetes token; empty if it has none
	rights     control.Rights
	token      string // the token to review; only with errUnreviewed
}

// Errors of authentication.
var (
	errNoCredentials    = errors.New("no credentials")
	errWrongCredentials = errors.New("wrong credentials")
	errUnreviewed       = errors.New("the API server has to review the token")
	errCannotCheck      = errors.New("credentials cannot be checked")
)

// reviewTimeout is how long a call waits for the API server to review its token.
const reviewTimeout = 5 * time.Second

// authenticator identifies the callers of a listener. Errors wrap those above.
type authenticator interface {
	// identifyCaller returns the caller's identity, without asking another program. If the error is
	// errUnreviewed, the identity has only the token, which is for review.
	identifyCaller(r *http.Request) (identity, error)
	// review asks the API server for the identity of a token.
	review(ctx context.Context, token string) (identity, error)
	// from names the caller's origin, under which we count failed authentications.
	from(r *http.Request) string
}

// rightOf returns a pointer to the right of a verb in r.
func rightOf(r *control.Rights, v verb) *bool {
	switch v {
	case verbRead:
		return &r.Read
	case verbPlan:
		return &r.Plan
	case verbApply:
		return &r.Apply
	case verbMode:
		return &r.Mode
	case verbForce:
		return &r.Force
	case verbTakeOver:
		return &r.TakeOver
	case verbRelease:
		return &r.Release
	}

	return new(bool)
}

// tlsAuthenticator authenticates callers by bearer token or client certificate. If a call has both,
// the token decides: a caller with a wrong one is not admitted by its certificate.
type tlsAuthenticator struct {
	config   *configFile
	reviewer Reviewer
}

func (a *tlsAuthenticator) identifyCaller(r *http.Request) (identity, error) {
	config, err := a.config.currentConfig()
	if err != nil {
		return identity{}, errors.Join(errCannotCheck, err)
	}

	if values := r.Header.Values("Authorization"); len(values) > 0 {
		scheme, token, _ := strings.Cut(values[0], " ")
		if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || token == "" {
			return identity{}, errWrongCredentials
		}

		return a.byToken(config, token)
	}

	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return identity{}, errNoCredentials
	}

	return byCertificate(config, r.TLS.PeerCertificates)
}

// byToken returns the identity of a token's owner. It compares the token with every known one,
// each in constant time, so that the time it takes says nothing about them.
func (a *tlsAuthenticator) byToken(config *serverConfig, token string) (identity, error) {
	sum := sha256.Sum256([]byte(token))
	found := -1

	for i, t := range config.tokens {
		if subtle.ConstantTimeCompare(t.sum[:], sum[:]) == 1 {
			found = i
		}
	}

	switch {
	case found >= 0:
		return identity{
			name:   "token:" + config.tokens[found].name,
			method: "token",
			rights: config.tokens[found].rights,
		}, nil
	case !config.kubernetes:
		return identity{}, errWrongCredentials
	case a.reviewer == nil:
		return identity{}, fmt.Errorf("%w: no API server is known", errCannotCheck)
	}

	if actor, ok := a.reviewer.Known(token); ok {
		return identityOf(actor), nil
	}

	return identity{token: token}, errUnreviewed
}

// review asks the API server.
func (a *tlsAuthenticator) review(ctx context.Context, token string) (identity, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()

	actor, err := a.reviewer.Actor(ctx, token)
	switch {
	case errors.Is(err, gpu.ErrNoPermission):
		return identity{}, errWrongCredentials
	case err != nil:
		return identity{}, errors.Join(errCannotCheck, err)
	case actor.Name == "":
		return identity{}, errWrongCredentials
	}

	return identityOf(actor), nil
}

// identityOf returns the identity of the owner of a Kubernetes token.
func identityOf(actor control.Actor) identity {
	return identity{
		name:       actor.Name,
		method:     methodKube,
		credential: actor.Credential,
		rights:     actor.Rights,
	}
}

// byCertificate returns the identity of a client certificate, which is the first of chain. TLS
// has verified it when the connection was opened. We verify it again for each call, since the
// connection may be older than the configuration, or outlive the certificate.
func byCertificate(config *serverConfig, chain []*x509.Certificate) (identity, error) {
	if config.clientCA == nil {
		return identity{}, errNoCredentials
	}

	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}

	if _, err := chain[0].Verify(x509.VerifyOptions{
		Roots:         config.clientCA,
		Intermediates: intermediates,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return identity{}, errWrongCredentials
	}

	for _, uri := range chain[0].URIs {
		if rights, ok := config.clients["uri:"+uri.String()]; ok {
			return identity{name: "cert-uri:" + uri.String(), method: "mtls", rights: rights}, nil
		}
	}

	cn := chain[0].Subject.CommonName

	return identity{name: "cert:" + cn, method: "mtls", rights: config.clients["cn:"+cn]}, nil
}

func (a *tlsAuthenticator) from(r *http.Request) string { return remoteOf(r.RemoteAddr) }

// remoteOf returns the remote's IP address, or for IPv6 its /64 network, within which a host may
// choose any address.
func remoteOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}

	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Unmap().Is4() {
		return host
	}

	network, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return host
	}

	return network.String()
}
