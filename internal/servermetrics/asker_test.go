package servermetrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// fakePods gives each pod an address.
type fakePods struct {
	address string
	node    []netip.Addr
	err     error
}

func (f fakePods) PodAddress(context.Context, string, string, string) (netip.Addr, []netip.Addr, error) {
	if f.err != nil {
		return netip.Addr{}, nil, f.err
	}

	return netip.MustParseAddr(f.address), f.node, nil
}

// dialTo connects to a test server in the place of pods, and counts the connections.
func dialTo(server *httptest.Server, dialed *atomic.Int32) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		if dialed != nil {
			dialed.Add(1)
		}

		var d net.Dialer

		return d.DialContext(ctx, network, server.Listener.Addr().String())
	}
}

// readLength takes the length of a body for the requests that run.
func readLength(body []byte) (gpu.ServerFigures, error) {
	return gpu.ServerFigures{Kind: gpu.ServerVLLM, Running: gpu.Some(float64(len(body)))}, nil
}

// snapshotOf has a GPU for each of some pods, with a server at :8000/metrics.
func snapshotOf(pods ...string) *gpu.Snapshot {
	s := &gpu.Snapshot{}
	for _, name := range pods {
		s.GPUs = append(s.GPUs, gpu.GPU{Device: gpu.Device{Holders: []gpu.Holder{{Container: gpu.Container{Namespace: "chat", Pod: name},
			PodUID: "uid-" + name, Rightsizing: gpu.RightsizingHints{Server: gpu.ServerEndpoint{Port: 8000, Path: "/metrics"}}}}}})
	}

	return s
}

// askerOf returns an Asker of one pod, whose server is a handler, and what it logs.
func askerOf(t *testing.T, handler http.HandlerFunc) (*Asker, *bytes.Buffer) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	var lines bytes.Buffer
	a := New(Options{Pods: fakePods{address: "10.1.2.3"}, Read: readLength, Now: time.Now, Dial: dialTo(server, nil),
		Logger: log.NewLogfmtLogger(log.NewSyncWriter(&lines))})
	a.Observe(snapshotOf("chat-0"))

	return a, &lines
}

// TestAsks: a server is asked for its path, without credentials, and its answer is the pod's.
func TestAsks(t *testing.T) {
	var got *http.Request
	a, _ := askerOf(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		_, _ = w.Write([]byte("four"))
	})
	a.AskAll(t.Context())

	answers := a.Answers()
	if len(answers) != 1 {
		t.Fatalf("%d answers; expected 1", len(answers))
	}

	cmptest.Equal(t, "UID", answers[0].PodUID, "uid-chat-0")
	cmptest.Equal(t, "figures", answers[0].Running, gpu.Some(4.))
	cmptest.Equal(t, "request", got.Method+" http://"+got.Host+got.RequestURI, "GET http://10.1.2.3:8000/metrics")

	for _, secret := range []string{"Authorization", "Cookie", "Proxy-Authorization", "Accept-Encoding"} {
		if v := got.Header.Get(secret); v != "" {
			t.Errorf("the header %s is %q", secret, v)
		}
	}
}

// hostileServer is a server and what the log says of it.
type hostileServer struct {
	handler http.HandlerFunc
	says    string
}

// hostileServers are those that answer with too much, too slowly, or something else. None may lead
// to a URL.
func hostileServers(elsewhere string) map[string]hostileServer {
	return map[string]hostileServer{
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere, http.StatusFound)
		}, "status 302"},
		"error": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "status 500"},
		"endless body": {func(w http.ResponseWriter, _ *http.Request) {
			for err := error(nil); err == nil; {
				_, err = w.Write(make([]byte, 64<<10))
			}
		}, "more than 1048576 bytes"},
		"slow drip": {func(w http.ResponseWriter, r *http.Request) {
			drops := time.NewTicker(20 * time.Millisecond)
			defer drops.Stop()

			for r.Context().Err() == nil {
				_, _ = w.Write([]byte("x"))
				_ = http.NewResponseController(w).Flush()
				<-drops.C
			}
		}, "did not answer within 1s"},
		"never answers": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "did not answer within 1s"},
		"gzip bomb": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte("\x1f\x8b"))
		}, "is encoded"},
		"huge header": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
			w.WriteHeader(http.StatusOK)
		}, "server response headers exceeded"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("x"))
		}, "unexpected EOF"},
		"no HTTP": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := http.NewResponseController(w).Hijack()
			_, _ = conn.Write([]byte("\x00\xff\xfe nothing\r\n"))
			_ = conn.Close()
		}, "malformed HTTP"},
	}
}

