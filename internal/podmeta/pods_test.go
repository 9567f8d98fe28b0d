package podmeta

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// What is known under a name from before a new assignment is withheld until the API server has been
// asked again.
func TestPodMetadataIsNotOlderThanTheAssignment(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.pods = []fakePod{{"db-0", "old", "j"}} })
		waitFor(firstListDelay)
		wantKnown(t, p, "db-0", true)
		waitFor(5 * time.Second)
		since := time.Now()
		s.update(func() { s.pods = []fakePod{{"db-0", "new", "successor"}} })

		if known, ok := p.PodMetadata("ns", "db-0", since); ok {
			t.Errorf("known at once: %+v", known)
		}

		waitFor(soon)
		known, ok := p.PodMetadata("ns", "db-0", since)
		cmptest.Equal(t, "known after the list", ok, true)
		cmptest.Equal(t, "metadata after the list", known, gpu.PodMetadata{UID: "new", Workload: "Job/successor"})

		if n := s.count(); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
	})
}

// A cache that lags behind has the predecessor of a pod under the same name: it is never returned
// for the successor.
func TestPredecessorIsNeverTold(t *testing.T) {
	for _, ended := range []bool{false, true} {
		runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
			first := time.Now()
			s.update(func() { s.pods = []fakePod{{"db-0", "old", "predecessor"}} })
			p.PodMetadata("ns", "db-0", first)
			waitFor(soon)

			if known, ok := p.PodMetadata("ns", "db-0", first); !ok || known.UID != "old" {
				t.Fatalf("the first pod: %+v, %v", known, ok)
			}

			if ended { // it is missing in an answer before it is replaced
				s.update(func() { s.pods = nil })
				p.PodMetadata("ns", "other", first)
				waitFor(soon)
			}

			since := time.Now()
			s.update(func() {
				s.cached = []fakePod{{"db-0", "old", "predecessor"}}
				s.lagging = true
				s.pods = []fakePod{{"db-0", "new", "successor"}}
			})
			heard := time.Time{}

			for range 300 {
				switch known, ok := p.PodMetadata("ns", "db-0", since); {
				case ok && known.UID != "new":
					t.Fatalf("%s after the assignment: %+v", time.Since(since), known)
				case ok && heard.IsZero():
					heard = time.Now()
				}

				waitFor(100 * time.Millisecond)
			}

			if heard.IsZero() || heard.Sub(since) > 2*time.Second {
				t.Errorf("the successor was known after %v", heard.Sub(since))
			}

			if known, ok := p.PodMetadata("ns", "db-0", since); !ok || known.UID != "new" {
				t.Errorf("the successor is forgotten: %+v, %v", known, ok)
			}

			if n := s.count("consistent"); n != 1 {
				t.Errorf("%d consistent lists, want 1", n)
			}
		})
	}
}

// The same pod under a new assignment is returned again after a consistent list.
func TestTheSamePodIsToldAgain(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.pods = []fakePod{pod("a")} })
		waitFor(firstListDelay)
		wantKnown(t, p, "a", true)
		waitFor(time.Second)
		since := time.Now()
		p.PodMetadata("ns", "a", since)
		waitFor(soon)
		known, ok := p.PodMetadata("ns", "a", since)
		cmptest.Equal(t, "known", ok, true)
		cmptest.Equal(t, "UID", known.UID, "uid-of-a")
		cmptest.Equal(t, "consistent lists", s.count("consistent"), 1)
		// The other container of the pod, assigned before.
		wantKnown(t, p, "a", true)
	})
}

func TestPodByUID(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.pods = []fakePod{pod("a")} })

		if _, _, ok := p.PodByUID("uid-of-a"); ok {
			t.Error("known before the first answer")
		}

		waitFor(firstListDelay)
		namespace, name, ok := p.PodByUID("uid-of-a")
		cmptest.Equal(t, "found by UID", ok, true)
		cmptest.Equal(t, "pod of the UID", podName{namespace, name}, podName{"ns", "a"})

		for _, uid := range []string{"", "other"} {
			if namespace, name, ok := p.PodByUID(uid); ok {
				t.Errorf("UID %q: got %s/%s", uid, namespace, name)
			}
		}

		s.update(func() { s.hang = true })
		waitFor(maxListAge)

		if _, _, ok := p.PodByUID("uid-of-a"); !ok {
			t.Error("forgotten too early")
		}

		waitFor(longestInterval)

		if _, _, ok := p.PodByUID("uid-of-a"); ok {
			t.Error("known from an answer that is too old")
		}
	})
}

