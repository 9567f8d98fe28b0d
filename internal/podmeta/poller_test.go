package podmeta

import (
	"bytes"
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

	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// fakeServer answers requests without a network, so that time can stand still meanwhile.
type fakeServer struct {
	mu       sync.Mutex
	pods     []string
	status   int
	hang     bool
	requests []time.Time
}

func (s *fakeServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	hang := s.hang
	var items []string
	for _, pod := range s.pods {
		items = append(items, fmt.Sprintf(`{"metadata": {"namespace": "ns", "name": %q, "ownerReferences": [{"kind": "Job", "name": "j", "controller": true}]}}`, pod))
	}
	s.requests = append(s.requests, time.Now())
	response := &http.Response{
		StatusCode: s.status, Status: http.StatusText(s.status), Header: http.Header{}, Request: r,
		Body: io.NopCloser(strings.NewReader(`{"items": [` + strings.Join(items, ",") + `]}`)),
	}
	s.mu.Unlock()
	if hang {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return response, nil
}

func (s *fakeServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *fakeServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// bubble runs a poller on a clock that jumps ahead once everyone waits.
func bubble(t *testing.T, logger log.Logger, test func(t *testing.T, p *Poller, s *fakeServer)) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("t"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		server := &fakeServer{status: http.StatusOK}
		client, err := kubeapi.New(kubeapi.Options{Server: "https://api:443", CredentialsDir: dir, Transport: server})
		if err != nil {
			t.Fatal(err)
		}
		a, err := newAPI(Options{Node: "n"}, client)
		if err != nil {
			t.Fatal(err)
		}
		p := start(a, logger)
		defer p.Close()
		synctest.Wait()
		test(t, p, server)
	})
}

func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantKnown(t *testing.T, p *Poller, pod string, want bool) {
	t.Helper()
	known, ok := p.PodMetadata("ns", pod)
	if ok != want || ok && known.Workload != "Job/j" {
		t.Errorf("pod %s: workload %q, known is %v, want %v", pod, known.Workload, ok, want)
	}
}

const longestInterval = interval + interval/10

func TestPollerReadsNowAndThen(t *testing.T) {
	bubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		if n := s.count(); n != 1 {
			t.Errorf("%d requests at the start, want 1", n)
		}
		s.set(func() { s.pods = []string{"a"} })
		after(10 * longestInterval)
		if n := s.count(); n < 11 || n > 13 {
			t.Errorf("%d requests in ten intervals", n)
		}
		wantKnown(t, p, "a", true)
	})
}

func TestPollerLooksForAnUnknownPodSoon(t *testing.T) {
	bubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.set(func() { s.pods = []string{"new"} })
		wantKnown(t, p, "new", false)
		after(minGap)
		wantKnown(t, p, "new", true)
		if n := s.count(); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
	})
}

func TestPollerIsNotWokenTwiceByAPod(t *testing.T) {
	bubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		for range 20 {
			wantKnown(t, p, "never", false)
			after(time.Second)
		}
		if n := s.count(); n != 2 {
			t.Errorf("%d requests in 20 s for one unknown pod, want 2", n)
		}
		for i := range 20 { // a new one every second
			wantKnown(t, p, fmt.Sprint("never-", i), false)
			after(time.Second)
		}
		if n := s.count(); n > 2+20/5+1 {
			t.Errorf("%d requests in 40 s", n)
		}
		for i := range 2 * maxAsked {
			p.PodMetadata("ns", fmt.Sprint("many-", i))
		}
		if n := len(p.asked); n > maxAsked {
			t.Errorf("%d unknown pods are remembered", n)
		}
	})
}

func TestPollerKeepsAPodForOneReading(t *testing.T) {
	bubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.set(func() { s.pods = []string{"a"} })
		after(longestInterval)
		wantKnown(t, p, "a", true)
		s.set(func() { s.pods = nil })
		before := s.count()
		for s.count() == before {
			after(time.Second)
		}
		wantKnown(t, p, "a", true)
		after(longestInterval)
		wantKnown(t, p, "a", false)
	})
}

func TestPollerKeepsWhatItKnowsWhenTheServerFails(t *testing.T) {
	var buf bytes.Buffer
	bubble(t, log.NewLogfmtLogger(log.NewSyncWriter(&buf)), func(t *testing.T, p *Poller, s *fakeServer) {
		s.set(func() { s.pods = []string{"a"} })
		after(longestInterval)
		s.set(func() { s.status = http.StatusForbidden })
		after(5 * longestInterval)
		wantKnown(t, p, "a", true)
		s.set(func() { s.status = http.StatusOK })
		after(longestInterval)
		wantKnown(t, p, "a", true)
	})
	if lines := strings.Split(strings.TrimSpace(buf.String()), "\n"); len(lines) != 2 || !strings.Contains(lines[0], "no permission") {
		t.Errorf("the log should tell the failure and its end once each:\n%s", buf.String())
	}
}

func TestPollerGivesUpAServerThatHangs(t *testing.T) {
	var buf bytes.Buffer
	bubble(t, log.NewLogfmtLogger(log.NewSyncWriter(&buf)), func(t *testing.T, p *Poller, s *fakeServer) {
		s.set(func() { s.hang = true })
		after(longestInterval + timeout)
		wantKnown(t, p, "a", false) // at once, while a reading may be under way
		if n := s.count(); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
		after(longestInterval) // closed in the middle of a reading
	})
	if !strings.Contains(buf.String(), "did not answer in time") {
		t.Errorf("the log says %q", buf.String())
	}
}