// TestHostileServers: no server gets more than its second and its megabyte, and none is followed
// anywhere.
func TestHostileServers(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a redirect was followed")
	}))
	t.Cleanup(elsewhere.Close)

	for about, c := range hostileServers(elsewhere.URL) {
		t.Run(about, func(t *testing.T) {
			t.Parallel()
			a, lines := askerOf(t, c.handler)
			began := time.Now()
			a.AskAll(t.Context())

			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %s; expected 1 s", took)
			}

			cmptest.Equal(t, "answers", len(a.Answers()), 0)
			cmptest.HasTexts(t, lines.String(), c.says, "pod=chat/chat-0")
		})
	}
}

// TestAddressesThatAreNotAsked: a pod whose address is not its own is not asked, whatever the API
// server says.
func TestAddressesThatAreNotAsked(t *testing.T) {
	node := []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("was asked") }))
	defer server.Close()

	own, err := ownAddresses()
	if err != nil || len(own) == 0 {
		t.Fatalf("own addresses %v, %v", own, err)
	}

	list := []string{
		"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "169.254.169.254", "::ffff:169.254.169.254",
		"fe80::1", "fe80::1%eth0", "0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "ff02::1",
		"ff01::1", "255.255.255.255", "192.0.2.7", "::ffff:192.0.2.7", "2001:db8::7", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
		"::127.0.0.1", "64:ff9b::192.0.2.7", "::192.0.2.7", "64:ff9b::", "64:ff9b::224.0.0.1", "::255.255.255.255",
	}
	for _, a := range own {
		list = append(list, a.String())
	}

	for _, address := range list {
		var dialed atomic.Int32
		a := New(Options{Pods: fakePods{address: address, node: node}, Read: readLength, Now: time.Now,
			Dial: dialTo(server, &dialed), Logger: log.NewNopLogger()})
		a.Observe(snapshotOf("chat-0"))
		a.AskAll(t.Context())

		if n := dialed.Load(); n != 0 || len(a.Answers()) != 0 {
			t.Errorf("%s: connected %d times, %d answers", address, n, len(a.Answers()))
		}
	}

	for _, address := range []string{"10.1.2.3", "100.64.0.9", "2001:db8::8", "fd00::8", "::ffff:10.1.2.3"} {
		if err := checkAddress(netip.MustParseAddr(address), node); err != nil {
			t.Errorf("%s: %v; expected that it is asked", address, err)
		}
	}
}

// TestDialedAddressIsChecked: the check does not depend on what was found before.
func TestDialedAddressIsChecked(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("was asked") }))
	defer server.Close()

	port := server.Listener.Addr().(*net.TCPAddr).Port
	for _, host := range []string{"127.0.0.1", "::ffff:127.0.0.1"} {
		target := netip.AddrPortFrom(netip.MustParseAddr(host), uint16(port))

		_, err := newClient(nil).get(t.Context(), target, "/metrics")
		if err == nil || !strings.Contains(err.Error(), "a loopback address") {
			t.Errorf("%s: error %v", host, err)
		}
	}
}

// TestPodsThatAreNotFound: a pod in the host's network, of another UID, or while the API server is
// down is not asked.
func TestPodsThatAreNotFound(t *testing.T) {
	for _, err := range []error{gpu.ErrInvalidArgument, gpu.ErrNotFound, gpu.ErrUnavailable} {
		var lines bytes.Buffer
		a := New(Options{Pods: fakePods{err: fmt.Errorf("pod: %w", err)}, Read: readLength, Now: time.Now,
			Dial:   func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("was dialed") },
			Logger: log.NewLogfmtLogger(&lines)})
		a.Observe(snapshotOf("chat-0"))
		a.AskAll(t.Context())
		a.AskAll(t.Context())
		cmptest.Equal(t, "answers", len(a.Answers()), 0)
		cmptest.Equal(t, "lines", strings.Count(lines.String(), "cannot read"), 1)
		cmptest.LacksTexts(t, lines.String(), "was dialed")
	}
}

