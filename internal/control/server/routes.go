package server

import (
	"context"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// route is one method of one path, the right that it requires, and what it does.
type route struct {
	pattern      string // for http.ServeMux: "GET /api/v1/node"
	verb         verb
	bodyOptional bool
	// answer answers a call, or returns an error for answerProblem.
	answer func(*call) error
}

// routes lists the whole API. HEAD is answered wherever GET is.
func routes() []route {
	return []route{
		{pattern: "GET /api/v1/node", verb: verbRead, answer: (*call).getNode},
		{pattern: "GET /api/v1/node/stream", verb: verbRead, answer: (*call).streamNode},
		{pattern: "GET /api/v1/node/history", verb: verbRead, answer: (*call).getHistory},
		{pattern: "GET /api/v1/health", verb: verbRead, answer: (*call).getHealth},
		{pattern: "GET /api/v1/layouts", verb: verbRead, answer: (*call).getLayouts},
		{
			pattern: "GET /api/v1/recommendations",
			verb:    verbRead,
			answer:  (*call).getRecommendations,
		},
		{pattern: "GET /api/v1/openapi.yaml", verb: verbRead, answer: (*call).getOpenAPI},

		{pattern: "POST /api/v1/plans", verb: verbPlan, answer: (*call).createPlan},
		{pattern: "GET /api/v1/plans/{id}", verb: verbRead, answer: (*call).getPlan},

		{pattern: "GET /api/v1/operations", verb: verbRead, answer: (*call).listOperations},
		{pattern: "POST /api/v1/operations", verb: verbApply, answer: (*call).startOperation},
		{pattern: "GET /api/v1/operations/{id}", verb: verbRead, answer: (*call).getOperation},
		{
			pattern: "GET /api/v1/operations/{id}/events",
			verb:    verbRead,
			answer:  (*call).streamEvents,
		},
		{pattern: "POST /api/v1/operations/{id}/rollback", verb: verbApply, bodyOptional: true,
			answer: (*call).rollBackOperation},
		{pattern: "POST /api/v1/operations/{id}/accept", verb: verbApply, bodyOptional: true,
			answer: (*call).acceptOperation},
		{
			pattern:      "POST /api/v1/operations/{id}/settled",
			verb:         verbApply,
			bodyOptional: true,
			answer:       (*call).endSettling,
		},

		{pattern: "POST /api/v1/devices/{uuid}/confirm-free", verb: verbForce, bodyOptional: true,
			answer: (*call).confirmFree},
		{pattern: "PUT /api/v1/gpus/{gpu}/mig-mode", verb: verbMode, answer: (*call).setMIGMode},
		{
			pattern:      "POST /api/v1/gpus/{gpu}/restore",
			verb:         verbApply,
			bodyOptional: true,
			answer:       (*call).restoreLayout,
		},
		{pattern: "POST /api/v1/gpus/{gpu}/forget-layout", verb: verbApply, bodyOptional: true,
			answer: (*call).forgetLayout},
		{
			pattern:      "POST /api/v1/gpus/{gpu}/release",
			verb:         verbRelease,
			bodyOptional: true,
			answer:       (*call).releaseGPU,
		},
		{pattern: "POST /api/v1/gpus/{gpu}/reacquire", verb: verbRelease, bodyOptional: true,
			answer: (*call).reacquireGPU},
	}
}

// releaseRoutes lists the routes that need no partition control.
func releaseRoutes() []route {
	return slices.DeleteFunc(routes(), func(r route) bool { return r.verb != verbRelease })
}

// newRouter returns the handler that finds the route of a request and lets it answer the call, which
// is in the request's context (see withCall). It answers a path without a route with 404, and a path
// that has routes for other methods with 405.
func newRouter(list []route) http.Handler {
	mux := http.NewServeMux()
	methods := make(map[string][]string) // by path

	for _, r := range list {
		mux.Handle(r.pattern, callHandler(func(c *call) error { return c.answerRoute(&r) }))
		method, pathPattern, _ := strings.Cut(r.pattern, " ")
		methods[pathPattern] = append(methods[pathPattern], method)
	}

	for pathPattern, allowed := range methods {
		if slices.Contains(allowed, http.MethodGet) {
			allowed = append(allowed, http.MethodHead)
		}

		mux.Handle(
			pathPattern,
			callHandler(func(c *call) error { return c.refuseMethod(strings.Join(allowed, ", ")) }),
		)
	}

	mux.Handle("/", callHandler((*call).refusePath))

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The mux would redirect to the cleaned path, and answer "OPTIONS *" itself.
		if escaped := r.URL.EscapedPath(); escaped == "*" || escaped != path.Clean(escaped) {
			callHandler((*call).refusePath).ServeHTTP(w, r)
			return
		}

		mux.ServeHTTP(w, r)
	})
}

func (c *call) refusePath() error {
	if c.s.backend == nil {
		return problem(
			api.NotFound,
			http.StatusNotFound,
			"partition control is off on this node (--control.enabled): this socket "+
				"releases and reacquires GPUs alone",
		)
	}

	return problem(
		api.NotFound,
		http.StatusNotFound,
		"there is no such path; /api/v1/openapi.yaml lists them",
	)
}

func (c *call) refuseMethod(allow string) error {
	c.w.Header().Set("Allow", allow)
	return problem(api.NoMethod, http.StatusMethodNotAllowed, "expected %s", allow)
}

type callKey struct{}

// withCall puts the call into the context of its request. It replaces c.r, and returns it.
func withCall(c *call) *http.Request {
	c.r = c.r.WithContext(context.WithValue(c.r.Context(), callKey{}, c))
	return c.r
}

// callHandler handles the request of a call. An error is answered with a problem document.
type callHandler func(*call) error

func (answer callHandler) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(callKey{}).(*call)
	if !ok {
		panic("the request has no call in its context: see withCall")
	}

	if err := answer(c); err != nil {
		c.answerProblem(err)
	}
}
