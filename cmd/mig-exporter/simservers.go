package main

import (
	"bufio"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// simulatedServers are the inference servers of a simulated node. The addresses of its pods exist in
// no network: dial connects to them with a pipe to the simulation.
type simulatedServers struct {
	node *sim.Node

	mu   sync.Mutex
	pods map[netip.Addr]string // UIDs of pods, by address
}

// PodAddress implements servermetrics.Pods.
func (s *simulatedServers) PodAddress(_ context.Context, namespace, name, uid string) (
	pod netip.Addr, node []netip.Addr, err error,
) {
	if p, ok := s.node.PodByUID(uid); !ok || p.Ended {
		return netip.Addr{}, nil, fmt.Errorf("pod %s/%s: %w", namespace, name, gpu.ErrNotFound)
	}

	address := podAddress(uid)
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.pods == nil {
		s.pods = map[netip.Addr]string{}
	}

	s.pods[address] = uid

	return address, nil, nil
}

// podAddress derives the address of a pod from its UID.
func podAddress(uid string) netip.Addr {
	h := fnv.New32a()
	_, _ = io.WriteString(h, uid)
	sum := h.Sum32()

	return netip.AddrFrom4([4]byte{10, byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

// dial connects to the server of a pod.
func (s *simulatedServers) dial(_ context.Context, network, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial %s %s: %w", network, address, err)
	}

	s.mu.Lock()
	uid := s.pods[to.Addr()]
	s.mu.Unlock()

	text, ok := s.node.ServerMetrics(uid)
	if !ok {
		return nil, fmt.Errorf(
			"dial %s %s: connection refused: %w",
			network,
			address,
			gpu.ErrUnavailable,
		)
	}

	client, server := net.Pipe()
	go answerMetrics(server, text)

	return client, nil
}

// answerMetrics answers one request with metrics, whichever path it asks for, and closes the
// connection.
func answerMetrics(conn net.Conn, text string) {
	defer conn.Close()

	request, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}

	response := http.Response{
		StatusCode:    http.StatusOK,
		ProtoMajor:    1,
		ProtoMinor:    1,
		Request:       request,
		ContentLength: int64(len(text)),
		Header: http.Header{
			"Content-Type": {"text/plain; version=0.0.4"},
		},
		Body:  io.NopCloser(strings.NewReader(text)),
		Close: true,
	}
	_ = response.Write(conn)
}
