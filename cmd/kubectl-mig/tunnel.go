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

// openTunnel opens a connection to a port of a pod, by a port-forward of its own. No port of this
// machine is opened, which other users of it could connect to. It tries a websocket first and then
// SPDY, as kubectl does.
func (c *cluster) openTunnel(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	port, err := portOf(pod)
	if err != nil {
		return nil, err
	}

	second := &statusRecorder{}

	dialer, err := c.newDialer(pod.Name, second)
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
			if second.status == http.StatusForbidden {
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
		go func() {
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

// statusRecorder remembers the status of the last answer: the SPDY dialer's errors have it no more.
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

// newDialer returns kubectl's dialer for the port-forwards of a pod. The requests of the second
// attempt, by SPDY, go through recorder.
func (c *cluster) newDialer(pod string, recorder *statusRecorder) (httpstream.Dialer, error) {
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

	recorder.RoundTripper = transport
	client := &http.Client{Transport: recorder}
	second := spdy.NewDialerForStreaming(upgrader, client, http.MethodPost, url)

	return portforward.NewFallbackDialerForStreaming(websocket, second, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// tunnel is a connection through a port-forward.
type tunnel struct {
	httpstream.Stream
	streams httpstream.Connection
	address tunnelAddress

	mu     sync.Mutex
	failed error // what the node says of the port-forward
	done   chan struct{}
}

// newTunnel opens the two streams of a port-forwarded connection. It closes the streams' connection
// with the tunnel, or if it fails.
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

// maxFailure bounds what the node says of a port-forward that failed.
const maxFailure = 4 << 10

func (t *tunnel) readFailure(failures io.Reader) {
	defer close(t.done)

	message, err := io.ReadAll(io.LimitReader(failures, maxFailure))
	if err == nil && len(message) == 0 {
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	if len(message) > 0 {
		t.failed = errors.New(string(message))
	}
}

// failureWait is how long a broken tunnel waits for the node to say why.
const failureWait = 500 * time.Millisecond

// Read reads what the pod sends. If the tunnel ends, the error is the node's, which says why.
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

// SetDeadline and its like do nothing: requests end with their context, which closes the tunnel.
func (t *tunnel) SetDeadline(time.Time) error      { return nil }
func (t *tunnel) SetReadDeadline(time.Time) error  { return nil }
func (t *tunnel) SetWriteDeadline(time.Time) error { return nil }

type tunnelAddress string

func (a tunnelAddress) Network() string { return "port-forward" }
func (a tunnelAddress) String() string  { return string(a) }
