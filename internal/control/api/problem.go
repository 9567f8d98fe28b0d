package api

import (
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Problem is an error for the caller, in the form of RFC 9457. Detail says what happened and what
// to do; it never has a path of the node, a token or a stack.
type Problem struct {
	Type   ProblemType `json:"type"`
	Title  string      `json:"title"`
	Status int         `json:"status"`
	Detail string      `json:"detail,omitempty"`
	// Blocking are the busy instances that are in the way: MIG UUIDs, or "GPU-<uuid>/<GPU
	// instance>".
	Blocking []Blocker `json:"blocking,omitempty"`
	// Profiles are the profiles that the GPU offers, if the request has an unknown one.
	Profiles []string `json:"profiles,omitempty"`
	// Operation is the id of the operation that the problem is about, or that is in the way.
	Operation string `json:"operation,omitempty"`
	// Instead is set if an operation cannot be rolled back any more: specs of the layouts before it,
	// one for each GPU, which the operator can plan instead.
	Instead []Spec `json:"instead,omitempty"`
}

// Blocker is an instance that is in the way, with its holders.
type Blocker struct {
	GPU       gpu.UUID      `json:"gpu"`
	Instance  string        `json:"instance"`
	Profile   string        `json:"profile"`
	Placement gpu.Placement `json:"placement"`
	Holders   []Hold        `json:"holders"`
}

func (p *Problem) Error() string {
	if p.Detail == "" {
		return p.Title
	}

	return fmt.Sprintf("%s: %s", p.Title, p.Detail)
}

// ProblemType is the stable name of a kind of problem, a URN.
type ProblemType string

// The types of problems, and the status of each. Their documentation is in
// docs/partition-control.md.
const (
	Malformed       ProblemType = "urn:mig-exporter:problem:malformed"       // 400: the request cannot be read
	Unauthenticated ProblemType = "urn:mig-exporter:problem:unauthenticated" // 401
	Forbidden       ProblemType = "urn:mig-exporter:problem:forbidden"       // 403
	PlanOnly        ProblemType = "urn:mig-exporter:problem:plan-only"       // 403: --control.mode=plan
	NotFound        ProblemType = "urn:mig-exporter:problem:not-found"       // 404
	NoMethod        ProblemType = "urn:mig-exporter:problem:method"          // 405
	StalePlan       ProblemType = "urn:mig-exporter:problem:stale-plan"      // 409: the node has changed since
	Busy            ProblemType = "urn:mig-exporter:problem:busy"            // 409: an instance or a GPU is in use
	InProgress      ProblemType = "urn:mig-exporter:problem:in-progress"     // 409: another operation runs
	KeyReused       ProblemType = "urn:mig-exporter:problem:idempotency-key" // 422: the key belongs to another request
	TooLarge        ProblemType = "urn:mig-exporter:problem:too-large"       // 413
	MediaType       ProblemType = "urn:mig-exporter:problem:media-type"      // 415
	UnknownProfile  ProblemType = "urn:mig-exporter:problem:unknown-profile" // 422
	Infeasible      ProblemType = "urn:mig-exporter:problem:infeasible"      // 422
	ModeDiffers     ProblemType = "urn:mig-exporter:problem:mig-mode"        // 422: the GPU is in the other MIG mode
	BadSpec         ProblemType = "urn:mig-exporter:problem:spec"            // 422: the spec says what cannot be
	ForeignOwner    ProblemType = "urn:mig-exporter:problem:foreign-owner"   // 409: another controller manages the GPU
	RateLimited     ProblemType = "urn:mig-exporter:problem:rate-limited"    // 429
	Internal        ProblemType = "urn:mig-exporter:problem:internal"        // 500
	NotBuilt        ProblemType = "urn:mig-exporter:problem:unimplemented"   // 501
	Unavailable     ProblemType = "urn:mig-exporter:problem:unavailable"     // 503: no driver answers, or it has no rights
	ReadOnly        ProblemType = "urn:mig-exporter:problem:read-only"       // 503: the state folder cannot be used
	DegradedNode    ProblemType = "urn:mig-exporter:problem:degraded"        // 409: retry rollback or accept the layout
	LayoutChanged   ProblemType = "urn:mig-exporter:problem:layout-changed"  // 409: another client has changed the GPU
	NotResumed      ProblemType = "urn:mig-exporter:problem:not-resumed"     // 409: a restart has interrupted an operation
	StuckNode       ProblemType = "urn:mig-exporter:problem:stuck"           // 503: a driver call hangs
	DriverFailed    ProblemType = "urn:mig-exporter:problem:driver"          // 502: in an operation, a driver call failed
)
