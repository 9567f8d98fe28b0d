package kubeapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	stdlog "log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// get is a request that any server answers.
var get = Request{Method: http.MethodGet, Path: "/api"}

func credentials(t *testing.T, server *httptest.Server) string {
	t.Helper()
	dir := t.TempDir()

	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string]string{"ca.crt": string(ca), "token": "first\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	return dir
}

func testClient(t *testing.T, handler http.HandlerFunc, change ...func(*Options)) (*Client, string) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := credentials(t, server)

	opts := Options{Server: server.URL, CredentialsDir: dir}
	for _, f := range change {
		f(&opts)
	}

	c, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(c.Close)

	return c, dir
}

func TestDoSendsAndReads(t *testing.T) {
	type message struct {
		Text string `json:"text"`
	}

	c, dir := testClient(t, func(w http.ResponseWriter, r *http.Request) {
		var in message
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}

		cmptest.Equal(t, "method", r.Method, http.MethodPatch)
		cmptest.Equal(t, "URL", r.URL.String(), "/api/v1/nodes/n?dryRun=All")
		cmptest.Equal(t, "text of the body", in.Text, "hello")

		if got := r.Header.Get("Content-Type"); got != "application/merge-patch+json" {
			t.Errorf("Content-Type: %s", got)
		}

		if got := r.Header.Get("Accept"); got != "application/x,application/json" {
			t.Errorf("Accept: %s", got)
		}

		_ = json.NewEncoder(w).Encode(message{r.Header.Get("Authorization")})
	})
	for _, token := range []string{"first", "second"} {
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}

		var out message

		err := c.Do(t.Context(), Request{
			Method: http.MethodPatch, Path: "/api/v1/nodes/n", Query: url.Values{"dryRun": {"All"}},
			Accept: "application/x", ContentType: "application/merge-patch+json", Body: message{"hello"},
		}, &out)
		if err != nil || out.Text != "Bearer "+token {
			t.Errorf("got %+v, %v, want the token %s", out, err, token)
		}
	}
}

func TestDoErrors(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		want    []error
		not     error
	}{
		{"unauthorized", status(http.StatusUnauthorized), []error{gpu.ErrNoPermission}, gpu.ErrUnavailable},
		{"forbidden", status(http.StatusForbidden), []error{gpu.ErrNoPermission}, gpu.ErrUnavailable},
		{"not found", status(http.StatusNotFound), []error{gpu.ErrNotFound, gpu.ErrUnavailable}, ErrConflict},
		{"conflict", status(http.StatusConflict), []error{ErrConflict, gpu.ErrUnavailable}, gpu.ErrNotFound},
		{"down", status(http.StatusServiceUnavailable), []error{gpu.ErrUnavailable}, gpu.ErrNoPermission},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
			[]error{gpu.ErrUnavailable}, gpu.ErrNotFound},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
			[]error{gpu.ErrUnavailable}, gpu.ErrNoPermission},
		{"too large", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"a": "`+strings.Repeat("x", 2000)+`"}`)
		}, []error{gpu.ErrUnavailable}, gpu.ErrNoPermission},
	} {
		c, _ := testClient(t, tc.handler)
		var out map[string]any

		err := c.Do(t.Context(), Request{Method: http.MethodGet, Path: "/api", Limit: 1000}, &out)
		for _, want := range tc.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", tc.name, err, want)
			}
		}

		if errors.Is(err, tc.not) {
			t.Errorf("%s: got %v, which is %v too", tc.name, err, tc.not)
		}
	}
}

// hanging answers when the request is given up.
type hanging struct{}

func (hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestDoTakesNoLongerThanItsContext(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("t"), 0o600); err != nil {
		t.Fatal(err)
	}

	c, err := New(Options{Server: "https://api", CredentialsDir: dir, Transport: hanging{}})
	if err != nil {
		t.Fatal(err)
	}

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		if err := c.Do(ctx, get, nil); !errors.Is(err, gpu.ErrTimeout) || !errors.Is(err, gpu.ErrUnavailable) {
			t.Errorf("got %v, want %v", err, gpu.ErrTimeout)
		}
	})
}

func TestDoNeedsTheToken(t *testing.T) {
	c, dir := testClient(t, func(http.ResponseWriter, *http.Request) { t.Error("asked without a token") })
	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}

	if err := c.Do(t.Context(), get, nil); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, gpu.ErrUnavailable)
	}

	for _, text := range []string{"", "\n", "two\nlines"} {
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		err := c.Do(t.Context(), get, nil)
		if !errors.Is(err, gpu.ErrUnavailable) || !strings.Contains(err.Error(), filepath.Join(dir, "token")) {
			t.Errorf("%q: got %v, want %v and the file's name", text, err, gpu.ErrUnavailable)
		}
	}
}

func TestInClusterServer(t *testing.T) {
	env := func(host, port string) func(string) string {
		return func(name string) string {
			return map[string]string{"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}[name]
		}
	}
	if got, err := InClusterServer(env("fd00::1", "443")); err != nil || got != "https://[fd00::1]:443" {
		t.Errorf("got %q, %v", got, err)
	}

	if _, err := InClusterServer(env("", "")); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("outside a cluster: %v", err)
	}
}

func TestPodUID(t *testing.T) {
	c, dir := testClient(t, func(http.ResponseWriter, *http.Request) {})

	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for token, want := range map[string]string{
		"e30." + part(
			`{"kubernetes.io": {"namespace": "gpu", "node": {"name": "n"}, "pod": {"name": "p", "uid": "4d2f"}}}`) +
			".c2ln\n": "4d2f",
		"e30." + part(`{"sub": "system:serviceaccount:gpu:exporter"}`) +
			".c2ln": "",
		"e30." + part(`{"kubernetes.io": 5}`) +
			".c2ln": "",
		"e30.!.c2ln": "",
		"opaque":     "",
		"":           "",
	} {
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}

		if got := c.PodUID(); got != want {
			t.Errorf("token %q: got %q, want %q", token, got, want)
		}
	}

	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}

	if got := c.PodUID(); got != "" {
		t.Errorf("without a token: %q", got)
	}
}
