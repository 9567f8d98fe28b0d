// Package kubeapi speaks to the API server of the cluster that this process runs in, with the service account of its pod.
package kubeapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// DefaultCredentialsDir is where a pod finds the credentials of its service account.
const DefaultCredentialsDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// ErrConflict says that an object was changed by somebody else since it was read.
var ErrConflict = errors.New("changed by another")

// defaultLimit bounds an answer in bytes where the request does not.
const defaultLimit = 4 << 20

// InClusterServer is the URL of the API server of the cluster that this process runs in, from its environment.
func InClusterServer(getenv func(string) string) (string, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return "", fmt.Errorf("not in a Kubernetes cluster: KUBERNETES_SERVICE_HOST and _PORT are not set: %w", gpu.ErrNotFound)
	}
	return "https://" + net.JoinHostPort(host, port), nil
}

// Options configures a Client.
type Options struct {
	// Server is the API server's URL, as InClusterServer gives it.
	Server string
	// CredentialsDir has the files token and ca.crt of a service account, DefaultCredentialsDir in a pod. Both are read
	// for every request, since they are replaced while the process runs.
	CredentialsDir string
	// Transport carries the requests; nil for the one that trusts ca.crt alone.
	Transport http.RoundTripper
}

// Client asks one API server. It may be used from several goroutines.
type Client struct {
	http   *http.Client
	server *url.URL
	token  string // path of the file
}

// New connects to nothing yet. It fails if the certificate authority cannot be read or the server's URL is none.
func New(opts Options) (*Client, error) {
	transport := opts.Transport
	if transport == nil {
		trusting, err := newTransport(opts.CredentialsDir)
		if err != nil {
			return nil, err
		}
		transport = trusting
	}
	server, err := url.Parse(opts.Server)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	if server.Scheme != "https" || server.Host == "" {
		return nil, fmt.Errorf("API server %q: expected https://<host>:<port>: %w", opts.Server, gpu.ErrInvalidArgument)
	}
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{
		http:   &http.Client{Transport: transport, CheckRedirect: refuse},
		server: server,
		token:  filepath.Join(opts.CredentialsDir, "token"),
	}, nil
}

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Request is what is asked of the API server.
type Request struct {
	Method string
	Path   string // from the root: /api/v1/nodes/n
	Query  url.Values
	// Accept names formats besides JSON, which are preferred.
	Accept string
	// Body is sent as JSON, of the type ContentType where that is not plain JSON; nil sends none.
	Body        any
	ContentType string
	// Limit bounds the answer, in bytes; zero is 4 MiB.
	Limit int64
}

// Do asks, and decodes the answer, which may be nil to leave it unread. It takes as long as ctx allows.
//
// An error wraps gpu.ErrNoPermission where the service account may not do that or is not known, gpu.ErrNotFound for what
// is not there, ErrConflict, gpu.ErrTimeout where ctx ended, and gpu.ErrUnavailable in all cases but the first. It has
// nothing of the request's or the answer's body in it.
func (c *Client) Do(ctx context.Context, r Request, answer any) error {
	request, err := c.request(ctx, r)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return failed(ctx, err)
	}
	defer response.Body.Close()
	if err := refusal(response); err != nil {
		return err
	}
	if answer == nil {
		return nil
	}
	body := http.MaxBytesReader(nil, response.Body, cmp.Or(r.Limit, defaultLimit))
	if err := json.NewDecoder(body).Decode(answer); err != nil {
		return failed(ctx, err)
	}
	return nil
}

func (c *Client) request(ctx context.Context, r Request) (*http.Request, error) {
	token, err := os.ReadFile(c.token)
	if err != nil {
		return nil, fmt.Errorf("token: %w: %w", err, gpu.ErrUnavailable)
	}
	var body bytes.Buffer
	if r.Body != nil {
		if err := json.NewEncoder(&body).Encode(r.Body); err != nil {
			return nil, fmt.Errorf("%w: %w", err, gpu.ErrInvalidArgument)
		}
	}
	target := c.server.JoinPath(r.Path)
	target.RawQuery = r.Query.Encode()
	request, err := http.NewRequestWithContext(ctx, r.Method, target.String(), &body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, gpu.ErrInvalidArgument)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	accept := "application/json"
	if r.Accept != "" {
		accept = r.Accept + "," + accept
	}
	request.Header.Set("Accept", accept)
	if r.Body != nil {
		request.Header.Set("Content-Type", cmp.Or(r.ContentType, "application/json"))
	}
	return request, nil
}

// failed tells why there is no answer: the reason that ctx ended, if it did.
func failed(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return fmt.Errorf("%w: %w", err, gpu.ErrUnavailable)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%w: %w: %w", cause, gpu.ErrUnavailable, gpu.ErrTimeout)
	default:
		return fmt.Errorf("%w: %w", cause, gpu.ErrUnavailable)
	}
}

// refusal is the error that an answer stands for.
func refusal(response *http.Response) error {
	kind := gpu.ErrUnavailable
	switch response.StatusCode {
	case http.StatusOK, http.StatusCreated:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		kind = gpu.ErrNoPermission
	case http.StatusNotFound:
		kind = fmt.Errorf("%w: %w", gpu.ErrNotFound, gpu.ErrUnavailable)
	case http.StatusConflict:
		kind = fmt.Errorf("%w: %w", ErrConflict, gpu.ErrUnavailable)
	}
	return fmt.Errorf("the API server says %s: %w", response.Status, kind)
}
