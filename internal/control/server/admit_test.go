package server

import (
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// newTestAuthenticator returns an authenticator of the token s3cret, of the client certificate
// "operator", and of the reviewer's tokens.
func newTestAuthenticator(t *testing.T, a *authority, reviewer Reviewer) *tlsAuthenticator {
	t.Helper()

	config, err := newConfigFile(writeConfig(t, a, `
tls: {cert_file: cert.pem, key_file: key.pem, client_ca_file: ca.pem}
clients: [{cn: operator, rights: [read]}]
tokens: [{name: ci, sha256: `+hashOf("s3cret")+`, rights: [read]}]
kubernetes: true
`), log.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}

	return &tlsAuthenticator{config: config, reviewer: reviewer}
}

// show makes a call with a token or certificates, all from one address.
func (r *rig) show(d authenticator, token string, certs ...*x509.Certificate) *httptest.ResponseRecorder {
	request := httptest.NewRequest("GET", "/api/v1/operations", nil)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}

	request.TLS = &tls.ConnectionState{PeerCertificates: certs}
	w := httptest.NewRecorder()
	r.newHandler(d).ServeHTTP(w, request)

	return w
}

// Calls with wrong credentials do not lock out the valid ones of their address.
func TestValidCredentialsAreNotLimitedByTheirAddress(t *testing.T) {
	a := newAuthority(t)
	r := newRig(t)
	reviewer := new(fakeReviewer)

	d := newTestAuthenticator(t, a, reviewer)
	if w := r.show(d, "kube-reader"); w.Code != 200 {
		t.Fatalf("a new Kubernetes token: %d %s", w.Code, w.Body)
	}

	for i := range 40 {
		want := 401
		if i >= 10 {
			want = 429
		}

		if w := r.show(d, "kube-unknown"); w.Code != want {
			t.Errorf("wrong token %d: %d, want %d", i, w.Code, want)
		}
	}

	if n := reviewer.asked.Load(); n != 11 {
		t.Errorf("the API server was asked %d times, want 11: once for the valid token, ten times for the others", n)
	}

	operator := leafOf(t, a, "operator")
	for i := range 12 {
		for name, w := range map[string]*httptest.ResponseRecorder{
			"configured token": r.show(d, "s3cret"), "certificate": r.show(d, "", operator),
			"reviewed token": r.show(d, "kube-reader"),
		} {
			if w.Code != 200 {
				t.Errorf("%s, call %d: %d %s", name, i, w.Code, w.Body)
			}
		}
	}

	wantProblem(t, r.show(d, "kube-reader-2"), 429, api.RateLimited)

	*r.clock = r.clock.Add(2 * time.Second)
	if w := r.show(d, "kube-reader-2"); w.Code != 200 {
		t.Errorf("a new Kubernetes token two seconds after the flood: %d %s", w.Code, w.Body)
	}

	*r.clock = r.clock.Add(reviewedTTL)
	for range 40 {
		r.show(d, "kube-unknown")
	}

	if w := r.show(d, "kube-reader"); w.Code != 429 {
		t.Errorf("a token that was last reviewed an hour ago: %d", w.Code)
	}
}

func leafOf(t *testing.T, a *authority, cn string) *x509.Certificate {
	t.Helper()
	template := new(x509.Certificate)
	template.Subject.CommonName = cn

	return a.leaf(t, template)
}

// Valid new tokens return what their review has drawn from the address's bucket.
func TestReviewsThatSucceedAreFree(t *testing.T) {
	r := newRig(t)
	reviewer := new(fakeReviewer)
	d := newTestAuthenticator(t, newAuthority(t), reviewer)

	for i := range 30 {
		r.reviewed.remove("kube-reader")

		if w := r.show(d, "kube-reader"); w.Code != 200 {
			t.Fatalf("call %d: %d", i, w.Code)
		}
	}

	for i := range 10 { // while the API server does not answer, asking is not free
		if w := r.show(d, "kube-down"); w.Code != 503 {
			t.Errorf("call %d: %d", i, w.Code)
		}
	}

	wantProblem(t, r.show(d, "kube-down"), 429, api.RateLimited)
}

