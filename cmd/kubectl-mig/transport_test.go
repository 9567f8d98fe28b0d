package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// newTestTransport returns a transport to a server, with tokens that are numbered.
func newTestTransport(t *testing.T, server *httptest.Server, address string) *transport {
	t.Helper()

	requested := 0
	tr := newTransport(
		&settings{serverName: serverName},
		func(context.Context) (*corev1.Pod, error) { return &corev1.Pod{}, nil },
		func(ctx context.Context, _ *corev1.Pod) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
		&tokenSource{
			now: time.Now,
			request: func(context.Context) (token, error) {
				requested++
				return token{fmt.Sprintf("token-%d", requested), tokenLifetime}, nil
			},
		},
	)

	if server != nil {
		tr.tls = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone() //nolint:forcetypeassert // it is one
		tr.tls.ServerName = "example.com"
		tr.tls.MinVersion = tls.VersionTLS13
	}

	t.Cleanup(tr.close)

	return tr
}

// TestTokenThatHasEnded: a token that the exporter does not accept any more is renewed, once, and
// the request is made again with its body.
func TestTokenThatHasEnded(t *testing.T) {
	var seen []string

	valid := "Bearer token-1"
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = append(seen, r.Header.Get("Authorization")+" "+string(body))

		if r.Header.Get("Authorization") != valid {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(server.Close)

	client := &http.Client{Transport: newTestTransport(t, server, server.Listener.Addr().String())}

	for _, step := range []struct {
		valid string
		want  int
		seen  []string
	}{
		{"Bearer token-1", 200, []string{"Bearer token-1 body"}},
		{"Bearer token-2", 200, []string{"Bearer token-1 body", "Bearer token-2 body"}},
		{"Bearer none", 401, []string{"Bearer token-2 body", "Bearer token-3 body"}},
	} {
		seen = nil
		valid = step.valid

		response, err := client.Post("https://control/", "text/plain", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}

		response.Body.Close()
		cmptest.Equal(t, "status with "+step.valid, response.StatusCode, step.want)
		cmptest.Equal(t, "requests", seen, step.seen)
	}
}

// TestTokenIsRenewed: another token is asked for when a fifth of the lifetime is left, and not before;
// the lifetime counts from the request, since the answer may take long.
func TestTokenIsRenewed(t *testing.T) {
	now := time.Now()
	requested := 0
	tokens := &tokenSource{
		now: func() time.Time { return now },
		request: func(context.Context) (token, error) {
			requested++
			now = now.Add(time.Minute)

			return token{fmt.Sprintf("token-%d", requested), tokenLifetime}, nil
		},
	}

	for _, step := range []struct {
		after time.Duration
		want  string
		fresh bool
	}{
		{0, "token-1", true},
		{7*time.Minute - time.Second, "token-1", false},
		{time.Second, "token-2", true},
		{0, "token-2", false},
		{time.Hour, "token-3", true},
	} {
		now = now.Add(step.after)

		value, fresh, err := tokens.get(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, "token", value, step.want)
		cmptest.Equal(t, step.want+" is new", fresh, step.fresh)
	}
}

// TestExporterThatHangs: one that accepts connections and answers nothing does not hold up a command
// about all nodes.
func TestExporterThatHangs(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // nothing accepts; the kernel does
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()

	tr := newTestTransport(t, nil, listener.Addr().String())
	tr.timeout = 10 * time.Millisecond

	if err := tr.verifyServer(t.Context()); !errors.Is(err, errNoConnection) {
		t.Errorf("got %v", err)
	}
}
