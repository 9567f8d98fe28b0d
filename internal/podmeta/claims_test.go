package podmeta

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func claimPath(version, name string) string {
	return "/apis/resource.k8s.io/" + version + "/namespaces/ml/resourceclaims/" + name
}

// noClaim is the body of a 404 that names the claim.
const noClaim = `{"kind": "Status", "status": "Failure", "reason": "NotFound", "details": {"name": "c", "group": "resource.k8s.io", "kind": "resourceclaims"}}`

// allocation is a claim with gpu-0 for administrative access, gpu-1 for use, and gpu-2 for both.
const allocation = `{"kind": "ResourceClaim", "metadata": {"name": "c", "managedFields": [{}]}, "status": {"allocation": {"devices": {"results": [
{"request": "a", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0", "adminAccess": true},
{"request": "b", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-1"},
{"request": "c", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-2", "adminAccess": true},
{"request": "d", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-2", "adminAccess": false}]}}}}`

func device(name string) gpu.ClaimDevice {
	return gpu.ClaimDevice{Namespace: "ml", Claim: "c", Driver: "gpu.nvidia.com", Pool: "node-1", Device: name}
}

// wantAccess asks for a device; want is true, false or an error.
func wantAccess(t *testing.T, p *Poller, d gpu.ClaimDevice, since time.Time, want any) {
	t.Helper()
	admin, err := p.AdminAccess(d, since)

	wantErr, fails := want.(error)
	switch {
	case fails && (admin || !errors.Is(err, wantErr)), !fails && (err != nil || admin != want):
		t.Errorf("%s: got %v, %v, want %v", d.Device, admin, err, want)
	}

	for _, kind := range []error{gpu.ErrUnavailable, gpu.ErrNoPermission, gpu.ErrNotFound} {
		if fails && kind != wantErr && errors.Is(err, kind) {
			t.Errorf("%s: %v wraps %v, too", d.Device, err, kind)
		}
	}
}

// claimRequests returns the paths of the requests for claims.
func (s *fakeServer) claimRequests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string

	for _, r := range s.requests {
		if strings.HasPrefix(r.path, "/apis/") {
			out = append(out, r.path)
		}
	}

	return out
}

func TestAdminAccess(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.claims[claimPath("v1", "c")] = allocation })
		since := time.Now()
		wantAccess(t, p, device("gpu-0"), since, gpu.ErrUnavailable)
		wantAccess(t, p, device("gpu-1"), since, gpu.ErrUnavailable)
		waitFor(soon)

		for range 100 {
			wantAccess(t, p, device("gpu-0"), since, true)
			wantAccess(t, p, device("gpu-1"), since, false)
			wantAccess(t, p, device("gpu-2"), since, false)
			waitFor(time.Second)
		}

		if got := s.claimRequests(); len(got) != 1 {
			t.Errorf("%d requests for one claim: %v", len(got), got)
		}

		// Another claim under the same name.
		since = time.Now()
		s.update(func() { s.claims[claimPath("v1", "c")] = strings.ReplaceAll(allocation, "true", "false") })
		wantAccess(t, p, device("gpu-0"), since, gpu.ErrUnavailable)
		waitFor(soon)
		wantAccess(t, p, device("gpu-0"), since, false)
		waitFor(forgetAfter + 2*interval)

		if n := len(p.claims.states); n != 0 {
			t.Errorf("%d claims are remembered that nothing asks for", n)
		}
	})
}

func TestAdminAccessByOlderVersions(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() {
			for i := range 10 {
				s.claims[claimPath("v1beta1", fmt.Sprint("c", i))] = allocation
			}

			s.claims[claimPath("v1beta1", "absent")] = noClaim
		})

		for i := range 10 {
			d := device("gpu-0")
			d.Claim = fmt.Sprint("c", i)
			p.AdminAccess(d, time.Time{})
			waitFor(soon)
			wantAccess(t, p, d, time.Time{}, true)
		}

		absent := device("gpu-0")
		absent.Claim = "absent"
		p.AdminAccess(absent, time.Time{})
		waitFor(soon)
		wantAccess(t, p, absent, time.Time{}, gpu.ErrNotFound)

		got := s.claimRequests()
		if len(got) != 2+11 {
			t.Fatalf("requests %v, want 13", got)
		}

		cmptest.Equal(t, "first requests", got[:3],
			[]string{claimPath("v1", "c0"), claimPath("v1beta2", "c0"), claimPath("v1beta1", "c0")})
	})
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		p.AdminAccess(device("gpu-0"), time.Time{})
		waitFor(soon)
		wantAccess(t, p, device("gpu-0"), time.Time{}, gpu.ErrUnavailable)

		_, err := p.AdminAccess(device("gpu-0"), time.Time{})
		if err == nil || !strings.Contains(err.Error(), "[v1 v1beta2 v1beta1]") {
			t.Errorf("without dynamic resource allocation: %v", err)
		}

		s.update(func() { s.claims[claimPath("v1", "c")] = allocation })
		waitFor(10 * time.Second)
		wantAccess(t, p, device("gpu-0"), time.Time{}, true)
	})
}

