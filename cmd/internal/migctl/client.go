package migctl

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/version"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/fleet"
	"github.com/mig-exporter/mig-exporter/internal/secretfile"
)

// client is a client of the control API. Its errors are *api.Problem if the server refuses a request,
// *unreachable if it does not answer, or that of the context.
type client struct {
	http    *http.Client
	base    string // the URL of the server, without a path
	address string // as the operator gave it, without a password
	foreign error  // the error if another server answers at the address
	token   string // bearer token; empty: none
	timeout time.Duration
	onClose func() // may be nil
}

// unreachable says that mig-exporter does not answer at an address.
type unreachable struct {
	address string
	err     error
}

func (e *unreachable) Error() string { return fmt.Sprintf("cannot reach %s: %v", e.address, e.err) }
func (e *unreachable) Unwrap() error { return e.err }

// maxAnswer bounds an answer in bytes. A node of 16 GPUs with 7 instances each answers with 300 KB.
const maxAnswer = 32 << 20

// newClient returns a client of the control API at --address, or of the metrics listener at --url. The
// caller has called checkURL.
func newClient(o *options) (*client, error) {
	if o.ExporterURL != "" {
		return newListenerClient(o)
	}

	c, err := newClientOf(o, o.Address, "https")
	if errors.Is(err, errAddress) {
		return nil, usageError{
			fmt.Sprintf("--address %q: expected unix:///PATH or https://HOST:PORT",
				fleet.HidePassword(o.Address)),
		}
	}

	return c, err
}

// errAddress is the error about an address that is neither a socket nor a URL of the expected form.
var errAddress = errors.New("unexpected address")

// newClientOf returns a client of the API at a socket, or at a URL with one of the schemes.
func newClientOf(o *options, address string, schemes ...string) (*client, error) {
	c := &client{address: fleet.HidePassword(address), foreign: errForeign, timeout: o.requestTimeout()}
	transport := &http.Transport{ForceAttemptHTTP2: true}
	c.http = &http.Client{
		Transport:     transport,
		CheckRedirect: refuseRedirect,
	}

	if socket, ok := socketPath(address); ok {
		c.base = "http://control"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	} else {
		u, err := url.Parse(address)
		if err != nil || !slices.Contains(schemes, u.Scheme) || u.Host == "" || strings.Trim(u.Path, "/") != "" {
			return nil, errAddress
		}

		c.base = u.Scheme + "://" + u.Host
		if u.User != nil {
			// net/http sends name and password as basic authentication.
			c.base = u.Scheme + "://" + u.User.String() + "@" + u.Host
		}

		if u.Scheme == "https" {
			if transport.TLSClientConfig, err = tlsConfig(o); err != nil {
				return nil, err
			}
		}
	}

	if o.TokenFile != "" {
		token, err := secretfile.ReadToken(o.TokenFile)
		if err != nil {
			return nil, usageError{fmt.Sprintf("--token-file: %v", err)}
		}

		c.token = token
	}

	return c, nil
}

// socketPath returns the path of the socket that an address names, if it names one.
func socketPath(address string) (path string, ok bool) {
	if strings.HasPrefix(address, "/") {
		return address, true
	}

	return strings.CutPrefix(address, "unix://")
}

// refuseRedirect keeps the client from following redirects: no other server may see the token.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func tlsConfig(o *options) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}

	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, usageError{fmt.Sprintf("--ca-file: %v", err)}
		}

		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usageError{fmt.Sprintf("--ca-file: no certificate in %s", o.CAFile)}
		}
	}

	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, usageError{"--cert-file and --key-file belong together"}
	}

	if o.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, usageError{fmt.Sprintf("--cert-file, --key-file: %v", err)}
		}

		config.Certificates = []tls.Certificate{pair}
	}

	return config, nil
}

func (c *client) close() {
	c.http.CloseIdleConnections()

	if c.onClose != nil {
		c.onClose()
	}
}

// getDocument fetches a document and returns it as the server wrote it.
func (c *client) getDocument(ctx context.Context, path string) ([]byte, error) {
	return c.request(ctx, http.MethodGet, path, nil, "")
}

// sendDocument sends a document, or none if request is nil, and decodes the answer. key is the
// Idempotency-Key; empty: none.
func (c *client) sendDocument(
	ctx context.Context,
	method, path string,
	request any,
	key string,
	answer any,
) error {
	var body []byte

	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return fmt.Errorf("write the request: %w", err)
		}
	}

	data, err := c.request(ctx, method, path, body, key)
	if err != nil {
		return err
	}

	return c.decodeAnswer(data, answer)
}

// fetch fetches a document and decodes it.
func (c *client) fetch(ctx context.Context, path string, answer any) error {
	data, err := c.getDocument(ctx, path)
	if err != nil {
		return err
	}

	return c.decodeAnswer(data, answer)
}

func (c *client) decodeAnswer(data []byte, answer any) error {
	if err := json.Unmarshal(data, answer); err != nil {
		return &unreachable{
			c.address,
			fmt.Errorf("the answer is not what migctl %s understands: %w", version.Version, err),
		}
	}

	return nil
}

// request makes a request. With an Idempotency-Key it repeats the request once if the connection
// breaks: the key keeps the server from executing it twice.
func (c *client) request(
	ctx context.Context,
	method, path string,
	body []byte,
	key string,
) ([]byte, error) {
	timed, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	data, err := c.requestOnce(timed, method, path, body, key)
	if err != nil && key != "" && timed.Err() == nil && connectionBroke(err) {
		data, err = c.requestOnce(timed, method, path, body, key)
	}

	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil, &unreachable{
			c.address,
			fmt.Errorf("no answer within %s: %w", c.timeout, os.ErrDeadlineExceeded),
		}
	}

	if err != nil {
		return nil, err
	}

	return data, c.checkDocument(data)
}

