package web

import (
	"net/http"
	"strconv"
	"testing"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestMethodsAndPaths(t *testing.T) {
	extra := map[string]http.Handler{"POST /-/sim/advance": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writePlain(w, http.StatusOK, "by "+r.URL.Query().Get("by"))
	})}
	full := testHandler(Options{State: true, Pprof: true, Extra: extra}, publish(nodeFixture()), newRegistry(t),
		freshRegistry())

	bare := testHandler(Options{}, publish(nodeFixture()), newRegistry(t), freshRegistry())
	for _, test := range []struct {
		h            http.Handler
		method, path string
		code         int
	}{
		{full, "GET", "/", 200},
		{full, "HEAD", "/", 200},
		{full, "GET", "/metrics", 200},
		{full, "HEAD", "/metrics", 200},
		{full, "GET", "/-/healthy", 200},
		{full, "GET", "/-/ready", 200},
		{full, "GET", "/api/v1/node", 200},
		{full, "GET", "/debug/pprof/", 200},
		{full, "GET", "/debug/pprof/goroutine?debug=1", 200},
		{full, "GET", "/debug/pprof/cmdline", 200},
		{full, "POST", "/-/sim/advance?by=1s", 200},
		{full, "GET", "/-/sim/advance?by=1s", 405},
		{full, "POST", "/metrics", 405},
		{full, "DELETE", "/api/v1/node", 405},
		{full, "PUT", "/", 405},
		{full, "GET", "/metrics/", 404},
		{full, "GET", "/favicon.ico", 404},
		{full, "GET", "/api/v1/nodes", 404},
		{bare, "GET", "/metrics", 200},
		{bare, "GET", "/api/v1/node", 404},
		{bare, "GET", "/debug/pprof/", 404},
		{bare, "POST", "/-/sim/advance", 404},
	} {
		w := ask(test.h, test.method, test.path)
		if w.Code != test.code {
			t.Errorf("%s %s: got %d, want %d", test.method, test.path, w.Code, test.code)
		}

		if w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: no X-Content-Type-Options", test.method, test.path)
		}

		if test.code == 405 && test.path != "/-/sim/advance?by=1s" && w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow is %q, want GET, HEAD", test.method, test.path, w.Header().Get("Allow"))
		}
	}
}
