package server

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// route is one method of one path, the right that it needs, and what it does. An error of do is answered as a problem; what
// do has answered itself it returns nil for.
type route struct {
	method, pattern string
	verb            verb
	noBody          bool // there may be no body
	do              func(*call) error
}

// table lists the whole API. HEAD is answered where GET is.
func (s *server) table() []route {
	return []route{
		{method: http.MethodGet, pattern: "/api/v1/node", verb: verbRead, do: (*call).node},
		{method: http.MethodGet, pattern: "/api/v1/layouts", verb: verbRead, do: (*call).layouts},
		{method: http.MethodGet, pattern: "/api/v1/recommendations", verb: verbRead, do: (*call).recommendations},
		{method: http.MethodGet, pattern: "/api/v1/openapi.yaml", verb: verbRead, do: (*call).openAPI},
		{method: http.MethodPost, pattern: "/api/v1/plans", verb: verbPlan, do: (*call).plan},
		{method: http.MethodGet, pattern: "/api/v1/plans/{id}", verb: verbRead, do: (*call).planByID},
		{method: http.MethodGet, pattern: "/api/v1/operations", verb: verbRead, do: (*call).operations},
		{method: http.MethodPost, pattern: "/api/v1/operations", verb: verbApply, do: (*call).start},
		{method: http.MethodGet, pattern: "/api/v1/operations/{id}", verb: verbRead, do: (*call).operation},
		{method: http.MethodGet, pattern: "/api/v1/operations/{id}/events", verb: verbRead, do: (*call).events},
		{method: http.MethodPost, pattern: "/api/v1/operations/{id}/rollback", verb: verbApply, noBody: true, do: (*call).rollback},
		{method: http.MethodPost, pattern: "/api/v1/operations/{id}/accept", verb: verbApply, noBody: true, do: (*call).accept},
		{method: http.MethodPost, pattern: "/api/v1/operations/{id}/settled", verb: verbApply, noBody: true, do: (*call).endSettling},
		{method: http.MethodPost, pattern: "/api/v1/devices/{uuid}/confirm-free", verb: verbForce, noBody: true, do: (*call).confirmFree},
		{method: http.MethodPut, pattern: "/api/v1/gpus/{gpu}/mig-mode", verb: verbMode, do: (*call).mode},
	}
}

// noMethod is that a path is there, for other methods.
type noMethod struct{ allow []string }

func (noMethod) Error() string { return "no such method" }

// findRoute finds the route of a request and sets the values of its path.
func (s *server) findRoute(r *http.Request) (*route, error) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	var allow []string
	for i := range s.routes {
		to := &s.routes[i]
		values, ok := matchPath(to.pattern, r.URL.EscapedPath())
		if !ok {
			continue
		}
		if to.method != method {
			allow = append(allow, to.method)
			continue
		}
		for name, value := range values {
			r.SetPathValue(name, value)
		}
		return to, nil
	}
	if allow != nil {
		return nil, noMethod{allow}
	}
	return nil, problem(api.NotFound, http.StatusNotFound, "There is no such path; /api/v1/openapi.yaml lists them.")
}

// matchPath compares an escaped path with a pattern; {name} stands for one element that is not empty, and may have slashes that
// are escaped: MIG UUIDs of old drivers do.
func matchPath(pattern, path string) (map[string]string, bool) {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(want) != len(have) {
		return nil, false
	}
	values := make(map[string]string)
	for i, element := range want {
		name, ok := strings.CutPrefix(element, "{")
		value, err := url.PathUnescape(have[i])
		switch {
		case err != nil:
			return nil, false
		case ok && value != "":
			values[strings.TrimSuffix(name, "}")] = value
		case ok || element != value:
			return nil, false
		}
	}
	return values, true
}

func (c *call) notFound(err error) error {
	other, ok := err.(noMethod) //nolint:errorlint // find wraps nothing
	if !ok {
		return err
	}
	if slices.Contains(other.allow, http.MethodGet) {
		other.allow = append(other.allow, http.MethodHead)
	}
	allow := strings.Join(other.allow, ", ")
	c.w.Header().Set("Allow", allow)
	return problem(api.NoMethod, http.StatusMethodNotAllowed, "Expected %s.", allow)
}