// What is not allocated yet, or does not exist yet, is asked for again with growing gaps.
func TestAdminAccessOfAClaimThatIsNotThereYet(t *testing.T) {
	for name, body := range map[string]string{
		"no claim":        noClaim,
		"no allocation":   `{"kind": "ResourceClaim", "status": {}}`,
		"another device":  strings.ReplaceAll(allocation, "gpu-0", "gpu-9"),
		"another pool":    strings.ReplaceAll(allocation, "node-1", "node-2"),
		"another driver":  strings.ReplaceAll(allocation, "gpu.nvidia.com", "dra.example.com"),
		"no status":       `{}`,
		"a null in place": `{"status": {"allocation": null}}`,
	} {
		runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
			s.update(func() { s.claims[claimPath("v1", "c")] = body })
			since := time.Now()
			wantAccess(t, p, device("gpu-0"), since, gpu.ErrUnavailable)
			waitFor(soon)

			for range 300 {
				wantAccess(t, p, device("gpu-0"), since, gpu.ErrNotFound)
				waitFor(time.Second)
			}

			if n := len(s.claimRequests()); n < 10 || n > 17 {
				t.Errorf("%s: %d requests in 300 s", name, n)
			}

			s.update(func() { s.claims[claimPath("v1", "c")] = allocation })

			for range int(interval.Seconds()) {
				p.AdminAccess(device("gpu-0"), since)
				waitFor(time.Second)
			}

			wantAccess(t, p, device("gpu-0"), since, true)
		})
	}
}

func TestAdminAccessIsRefused(t *testing.T) {
	var buf bytes.Buffer
	runInBubble(t, log.NewLogfmtLogger(log.NewSyncWriter(&buf)), func(t *testing.T, p *Poller, s *fakeServer) {
		waitFor(firstListDelay)
		s.update(func() { s.claims[claimPath("v1", "c")], s.status = allocation, http.StatusForbidden })
		p.AdminAccess(device("gpu-0"), time.Now())
		waitFor(soon)

		for i := range 60 {
			wantAccess(t, p, device("gpu-0"), time.Now(), gpu.ErrNoPermission)
			other := device("gpu-0")
			other.Claim = fmt.Sprint("other-", i)
			wantAccess(t, p, other, time.Now(), gpu.ErrNoPermission)
			waitFor(time.Second)
		}

		if n := len(s.claimRequests()); n > 4 {
			t.Errorf("%d requests in 60 s that are refused", n)
		}

		_, err := p.AdminAccess(device("gpu-0"), time.Now())
		if err == nil || !strings.Contains(err.Error(), "the right to get resourceclaims.resource.k8s.io") {
			t.Errorf("the right is not named: %v", err)
		}

		since := time.Now()
		p.AdminAccess(device("gpu-0"), since)
		s.update(func() { s.status = http.StatusOK })
		waitFor(longestInterval + 20*time.Second)
		wantAccess(t, p, device("gpu-0"), since, true)
	})

	if n := strings.Count(buf.String(), "the right to get resourceclaims.resource.k8s.io"); n != 1 {
		t.Errorf("the log says it %d times:\n%s", n, buf.String())
	}
}

func TestAdminAccessWhileTheServerFails(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.claims[claimPath("v1", "c")], s.hang = `{"status": 5}`, true })

		since := time.Now()
		for range 60 {
			wantAccess(t, p, device("gpu-0"), since, gpu.ErrUnavailable)
			waitFor(time.Second)
		}

		s.update(func() { s.hang = false })
		waitFor(longestInterval + timeout)
		wantAccess(t, p, device("gpu-0"), since, gpu.ErrUnavailable) // it is no claim
		s.update(func() { s.claims[claimPath("v1", "c")] = allocation })
		waitFor(longestInterval)
		wantAccess(t, p, device("gpu-0"), since, true)
		// What was answered stays while the server fails.
		s.update(func() { s.hang = true })
		waitFor(2 * longestInterval)
		wantAccess(t, p, device("gpu-0"), since, true)
	})
}

func TestClaimsAreLimited(t *testing.T) {
	runInBubble(t, log.NewNopLogger(), func(t *testing.T, p *Poller, s *fakeServer) {
		s.update(func() { s.claims[claimPath("v1", "c")] = allocation })
		p.AdminAccess(device("gpu-0"), time.Now())
		waitFor(soon)

		for i := range 300 { // ten new ones every second
			d := device("gpu-0")
			d.Claim = fmt.Sprint("c-", i)
			s.update(func() { s.claims[claimPath("v1", d.Claim)] = allocation })
			p.AdminAccess(d, time.Now())
			waitFor(100 * time.Millisecond)
		}

		if n, most := len(s.claimRequests()), claimBurst+int(31*time.Second/claimEvery); n > most {
			t.Errorf("%d requests in 30 s, want %d at most", n, most)
		}
	})
}
