// Package kubeapi is a client of the API server of the cluster that this process runs in, with the
// service account of its pod.
package kubeapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
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

// defaultAgent is the User-Agent of a Client that was given none.
const defaultAgent = "mig-exporter"

// defaultLimit bounds a response in bytes if the request does not.
const defaultLimit = 4 << 20

// InClusterServer returns the URL of the API server of the cluster that this process runs in, from
// its environment.
func InClusterServer(getenv func(string) string) (string, error) {
	host := getenv("KUBERNETES_SERVICE_HOST")

	port := getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return "", fmt.Errorf(
			"not in a Kubernetes cluster: KUBERNETES_SERVICE_HOST and _PORT are not set: %w",
			gpu.ErrNotFound,
		)
	}

	return "https://" + net.JoinHostPort(host, port), nil
}

// Options configures a Client.
type Options struct {
	// Server is the API server's URL, as InClusterServer gives it.
	Server string
	// CredentialsDir has the files token and ca.crt of a service account, DefaultCredentialsDir in
	// a pod. Both are read for every request, since they are replaced while the process runs.
	CredentialsDir string
	// UserAgent names this program and its version, "mig-exporter/1.0.0"; empty is "mig-exporter".
	UserAgent string
	// Transport carries the requests; nil for the one that trusts ca.crt alone.
	Transport http.RoundTripper
}

// Client sends requests to one API server. It is safe for concurrent use.
type Client struct {
	http      *http.Client
	server    *url.URL
	tokenPath string // path of the file
	userAgent string
}

// New returns a Client without connecting. It fails if the certificate authority cannot be read or
// the URL of the server is invalid.
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
		return nil, fmt.Errorf(
			"API server %q: expected https://<host>:<port>: %w",
			opts.Server,
			gpu.ErrInvalidArgument,
		)
	}

	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	return &Client{
		http:      &http.Client{Transport: transport, CheckRedirect: refuse},
		server:    server,
		tokenPath: filepath.Join(opts.CredentialsDir, "token"),
		userAgent: cmp.Or(opts.UserAgent, defaultAgent),
	}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// PodUID returns the UID of the pod that the service account's token was issued to, which is this
// program's; empty if the token has none.
//
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/,
// #bound-service-account-tokens
func (c *Client) PodUID() string {
	token, err := os.ReadFile(c.tokenPath)
	if err != nil {
		return ""
	}

	parts := strings.Split(strings.TrimSpace(string(token)), ".")
	if len(parts) != 3 {
		return ""
	}

	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}

	var claims struct {
		Kubernetes struct {
			Pod struct {
				UID string `json:"uid"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return ""
	}

	return claims.Kubernetes.Pod.UID
}

// Request is a request to the API server.
type Request struct {
	Method string
	Path   string // from the root: /api/v1/nodes/n
	Query  url.Values
	// Accept names formats besides JSON, which are preferred.
	Accept string
	// Body is sent as JSON, with ContentType unless that is empty; nil sends none.
	Body        any
	ContentType string
	// Limit bounds the response, in bytes; zero is 4 MiB.
	Limit int64
}

// Do sends the request and decodes the response into answer; if that is nil, the response is not
// read. It has no timeout but that of ctx.
//
// An error names the right that the request needs, and wraps gpu.ErrNoPermission if the API server
// refuses it (then it is a *RefusedError), else gpu.ErrUnavailable; also gpu.ErrTimeout if ctx
// ended by its deadline, gpu.ErrNotFound if there is no such object, ErrNotServed if there is no
// such resource, ErrConflict if the object has changed. It contains nothing of the body of the
// request or the response.
func (c *Client) Do(ctx context.Context, r Request, answer any) error {
	return c.sendAndRead(ctx, r, func(body io.Reader) error {
		if answer == nil {
			return nil
		}

		return json.NewDecoder(body).Decode(answer)
	})
}

// sendAndRead sends the request and calls read with the body of a successful response.
func (c *Client) sendAndRead(
	ctx context.Context,
	r Request,
	read func(body io.Reader) error,
) error {
	if err := c.sendRequest(ctx, r, read); err != nil {
		return fmt.Errorf("%s: %w", r.requiredRight(), err)
	}

	return nil
}

func (c *Client) sendRequest(
	ctx context.Context,
	r Request,
	read func(body io.Reader) error,
) error {
	request, err := c.newHTTPRequest(ctx, r)
	if err != nil {
		return err
	}

	response, err := c.http.Do(request)
	if err != nil {
		return unansweredError(ctx, err)
	}
	defer response.Body.Close()

	if err := statusError(r, response); err != nil {
		return err
	}

	err = read(http.MaxBytesReader(nil, response.Body, cmp.Or(r.Limit, defaultLimit)))
	if err != nil {
		return unansweredError(ctx, fmt.Errorf("read the answer: %w", err))
	}

	return nil
}

func (c *Client) newHTTPRequest(ctx context.Context, r Request) (*http.Request, error) {
	token, err := os.ReadFile(c.tokenPath)
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
	request.Header.Set("User-Agent", c.userAgent)

	if r.Body != nil {
		request.Header.Set("Content-Type", cmp.Or(r.ContentType, "application/json"))
	}

	return request, nil
}