func TestPodGone(t *testing.T) {
	for name, id := range map[string]podID{
		"by UID":          {uid: "uid-of-a"},
		"by name":         {podName: podName{"ns", "a"}},
		"by name and UID": {podName{"ns", "a"}, "uid-of-a"},
	} {
		runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
			gone := func(since time.Time) bool { return p.PodGone(id.namespace, id.name, id.uid, since) }
			own := fakePod{"exporter", "own", "j"}
			s.update(func() { s.pods = []fakePod{pod("a"), pod("b"), own} })
			waitFor(firstListDelay)

			since := time.Now()
			for range 60 {
				if gone(since) {
					t.Fatalf("%s: gone while it is there", name)
				}

				waitFor(time.Second)
			}

			if n := s.count("consistent"); n != 1 {
				t.Errorf("%s: %d consistent lists while the pod is there, want 1", name, n)
			}

			// A cache does not prove that it is gone; a consistent list does.
			s.update(func() { s.pods = []fakePod{pod("b"), pod("c"), own} })

			if gone(since) {
				t.Errorf("%s: gone without an answer", name)
			}

			for i := 0; !gone(since); i++ {
				if i > 2*int(longestInterval.Seconds()) {
					t.Fatalf("%s: not gone after %d s", name, i)
				}

				waitFor(time.Second)
			}

			if n := s.count("consistent"); n != 2 {
				t.Errorf("%s: %d consistent lists, want 2", name, n)
			}

			// Proof from before an assignment is none.
			later := time.Now()
			if gone(later) {
				t.Errorf("%s: gone by an older answer", name)
			}

			waitFor(soon)

			if !gone(later) || !gone(since) {
				t.Errorf("%s: not gone by a later answer", name)
			}

			if p.PodGone("ns", "c", "uid-of-a", since) {
				t.Error("gone although another pod has its name")
			}

			if p.PodGone("", "", "", since) {
				t.Error("a pod without a name or UID is gone")
			}
		})
	}
}

// A stale cache that still has the pod does not hide that it is gone, nor does one that lacks it
// prove it.
func TestPodGoneNeedsAConsistentList(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.pods, s.lagging = []fakePod{pod("a")}, true })
		waitFor(firstListDelay)

		since := time.Now()
		for range 60 {
			if p.PodGone("ns", "a", "uid-of-a", since) {
				t.Fatal("gone by a cache that lacks it")
			}

			waitFor(time.Second)
		}

		s.update(func() { s.pods, s.cached = nil, []fakePod{pod("a")} })
		since = time.Now()
		p.PodGone("ns", "a", "uid-of-a", since)
		waitFor(soon)

		if !p.PodGone("ns", "a", "uid-of-a", since) {
			t.Error("not gone by a consistent list")
		}
	})
}

// Under a wrong node name every pod is missing: that proves nothing. A pod that is known to be on
// this node shows that the name is right.
func TestPodGoneNeedsTheRightNode(t *testing.T) {
	for name, tc := range map[string]struct {
		pods []fakePod
		ask  func(p *Poller)
		want bool
	}{
		"no pod":                  {nil, func(*Poller) {}, false},
		"another's pod":           {[]fakePod{pod("x")}, func(*Poller) {}, false},
		"this program's own pod":  {[]fakePod{{"exporter", "own", "j"}}, func(*Poller) {}, true},
		"a name of the kubelet's": {[]fakePod{pod("x")}, func(p *Poller) { p.PodMetadata("ns", "x", time.Time{}) }, false},
		"a UID of the kubelet's":  {[]fakePod{pod("x")}, func(p *Poller) { p.PodByUID("uid-of-x") }, true},
		"another that is leaving": {[]fakePod{pod("x")}, func(p *Poller) { p.PodGone("", "", "uid-of-x", time.Time{}) },
			true},
	} {
		runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
			s.update(func() { s.pods = tc.pods })
			since := time.Now()
			got := false

			for range 60 {
				tc.ask(p)
				got = p.PodGone("ns", "gone", "uid", since)
				waitFor(time.Second)
			}

			if got != tc.want {
				t.Errorf("%s: gone is %v, want %v", name, got, tc.want)
			}

			if n := s.count("consistent"); n > 2 {
				t.Errorf("%s: %d consistent lists", name, n)
			}
		})
	}
}

