package migctl

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

func TestApplyAsksFollowsAndTellsHowToUndo(t *testing.T) {
	f, address := serve(t, applied())
	got := runner{terminal: true, in: "y\n", env: map[string]string{"LANG": "C.UTF-8", "NO_COLOR": "1"}}.run(t, address,
		"apply", "--gpus", "2", "--devices", "2g.10gb=1,1g.5gb=1")
	got.expectGolden(t, "apply.txt")

	started := f.requests("POST /operations")
	if len(started) != 1 || len(started[0].key) < 20 {
		t.Fatalf("started %+v", started)
	}

	var body api.OperationRequest
	if err := json.Unmarshal([]byte(started[0].body), &body); err != nil {
		t.Errorf("body %s: %v", started[0].body, err)
	}

	cmptest.Equal(t, "body", body, api.OperationRequest{Plan: repartition().ID, Hash: repartition().Hash})
}

// TestDocumentsOfChanges: with -o json standard output has the document of the operation and
// nothing else; the plan, the question and the steps are on standard error.
func TestDocumentsOfChanges(t *testing.T) {
	degraded := applied()
	degraded["GET /operations/"+op1] = answer(partial(api.Degraded))
	degraded["POST /operations/"+op1+"/accept"] = answer(partial(api.Accepted))
	unchanged := applied()
	unchanged["POST /plans"] = answer(nothingToDo())

	for name, c := range map[string]struct {
		routes map[string]http.HandlerFunc
		args   string
		code   int
		out    string
		err    string
	}{
		"apply":         {applied(), "apply --gpus=2 --devices=2g.10gb=1 -o json", exitOK, `"state": "succeeded"`, "Apply? [y/N]"},
		"apply, yaml":   {applied(), "apply --gpus=2 --devices=2g.10gb=1 -o yaml", exitOK, "state: succeeded", "[1/9] destroy CI"},
		"nothing to do": {unchanged, "apply --gpus=2 --devices=2g.10gb=1 -o json", exitOK, `"steps": null`, "Nothing to do"},
		"rollback":      {applied(), "rollback op-20260304-1 -o json", exitOK, `"state": "succeeded"`, "Roll back operation"},
		"accept":        {degraded, "accept op-20260304-1 -o json", exitOK, `"state": "accepted"`, "Accept the current layout"},
		"degraded":      {degraded, "rollback op-20260304-1 -o json", exitDegraded, `"state": "degraded"`, "degraded"},
	} {
		t.Run(name, func(t *testing.T) {
			_, address := serve(t, c.routes)
			got := plainTerminal("y\n").run(t, address, strings.Fields(c.args)...)
			cmptest.Equal(t, "exit code", got.code, c.code)
			cmptest.HasTexts(t, got.out, c.out)
			cmptest.HasTexts(t, flat(got.err), c.err)

			if !strings.Contains(c.args, "yaml") && !json.Valid([]byte(got.out)) {
				t.Errorf("standard output is no document: %s", got.out)
			}
		})
	}
}

func TestApplyWithoutAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		runner runner
		code   int
		says   string
	}{
		"no":            {runner{terminal: true, in: "n\n"}, exitFailed, "Nothing was done."},
		"enter":         {runner{terminal: true, in: "\n"}, exitFailed, "Nothing was done."},
		"end of file":   {runner{terminal: true}, exitFailed, "Nothing was done."},
		"no terminal":   {runner{in: "y\n"}, exitUsage, "--yes"},
		"anything else": {runner{terminal: true, in: "sure\n"}, exitFailed, "Nothing was done."},
	} {
		t.Run(name, func(t *testing.T) {
			f, address := serve(t, applied())
			got := c.runner.run(t, address, "apply", "--gpus=2", "--devices=2g.10gb=1")

			cmptest.Equal(t, "exit code", got.code, c.code)
			cmptest.HasTexts(t, got.err, c.says)
			cmptest.Equal(t, "started", f.bodies(t, "POST /operations"), nil)
		})
	}
}

func TestApplyOfAPlanSeenBefore(t *testing.T) {
	f, address := serve(t, applied())
	got := runner{}.run(t, address, "apply", "--plan=plan-7c31e0", "--hash=what-was-seen", "--yes")
	cmptest.Equal(t, "exit code", got.code, exitOK)
	started := f.bodies(t, "POST /operations")
	cmptest.Equal(t, "operations started", len(started), 1)
	cmptest.HasTexts(t, strings.Join(started, " "), `"hash":"what-was-seen"`)

	if got := (runner{}).run(t, address, "apply", "--plan=plan-7c31e0", "--yes"); got.code != exitUsage {
		t.Errorf("without a hash: exit code %d", got.code)
	}
}

func TestFollowReconnects(t *testing.T) {
	routes := applied()
	all := news()
	const events = "GET /operations/op-20260304-1/events"
	routes[events] = inTurn(stream(true, all[:3]...), stream(true), stream(false, append(all[1:3:3], all[3:]...)...))
	routes["GET /operations/op-20260304-1"] = inTurn(answer(operation(api.Running)), answer(operation(api.Running)),
		answer(operation(api.Succeeded)))
	f, address := serve(t, routes)

	got := runner{}.run(t, address, "apply", "--layout=x", "--yes")
	if got.code != exitOK {
		t.Fatalf("exit code %d: %s%s", got.code, got.out, got.err)
	}

	var last []string
	for _, r := range f.requests(events) {
		last = append(last, r.last)
	}

	if want := ",3,3"; strings.Join(last, ",") != want {
		t.Errorf("Last-Event-ID %q, want %q", strings.Join(last, ","), want)
	}

	for _, once := range []string{"[1/9] destroy CI 0:3 of 3g.20gb at 0:4 on GPU-00811850 done",
		"waiting for the kubelet"} {
		if n := strings.Count(strings.Join(strings.Fields(got.out), " "), once); n != 1 {
			t.Errorf("%q was written %d times:\n%s", once, n, got.out)
		}
	}
}

