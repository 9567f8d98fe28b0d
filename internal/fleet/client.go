package fleet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/retry"
	"github.com/mig-exporter/mig-exporter/internal/secretfile"
)

// ClientOptions say which server to ask, and how.
type ClientOptions struct {
	// URL is the server's address with its path prefix, as for Grafana's data source.
	URL string
	// ConfigFile is a file of Prometheus' HTTP client configuration, for TLS and authentication;
	// empty for none.
	ConfigFile string
	// Timeout is how long one answer may take. The waits between attempts do not count.
	Timeout   time.Duration
	UserAgent string
}

// Client asks a server that speaks Prometheus' HTTP API. It is safe for concurrent use.
type Client struct {
	api     v1.API
	url     string // for messages, without a password
	timeout time.Duration
	wait    func(context.Context, time.Duration) error // retry.Sleep, except in tests
	reached atomic.Bool                                // the server has answered a query
	close   func()

	mu       sync.Mutex
	warnings []string // of the server, each once
	partial  bool     // an answer may lack a part of the history
}

// maxWarnings is how many of the server's warnings we keep.
const maxWarnings = 10

// NewClient checks the options and returns a client. It does not connect.
func NewClient(o ClientOptions) (*Client, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
		u.RawQuery != "" ||
		u.Fragment != "" {
		return nil, fmt.Errorf(
			"the URL of Prometheus is %q; expected http://HOST:PORT or https://HOST:PORT, with the path "+
				"prefix if it has one",
			HidePassword(o.URL),
		)
	}

	httpConfig := &config.DefaultHTTPClientConfig
	if o.ConfigFile != "" {
		if httpConfig, _, err = config.LoadHTTPConfigFile(o.ConfigFile); err != nil {
			return nil, fmt.Errorf("read the HTTP client configuration %s: %w", o.ConfigFile, err)
		}

		if err := checkSecrets(httpConfig); err != nil {
			return nil, fmt.Errorf("use the HTTP client configuration %s: %w", o.ConfigFile, err)
		}
	}

	transport, err := config.NewRoundTripperFromConfig(
		*httpConfig,
		"migctl",
		config.WithUserAgent(o.UserAgent),
	)
	if err != nil {
		return nil, fmt.Errorf("use the HTTP client configuration %s: %w", o.ConfigFile, err)
	}

	c := &Client{url: u.Redacted(), timeout: o.Timeout, wait: retry.Sleep}
	client := &http.Client{Transport: &checkedTransport{
		next:    transport,
		follow:  httpConfig.FollowRedirects,
		partial: func() { c.keepWarnings([]string{partialWarning}) },
	}}
	c.close = client.CloseIdleConnections

	server, err := api.NewClient(api.Config{Address: strings.TrimRight(o.URL, "/"), Client: client})
	if err != nil {
		return nil, fmt.Errorf("use the URL %q: %w", u.Redacted(), err)
	}

	c.api = v1.NewAPI(server)

	return c, nil
}

// HidePassword returns the address of a server, a URL or the path of a socket, for messages. It
// replaces a password by "xxxxx", and all before the host if it cannot tell what the password is.
func HidePassword(address string) string {
	const hidden = "xxxxx"

	u, err := url.Parse(address)
	at := strings.LastIndex(address, "@")

	switch {
	case err == nil && u.User != nil:
		return u.Redacted()
	case at < 0, strings.HasPrefix(address, "/"), strings.HasPrefix(address, "unix:"):
		return address
	default:
		return hidden + address[at:]
	}
}

