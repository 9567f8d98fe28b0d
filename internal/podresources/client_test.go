package podresources

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

// serveRaw answers every call with the same bytes, on a socket of that name.
func serveRaw(t *testing.T, name string, answer []byte) string {
	t.Helper()
	return serveReplies(t, name, func() []byte { return answer })
}

// serveReplies answers every call with what answer returns, on a socket of that name.
func serveReplies(t *testing.T, name string, answer func() []byte) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), name)

	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}

	server := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			return stream.SendMsg(answer())
		}))
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()

		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	return socket
}

func TestClientReadsInvalidUTF8(t *testing.T) {
	c := New(Options{Socket: serveRaw(t, "kubelet.sock", encodeBadUTF8(t)), Now: time.Now, Logger: log.NewNopLogger()})
	defer c.Close()

	got, err := c.List(t.Context())
	if err != nil {
		t.Error(err)
	}

	cmptest.Equal(t, "number of assignments", len(got.List), 1)
	cmptest.Equal(t, "number of unreadable ids", len(got.Unreadable), 1)
}

func TestClientBacksOff(t *testing.T) {
	now := time.Unix(1000, 0)
	c := New(Options{Socket: serveRaw(t, "kubelet.sock", []byte("\xff")), Now: func() time.Time { return now },
		Logger: log.NewNopLogger()})
	defer c.Close()

	_, first := c.List(t.Context())
	if !errors.Is(first, gpu.ErrUnavailable) {
		t.Fatalf("an answer that cannot be read gives %v", first)
	}

	if _, err := c.List(t.Context()); !errors.Is(err, first) {
		t.Errorf("at once again: %v, want the same error", err)
	}

	now = now.Add(firstDelay * 2)

	if _, err := c.List(t.Context()); errors.Is(err, first) || !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("after the backoff: %v, want another attempt", err)
	}

	if c.backoff.retry.Wait != 2*firstDelay {
		t.Errorf("the second delay is %v", c.backoff.retry.Wait)
	}
}

func TestClientRefusesRepliesOver16MiB(t *testing.T) {
	c := New(Options{Socket: serveRaw(t, "kubelet.sock", make([]byte, maxReply+1)), Now: time.Now,
		Logger: log.NewNopLogger()})
	defer c.Close()

	if _, err := c.List(t.Context()); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, gpu.ErrUnavailable)
	}
}

func TestClientReachesAnyPath(t *testing.T) {
	c := New(Options{Socket: serveRaw(t, "kubelet 50%41?#.sock", nil), Now: time.Now, Logger: log.NewNopLogger()})
	defer c.Close()

	if got, err := c.List(t.Context()); err != nil || len(got.List) != 0 {
		t.Errorf("got %+v, %v, want nothing", got, err)
	}
}

// TestNoKubelet: a node has none if none is expected, nothing shows that there is one, and none has
// answered.
func TestNoKubelet(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		name     string
		traces   []string
		expected bool
		want     bool
	}{
		{"nothing", []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}, false, false},
		{"a folder", []string{filepath.Join(dir, "a"), dir}, false, true},
		{"expected", nil, true, true},
	} {
		c := New(Options{
			Socket: filepath.Join(dir, "x", "kubelet.sock"), KubeletPaths: tt.traces, Expected: tt.expected, Witness: "ns/w",
			Now: time.Now, Logger: log.NewNopLogger(),
		})
		got, err := c.List(t.Context())
		cmptest.Equal(t, tt.name+": no socket", errors.Is(err, gpu.ErrNotFound), true)
		cmptest.Equal(t, tt.name+": has a kubelet", !errors.Is(err, gpu.ErrNoKubelet), tt.want)
		cmptest.Equal(t, tt.name+": incomplete", got.Incomplete != "", tt.want)

		if _, err := c.Allocatable(t.Context()); errors.Is(err, gpu.ErrNoKubelet) == tt.want {
			t.Errorf("%s: allocatable: %v", tt.name, err)
		}

		c.Close()
	}
}

