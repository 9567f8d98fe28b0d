package podmeta

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// fakePod is a pod of the fake API server, owned by the Job job.
type fakePod struct{ name, uid, job string }

// fakeServer answers requests without a network, so that time can stand still meanwhile.
type fakeServer struct {
	mu       sync.Mutex
	pods     []fakePod // that have not ended
	ended    []fakePod
	cached   []fakePod // what lists from the cache have, if lagging
	lagging  bool
	status   int
	hang     bool
	noProofs bool              // consistent lists hang
	claims   map[string]string // body by path
	requests []request
}

type request struct {
	at   time.Time
	path string
	kind string // "cached" or "consistent" for a list
}

func (s *fakeServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()

	kind := "consistent"
	if r.URL.Query().Get("resourceVersion") == "0" {
		kind = "cached"
	}

	s.requests = append(s.requests, request{time.Now(), r.URL.Path, kind})
	hang := s.hang || s.noProofs && kind == "consistent"

	status := s.status

	body := s.list(r, kind)
	if r.URL.Path != "/api/v1/pods" {
		var ok bool
		if body, ok = s.claims[r.URL.Path]; !ok && status == http.StatusOK {
			status = http.StatusNotFound
			body = "404 page not found"
		} else if strings.Contains(body, `"Failure"`) {
			status = http.StatusNotFound
		}
	}

	s.mu.Unlock()

	if hang {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}

	return &http.Response{
		StatusCode: status, Status: fmt.Sprint(status, " ", http.StatusText(status)), Header: http.Header{}, Request: r,
		Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

func (s *fakeServer) list(r *http.Request, kind string) string {
	pods := s.pods
	if s.lagging && kind == "cached" {
		pods = s.cached
	}

	if !strings.Contains(r.URL.Query().Get("fieldSelector"), "status.phase") {
		pods = append(append([]fakePod{}, pods...), s.ended...)
	}

	var items []string
	for _, p := range pods {
		items = append(items,
			fmt.Sprintf(
				`{"metadata": {"namespace": "ns", "name": %q, "uid": %q, "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": %q, "controller": true}]}}`,
				p.name, p.uid, p.job))
	}

	return `{"items": [` + strings.Join(items, ",") + `]}`
}

func (s *fakeServer) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// count returns the number of requests, of some kinds only if any is given.
func (s *fakeServer) count(kinds ...string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0

	for _, r := range s.requests {
		if len(kinds) == 0 || kinds[0] == r.kind {
			n++
		}
	}

	return n
}

// ownToken is the service account's; it was issued to the pod of UID "own".
const ownToken = "e30.eyJrdWJlcm5ldGVzLmlvIjp7InBvZCI6eyJ1aWQiOiJvd24ifX19.c2ln"

// runInBubble runs a poller on a clock that jumps ahead once everyone waits.
func runInBubble(t *testing.T, logger log.Logger, test func(t *testing.T, p *Poller, s *fakeServer)) {
	t.Helper()

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte(ownToken), 0o600); err != nil {
		t.Fatal(err)
	}

	synctest.Test(t, func(t *testing.T) {
		server := &fakeServer{status: http.StatusOK, claims: map[string]string{}}

		client, err := kubeapi.New(kubeapi.Options{Server: "https://api:443", CredentialsDir: dir, Transport: server})
		if err != nil {
			t.Fatal(err)
		}

		a, err := newAPI(Options{Node: "n"}, client)
		if err != nil {
			t.Fatal(err)
		}

		p := startPoller(a, "n", logger)
		defer p.Close()
		synctest.Wait()
		test(t, p, server)
	})
}

func waitFor(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// soon is how long an unknown pod takes at most to be known, if lists are not limited.
const soon = 500 * time.Millisecond

// wantKnown asks for a pod by an assignment that is old enough for every answer.
func wantKnown(t *testing.T, p *Poller, pod string, want bool) {
	t.Helper()

	known, ok := p.PodMetadata("ns", pod, time.Time{})
	if ok != want || ok && known.Workload != "Job/j" {
		t.Errorf("pod %s: workload %q, known is %v, want Job/j, %v", pod, known.Workload, ok, want)
	}
}

// jitter lengthens or shortens an interval by up to a tenth.
const (
	longestInterval  = interval + interval/10
	shortestInterval = interval - interval/10
)

func pod(name string) fakePod { return fakePod{name, "uid-of-" + name, "j"} }

func TestPollerReadsNowAndThen(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		cmptest.Equal(t, "state before the first list", p.State(),
			gpu.SourceState{Name: gpu.SourceKubernetes, Err: gpu.ErrUnavailable})
		waitFor(firstListDelay)

		if n := s.count(); n != 1 {
			t.Errorf("%d requests at the start, want 1", n)
		}

		want := gpu.SourceState{Name: gpu.SourceKubernetes, Up: true, LastSuccess: s.requests[0].at}
		cmptest.Equal(t, "state after the first list", p.State(), want)
		s.update(func() { s.pods = []fakePod{pod("a")} })
		waitFor(10 * longestInterval)
		cmptest.Equal(t, "requests that are not cached", s.count()-s.count("cached"), 0)

		if n := s.count(); n < 11 || n > 13 {
			t.Errorf("%d requests in ten intervals, want 11 to 13", n)
		}

		wantKnown(t, p, "a", true)
	})
}