// checkSecrets returns an error if a file with a secret cannot be read or has none, or if a token cannot be
// sent. Without it, the first query would fail as if the server could not be reached, or refused us.
func checkSecrets(c *config.HTTPClientConfig) error {
	tokens := []string{c.BearerTokenFile}
	var others []string

	if c.Authorization != nil {
		tokens = append(tokens, c.Authorization.CredentialsFile)

		if err := secretfile.CheckToken(string(c.Authorization.Credentials)); err != nil {
			return fmt.Errorf("authorization.credentials: %w", err)
		}
	}

	if c.BasicAuth != nil {
		others = append(others, c.BasicAuth.UsernameFile, c.BasicAuth.PasswordFile)
	}

	if c.OAuth2 != nil {
		others = append(others, c.OAuth2.ClientSecretFile)
	}

	return errors.Join(readEach(tokens, secretfile.ReadToken), readEach(others, secretfile.Read))
}

// readEach reads the files that are configured, and returns the first error.
func readEach(files []string, read func(string) (string, error)) error {
	for _, file := range files {
		if file == "" {
			continue
		}

		if _, err := read(file); err != nil {
			return err
		}
	}

	return nil
}

// Close ends the connections that are not in use.
func (c *Client) Close() { c.close() }

// URL returns the server's address without a password.
func (c *Client) URL() string { return c.url }

// vector evaluates an expression at one instant.
func (c *Client) vector(ctx context.Context, query string, at time.Time) (model.Vector, error) {
	value, err := c.queryServer(
		ctx,
		func(ctx context.Context) (model.Value, v1.Warnings, v1.Infos, error) {
			return c.api.Query(ctx, query, at)
		},
	)
	if err != nil {
		return nil, err
	}

	v, ok := value.(model.Vector)
	if !ok {
		return nil, c.unexpected(value, model.ValVector)
	}

	return v, nil
}

// matrix evaluates an expression at all steps of a range.
func (c *Client) matrix(ctx context.Context, query string, r v1.Range) (model.Matrix, error) {
	value, err := c.queryServer(
		ctx,
		func(ctx context.Context) (model.Value, v1.Warnings, v1.Infos, error) {
			return c.api.QueryRange(ctx, query, r)
		},
	)
	if err != nil {
		return nil, err
	}

	m, ok := value.(model.Matrix)
	if !ok {
		return nil, c.unexpected(value, model.ValMatrix)
	}

	return m, nil
}

// unexpected returns the error for a value of an unexpected type; value is nil if the JSON was no
// API response.
func (c *Client) unexpected(value model.Value, expected model.ValueType) error {
	got := "no value"
	if value != nil {
		got = "a " + value.Type().String()
	}

	return &QueryError{
		URL:     c.url,
		Reached: true,
		Hint:    foreignHint,
		Err: fmt.Errorf(
			"answered with JSON that is not of Prometheus' API: %s; expected a %s",
			got,
			expected,
		),
	}
}

const (
	maxBusyAttempts   = 12          // at one query, while the server says that it is busy
	maxFailedAttempts = 4           // at one query, if it fails but the server has answered before
	longestWait       = time.Minute // between two attempts
)

// queryServer makes a query. It waits while the server is busy, and tries again if it fails after
// it has answered before.
func (c *Client) queryServer(
	ctx context.Context, do func(context.Context) (model.Value, v1.Warnings, v1.Infos, error),
) (model.Value, error) {
	busy := 0
	failed := 0

	for {
		value, err := c.queryOnce(ctx, do)
		var server *ServerError
		wait := time.Duration(0)

		switch {
		case err == nil:
			return value, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(err, &server) && server.Status == http.StatusTooManyRequests && busy < maxBusyAttempts:
			wait = server.retryAfter
			if wait <= 0 {
				wait = time.Second << min(busy, 6) // 64 s is longer than longestWait
			}

			busy++
		case isTransient(err) && c.reached.Load() && failed < maxFailedAttempts-1:
			wait = time.Second << failed
			failed++
		default:
			return nil, c.explain(err)
		}

		if err := c.wait(ctx, min(wait, longestWait)); err != nil {
			return nil, err
		}
	}
}

// queryOnce makes one attempt at a query.
func (c *Client) queryOnce(
	ctx context.Context, do func(context.Context) (model.Value, v1.Warnings, v1.Infos, error),
) (model.Value, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	value, warnings, _, err := do(ctx)
	if err != nil {
		return nil, err
	}

	c.reached.Store(true)
	c.keepWarnings(warnings)

	return value, nil
}