// brokenConnection is the error of a connection that could not be made, or that broke before the answer
// was complete.
type brokenConnection struct{ error }

func (e brokenConnection) Unwrap() error { return e.error }

// connectionBroke reports whether a connection was made and then broke: the server may have read
// the request.
func connectionBroke(err error) bool {
	var dial *net.OpError
	return errors.As(err, new(brokenConnection)) && (!errors.As(err, &dial) || dial.Op != "dial")
}

func (c *client) requestOnce(
	ctx context.Context,
	method, path string,
	body []byte,
	key string,
) ([]byte, error) {
	res, err := c.sendRequest(ctx, method, path, body, func(h http.Header) {
		if key != "" {
			h.Set("Idempotency-Key", key)
		}
	})
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()

	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, c.connectionError(ctx, err)
	}

	return data, nil
}

// checkDocument returns an error unless data is a document of this version of the API. Many servers answer
// every path with JSON, which would look like a node without GPUs.
func (c *client) checkDocument(data []byte) error {
	var document struct {
		APIVersion string `json:"apiVersion"`
	}

	if err := json.Unmarshal(data, &document); err != nil {
		return &unreachable{c.address, fmt.Errorf("%w: it answers with no JSON object: %w", c.foreign, err)}
	}

	switch document.APIVersion {
	case api.Version:
		return nil
	case "":
		return &unreachable{c.address, fmt.Errorf("%w: its answer has no apiVersion", c.foreign)}
	}

	return &unreachable{
		c.address,
		fmt.Errorf("%w: it answers in %.100q, and this understands %s",
			errOtherVersion, document.APIVersion, api.Version),
	}
}

// sendRequest makes a request and returns the answer unless its status is an error. The caller
// closes the body.
func (c *client) sendRequest(ctx context.Context, method, path string, body []byte,
	headers func(http.Header)) (*http.Response, error) {
	req, err := http.NewRequestWithContext(
		ctx,
		method,
		c.base+"/api/v1"+path,
		bytes.NewReader(body),
	)
	if err != nil {
		return nil, usageError{fmt.Sprintf("%q cannot be asked for", path)}
	}

	req.Header.Set("User-Agent", "migctl/"+version.Version)
	req.Header.Set("Accept", "application/json, application/problem+json")

	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}

	headers(req.Header)

	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.connectionError(ctx, err)
	}

	if res.StatusCode/100 == 2 {
		return res, nil
	}

	defer res.Body.Close()

	return nil, c.readProblem(res)
}

// connectionError returns why there is no answer, without the method and the address that net/http
// puts before it.
func (c *client) connectionError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}

	var outer *url.Error
	if errors.As(err, &outer) {
		err = outer.Err
	}

	return &unreachable{c.address, brokenConnection{err}}
}

// readProblem reads a problem document. An answer without one comes from a proxy, another server, or the
// metrics listener before it knows who asks.
func (c *client) readProblem(res *http.Response) error {
	media, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))

	if err == nil && media == "application/problem+json" {
		var p api.Problem
		if json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&p) == nil && p.Type != "" {
			return &p
		}
	}

	if res.StatusCode == http.StatusUnauthorized {
		if wanted := wantedCredentials(res.Header.Values("WWW-Authenticate")); wanted != nil {
			return &unreachable{c.address, fmt.Errorf("%w: it answers %s", wanted, res.Status)}
		}
	}

	why := "without saying why"

	if media == "text/plain" || media == "" {
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxReason))
		if line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n"); line != "" {
			why = strconv.Quote(line)
		}
	}

	return &unreachable{c.address, fmt.Errorf("%w: it answers %s %s", c.foreign, res.Status, why)}
}

// maxReason bounds what we show of an answer that is no document, in bytes.
const maxReason = 200

// What a server wants that asks who we are, but not by a problem document.
var (
	errPassword    = errors.New("it asks for a user and a password, or refuses those of the URL")
	errToken       = errors.New("it asks for a bearer token, or refuses that of --token-file")
	errCredentials = errors.New("it asks for credentials that migctl cannot give")
)

// wantedCredentials returns which credentials the challenges of a header WWW-Authenticate ask for; nil if
// there are none. A challenge is a scheme with its parameters, such as: Digest realm="x", nonce="y".
func wantedCredentials(header []string) error {
	// A quoted string may have commas.
	quoted := regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	bare := quoted.ReplaceAllString(strings.Join(header, ","), "")

	var schemes []string

	for _, part := range strings.Split(bare, ",") {
		words := strings.Fields(part)
		if len(words) == 0 || strings.Contains(words[0], "=") || len(words) > 1 && words[1][0] == '=' {
			continue // a parameter of the scheme before it
		}

		schemes = append(schemes, words[0])
	}

	has := func(scheme string) bool {
		return slices.ContainsFunc(schemes, func(s string) bool { return strings.EqualFold(s, scheme) })
	}

	switch {
	case len(schemes) == 0:
		return nil
	case has("Basic"):
		return errPassword
	case has("Bearer"):
		return errToken
	}

	return fmt.Errorf("%w (%.100q)", errCredentials, strings.Join(schemes, ", "))
}

// errOtherVersion says that an exporter's API is of a version that we do not know.
var errOtherVersion = errors.New("it needs another version of migctl")

// errForeign says that another server than mig-exporter's control API answers at an address.
var errForeign = errors.New("this does not seem to be mig-exporter's control address")