// Consistent lists that fail do not keep new pods from being known.
func TestPodsAreKnownWithoutConsistentLists(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.pods, s.noProofs = []fakePod{pod("a")}, true })

		since := time.Now()
		for range 20 {
			p.PodGone("ns", "gone", "", since)
			p.PodMetadata("ns", "a", since)
			waitFor(time.Second)
		}

		wantKnown(t, p, "a", true)
		before := s.count("consistent")

		for range 300 {
			p.PodGone("ns", "gone", "", since)
			waitFor(time.Second)
		}

		if n := s.count("consistent") - before; n > 11 {
			t.Errorf("%d consistent lists in 300 s that all fail", n)
		}
	})
}

// namedPods makes the kubelet list pods, each second for a while.
func namedPods(p *Poller, d time.Duration, pods ...string) {
	for range int(d.Seconds()) {
		for _, pod := range pods {
			p.PodMetadata("ns", pod, time.Time{})
		}

		waitFor(time.Second)
	}
}

func TestWrongNodeNameIsTold(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.pods = []fakePod{pod("of-another-node")} })
		namedPods(p, misnamedAfter-2*time.Second, "a", "b")

		if state := p.State(); !state.Up {
			t.Errorf("too early: %v", state.Err)
		}

		namedPods(p, 5*time.Minute, "a", "b")

		want := `the API server has none of the pods that the kubelet lists on node "n": is --kubernetes.node-name right?`
		if state := p.State(); state.Up || fmt.Sprint(state.Err) != want {
			t.Errorf("got %+v", state)
		}

		s.update(func() { s.pods = []fakePod{pod("a")} })
		namedPods(p, longestInterval, "a", "b")

		if state := p.State(); !state.Up {
			t.Errorf("after a pod was found: %v", state.Err)
		}

		s.update(func() { s.pods = nil })
		namedPods(p, 2*longestInterval, "b")

		if state := p.State(); !state.Up {
			t.Errorf("the name has been found right: %v", state.Err)
		}
	})
}

func TestRightNodeNameIsNotDoubted(t *testing.T) {
	for name, list := range map[string]func(p *Poller, s *fakeServer){
		"one new pod that lags behind": func(p *Poller, s *fakeServer) {
			s.update(func() { s.pods = []fakePod{pod("a")} })
			namedPods(p, 40*time.Second, "a", "lagging")
		},
		"new pods all the time": func(p *Poller, _ *fakeServer) {
			for i := range 12 {
				namedPods(p, 5*time.Second, fmt.Sprint("new-", i))
			}
		},
		"no pod": func(*Poller, *fakeServer) { waitFor(2 * longestInterval) },
		"only pods that have ended": func(p *Poller, s *fakeServer) {
			s.update(func() { s.ended = []fakePod{pod("a")} })
			namedPods(p, 2*time.Minute, "a")

			if n := s.count(); n > 12 {
				t.Errorf("%d requests", n)
			}
		},
	} {
		runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
			list(p, s)

			if state := p.State(); !state.Up {
				t.Errorf("%s: %v", name, state.Err)
			}
		})
	}
}

// A pod of a StatefulSet has moved to another node, whose name is taken for this one's: its name is
// no proof of that.
func TestAPodOfTheSameNameOnAnotherNode(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.pods = []fakePod{{"db-0", "on-the-other-node", "j"}} }) // own pod "own" is not there
		since := time.Now()
		p.PodMetadata("ns", "db-0", since) // the kubelet still lists the terminated db-0
		waitFor(firstListDelay)
		p.PodMetadata("ns", "db-0", since)

		gone := false
		for range 20 {
			gone = gone || p.PodGone("ns", "running-here", "uid-of-a-live-pod", since)
			waitFor(5 * time.Second)
		}

		if gone {
			t.Error("a pod of this node is reported as gone, though no pod of a known UID was in an answer")
		}
	})
}
