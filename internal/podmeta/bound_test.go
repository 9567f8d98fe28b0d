package podmeta

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// bound formats what BoundPods returns.
func bound(p *Poller, since time.Time) string {
	pods, current := p.BoundPods(since)

	text := fmt.Sprint(current)
	for _, pod := range pods {
		text += " " + pod.String()
	}

	return text
}

// TestBoundPods: a consistent list that was started since, and older ones for a while.
func TestBoundPods(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() {
			s.pods = []fakePod{pod("b"), pod("a"), {"exporter", "own", "j"}}
			s.cached = []fakePod{{"exporter", "own", "j"}}
			s.lagging = true
		})
		cmptest.Equal(t, "before the first list", bound(p, time.Now()), "false")
		waitFor(soon)
		since := time.Now().Add(-time.Minute)
		cmptest.Equal(t, "a consistent list", bound(p, since), "true ns/a ns/b ns/exporter")
		cmptest.Equal(t, "consistent lists", s.count("consistent"), 1)

		// The kubelet restarts: the list is older, and a new one is read.
		waitFor(time.Second)
		since = time.Now()
		s.update(func() { s.pods, s.lagging = []fakePod{pod("b"), {"exporter", "own", "j"}}, false })
		cmptest.Equal(t, "an older list", bound(p, since), "false ns/a ns/b ns/exporter")
		waitFor(soon)
		cmptest.Equal(t, "a new list", bound(p, since), "true ns/b ns/exporter")

		// Pod b ends while the caller waits for it.
		s.update(func() { s.pods = []fakePod{{"exporter", "own", "j"}} })

		for range 12 {
			bound(p, since)
			waitFor(time.Second)
		}

		cmptest.Equal(t, "once it has ended", bound(p, since), "true ns/exporter")

		// Without an answer the pods are known for a while.
		s.update(func() { s.hang = true })
		waitFor(time.Second)
		since = time.Now()
		cmptest.Equal(t, "in an outage", bound(p, since), "false ns/exporter")
		waitFor(maxListAge + longestInterval)
		cmptest.Equal(t, "in a long outage", bound(p, since), "false")
	})
}

// TestBoundPodsOfAnotherNode: under a wrong name of the node the list lacks this program's own pod.
func TestBoundPodsOfAnotherNode(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.pods = []fakePod{pod("x")} })

		since := time.Now()
		for range 60 {
			if pods, current := p.BoundPods(since); current || len(pods) > 0 {
				t.Fatalf("pods %v, current %v", pods, current)
			}

			waitFor(time.Second)
		}

		s.update(func() { s.pods = append(s.pods, fakePod{"exporter", "own", "j"}) })

		var pods []gpu.PodName
		for range 60 {
			pods, _ = p.BoundPods(since)
			waitFor(time.Second)
		}

		cmptest.Equal(t, "pods once the name is right", len(pods), 2)

		if n := len(s.requests); n > 40 {
			t.Errorf("%d requests in two minutes", n)
		}
	})
}
