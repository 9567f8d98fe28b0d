package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// problem returns a problem with a formatted detail.
func problem(kind api.ProblemType, status int, format string, args ...any) *api.Problem {
	return &api.Problem{
		Type:   kind,
		Title:  titles()[kind],
		Status: status,
		Detail: fmt.Sprintf(format, args...),
	}
}

// titles returns the titles of the problems that arise in this package; the backend sets its own.
func titles() map[api.ProblemType]string {
	return map[api.ProblemType]string{
		api.Malformed:       "The request cannot be read",
		api.Unauthenticated: "Not known",
		api.Forbidden:       "Not allowed",
		api.NotFound:        "Not found",
		api.NoMethod:        "Method not allowed",
		api.InProgress:      "In progress",
		api.KeyReused:       "Idempotency-Key belongs to another request",
		api.TooLarge:        "Too large",
		api.MediaType:       "Media type not supported",
		api.BadSpec:         "The spec cannot be used",
		api.RateLimited:     "Too many requests",
		api.Internal:        "Internal error",
		api.NotBuilt:        "Not available",
		api.Unavailable:     "Unavailable",
		api.ReadOnly:        "Read-only",
	}
}

// asProblem returns the problem document for an error. internal is set if the document does not have
// the error's text, which may contain paths: the caller then logs the error.
func asProblem(err error) (p *api.Problem, internal bool) {
	if errors.As(err, &p) && p.Status >= 400 && p.Status <= 599 {
		return p, false
	}

	switch {
	case errors.Is(err, context.Canceled): // the client has disconnected, or the server shuts down
		return problem(
			api.Unavailable,
			http.StatusServiceUnavailable,
			"the request was cancelled",
		), false
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, gpu.ErrTimeout):
		return problem(
			api.Unavailable,
			http.StatusServiceUnavailable,
			"no answer in time; try again",
		), true
	case errors.Is(err, gpu.ErrNoDriver),
		errors.Is(err, gpu.ErrUnavailable),
		errors.Is(err, gpu.ErrNoPermission):
		return problem(api.Unavailable, http.StatusServiceUnavailable,
			"the driver does not answer, or gives no rights"), true
	}

	return problem(api.Internal, http.StatusInternalServerError,
		"the log of mig-exporter on the node has the cause"), true
}

func writeProblem(w http.ResponseWriter, p *api.Problem) {
	body, err := json.Marshal(p)
	if err != nil { // never: it has strings and numbers only
		body = []byte(
			`{"type":"` + string(api.Internal) + `","title":"Internal error","status":500}`,
		)
	}

	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // a client that has disconnected needs no answer
}
