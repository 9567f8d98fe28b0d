package server

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// TestConfirmFreeByEveryName: names of GPU instances and of MIG devices of old drivers have
// slashes, which are escaped.
func TestConfirmFreeByEveryName(t *testing.T) {
	for path, device := range map[string]string{
		"MIG-1":                 "MIG-1",
		"GPU-1%2F3":             "GPU-1/3",
		"MIG-GPU-1%2f3%2F0":     "MIG-GPU-1/3/0",
		"GPU-1/3":               "",
		"":                      "",
		"GPU-1%252F3":           "GPU-1%2F3",
		"..%2F..%2Foperations":  "../../operations",
		"%4dIG-1":               "MIG-1",
		strings.Repeat("M", 99): strings.Repeat("M", 99),
	} {
		r := newRig(t)

		w := r.do(someone(control.Rights{Force: true}), "POST", "/api/v1/devices/"+path+"/confirm-free", "")
		if device == "" {
			wantProblem(t, w, 404, api.NotFound)
			continue
		}

		if w.Code != 200 || !slices.Equal(r.backend.calls, []string{"confirm " + device}) {
			t.Errorf("%s: %d %s, calls %q", path, w.Code, w.Body, r.backend.calls)
		}
	}
}

// pick returns what a line says of a confirmation and its caller.
func pick(e auditEntry) auditEntry {
	return auditEntry{Phase: e.Phase, Actor: e.Actor, Verb: e.Verb, Device: e.Device, Status: e.Status,
		Problem: e.Problem, Confirmed: e.Confirmed}
}

// TestConfirmFreeIsAudited: the audit log has the device before anything counts, and then whom it
// was about.
func TestConfirmFreeIsAudited(t *testing.T) {
	r := newRig(t)

	all := someone(control.Rights{Force: true})
	for range 2 {
		if w := r.do(all, "POST", "/api/v1/devices/MIG-1/confirm-free", "", "Idempotency-Key", "k"); w.Code != 200 ||
			!strings.Contains(w.Body.String(), `"pod":"train-0"`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}

	if r.backend.called() != 1 {
		t.Errorf("%d calls of the backend", r.backend.called())
	}

	r.backend.err = &api.Problem{Type: api.Busy, Title: "In use", Status: 409}
	wantProblem(t, r.do(all, "POST", "/api/v1/devices/"+strings.Repeat("M", 999)+"/confirm-free", ""), 409, api.Busy)

	lines := r.audit.entries(t)
	if len(lines) != 5 {
		t.Fatalf("%+v", lines)
	}

	begin := lines[0]
	end := lines[1]
	replay := lines[2]
	refused := lines[4]
	cmptest.Equal(t, "the line before the change", pick(begin),
		auditEntry{Phase: "begin", Actor: "someone", Verb: verbForce, Device: "MIG-1"})
	cmptest.Equal(t, "the line after the change", pick(end),
		auditEntry{Phase: "end", Actor: "someone", Verb: verbForce, Device: "MIG-1", Status: 200,
			Confirmed: []string{"ml/train-0/main"}})

	if !replay.Replay {
		t.Errorf("the second call is not marked as a replay: %+v", replay)
	}

	cmptest.Equal(t, "the line of the refused change", pick(refused),
		auditEntry{Phase: "end", Actor: "someone", Verb: verbForce, Device: strings.Repeat("M", maxID), Status: 409,
			Problem: api.Busy})

	if w := r.do(someone(control.Rights{Apply: true}), "POST", "/api/v1/devices/MIG-2/confirm-free", ""); w.Code != 403 {
		t.Errorf("without the right: %d", w.Code)
	}

	lines = r.audit.entries(t)
	if len(lines) != 6 {
		t.Fatalf("%d lines, want 6: %+v", len(lines), lines)
	}

	if last := lines[5]; last.Device != "MIG-2" || last.Status != 403 {
		t.Errorf("without the right: got device %q and status %d, want MIG-2 and 403", last.Device, last.Status)
	}

	r.audit.fail = errors.New("no space left on device")
	wantProblem(t, r.do(all, "POST", "/api/v1/devices/MIG-1/confirm-free", ""), 503, api.ReadOnly)

	if r.backend.called() != 2 {
		t.Errorf("%d calls of the backend without an audit log", r.backend.called())
	}
}
