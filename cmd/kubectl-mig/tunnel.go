package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// openTunnel opens a connection to the port of partition control in a pod, by a port-forward of its
// own. It opens no port of this machine, to which other users of the machine could connect. It tries
// a websocket first and then SPDY, as kubectl does.
func (c *cluster) openTunnel(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	port, err := portOf(pod)
	if err != nil {
		return nil, err
	}

	spdyStatus := &statusRecorder{}

	dialer, err := c.newDialer(pod.Name, spdyStatus)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}

	type result struct {
		tunnel *tunnel
		err    error
	}
	opened := make(chan result, 1)

	go func() { // neither the dialers nor the streams take a context
		streams, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
		if err != nil {
			if spdyStatus.status == http.StatusForbidden {
				err = apierrors.NewForbidden(corev1.Resource("pods/portforward"), pod.Name, err)
			}

			opened <- result{err: c.explain(err, "get and create", "pods/portforward", pod.Name)}

			return
		}

		t, err := newTunnel(streams, port)
		opened <- result{t, err}
	}()

	select {
	case <-ctx.Done():
		go func() { // close the tunnel if it still opens
			if late := <-opened; late.err == nil {
				late.tunnel.Close()
			}
		}()

		return nil, ctx.Err()
	case r := <-opened:
		if r.err != nil {
			return nil, r.err
		}

		return r.tunnel, nil
	}
}

// statusRecorder remembers the status of the last answer, which the errors of the SPDY dialer do not
// have.
type statusRecorder struct {
	http.RoundTripper
	status int
}

// RoundTrip makes a request.
func (r *statusRecorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.RoundTripper.RoundTrip(request)
	if err == nil {
		r.status = response.StatusCode
	}

	return response, err
}

// newDialer returns kubectl's dialer for the port-forwards of a pod. Its requests by SPDY go through
// spdyStatus.
func (c *cluster) newDialer(pod string, spdyStatus *statusRecorder) (httpstream.Dialer, error) {
	url := c.set.CoreV1().RESTClient().Get().Namespace(c.namespace).Resource("pods").Name(pod).
		SubResource("portforward").URL()

	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, c.config)
	if err != nil {
		return nil, err
	}

	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return nil, err
	}

	spdyStatus.RoundTripper = transport
	client := &http.Client{Transport: spdyStatus}
	bySPDY := spdy.NewDialerForStreaming(upgrader, client, http.MethodPost, url)

	return portforward.NewFallbackDialerForStreaming(websocket, bySPDY, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// tunnel is a connection through a port-forward.
type tunnel struct {
	httpstream.Stream
	streams httpstream.Connection
	address tunnelAddress

	mu     sync.Mutex
	failed error         // why the port-forward failed, as the node reports it; nil if it does not
	done   chan struct{} // closed when the node has reported that, or will not
}

// newTunnel opens the two streams of a port-forwarded connection, one for data and one for the
// node's errors. If that fails, it closes streams; else the tunnel's Close does.
func newTunnel(streams httpstream.Connection, port int32) (*tunnel, error) {
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")

	failures, err := streams.CreateStream(headers)
	if err != nil {
		streams.Close()
		return nil, fmt.Errorf("forward port %d: %w", port, err)
	}

	failures.Close() // we only read it

	headers.Set(corev1.StreamType, corev1.StreamTypeData)

	data, err := streams.CreateStream(headers)
	if err != nil {
		streams.Close()
		return nil, fmt.Errorf("forward port %d: %w", port, err)
	}

	t := &tunnel{
		Stream:  data,
		streams: streams,
		address: tunnelAddress(fmt.Sprintf("port %d", port)),
		done:    make(chan struct{}),
	}
	go t.readFailure(failures)

	return t, nil
}

// maxFailure is how many bytes we read of the node's error.
const maxFailure = 4 << 10

// readFailure blocks until the node reports an error, or the tunnel ends.
func (t *tunnel) readFailure(failures io.Reader) {
	defer close(t.done)

	message, _ := io.ReadAll(io.LimitReader(failures, maxFailure))

	t.mu.Lock()
	defer t.mu.Unlock()

	if len(message) > 0 {
		t.failed = errors.New(string(message))
	}
}

// failureWait is how long Read waits for the node's error once the tunnel is broken.
const failureWait = 500 * time.Millisecond

// Read reads from the pod. If the tunnel has failed, it returns the node's error, if there is one.
func (t *tunnel) Read(b []byte) (int, error) {
	n, err := t.Stream.Read(b)
	if err == nil {
		return n, nil
	}

	select {
	case <-t.done:
	case <-time.After(failureWait):
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	if t.failed != nil {
		err = t.failed
	}

	return n, err
}

// Close ends the port-forward.
func (t *tunnel) Close() error { return t.streams.Close() }

// LocalAddr and RemoteAddr name the tunnel for messages.
func (t *tunnel) LocalAddr() net.Addr  { return t.address }
func (t *tunnel) RemoteAddr() net.Addr { return t.address }

// The deadlines do nothing: requests end with their context, which closes the tunnel.

func (t *tunnel) SetDeadline(time.Time) error      { return nil }
func (t *tunnel) SetReadDeadline(time.Time) error  { return nil }
func (t *tunnel) SetWriteDeadline(time.Time) error { return nil }

type tunnelAddress string

func (a tunnelAddress) Network() string { return "port-forward" }
func (a tunnelAddress) String() string  { return string(a) }
