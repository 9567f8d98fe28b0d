package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const start = `{"plan":"plan-1","hash":"h"}`

func TestVerbsAreSeparateRights(t *testing.T) {
	calls := []struct {
		method, path, body string
		right              verb
		status             int
	}{
		{"GET", "/api/v1/node", "", verbRead, 200},
		{"HEAD", "/api/v1/node", "", verbRead, 200},
		{"GET", "/api/v1/node/stream", "", verbRead, 200},
		{"GET", "/api/v1/node/history", "", verbRead, 200},
		{"GET", "/api/v1/health", "", verbRead, 200},
		{"GET", "/api/v1/layouts", "", verbRead, 200},
		{"GET", "/api/v1/openapi.yaml", "", verbRead, 200},
		{"GET", "/api/v1/recommendations", "", verbRead, 200},
		{"GET", "/api/v1/plans/plan-1", "", verbRead, 200},
		{"GET", "/api/v1/operations", "", verbRead, 200},
		{"GET", "/api/v1/operations/op-1", "", verbRead, 200},
		{"POST", "/api/v1/operations", start, verbApply, 202},
		{"POST", "/api/v1/operations/op-1/rollback", "", verbApply, 202},
		{"POST", "/api/v1/operations/op-1/rollback", "{}", verbApply, 202},
		{"POST", "/api/v1/operations/op-1/accept", "", verbApply, 202},
		{"POST", "/api/v1/operations/op-1/settled", "", verbApply, 202},
		{"PUT", "/api/v1/gpus/0/mig-mode", `{"enabled":true}`, verbMode, 202},
		{"POST", "/api/v1/gpus/0/restore", "", verbApply, 202},
		{"POST", "/api/v1/gpus/0/forget-layout", "", verbApply, 200},
		{"POST", "/api/v1/devices/MIG-1/confirm-free", "", verbForce, 200},
		{"POST", "/api/v1/devices/MIG-1/confirm-free", "{}", verbForce, 200},
	}
	for _, c := range calls {
		for _, right := range []verb{verbRead, verbPlan, verbApply, verbMode, verbForce, verbTakeOver, ""} {
			r := newRig(t)
			var rights control.Rights
			*rightOf(&rights, right) = true

			w := r.do(someone(rights), c.method, c.path, c.body)
			if right == c.right {
				if w.Code != c.status {
					t.Errorf("%s %s with %q: %d %s, want %d", c.method, c.path, right, w.Code, w.Body, c.status)
				}

				continue
			}

			wantProblem(t, w, 403, api.Forbidden)

			if r.backend.called() != 0 {
				t.Errorf("%s %s with %q reached the backend", c.method, c.path, right)
			}
		}
	}
}

// TestMissingRightIsNamed: to callers with Kubernetes tokens by the verb that a ClusterRole gives, to
// others by the name in --control.config.file.
func TestMissingRightIsNamed(t *testing.T) {
	for method, want := range map[string]string{
		methodKube: "someone may not get partitions.mig-exporter.io of this node",
		"token":    `someone does not have the right "read"`,
	} {
		caller := fixedAuthenticator{identity{name: "someone", method: method, rights: control.Rights{Plan: true}}}
		p := wantProblem(t, newRig(t).do(caller, "GET", "/api/v1/node", ""), 403, api.Forbidden)
		cmptest.Equal(t, method, p.Detail, want)
	}
}

func TestForceIsARightOfItsOwn(t *testing.T) {
	r := newRig(t)
	without := someone(control.Rights{Read: true, Plan: true, Apply: true, Mode: true})
	body := `{"spec":{"demand":[{"sms":1,"count":1}]},"force":["MIG-1"]}`
	wantProblem(t, r.do(without, "POST", "/api/v1/plans", body), 403, api.Forbidden)
	wantProblem(t, r.do(without, "POST", "/api/v1/operations", `{"plan":"forced","hash":"h"}`), 403, api.Forbidden)

	if r.backend.called() != 0 {
		t.Error("force without the right reached the backend")
	}

	if w := r.do(someone(allRights()), "POST", "/api/v1/operations", `{"plan":"forced","hash":"h"}`); w.Code != 202 {
		t.Errorf("with force: %d %s", w.Code, w.Body)
	}
}