// A missing right of the exporter is named; it is not the caller's fault, and not no answer.
func TestRefusedReviewNamesTheRight(t *testing.T) {
	r := newRig(t)

	d := newTestAuthenticator(t, newAuthority(t), new(fakeReviewer))
	for token, want := range map[string]string{
		"kube-refused": "the cluster refuses to review them: the service account needs the right to create tokenreviews",
		"kube-down":    "credentials cannot be checked now; try again",
	} {
		w := r.show(d, token)
		if w.Code != 503 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %q", token, w.Code, w.Body, want)
		}
	}
}

// TestUnusableConfigurationIsNamed: the caller learns which setting of the node is wrong and how, and
// neither a path nor anything that is in a file.
func TestUnusableConfigurationIsNamed(t *testing.T) {
	const itself = "credentials cannot be checked: the file of --control.config.file "

	remove := func(t *testing.T, file string) {
		t.Helper()

		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	replace := func(mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, file string) {
			t.Helper()
			remove(t, file)

			if err := os.WriteFile(file, []byte("s3cret: [kube-s3cret"), mode); err != nil {
				t.Fatal(err)
			}
		}
	}

	for name, c := range map[string]struct {
		file  string
		spoil func(*testing.T, string)
		want  string
	}{
		"gone":        {"control.yml", remove, itself + "does not exist"},
		"invalid":     {"control.yml", replace(0o600), itself + "is not valid"},
		"for others":  {"control.yml", replace(0o604), itself + "is not valid"},
		"key is gone": {"key.pem", remove, itself + "names a file that does not exist: tls.cert_file, tls.key_file"},
		"no CA":       {"ca.pem", replace(0o600), itself + "names a file that is not valid: tls.client_ca_file"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestAuthenticator(t, newAuthority(t), new(fakeReviewer))
			c.spoil(t, filepath.Join(filepath.Dir(d.config.path), c.file))

			p := wantProblem(t, newRig(t).show(d, "s3cret"), 503, api.Unavailable)
			cmptest.Equal(t, "detail", p.Detail, c.want)
		})
	}
}

// A token that is void is forgotten.
func TestReviewedTokens(t *testing.T) {
	r := newRig(t)
	d := newTestAuthenticator(t, newAuthority(t), new(fakeReviewer))
	r.reviewed.add("kube-unknown")

	if w := r.show(d, "kube-unknown"); w.Code != 401 || r.reviewed.contains("kube-unknown") {
		t.Errorf("%d; still remembered: %t", w.Code, r.reviewed.contains("kube-unknown"))
	}

	for i := range 3 * maxReviewed {
		r.reviewed.add(strconv.Itoa(i))
	}

	if n := len(r.reviewed.until); n > maxReviewed {
		t.Errorf("%d tokens are remembered", n)
	}
}

// A caller that is known and has no right at all is limited as an unknown one is.
func TestCallersWithoutRightsAreLimitedByAddress(t *testing.T) {
	r := newRig(t, func(_ *Options, l *limits) { l.failuresBurst = 2 })
	a := newAuthority(t)
	d := newTestAuthenticator(t, a, new(fakeReviewer))

	stranger := leafOf(t, a, "someone")
	for i, want := range []int{403, 403, 429, 429} {
		w := r.show(d, "", stranger)
		if w.Code != want || w.Header().Get("Connection") != "close" {
			t.Errorf("call %d: %d %s, want %d", i, w.Code, w.Body, want)
		}
	}

	if w := r.do(someone(control.Rights{Read: true}), "GET", "/api/v1/operations", ""); w.Code != 200 {
		t.Errorf("another caller: %d", w.Code)
	}
}