func TestPollerLooksForAnUnknownPodAtOnce(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.pods = []fakePod{pod("first"), pod("second")} })
		wantKnown(t, p, "first", false)
		wantKnown(t, p, "second", false)
		waitFor(soon)
		wantKnown(t, p, "first", true)
		wantKnown(t, p, "second", true)

		if n := s.count(); n != 1 {
			t.Errorf("%d requests for the pods of one reading, want 1", n)
		}

		waitFor(10 * time.Second)
		s.update(func() { s.pods = append(s.pods, pod("new")) })
		wantKnown(t, p, "new", false)
		waitFor(soon)
		wantKnown(t, p, "new", true)

		if n := s.count(); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
	})
}

// A pod that is not in the answer yet is asked for after 1 s, 2 s, 4 s and so on, up to the usual
// interval.
func TestPollerAsksAgainWithGrowingGaps(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		waitFor(firstListDelay)
		begin := time.Now()

		for range 32 {
			wantKnown(t, p, "never", false)
			waitFor(time.Second)
		}

		var at []string
		for _, r := range s.requests[1:] {
			at = append(at, fmt.Sprint(int(r.at.Sub(begin).Seconds())))
		}

		// With that of the usual interval, and one that looks whether the pod has ended.
		if n := len(at); n < 5 || n > 8 {
			t.Fatalf("requests at %v s, want 5 to 8", at)
		}

		cmptest.Equal(t, "seconds of the first requests", at[:4], []string{"0", "1", "3", "7"})
		before := s.count()
		s.update(func() { s.pods = []fakePod{pod("late")} })

		for range 600 {
			wantKnown(t, p, "never", false)
			waitFor(time.Second)
		}

		if n := s.count() - before; n > 2*600/int(shortestInterval/time.Second)+2 {
			t.Errorf("%d requests in 10 min for one pod that never comes", n)
		}
	})
}

func TestPollerIsLimitedUnderChurn(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		waitFor(firstListDelay)

		const pods = 600
		for i := range pods { // five new ones every second
			s.update(func() { s.pods = []fakePod{pod(fmt.Sprint("pod-", i))} })
			p.PodMetadata("ns", fmt.Sprint("pod-", i), time.Now())
			waitFor(200 * time.Millisecond)
		}

		if n, most := s.count(), listBurst+pods/5/2+1; n > most {
			t.Errorf("%d requests in 120 s, want %d at most", n, most)
		}

		waitFor(forgetAfter + 2*longestInterval)

		if n := len(p.lookups); n != 0 {
			t.Errorf("%d pods are remembered that nothing asks for", n)
		}
	})
}

func TestPollerKeepsAPodForAWhile(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.pods = []fakePod{pod("a")} })
		waitFor(firstListDelay)
		wantKnown(t, p, "a", true)
		s.update(func() { s.pods = nil })

		for range 4 {
			wantKnown(t, p, "b", false) // makes it ask
			waitFor(keepMissing / 5)
		}

		wantKnown(t, p, "a", true)

		if _, _, ok := p.PodByUID("uid-of-a"); ok {
			t.Error("a pod that has ended is reported by its UID")
		}

		waitFor(keepMissing + longestInterval)
		wantKnown(t, p, "a", false)
	})
}

func TestPollerKeepsWhatItKnowsWhenTheServerFails(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.pods = []fakePod{pod("a")} })
		waitFor(longestInterval)
		success := p.State().LastSuccess
		s.update(func() { s.status = http.StatusInternalServerError })
		waitFor(longestInterval)

		state := p.State()
		if state.LastSuccess.Before(success) {
			t.Errorf("last success %v while it fails, want %v or later", state.LastSuccess, success)
		}

		failing := gpu.SourceState{Name: gpu.SourceKubernetes, Stale: true, LastSuccess: state.LastSuccess,
			Err: gpu.ErrUnavailable}
		cmptest.Equal(t, "state while it fails", state, failing)
		s.update(func() { s.status = http.StatusForbidden })
		waitFor(5 * longestInterval)
		wantKnown(t, p, "a", true)

		want := "list pods: the API server refuses it (403 Forbidden): the service account needs the right to list pods: " +
			"no permission"
		if err := p.State().Err; err == nil || err.Error() != want {
			t.Errorf("while it refuses: %v, want %s", err, want)
		}

		cmptest.Equal(t, "error while it refuses", p.State().Err, gpu.ErrNoPermission)
		before := s.count()

		for i := range 300 { // a new one every second
			p.PodMetadata("ns", fmt.Sprint("new-", i), time.Now())
			waitFor(time.Second)
		}

		if n := s.count() - before; n > 300/int(shortestInterval/time.Second)+1 {
			t.Errorf("%d requests in 300 s to a server that refuses", n)
		}

		s.update(func() { s.status = http.StatusOK })
		waitFor(longestInterval)
		wantKnown(t, p, "a", true)
		state = p.State()
		recovered := gpu.SourceState{Name: gpu.SourceKubernetes, Up: true, LastSuccess: state.LastSuccess}
		cmptest.Equal(t, "state after it recovered", state, recovered)
	})
}

func TestPollerGivesUpAServerThatHangs(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.hang = true })
		waitFor(firstListDelay + timeout - time.Second)
		wantKnown(t, p, "a", false) // at once, while a request is under way

		if n := s.count(); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}

		waitFor(2 * time.Second)

		if err := p.State().Err; err == nil || !strings.Contains(err.Error(), "did not answer in time") {
			t.Errorf("the state is %v", err)
		}

		waitFor(longestInterval) // closed in the middle of a request
	})
}
