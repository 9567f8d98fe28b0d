package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

var (
	// ErrConflict means that another client has changed the object since we read it, or has created
	// it already.
	ErrConflict = errors.New("changed by another")
	// ErrNotServed means that the API server has no such group, version or resource. The error also
	// wraps gpu.ErrNotFound.
	ErrNotServed = errors.New("the API server does not serve it")
)

// maxStatus bounds how much we read of the body of a 404, in bytes.
const maxStatus = 64 << 10

// RefusedError is the error of a request that the API server has refused. It wraps
// gpu.ErrNoPermission.
type RefusedError struct {
	// Right is the right that the request needs, such as "list pods" or "create
	// tokenreviews.authentication.k8s.io".
	Right string
	// Credentials is set if the API server did not accept the service account's token. Otherwise
	// the service account lacks the right.
	Credentials bool
}

// Error implements error.
func (e *RefusedError) Error() string {
	if e.Credentials {
		return fmt.Sprintf("%s (401 Unauthorized): %v", e.Refusal(), gpu.ErrNoPermission)
	}

	return fmt.Sprintf(
		"the API server refuses it (403 Forbidden): %s: %v",
		e.Refusal(),
		gpu.ErrNoPermission,
	)
}

// Refusal returns what is missing, as text that we may show to clients.
func (e *RefusedError) Refusal() string {
	if e.Credentials {
		return "the API server does not accept the credentials of the service account"
	}

	return "the service account needs the right to " + e.Right
}

// Unwrap returns gpu.ErrNoPermission.
func (e *RefusedError) Unwrap() error { return gpu.ErrNoPermission }

// unansweredError returns the error of a request that got no complete response: err or, if ctx has
// ended, the cause of that.
func unansweredError(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return fmt.Errorf("%w: %w", err, gpu.ErrUnavailable)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%w: %w: %w", cause, gpu.ErrUnavailable, gpu.ErrTimeout)
	default:
		return fmt.Errorf("%w: %w", cause, gpu.ErrUnavailable)
	}
}

// statusError returns the error for a response's status, nil for success.
func statusError(r Request, response *http.Response) error {
	kind := gpu.ErrUnavailable

	switch response.StatusCode {
	case http.StatusOK, http.StatusCreated, http.StatusAccepted:
		return nil
	case http.StatusUnauthorized:
		return &RefusedError{Right: r.requiredRight(), Credentials: true}
	case http.StatusForbidden:
		return &RefusedError{Right: r.requiredRight()}
	case http.StatusNotFound:
		kind = fmt.Errorf("%w: %w", gpu.ErrNotFound, gpu.ErrUnavailable)
		if !namesObject(response.Body) {
			kind = fmt.Errorf("%w: %w", ErrNotServed, kind)
		}
	case http.StatusConflict:
		kind = fmt.Errorf("%w: %w", ErrConflict, gpu.ErrUnavailable)
	}

	return fmt.Errorf("the API server says %s: %w", response.Status, kind)
}

// namesObject reports whether the body of a 404 names an object, which then is missing. Otherwise
// the API server does not have the path: the body is text, or a Status without a name.
func namesObject(body io.Reader) bool {
	var status struct {
		Details struct {
			Name string `json:"name"`
		} `json:"details"`
	}

	return json.NewDecoder(io.LimitReader(body, maxStatus)).Decode(&status) == nil &&
		status.Details.Name != ""
}
