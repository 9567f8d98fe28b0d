package server

import (
	"context"
	"errors"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// fakeReleaser records what it is asked for.
type fakeReleaser struct {
	calls []string
	err   error
}

func (f *fakeReleaser) Release(_ context.Context, id gpu.UUID) (*api.Release, error) {
	f.calls = append(f.calls, "release "+string(id))
	return &api.Release{APIVersion: api.Version, GPU: id, Released: true}, f.err
}

func (f *fakeReleaser) Reacquire(_ context.Context, id gpu.UUID) (*api.Release, error) {
	f.calls = append(f.calls, "reacquire "+string(id))
	return &api.Release{APIVersion: api.Version, GPU: id}, f.err
}

// TestReleaseNeedsItsRight: no other right includes it, and both sides of a call are in the audit
// log.
func TestReleaseNeedsItsRight(t *testing.T) {
	r := newRig(t)
	releaser := &fakeReleaser{}
	r.server.o.Releaser = releaser
	all := allRights()
	all.Release = false
	wantProblem(t, r.do(someone(all), "POST", "/api/v1/gpus/0/release", ""), 403, api.Forbidden)
	cmptest.Equal(t, "calls", len(releaser.calls), 0)

	mayRelease := someone(control.Rights{Release: true})
	for _, path := range []string{"0/release", "0/reacquire"} {
		if w := r.do(mayRelease, "POST", "/api/v1/gpus/"+path, ""); w.Code != 200 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}

	wantProblem(t, r.do(mayRelease, "POST", "/api/v1/gpus/9/release", ""), 404, api.NotFound)
	releaser.err = &api.Problem{Type: api.Busy, Title: "Nothing was changed", Status: 409}
	wantProblem(t, r.do(mayRelease, "POST", "/api/v1/gpus/0/release", ""), 409, api.Busy)
	cmptest.Equal(t, "calls", releaser.calls,
		[]string{"release " + string(gpu0), "reacquire " + string(gpu0), "release " + string(gpu0)})

	begun := 0

	for _, e := range r.audit.entries(t) {
		if e.Phase == "begin" && e.GPU == string(gpu0) && e.Verb == verbRelease {
			begun++
		}
	}

	cmptest.Equal(t, "lines before a release", begun, 3)
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("full") }

// TestReleaseIsNotDoneUnaudited: a release that cannot be logged is refused.
func TestReleaseIsNotDoneUnaudited(t *testing.T) {
	releaser := &fakeReleaser{}
	r := newRig(t, func(o *Options, _ *limits) { o.Releaser, o.Audit = releaser, fullDisk{} })
	wantProblem(t, r.do(someone(control.Rights{Release: true}), "POST", "/api/v1/gpus/0/release", ""), 503, api.ReadOnly)
	cmptest.Equal(t, "calls", len(releaser.calls), 0)
}
