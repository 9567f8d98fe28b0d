package podres

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-kit/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

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
	socket := filepath.Join(t.TempDir(), name)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		return stream.SendMsg(answer)
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
	if err != nil || len(got.List) != 1 || got.Garbled != 1 {
		t.Errorf("got %+v, %v, want one assignment and one garbled id", got, err)
	}
}

func TestClientBacksOff(t *testing.T) {
	now := time.Unix(1000, 0)
	c := New(Options{Socket: serveRaw(t, "kubelet.sock", []byte("\xff")), Now: func() time.Time { return now }, Logger: log.NewNopLogger()})
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
	if c.backoff.delay != 2*firstDelay {
		t.Errorf("the second delay is %v", c.backoff.delay)
	}
}

func TestClientRefusesRepliesOver16MiB(t *testing.T) {
	c := New(Options{Socket: serveRaw(t, "kubelet.sock", make([]byte, maxReply+1)), Now: time.Now, Logger: log.NewNopLogger()})
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