// TestContainerWithoutKubelet: a container that sees no kubelet proves nothing. The holders stay
// unknown, and the reason names the flag that settles it. What shows that there is a kubelet makes
// it one that does not answer.
func TestContainerWithoutKubelet(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		name     string
		traces   []string
		expected bool
		want     error
	}{
		{"nothing", []string{filepath.Join(dir, "a")}, false, gpu.ErrNotConfigured},
		{"a folder", []string{dir}, false, gpu.ErrUnavailable},
		{"expected", nil, true, gpu.ErrUnavailable},
	} {
		c := New(Options{
			Socket: filepath.Join(dir, "x", "kubelet.sock"), KubeletPaths: tt.traces, Expected: tt.expected, Contained: true,
			Now: time.Now, Logger: log.NewNopLogger(),
		})

		got, err := c.List(t.Context())
		if !errors.Is(err, tt.want) || errors.Is(err, gpu.ErrNoKubelet) || got.Incomplete == "" {
			t.Errorf("%s: %v, incomplete %q, want %v and a reason", tt.name, err, got.Incomplete, tt.want)
		}

		if tt.want == gpu.ErrNotConfigured && !strings.Contains(got.Incomplete, "--kubernetes.socket= ") {
			t.Errorf("%s: the reason names no flag: %s", tt.name, got.Incomplete)
		}

		if _, err := c.Allocatable(t.Context()); !errors.Is(err, tt.want) || errors.Is(err, gpu.ErrNoKubelet) {
			t.Errorf("%s: allocatable: %v, want %v", tt.name, err, tt.want)
		}

		c.Close()
	}
}

// TestAKubeletThatHasAnswered is a kubelet, whatever becomes of its folders.
func TestAKubeletThatHasAnswered(t *testing.T) {
	socket := serveRaw(t, "kubelet.sock", nil)
	answers := 0
	c := New(Options{Socket: socket, Answered: func() { answers++ }, Now: time.Now, Logger: log.NewNopLogger()})
	defer c.Close()

	for range 2 {
		if _, err := c.List(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	if answers != 1 {
		t.Errorf("said %d times that a kubelet has answered", answers)
	}

	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}

	got, err := c.List(t.Context())
	if err == nil || errors.Is(err, gpu.ErrNoKubelet) {
		t.Errorf("without its socket: %v, want another error than %v", err, gpu.ErrNoKubelet)
	}

	cmptest.Equal(t, "incomplete without its socket", got.Incomplete != "", true)
}

// TestASocketThatIsReplacedDuringTheCall: which kubelet has answered is unknown, so the list is
// another kubelet's first.
func TestASocketThatIsReplacedDuringTheCall(t *testing.T) {
	now := time.Unix(1000, 0)

	answer, err := proto.Marshal(reply(witness()))
	if err != nil {
		t.Fatal(err)
	}

	var replace func()
	socket := serveReplies(t, "kubelet.sock", func() []byte {
		if replace != nil {
			replace()
		}

		return answer
	})
	c := New(Options{Socket: socket, Witness: "ns/witness", Now: func() time.Time { return now },
		Logger: log.NewNopLogger()})
	defer c.Close()

	list := func() gpu.Assignments {
		t.Helper()
		now = now.Add(time.Second)

		got, err := c.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		return got
	}
	for range 61 {
		list()
	}

	if list().Incomplete != "" {
		t.Fatal("lists with the witness, for a minute and longer, are incomplete")
	}

	replace = func() {
		replace = nil

		other := filepath.Join(filepath.Dir(socket), "other")
		if err := errors.Join(os.Link(socket, other), os.Chtimes(other, now, now.Add(time.Hour)),
			os.Rename(other, socket)); err != nil {
			t.Error(err)
		}
	}

	if got := list(); !strings.Contains(got.Incomplete, "has not been listed since the kubelet began") {
		t.Errorf("incomplete because %q", got.Incomplete)
	}

	for range 2 {
		list()
	}

	if list().Incomplete != "" {
		t.Error("three more lists with the witness are incomplete")
	}
}