// keepWarnings keeps the server's warnings, such as that a part of the history cannot be reached.
func (c *Client) keepWarnings(warnings []string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, w := range warnings {
		c.partial = c.partial || isPartial(w)

		if len(c.warnings) < maxWarnings && !slices.Contains(c.warnings, w) {
			c.warnings = append(c.warnings, w)
		}
	}
}

// Warnings returns the server's warnings, each once.
func (c *Client) Warnings() []string {
	c.mu.Lock()
	defer c.mu.Unlock()

	return append([]string(nil), c.warnings...)
}

// isPartial reports whether an answer of the server may lack a part of the history.
func (c *Client) isPartial() bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.partial
}

// isPartial reports whether an answer with a warning may lack a part of the history. Warnings of Prometheus
// that begin with "PromQL" are about the query, and older versions of Thanos warn of times before their
// history.
func isPartial(warning string) bool {
	return !strings.HasPrefix(warning, "PromQL") && !strings.HasPrefix(warning, "No StoreAPIs matched")
}

// partialWarning stands for the mark of a VictoriaMetrics cluster that an answer lacks what a storage node
// has that cannot be reached: the cluster has it in the place of a warning.
//
// https://docs.victoriametrics.com/victoriametrics/cluster-victoriametrics/#cluster-availability
const partialWarning = "the answer is marked as partial (isPartial)"

// isMarkedPartial reports whether the beginning of an answer has that mark. It comes before the data.
func isMarkedPartial(head []byte) bool {
	head, _, _ = bytes.Cut(head, []byte(`"data"`))

	return bytes.Contains(bytes.ReplaceAll(head, []byte(" "), nil), []byte(`"isPartial":true`))
}

// maxBody is how many bytes an answer may have. If it has more, we ask for less at once.
const maxBody = 64 << 20

// checkedTransport turns answers that are not of Prometheus' API into errors that say what they are:
// a redirect, a refusal, or no JSON.
type checkedTransport struct {
	next   http.RoundTripper
	follow bool // follow redirects, if they keep the query
	// partial is called for each answer that is marked as partial.
	partial func()
}

func (t *checkedTransport) CloseIdleConnections() {
	if c, ok := t.next.(api.CloseIdler); ok {
		c.CloseIdleConnections()
	}
}

func (t *checkedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}

	redirected := resp.StatusCode/100 == 3
	isPost := r.Method == http.MethodPost

	// Other redirects turn POST into GET without the body, which has the query.
	keepsQuery := !isPost || resp.StatusCode == http.StatusTemporaryRedirect ||
		resp.StatusCode == http.StatusPermanentRedirect
	if redirected && (!t.follow || !keepsQuery) {
		e := readServerError(resp)
		e.Message = "it redirects to " + resp.Header.Get("Location")

		return nil, e
	}

	switch resp.StatusCode {
	case http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		if isPost { // Prometheus' client then tries GET
			return resp, nil
		}
	}

	if resp.StatusCode != http.StatusOK && !redirected {
		return nil, readServerError(resp)
	}

	if kind := resp.Header.Get("Content-Type"); !redirected && !strings.Contains(kind, "json") {
		resp.Body.Close()
		return nil, &foreignError{contentType: kind}
	}

	const headSize = 256 // of an answer, before its data

	body := &limitedBody{ReadCloser: resp.Body, left: maxBody}
	begin := bufio.NewReaderSize(body, headSize)

	if head, _ := begin.Peek(headSize); isMarkedPartial(head) {
		t.partial()
	}

	resp.Body = struct {
		io.Reader
		io.Closer
	}{begin, body}

	return resp, nil
}

// limitedBody fails with errTooLong after a number of bytes.
type limitedBody struct {
	io.ReadCloser
	left int64
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}

	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)

	return n, err
}
