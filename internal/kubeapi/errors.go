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
	// ErrConflict means that the object was changed by another client since it was read.
	ErrConflict = errors.New("changed by another")
	// ErrNotServed means that the API server has no such group, version or resource. It comes with
	// gpu.ErrNotFound.
	ErrNotServed = errors.New("the API server does not serve it")
)

// maxStatus bounds what is read of the body of a 404, in bytes.
const maxStatus = 64 << 10

// RefusedError is the error of a request that the API server has refused. It wraps
// gpu.ErrNoPermission.
type RefusedError struct {
	// Right is the right that the request needs: "list pods", "create
	// tokenreviews.authentication.k8s.io".
	Right string
	// Credentials is set if the API server did not accept the service account's token.
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

// Refusal returns what is missing, in words that a response to a user may contain.
func (e *RefusedError) Refusal() string {
	if e.Credentials {
		return "the API server does not accept the credentials of the service account"
	}

	return "the service account needs the right to " + e.Right
}

// Unwrap returns gpu.ErrNoPermission.
func (e *RefusedError) Unwrap() error { return gpu.ErrNoPermission }

// unansweredError returns the error of a request without a complete response: the cause of the end
// of ctx, if it has ended.
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
	case http.StatusOK,
		http.StatusCreated,
		http.StatusAccepted: // the last: a deletion that goes on
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

// namesObject reports whether the body of a 404 names the missing object. Otherwise the API server
// has no such path: the body is text, or a Status without the name.
func namesObject(body io.Reader) bool {
	var status struct {
		Details struct {
			Name string `json:"name"`
		} `json:"details"`
	}

	return json.NewDecoder(io.LimitReader(body, maxStatus)).Decode(&status) == nil &&
		status.Details.Name != ""
}
