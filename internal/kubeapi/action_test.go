package kubeapi

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestAction(t *testing.T) {
	for _, tc := range []struct{ method, path, want string }{
		{http.MethodGet, "/api/v1/pods", "list pods"},
		{http.MethodGet, "/api/v1/namespaces/ml/pods", "list pods"},
		{http.MethodGet, "/api/v1/namespaces/ml/pods/train", "get pods"},
		{http.MethodGet, "/api/v1/namespaces/ml/pods/train/log", "get pods/log"},
		{http.MethodGet, "/api/v1/namespaces", "list namespaces"},
		{http.MethodGet, "/api/v1/namespaces/ml", "get namespaces"},
		{http.MethodGet, "/api/v1/nodes/node-1", "get nodes"},
		{http.MethodPatch, "/api/v1/nodes/node-1", "patch nodes"},
		{http.MethodPut, "/api/v1/nodes/node-1/status", "update nodes/status"},
		{http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", "create tokenreviews.authentication.k8s.io"},
		{http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews",
			"create subjectaccessreviews.authorization.k8s.io"},
		{http.MethodGet, "/apis/resource.k8s.io/v1beta1/resourceslices", "list resourceslices.resource.k8s.io"},
		{http.MethodGet, "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims/claim-0",
			"get resourceclaims.resource.k8s.io"},
		{http.MethodDelete, "/apis/apps/v1/namespaces/ml/deployments/d", "delete deployments.apps"},
		{http.MethodGet, "/apis", "get /apis"},
		{http.MethodGet, "/api/v1", "get /api/v1"},
		{http.MethodGet, "/apis/apps/v1", "get /apis/apps/v1"},
		{http.MethodGet, "/version", "get /version"},
	} {
		if got := (Request{Method: tc.method, Path: tc.path}).requiredRight(); got != tc.want {
			t.Errorf("%s %s: got %q, want %q", tc.method, tc.path, got, tc.want)
		}
	}
}

// The error names the missing right, and a refusal is not reported as a missing response.
func TestErrorsNameTheRight(t *testing.T) {
	list := Request{Method: http.MethodGet, Path: "/api/v1/pods"}

	for _, tc := range []struct {
		code          int
		body          string
		want          string
		refusal       string
		served, found bool
	}{
		{code: 403, body: `{"message": "secret"}`,
			want: "list pods: the API server refuses it (403 Forbidden): the service account needs the right to list pods: no " +
				"permission",
			refusal: "the service account needs the right to list pods", served: true, found: true},
		{code: 401, want: "list pods: the API server does not accept the credentials of the service account (401 " +
			"Unauthorized): no permission",
			refusal: "the API server does not accept the credentials of the service account", served: true, found: true},
		{code: 503, want: "list pods: the API server says 503 Service Unavailable: unavailable", served: true, found: true},
		{code: 404, body: "404 page not found\n",
			want: "list pods: the API server says 404 Not Found: the API server does not serve it: not found: unavailable"},
		{code: 404, body: `{"kind": "Status", "details": {}}`,
			want: "list pods: the API server says 404 Not Found: the API server does not serve it: not found: unavailable"},
		{code: 404, body: `{"kind": "Status", "details": {"name": "x", "kind": "pods"}}`,
			want: "list pods: the API server says 404 Not Found: not found: unavailable", served: true},
	} {
		c, _ := testClient(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tc.code)
			_, _ = io.WriteString(w, tc.body)
		})

		err := c.Do(t.Context(), list, nil)
		if err == nil || err.Error() != tc.want {
			t.Errorf("%d: got  %v\nwant %s", tc.code, err, tc.want)
		}

		var refused *RefusedError
		if got := errors.As(err, &refused); got != (tc.refusal != "") || got && refused.Refusal() != tc.refusal {
			t.Errorf("%d: refused %v: %+v, want %q", tc.code, got, refused, tc.refusal)
		}

		if refused := errors.Is(err, gpu.ErrNoPermission); refused == errors.Is(err, gpu.ErrUnavailable) {
			t.Errorf("%d: %v is both a refusal and no answer, or neither", tc.code, err)
		}

		if errors.Is(err, ErrNotServed) == tc.served || errors.Is(err, gpu.ErrNotFound) == tc.found {
			t.Errorf("%d %q: %v", tc.code, tc.body, err)
		}
	}
}

func TestUserAgent(t *testing.T) {
	for configured, want := range map[string]string{"": "mig-exporter", "mig-exporter/1.2.3": "mig-exporter/1.2.3"} {
		var got string

		c, _ := testClient(t, func(w http.ResponseWriter, r *http.Request) {
			got = r.UserAgent()
			_, _ = io.WriteString(w, `{"items": []}`)
		}, func(o *Options) { o.UserAgent = configured })
		if err := c.Do(t.Context(), get, nil); err != nil || got != want {
			t.Errorf("User-Agent %q, %v, want %q", got, err, want)
		}

		got = ""
		if err := List(t.Context(), c, get, func(*struct{}) {}); err != nil || got != want {
			t.Errorf("User-Agent of a list %q, %v, want %q", got, err, want)
		}
	}
}

// item is what TestList reads of an item.
type item struct {
	Name string `json:"name"`
}

func names(body string) (string, error) {
	var got []string
	err := decodeList(strings.NewReader(body), func(i *item) { got = append(got, i.Name) })

	return strings.Join(got, " "), err
}

func TestList(t *testing.T) {
	for _, tc := range []struct{ body, want string }{
		{`{"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [{"name": "a"}, {"other": {"name": "x"}}, {"name": "b", "managedFields": [[{}]]}]}`, "a  b"},
		{`{"items": [{"name": "a"}], "metadata": {"continue": ""}, "apiVersion": "v1"}`, "a"},
		{`{"items": []}`, ""},
		{`{"items": null}`, ""},
	} {
		if got, err := names(tc.body); err != nil || got != tc.want {
			t.Errorf("%s: got %q, %v, want %q", tc.body, got, err, tc.want)
		}
	}

	whole := `{"kind": "PodList", "metadata": {}, "items": [{"name": "a"}, {"name": "b"}]}`
	for end := range len(whole) {
		if got, err := names(whole[:end]); err == nil {
			t.Errorf("cut short after %q: %q and no error", whole[:end], got)
		}
	}

	for _, body := range []string{
		"", "null", "[]", "5", "{}", `{"kind": "Status"}`, `{"items": {}}`, `{"items": "secret"}`, `{"items": 5}`,
		`{"items": [5]}`, `{"items": [{"name": 5}]}`, `{"items": [[]]}`, `{"items": [{}]]}`,
		`{"metadata": {"continue": "more"}, "items": [{"name": "a"}]}`, `{"metadata": 5, "items": []}`,
		`{"a":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `, "items": []}`,
	} {
		if got, err := names(body); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%.60s: got %q, %v", body, got, err)
		}
	}
}

func FuzzList(f *testing.F) {
	f.Add(`{"kind": "PodList", "metadata": {"continue": "x"}, "items": [{"name": "a"}, {"name": null}]}`)
	f.Add(`{"items": null, "items": [{}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		got, err := names(body)

		again, errAgain := names(body)
		if got != again || (err == nil) != (errAgain == nil) {
			t.Errorf("got %q, %v and then %q, %v", got, err, again, errAgain)
		}
	})
}