func TestEnds(t *testing.T) {
	unchanged := operation(api.Failed)
	unchanged.Renamed = nil

	unchanged.Error = &api.Problem{Type: api.LayoutChanged, Title: "The layout was changed", Status: 409,
		Detail: "Before step 1 another client has created 1g.5gb at 6:1 on " + string(gpu2) + "."}
	for i := range unchanged.Steps {
		unchanged.Steps[i].State = api.StepPending
	}

	unreadable := operation(api.Degraded)
	unreadable.Verb = api.VerbRecovery
	unreadable.Plan = ""
	unreadable.Steps = []api.OperationStep{}
	unreadable.Renamed = nil
	unreadable.GPUs = []api.OperationGPU{{GPU: gpu2, State: api.Degraded,
		Error: "3g.20gb at 4:4 exists there, which is not in what is on disk"}}
	unreadable.Error = &api.Problem{Type: api.ReadOnly, Title: "Operations cannot be recorded", Status: 503,
		Detail: "The newest copy of operation.0 is damaged."}
	unsettled := operation(api.Unsettled)
	unsettled.Cordoned = true
	unsettled.WaitsFor = []string{"the kubelet to stop offering " + mig3 + ", which was destroyed",
		"the hook /etc/mig/notify to succeed"}
	away := partial(api.Interrupted)

	away.Error = &api.Problem{Type: api.NotResumed, Title: "The operation could not be resumed", Status: 409,
		Detail: "the exporter was away for 12m0s in the middle of the operation: the GPUs are left as they are"}
	for name, c := range map[string]struct {
		op   *api.Operation
		code int
	}{
		"not-resumed":    {away, exitNeither},
		"unsettled":      {unsettled, exitUnsettled},
		"rolled-back":    {operation(api.RolledBack), exitFailed},
		"failed":         {operation(api.Failed), exitFailed},
		"layout-changed": {unchanged, exitFailed},
		"interrupted":    {partial(api.Interrupted), exitNeither},
		"accepted":       {partial(api.Accepted), exitNeither},
		"degraded":       {partial(api.Degraded), exitDegraded},
		"recovery":       {unreadable, exitDegraded},
		"stuck":          {partial(api.Stuck), exitDegraded},
	} {
		t.Run(name, func(t *testing.T) {
			routes := applied()
			routes["GET /operations/op-20260304-1"] = answer(c.op)
			_, address := serve(t, routes)

			got := runner{}.run(t, address, "operations", "--follow", "op-20260304-1")
			if got.code != c.code || got.err != "" {
				t.Errorf("exit code %d: %s", got.code, got.err)
			}

			fits(t, got.out)
			_, end, _ := strings.Cut(got.out, "\n\n") // what is before has nothing new
			golden(t, "end-"+name+".txt", end)
		})
	}
}

func TestInterruptedTheOperationGoesOn(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	routes := applied()
	routes["GET /operations/op-20260304-1/events"] = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		interrupt()
		<-r.Context().Done()
	}
	_, address := serve(t, routes)
	got := runner{ctx: ctx}.run(t, address, "apply", "--layout=x", "--yes")
	cmptest.Equal(t, "exit code", got.code, exitInterrupted)
	cmptest.HasTexts(t, got.out, "goes on", "migctl operations --follow op-20260304-1")
}

func TestRollback(t *testing.T) {
	f, address := serve(t, applied())
	got := runner{terminal: true, in: "yes\n", env: map[string]string{"LANG": "C.UTF-8", "NO_COLOR": "1"}}.run(t, address,
		"rollback", "op-20260304-1")
	got.expectGolden(t, "rollback.txt")
	cmptest.Equal(t, "asked", f.bodies(t, "POST /operations/op-20260304-1/rollback"), []string{""})
}

func TestMode(t *testing.T) {
	routes := applied()
	routes["GET /node"] = file(t, "node-dgx-a100-mixed.json")
	const put = "PUT /gpus/GPU-5f65f8d5-"
	op := operation(api.Succeeded)
	op.Verb = api.VerbMode
	op.Steps = nil
	op.Hooks = nil
	op.Mode = &api.ModeResult{GPU: "GPU-5f65f8d5-d4b3-5c36-b975-c901d71a2c3a", Wanted: true, Pending: true,
		Waits: "reset", Holders: []api.Hold{{Kind: api.HoldHandle, PID: 812, What: "nvidia-persistenced"}}}
	routes["GET /operations/op-20260304-1"] = answer(op)
	f, address := serve(t, routes)
	var uuid string

	for _, g := range mustNode(t, "node-dgx-a100-mixed.json").GPUs {
		if g.Index == 0 {
			uuid = string(g.UUID)
		}
	}

	f.routes["PUT /gpus/"+uuid+"/mig-mode"] = answer(operation(api.Pending))
	got := runner{terminal: true, in: "y\n", env: map[string]string{"LANG": "C.UTF-8", "NO_COLOR": "1"}}.run(t, address,
		"mode", "on", "0", "2")
	got.expectGolden(t, "mode.txt")
	cmptest.Equal(t, "asked", f.bodies(t, put), []string{`{"enabled":true}`})
}

func mustNode(t *testing.T, name string) nodedoc.Document {
	t.Helper()
	_, address := serve(t, map[string]http.HandlerFunc{"GET /node": file(t, name)})

	c, err := newClient(&options{Address: address, Timeout: 1e9})
	if err != nil {
		t.Fatal(err)
	}

	var node nodedoc.Document
	if err := c.fetch(t.Context(), "/node", &node); err != nil {
		t.Fatal(err)
	}

	return node
}
