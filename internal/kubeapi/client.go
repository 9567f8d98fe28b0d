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
	"github.com/mig-exporter/mig-exporter/internal/secretfile"
)

// DefaultCredentialsDir is where a pod finds the credentials of its service account.
const DefaultCredentialsDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// defaultAgent is the User-Agent if Options.UserAgent is empty.
const defaultAgent = "mig-exporter"

// defaultLimit bounds a response in bytes if Request.Limit is 0.
const defaultLimit = 4 << 20

// InClusterServer returns the URL of the API server of the cluster that this process runs in, as
// the environment of a pod gives it.
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
	// CredentialsDir has the files token and ca.crt of a service account; in a pod it is
	// DefaultCredentialsDir. We read both files for every request, since the kubelet replaces them
	// while the process runs.
	CredentialsDir string
	// UserAgent names this program and its version, "mig-exporter/1.0.0"; empty: "mig-exporter".
	UserAgent string
	// Transport carries the requests; nil: a transport that trusts only ca.crt.
	Transport http.RoundTripper
}

// Client sends requests to one API server. It is safe for concurrent use.
type Client struct {
	http      *http.Client
	server    *url.URL
	tokenPath string // of the file with the token
	userAgent string
}

// New returns a Client without connecting. It fails if the certificate authority cannot be read or
// the URL of the server is invalid.
func New(opts Options) (*Client, error) {
	transport := opts.Transport
	if transport == nil {
		trustingCA, err := newTransport(opts.CredentialsDir)
		if err != nil {
			return nil, err
		}

		transport = trustingCA
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

	refuseRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	return &Client{
		http:      &http.Client{Transport: transport, CheckRedirect: refuseRedirect},
		server:    server,
		tokenPath: filepath.Join(opts.CredentialsDir, "token"),
		userAgent: cmp.Or(opts.UserAgent, defaultAgent),
	}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// PodUID returns the UID of the pod that this program runs in, which the service account's token
// names; empty if the token does not name one.
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
	// Accept names the formats that we prefer to JSON; empty: none.
	Accept string
	// Body is encoded as JSON; nil: the request has no body.
	Body any
	// ContentType is the type of Body; empty: application/json.
	ContentType string
	// Limit bounds the response, in bytes; 0: defaultLimit.
	Limit int64
}

// Do sends the request and decodes the response into answer; if answer is nil, Do does not read the
// response. Only ctx limits the time.
//
// An error names the right that the request needs. If the API server refuses the request, the error
// is a *RefusedError, which wraps gpu.ErrNoPermission. If we cannot encode the request, it wraps
// gpu.ErrInvalidArgument. Any other error wraps gpu.ErrUnavailable, and besides
//   - gpu.ErrTimeout if the deadline of ctx has passed,
//   - gpu.ErrNotFound if there is no such object,
//   - gpu.ErrNotFound and ErrNotServed if there is no such resource,
//   - ErrConflict if the object has changed, or exists already.
//
// Errors contain nothing of the body of the request or the response.
func (c *Client) Do(ctx context.Context, r Request, answer any) error {
	return c.sendAndRead(ctx, r, func(body io.Reader) error {
		if answer == nil {
			return nil
		}

		return json.NewDecoder(body).Decode(answer)
	})
}

// sendAndRead sends the request and calls read with the body of a successful response. Its errors
// are those of Do.
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

// sendRequest is sendAndRead, except that errors do not name the right.
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
	token, err := secretfile.ReadToken(c.tokenPath)
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

	request.Header.Set("Authorization", "Bearer "+token)

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
