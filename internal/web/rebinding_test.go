package web

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/go-kit/log"
)

// A page that points its own name at the loopback address reads no state of the node.
func TestLoopbackServesStateForItsOwnNamesOnly(t *testing.T) {
	h := testHandler(Options{State: true, Hosts: []string{"gpu-node"}, Recommendations: reportOf}, publish(nodeFixture()),
		newRegistry(t), freshRegistry())
	s := start(t, ServerOptions{}, h, log.NewNopLogger())
	defer func() {
		if err := s.end(); err != nil {
			t.Error(err)
		}
	}()
	address := s.addrs[0].String()

	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}

	ask := func(path, host string) (int, string) {
		t.Helper()

		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}

		r.Host = host

		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()

		return response.StatusCode, response.Header.Get("Content-Type")
	}
	for _, path := range []string{"/", "/api/v1/node", "/api/v1/health", "/api/v1/recommendations"} {
		for host, want := range map[string]int{
			address: 200, "localhost": 200, "LOCALHOST:" + port: 200, "localhost.": 200, "127.0.0.2": 200, "[::1]": 200,
			"[::1]:" + port: 200,
			"10.0.0.7:80":   200, "gpu-node:" + port: 200,
			"rebound.example:" + port: 421, "rebound.example": 421, "localhost.rebound.example": 421,
			"127.0.0.1.rebound.example": 421,
			"gpu-node.rebound.example":  421,
		} {
			status, media := ask(path, host)
			if status != want || want == 421 && media != "application/problem+json" {
				t.Errorf("%s for %s: %d %s, want %d, which is a problem if 421", path, host, status, media, want)
			}
		}
	}

	for _, path := range []string{"/metrics", "/-/ready", "/-/healthy"} {
		if status, _ := ask(path, "rebound.example"); status != 200 {
			t.Errorf("%s: %d for another host", path, status)
		}
	}
}

// Other addresses are served by whatever name the network has for them.
func TestOtherAddressesHaveAnyName(t *testing.T) {
	h := testHandler(Options{State: true}, publish(nodeFixture()), newRegistry(t), freshRegistry())
	if w := get(h, "http://gpu7.example.com/api/v1/node"); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Without the state, the page has nothing of the node.
func TestPageWithoutStateHasAnyName(t *testing.T) {
	s := start(t, ServerOptions{}, testHandler(Options{}, publish(nodeFixture()), newRegistry(t), freshRegistry()),
		log.NewNopLogger())

	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.addrs[0].String(), nil)
	if err != nil {
		t.Fatal(err)
	}

	r.Host = "any.example"

	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}

	var page strings.Builder
	if err := response.Write(&page); err != nil || response.StatusCode != 200 {
		t.Errorf("got %d, %v, want 200", response.StatusCode, err)
	}

	if strings.Contains(page.String(), "resnet-0") {
		t.Errorf("the page names a pod: %s", &page)
	}

	_ = response.Body.Close()

	if err := s.end(); err != nil {
		t.Error(err)
	}
}
