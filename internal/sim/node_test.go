package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// start parses a scenario and starts it on a stepped clock.
func start(t *testing.T, text string) *Node {
	t.Helper()

	s, err := Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	return startScenario(t, s)
}

func startScenario(t *testing.T, s *Scenario) *Node {
	t.Helper()

	n, err := New(s, NewClock(ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})

	return n
}

func advance(t *testing.T, n *Node, by time.Duration) {
	t.Helper()

	if err := n.Advance(by); err != nil {
		t.Fatal(err)
	}
}

func state(t *testing.T, n *Node, index int) GPUState {
	t.Helper()

	s, err := n.Read(index, gpu.ReadingDevice)
	if err != nil {
		t.Fatal(err)
	}

	return s
}

// findContainer finds a container of the kubelet's list by the name of its pod.
func findContainer(n *Node, pod string) (Container, bool) {
	for _, c := range n.Containers() {
		if c.Pod == pod {
			return c, true
		}
	}

	return Container{}, false
}

func mustContainer(t *testing.T, n *Node, pod string) Container {
	t.Helper()

	c, ok := findContainer(n, pod)
	if !ok {
		t.Fatalf("pod %s is not listed", pod)
	}

	return c
}

// recorded reports whether something like the text is on record.
func recorded(n *Node, text string) bool {
	for _, r := range n.Records() {
		if strings.Contains(r.Pod+": "+r.Message, text) {
			return true
		}
	}

	return false
}

const a100 = "version: 1\ngpus: [{model: A100-40GB, mig: true}]\n"