func TestTakeOverIsARightOfItsOwn(t *testing.T) {
	r := newRig(t)
	without := someone(control.Rights{Read: true, Plan: true, Apply: true, Mode: true, Force: true})

	calls := []struct{ method, path, body string }{
		{"POST", "/api/v1/plans", `{"spec":{"demand":[{"sms":1,"count":1}]},"takeOver":true}`},
		{"POST", "/api/v1/operations", `{"plan":"taking-over","hash":"h"}`},
		{"PUT", "/api/v1/gpus/0/mig-mode", `{"enabled":true,"takeOver":true}`},
		{"POST", "/api/v1/gpus/0/restore", `{"takeOver":true}`},
	}
	for _, c := range calls {
		p := wantProblem(t, r.do(without, c.method, c.path, c.body), 403, api.Forbidden)
		if !strings.Contains(p.Detail, `"take-over"`) {
			t.Errorf("%s %s: the answer does not name the right: %s", c.method, c.path, p.Detail)
		}
	}

	if r.backend.called() != 0 {
		t.Error("take-over without the right reached the backend")
	}

	for _, e := range r.audit.entries(t) {
		if !e.TakeOver || e.Status != 403 {
			t.Errorf("audit: %+v", e)
		}
	}

	for _, c := range calls {
		if w := r.do(someone(allRights()), c.method, c.path, c.body); w.Code >= 300 {
			t.Errorf("%s %s with take-over: %d %s", c.method, c.path, w.Code, w.Body)
		}
	}
}