// TestTwoAtOnce: many servers that hang are asked two at a time, and neither Observe nor Answers
// waits for them.
func TestTwoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, asked int
		var mu sync.Mutex
		release := make(chan struct{})
		hang := func(context.Context, string, string) (net.Conn, error) {
			mu.Lock()
			asked++
			now++
			most = max(most, now)
			mu.Unlock()
			<-release
			mu.Lock()
			now--
			mu.Unlock()

			return nil, errors.New("is down")
		}

		a := New(Options{Pods: fakePods{address: "10.1.2.3"}, Read: readLength, Now: time.Now, Dial: hang,
			Logger: log.NewNopLogger()})
		a.Observe(snapshotOf("a", "b", "c", "d"))
		var asking sync.WaitGroup
		asking.Go(func() { a.AskAll(t.Context()) })
		synctest.Wait() // all that can be asked hang now
		cmptest.Equal(t, "asked while they hang", now, 2)
		a.Observe(snapshotOf("a", "b"))
		cmptest.Equal(t, "answers while they hang", len(a.Answers()), 0)

		close(release)
		asking.Wait()
		cmptest.Equal(t, "asked in all", asked, 4)
		cmptest.Equal(t, "most at once", most, 2)
	})
}

// TestLogOfAFlappingServer: one that answers every other time has two lines an hour; one that fails
// for good, one.
func TestLogOfAFlappingServer(t *testing.T) {
	status := http.StatusOK
	a, lines := askerOf(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	now := time.Unix(1e9, 0)
	a.opts.Now = func() time.Time { return now }

	for _, c := range []struct {
		statuses       []int // are answered in turn
		warned, better int   // lines so far
	}{
		{[]int{500, 200, 500, 200, 500, 200}, 1, 1},
		{[]int{500}, 2, 1}, // an hour later
		{[]int{500}, 2, 1},
		{[]int{200}, 2, 2},
	} {
		for _, status = range c.statuses {
			a.AskAll(t.Context())
			now = now.Add(Interval)
		}

		cmptest.Equal(t, "warnings", strings.Count(lines.String(), "cannot read"), c.warned)
		cmptest.Equal(t, "recoveries", strings.Count(lines.String(), "can be read again"), c.better)
		now = now.Add(warnEvery)
	}
}

// TestOldAnswersEnd: what a server said counts for a while, and not after its pod has gone.
func TestOldAnswersEnd(t *testing.T) {
	up := true
	a, _ := askerOf(t, func(w http.ResponseWriter, _ *http.Request) {
		if !up {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	now := time.Unix(1e9, 0)
	a.opts.Now = func() time.Time { return now }
	a.AskAll(t.Context())
	up = false

	for _, c := range []struct {
		passed time.Duration
		want   int
	}{{0, 1}, {answerValidFor, 1}, {answerValidFor + time.Second, 0}} {
		now = time.Unix(1e9, 0).Add(c.passed)
		a.AskAll(t.Context())
		cmptest.Equal(t, c.passed.String(), len(a.Answers()), c.want)
	}

	now = time.Unix(1e9, 0)
	a.Observe(&gpu.Snapshot{})
	a.AskAll(t.Context())
	cmptest.Equal(t, "of a pod that has gone", len(a.Answers()), 0)
}

// TestRunEnds: it asks, and stops with its context.
func TestRunEnds(t *testing.T) {
	asked := make(chan struct{}, 1)
	a, _ := askerOf(t, func(http.ResponseWriter, *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
	})
	a.opts.Interval = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	<-asked
	cancel()

	if err := <-done; err != nil {
		t.Errorf("error %v", err)
	}
}

// TestNoProxyIsAsked: a proxy of the exporter's environment does not get to know what the pods'
// servers are asked, or answer for them.
func TestNoProxyIsAsked(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://192.0.2.9:3128")
	t.Setenv("http_proxy", "http://192.0.2.9:3128")

	var dialed []string

	c := newClient(func(_ context.Context, _, address string) (net.Conn, error) {
		dialed = append(dialed, address)
		return nil, errors.New("refused")
	})
	if _, err := c.get(t.Context(), netip.MustParseAddrPort("10.0.0.5:8000"), "/metrics"); err == nil {
		t.Error("no error")
	}

	if !slices.Equal(dialed, []string{"10.0.0.5:8000"}) {
		t.Errorf("dialed %q, want the server alone", dialed)
	}
}