func TestBodiesAreStrict(t *testing.T) {
	const operations = "/api/v1/operations"
	for name, c := range map[string]struct {
		path, body, kind string
		status           int
		problem          api.ProblemType
		says             string
	}{
		"unknown field": {operations, `{"plan":"plan-1","hash":"h","dryRun":true}`, "", 400, api.Malformed, `"dryRun"`},
		"other case":    {operations, `{"Plan":"plan-1","hash":"h"}`, "", 400, api.Malformed, `"Plan"`},
		"repeated key": {operations, `{"plan":"plan-1","hash":"h","plan":"forced"}`, "", 400, api.Malformed,
			`"plan" is there twice`},
		"repeated below": {"/api/v1/plans", `{"spec":{"gpus":[0],"devices":{"1g.5gb":1,"1g.5gb":7}}}`, "", 400,
			api.Malformed, `"spec.devices.1g.5gb"`},
		"missing":       {operations, `{"plan":"plan-1"}`, "", 400, api.Malformed, `"hash"`},
		"null":          {operations, `{"plan":"plan-1","hash":null}`, "", 400, api.Malformed, `"hash"`},
		"wrong type":    {operations, `{"plan":"plan-1","hash":7}`, "", 400, api.Malformed, `"hash": expected a string`},
		"two documents": {operations, start + start, "", 400, api.Malformed, "more behind"},
		"a list":        {operations, `[1]`, "", 400, api.Malformed, "object"},
		"no JSON":       {operations, `plan: x`, "", 400, api.Malformed, "not JSON"},
		"cut":           {operations, `{"plan":`, "", 400, api.Malformed, "too early"},
		"deep":          {operations, strings.Repeat("[", 9000), "", 400, api.Malformed, "deep"},
		"not UTF-8":     {operations, "{\"plan\":\"\xff\"}", "", 400, api.Malformed, "UTF-8"},
		"too large":     {operations, `{"plan":"` + strings.Repeat("x", 16<<10) + `"}`, "", 413, api.TooLarge, "16384"},
		"too large plan": {"/api/v1/plans", `{"spec":"` + strings.Repeat("x", 320<<10) + `"}`, "", 413, api.TooLarge,
			"327680"},
		"form": {operations, start, "application/x-www-form-urlencoded", 415, api.MediaType, "application/json"},
		"text": {operations, start, "text/plain", 415, api.MediaType, "application/json"},
		"many to force": {"/api/v1/plans", `{"spec":{},"force":["MIG-1"` + strings.Repeat(`,"MIG-1"`, 256) + `]}`, "", 400,
			api.Malformed, "256 UUIDs"},
		"much to force": {"/api/v1/plans", `{"spec":{},"force":["` + strings.Repeat("x", 129) + `"]}`, "", 400,
			api.Malformed, "128 bytes"},
		"rollback's body": {operations + "/op-1/rollback", `{"abandon":true}`, "", 400, api.Malformed, `"abandon"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)

			var header []string
			if c.kind != "" {
				header = []string{"Content-Type", c.kind}
			}

			p := wantProblem(t, r.do(someone(allRights()), "POST", c.path, c.body, header...), c.status, c.problem)
			if !strings.Contains(p.Detail, c.says) {
				t.Errorf("detail %q does not say %q", p.Detail, c.says)
			}

			if r.backend.called() != 0 {
				t.Error("it reached the backend")
			}
		})
	}
}

func TestOtherPathsAndMethods(t *testing.T) {
	r := newRig(t)
	all := someone(allRights())
	wantProblem(t, r.do(all, "GET", "/", ""), 404, api.NotFound)

	for _, path := range []string{"/api/v1/plans/", "/api/v1/node/", "/api/v1//node", "//api/v1/node", "/api/v1/./node",
		"/api/../api/v1/node",
		"/api/v1/operations/op-1/events/more", "/metrics", "*"} {
		wantProblem(t, r.do(all, "GET", path, ""), 404, api.NotFound)
		wantProblem(t, r.do(all, "OPTIONS", path, ""), 404, api.NotFound)
	}

	for path, allow := range map[string]string{
		"/api/v1/operations": "GET, POST, HEAD", "/api/v1/node": "GET, HEAD", "/api/v1/plans": "POST",
		"/api/v1/operations/op-1/accept": "POST",
	} {
		w := r.do(all, "DELETE", path, "")
		wantProblem(t, w, 405, api.NoMethod)

		if got := w.Header().Get("Allow"); got != allow {
			t.Errorf("%s allows %q, expected %q", path, got, allow)
		}
	}

	wantProblem(t, r.do(all, "HEAD", "/api/v1/plans", ""), 405, api.NoMethod)

	for _, e := range r.audit.entries(t) {
		if e.Request != "unknown path" {
			t.Errorf("the audit log has the request %q of a call without a route", e.Request)
		}
	}

	wantProblem(t, r.do(all, "POST", "/api/v1/operations/op-1/rollback", "", "Sec-Fetch-Site", "cross-site"), 403,
		api.Forbidden)
}

func TestGPUsAreFoundByEveryName(t *testing.T) {
	all := someone(allRights())

	for _, name := range []string{"0", string(gpu0), strings.ToUpper(string(gpu0)), "0000:07:00.0", "00000000:07:00.0",
		string(gpu0)[:12], "gpu-5"} {
		r := newRig(t)

		w := r.do(all, "PUT", "/api/v1/gpus/"+name+"/mig-mode", `{"enabled":true}`)
		if w.Code != 202 || w.Header().Get("Location") != "/api/v1/operations/op-mode" {
			t.Fatalf("%s: got %d %s %s, want 202 and the operation's location", name, w.Code, w.Header().Get("Location"), w.Body)
		}

		if got, want := r.backend.calls[0], "mode "+string(gpu0)+" true"; got != want {
			t.Errorf("%s: the backend's call is %q, want %q", name, got, want)
		}
	}

	for _, name := range []string{"1", "00", "GPU-", "GPU-6", ":07:00.0x", "GPU-5d2c1f3a-8a6e-4a57-9f0e-1f8b1a2c3d41", "7:00.0"} {
		wantProblem(t, newRig(t).do(all, "PUT", "/api/v1/gpus/"+name+"/mig-mode", `{"enabled":true}`), 404, api.NotFound)
	}
}

func TestNothingIsReadYet(t *testing.T) {
	r := newRig(t, func(o *Options, _ *limits) { o.Current = func() *gpu.Snapshot { return nil } })
	all := someone(allRights())
	wantProblem(t, r.do(all, "GET", "/api/v1/node", ""), 503, api.Unavailable)
	wantProblem(t, r.do(all, "PUT", "/api/v1/gpus/0/mig-mode", `{"enabled":true}`), 503, api.Unavailable)
}

func TestEngineProblemsGoThrough(t *testing.T) {
	r := newRig(t)
	all := someone(allRights())
	wantProblem(t, r.do(all, "POST", "/api/v1/operations", `{"plan":"of-another-node","hash":"h"}`), 404, api.NotFound)
	wantProblem(t, r.do(all, "POST", "/api/v1/operations", `{"plan":"plan-1","hash":"stale"}`), 409, api.StalePlan)
	r.backend.err = errors.New("open /var/lib/mig-exporter/journal: s3cret")
	wantProblem(t, r.do(all, "POST", "/api/v1/operations", start), 500, api.Internal)
	r.backend.err = nil
	wantProblem(t, r.do(all, "GET", "/api/v1/operations/panic", ""), 500, api.Internal)
}

func TestIdempotencyKey(t *testing.T) {
	r := newRig(t)
	all := someone(allRights())
	first := r.do(all, "POST", "/api/v1/operations", start, "Idempotency-Key", "k")
	again := r.do(all, "POST", "/api/v1/operations", start, "Idempotency-Key", "k")
	type answer struct {
		Status         int
		Location, Body string
	}
	cmptest.Equal(t, "the replay", answer{again.Code, again.Header().Get("Location"), again.Body.String()},
		answer{202, first.Header().Get("Location"), first.Body.String()})

	if first.Code != 202 || r.backend.called() != 1 {
		t.Errorf("got status %d and %d calls of the backend, want 202 and 1", first.Code, r.backend.called())
	}

	wantProblem(t, r.do(all, "POST", "/api/v1/operations", `{"plan":"plan-1","hash":"x"}`, "Idempotency-Key", "k"), 422,
		api.KeyReused)
	wantProblem(t, r.do(all, "POST", "/api/v1/operations/op-1/rollback", "", "Idempotency-Key", "k"), 422, api.KeyReused)
	wantProblem(t, r.do(all, "POST", "/api/v1/operations", start, "Idempotency-Key", strings.Repeat("k", 256)), 400,
		api.Malformed)

	other := fixedAuthenticator{identity{name: "other", method: "token", rights: allRights()}}
	if w := r.do(other, "POST", "/api/v1/operations", start, "Idempotency-Key", "k"); w.Code != 202 ||
		r.backend.called() != 2 {
		t.Errorf("another actor's key: %d, %d calls", w.Code, r.backend.called())
	}

	wantProblem(t, r.do(someone(control.Rights{Read: true}), "POST", "/api/v1/operations", start, "Idempotency-Key", "k"),
		403, api.Forbidden)

	*r.clock = r.clock.Add(replayTTL)
	if w := r.do(all, "POST", "/api/v1/operations", start, "Idempotency-Key", "k"); w.Code != 202 ||
		r.backend.called() != 3 {
		t.Errorf("after its time: %d, %d calls", w.Code, r.backend.called())
	}
}

func TestIdempotencyKeyInFlightAndAfterFailure(t *testing.T) {
	r := newRig(t)
	all := someone(allRights())
	r.backend.block, r.backend.inside = make(chan struct{}), make(chan struct{})
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- r.do(all, "POST", "/api/v1/operations", start, "Idempotency-Key", "k") }()
	<-r.backend.inside
	wantProblem(t, r.do(all, "POST", "/api/v1/operations", start, "Idempotency-Key", "k"), 409, api.InProgress)
	r.backend.err = errors.New("broken")
	close(r.backend.block)
	wantProblem(t, <-first, 500, api.Internal)

	r.backend.block = nil

	r.backend.err = nil
	if w := r.do(all, "POST", "/api/v1/operations", start, "Idempotency-Key", "k"); w.Code != 202 {
		t.Errorf("a failure was kept: %d %s", w.Code, w.Body)
	}
}

func TestCallsAreLimited(t *testing.T) {
	r := newRig(t, func(_ *Options, l *limits) { l.callsBurst, l.callsPerSecond = 2, 0.5 })
	all := someone(allRights())
	r.do(all, "GET", "/api/v1/operations", "")
	r.do(all, "GET", "/api/v1/operations", "")
	w := r.do(all, "GET", "/api/v1/operations", "")
	wantProblem(t, w, 429, api.RateLimited)

	if w.Header().Get("Retry-After") != "2" {
		t.Errorf("Retry-After: %q", w.Header().Get("Retry-After"))
	}

	for range 9 {
		r.do(all, "GET", "/api/v1/operations", "")
	}

	*r.clock = r.clock.Add(2 * time.Second)
	if w := r.do(all, "GET", "/api/v1/operations", ""); w.Code != 200 {
		t.Errorf("after waiting: %d", w.Code)
	}
}

func TestChangesAreLimited(t *testing.T) {
	r := newRig(t, func(_ *Options, l *limits) { l.changesBurst = 2 })
	all := someone(allRights())

	for i, want := range []int{202, 409, 429} {
		body := []string{start, `{"plan":"plan-1","hash":"stale"}`, start}[i]
		if w := r.do(all, "POST", "/api/v1/operations", body); w.Code != want {
			t.Errorf("change %d: %d %s, want %d", i, w.Code, w.Body, want)
		}
	}

	wantProblem(t, r.do(all, "POST", "/api/v1/operations", start, "Idempotency-Key", "k"), 429, api.RateLimited)

	*r.clock = r.clock.Add(5 * time.Second)
	if w := r.do(all, "POST", "/api/v1/operations", start, "Idempotency-Key", "k"); w.Code != 202 {
		t.Errorf("the same key once there is room: %d %s, want 202", w.Code, w.Body)
	}

	if w := r.do(all, "POST", "/api/v1/plans", planBody); w.Code != 201 {
		t.Errorf("a plan: %d", w.Code)
	}

	if n := len(r.audit.entries(t)); n != 9 {
		t.Errorf("%d lines, want two of each change, one of each refusal and one of the plan", n)
	}
}

// reads counts the calls of an Observer.
type reads struct{ n int }

func (r *reads) Read() { r.n++ }

func (*reads) Audited(error) {}

func TestReadsAreCountedAndNotWritten(t *testing.T) {
	count := new(reads)

	r := newRig(t, func(o *Options, l *limits) { o.Observer, l.callsBurst = count, 2000 })
	for range 1000 {
		r.do(someone(control.Rights{Read: true}), "GET", "/api/v1/node", "")
	}

	r.do(someone(control.Rights{Read: true}), "GET", "/api/v1/plans/none", "")

	if lines := len(r.audit.entries(t)); lines != 0 || count.n != 1001 {
		t.Errorf("%d lines in the audit log and %d reads counted, want 0 and 1001", lines, count.n)
	}

	r.do(someone(control.Rights{Plan: true}), "GET", "/api/v1/node", "")

	if lines := len(r.audit.entries(t)); lines != 1 || count.n != 1001 {
		t.Errorf("a read that is refused: %d lines and %d reads, want 1 and 1001", lines, count.n)
	}
}

// Calls that change nothing have a bounded number of lines, which say how many calls they stand
// for; changes have all.
func TestAuditLinesAreBounded(t *testing.T) {
	r := newRig(t, func(_ *Options, l *limits) { l.callsBurst, l.linesBurst = 2000, 3 })
	planner := someone(control.Rights{Plan: true})
	all := someone(allRights())
	count := func() (lines, calls int) {
		for _, e := range r.audit.entries(t) {
			lines, calls = lines+1, calls+max(e.Calls, 1)
		}

		return lines, calls
	}

	for range 100 {
		r.do(planner, "POST", "/api/v1/plans", planBody)
		r.do(planner, "GET", "/api/v1/node", "") // refused
	}

	if lines, calls := count(); lines != 6 || calls != 6 {
		t.Errorf("%d lines for %d calls, want 6 for 6", lines, calls)
	}

	*r.clock = r.clock.Add(time.Minute)
	r.do(planner, "POST", "/api/v1/plans", planBody)
	r.do(planner, "GET", "/api/v1/node", "")

	if lines, calls := count(); lines != 8 || calls != 202 {
		t.Errorf("%d lines for %d calls, want 8 for all 202", lines, calls)
	}

	for range 10 {
		r.do(all, "POST", "/api/v1/operations", `{"plan":"plan-1","hash":"stale"}`)
	}

	if lines, _ := count(); lines != 28 {
		t.Errorf("%d lines, want two more for each of ten changes that failed", lines-8)
	}
}

// TestStatedReason: the audit log has a caller's reason as its own words, if it is one short line.
func TestStatedReason(t *testing.T) {
	r := newRig(t)
	all := someone(allRights())

	for body, want := range map[string]int{
		`{"statedReason":"ticket 17"}`:                                202,
		`{"statedReason":"two\nlines"}`:                               400,
		`{"statedReason":"` + strings.Repeat("x", maxReason+1) + `"}`: 400,
		`{"statedReason":17}`:                                         400,
	} {
		got := r.do(all, "POST", "/api/v1/operations/op-1/rollback", body)
		cmptest.Equal(t, body, got.Code, want)
	}

	start := `{"plan":"plan-1","hash":"sha256:abc","statedReason":"ticket 18"}`
	r.do(all, "POST", "/api/v1/operations", start)
	cmptest.HasTexts(t, r.audit.text(), `"statedReason":"ticket 17"`, `"statedReason":"ticket 18"`)
	cmptest.LacksTexts(t, r.audit.text(), "two", "xxx")
}

func TestChangesAndRefusalsAreInTheAudit(t *testing.T) {
	r := newRig(t)
	all := someone(allRights())
	r.do(all, "GET", "/api/v1/node", "")
	r.do(all, "POST", "/api/v1/operations", start, "Authorization", "Bearer s3cret")
	r.do(someone(control.Rights{}), "PUT", "/api/v1/gpus/0/mig-mode", `{"enabled":true}`)
	r.do(all, "GET", "/s3cret?token=s3cret", "")
	r.do(all, "POST", "/api/v1/plans", planBody)
	entries := r.audit.entries(t)
	var got []string

	for _, e := range entries {
		b, _ := json.Marshal([]any{e.Phase, e.Actor, e.Verb, e.Request, e.Plan, e.Op, e.Status, e.Problem})
		got = append(got, string(b))
	}

	want := []string{
		`["begin","someone","apply","POST /api/v1/operations","plan-1","",0,""]`,
		`["end","someone","apply","POST /api/v1/operations","plan-1","op-1",202,""]`,
		`["end","someone","mode","PUT /api/v1/gpus/{gpu}/mig-mode","","",403,"urn:mig-exporter:problem:forbidden"]`,
		`["end","someone","","unknown path","","",404,"urn:mig-exporter:problem:not-found"]`,
		`["end","someone","plan","POST /api/v1/plans","plan-1","",201,""]`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("audit:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	if strings.Contains(r.audit.text(), "s3cret") {
		t.Error("a token is in the audit log")
	}
}

func TestNoChangeWithoutAudit(t *testing.T) {
	r := newRig(t)
	r.audit.fail = errors.New("write /var/lib/audit.jsonl: no space left on device")

	all := someone(allRights())
	for _, c := range [][3]string{
		{"POST", "/api/v1/operations", start}, {"POST", "/api/v1/operations/op-1/rollback", ""},
		{"PUT", "/api/v1/gpus/0/mig-mode", `{"enabled":true}`},
	} {
		wantProblem(t, r.do(all, c[0], c[1], c[2]), 503, api.ReadOnly)
	}

	if r.backend.called() != 0 {
		t.Error("a change was made of which there is no account")
	}

	if w := r.do(all, http.MethodGet, "/api/v1/operations", ""); w.Code != 200 {
		t.Errorf("reading: %d", w.Code)
	}
}
