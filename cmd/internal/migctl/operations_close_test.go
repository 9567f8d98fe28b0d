package migctl

import (
	"net/http"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const op1 = "op-20260304-1"

func plainTerminal(in string) runner {
	return runner{terminal: true, in: in, env: map[string]string{"LANG": "C.UTF-8", "NO_COLOR": "1"}}
}

func TestAccept(t *testing.T) {
	routes := applied()
	routes["GET /operations/"+op1] = answer(partial(api.Degraded))
	routes["POST /operations/"+op1+"/accept"] = answer(partial(api.Accepted))

	f, address := serve(t, routes)
	if got := plainTerminal("n\n").run(t, address, "accept", op1); got.code != exitFailed || len(f.requests("POST ")) > 0 {
		t.Errorf("declined: exit code %d, asked %+v", got.code, f.requests(""))
	}

	got := plainTerminal("y\n").run(t, address, "accept", op1)
	got.expectGolden(t, "accept.txt")
	cmptest.Equal(t, "asked", f.bodies(t, "POST "), []string{""})
}

func TestSettled(t *testing.T) {
	routes := applied()
	settling := operation(api.Settling)
	settling.WaitsFor = []string{"the kubelet to offer " + mig2, "the kubelet to stop offering " + mig3 +
		", which was destroyed"}
	routes["GET /operations/"+op1] = inTurn(answer(settling), answer(operation(api.Succeeded)))
	routes["POST /operations/"+op1+"/settled"] = answer(settling)
	f, address := serve(t, routes)
	got := plainTerminal("y\n").run(t, address, "settled", op1)
	got.expectGolden(t, "settled.txt")
	cmptest.Equal(t, "asked", f.bodies(t, "POST "), []string{""})
}

// TestSettledWhenUnsettled: an operator can say that nothing is left to be done.
func TestSettledWhenUnsettled(t *testing.T) {
	routes := applied()
	routes["GET /operations/"+op1] = inTurn(answer(operation(api.Unsettled)), answer(operation(api.Succeeded)))
	routes["POST /operations/"+op1+"/settled"] = answer(operation(api.Succeeded))
	f, address := serve(t, routes)
	got := plainTerminal("y\n").run(t, address, "settled", op1)
	cmptest.Equal(t, "exit code", got.code, exitOK)
	cmptest.Equal(t, "asked", f.bodies(t, "POST "), []string{""})
}

// TestWhatCannotBeAccepted: operations that wait for nothing are not closed, and nothing is asked
// of the server.
func TestWhatCannotBeAccepted(t *testing.T) {
	for name, c := range map[string]struct {
		state api.OperationState
		args  string
		code  int
		says  string
	}{
		"accept what succeeded":  {api.Succeeded, "accept", exitUsage, "is succeeded, and blocks no GPU"},
		"accept twice":           {api.Accepted, "accept", exitOK, "is accepted already"},
		"settled when degraded":  {api.Degraded, "settled", exitUsage, "does not wait for the kubelet"},
		"settled when succeeded": {api.Succeeded, "settled", exitOK, "has succeeded already"},
		"abandon":                {api.Degraded, "rollback --abandon", exitUsage, "migctl accept"},
	} {
		t.Run(name, func(t *testing.T) {
			routes := applied()
			routes["GET /operations/"+op1] = answer(operation(c.state))
			f, address := serve(t, routes)
			got := runner{}.run(t, address, append(strings.Fields(c.args), "--yes", op1)...)

			cmptest.Equal(t, "exit code", got.code, c.code)
			cmptest.HasTexts(t, flat(got.out+got.err), c.says)
			cmptest.Equal(t, "asked", f.bodies(t, "POST "), nil)
		})
	}
}

// TestRollbackOfWhatIsDegraded: that nothing of the operation is left is what was asked for.
func TestRollbackOfWhatIsDegraded(t *testing.T) {
	for state, code := range map[api.OperationState]int{
		api.RolledBack: exitOK, api.Failed: exitOK, api.Interrupted: exitNeither, api.Degraded: exitDegraded,
	} {
		routes := applied()
		routes["GET /operations/"+op1] = inTurn(answer(partial(api.Degraded)), answer(partial(state)))
		_, address := serve(t, routes)

		got := plainTerminal("y\n").run(t, address, "rollback", op1)
		if got.code != code || !strings.Contains(got.out, "Roll back operation "+op1+"? [y/N]") {
			t.Errorf("%s: exit code %d: %s", state, got.code, got.err)
		}
	}

	routes := applied()
	routes["GET /operations/"+op1] = answer(partial(api.Degraded))
	routes["POST /operations/"+op1+"/rollback"] = refuse(api.Problem{Type: api.LayoutChanged,
		Title: "The layout was changed", Status: 409, Operation: op1})
	_, address := serve(t, routes)

	got := runner{}.run(t, address, "rollback", "--yes", op1)
	if got.code != exitFailed || !strings.Contains(flat(got.err), "migctl accept "+op1) {
		t.Errorf("exit code %d: %s", got.code, got.err)
	}
}

// TestBlockedGPUs: lists and drawings name the GPUs that are blocked, and why control changes
// nothing.
func TestBlockedGPUs(t *testing.T) {
	node := mustNode(t, "node-dgx-a100-mixed.json")
	list := api.Operations{APIVersion: api.Version, State: "read-only", Reason: "the disk of the state folder is full",
		Blocked:    map[gpu.UUID]string{node.GPUs[2].UUID: op1, "GPU-gone": "op-0"},
		Operations: []api.Operation{*operation(api.Degraded)}}
	f, address := serve(t,
		map[string]http.HandlerFunc{"GET /operations": answer(list), "GET /node": file(t, "node-dgx-a100-mixed.json")})
	const reason = "! Partition control is read-only: the disk of the state folder is full"
	blocked := "blocked by operation " + op1 + ", which is degraded"
	got := runner{}.run(t, address, "operations")
	fits(t, got.out)

	for _, want := range []string{reason, "! " + string(node.GPUs[2].UUID) + " is " + blocked,
		"! GPU-gone is blocked by operation op-0"} {
		if !strings.Contains(flat(got.out), want) {
			t.Errorf("operations: no %q in\n%s", want, got.out)
		}
	}

	got = runner{}.run(t, address, "get")
	fits(t, got.out)
	golden(t, "get-blocked.txt", got.out)

	if !strings.Contains(got.out, reason) || strings.Count(got.out, "! "+blocked) != 1 {
		t.Errorf("get:\n%s", got.out)
	}

	f.routes["GET /operations"] = answer(api.Operations{State: "off", Operations: []api.Operation{}})

	if got := (runner{}).run(t, address, "operations"); !strings.Contains(got.out, "Partition control is off") {
		t.Error(got.out)
	}
}

// TestRollbackThatIsTooLate: another client may have been there since. The layout before can be
// planned, and the commands for that can be copied.
func TestRollbackThatIsTooLate(t *testing.T) {
	p := api.Problem{Type: api.StalePlan, Title: "The node has changed", Status: 409, Detail: "another client was there.",
		Instead: []api.Spec{
			{GPUs: []api.Selector{"GPU-1"}, Devices: map[string]api.DeviceRequest{"3g.20gb": {Count: 1}, "1g.5gb": {Count: 2}}},
			{GPUs: []api.Selector{"GPU-2"}, Devices: map[string]api.DeviceRequest{}},
			{GPUs: []api.Selector{"GPU-3"}, Devices: map[string]api.DeviceRequest{
				"3g.20gb": {Each: []api.DeviceRequest{{Count: 1, Compute: []string{"1c", "2c"}}}}}},
		}}
	_, address := serve(t, map[string]http.HandlerFunc{
		"GET /operations/" + op1:                answer(operation(api.Succeeded)),
		"POST /operations/" + op1 + "/rollback": refuse(p)})
	got := runner{}.run(t, address, "rollback", op1, "--yes")
	cmptest.Equal(t, "exit code", got.code, exitFailed)
	cmptest.HasTexts(t, got.err,
		"  migctl plan --gpus GPU-1 --devices 1g.5gb=2,3g.20gb=1\n",
		"  migctl plan --gpus GPU-2 --devices none\n",
		`  echo '{"gpus":["GPU-3"],"devices":{"3g.20gb":[{"count":1,"compute":["1c","2c"]}]}}' | migctl plan -f -`+"\n")
	cmptest.HasTexts(t, flat(got.err), "may be another client's")
}

func TestModeResults(t *testing.T) {
	for want, m := range map[string]api.ModeResult{
		"MIG mode is on": {Wanted: true, Current: true, Pending: true},
		"MIG mode on wanted, off now, on pending: waits for reset to finish: end what uses the GPU, then: nvidia-smi " +
			"--gpu-reset -i " + string(gpu2): {Wanted: true, Pending: true, Waits: "reset"},
		"MIG mode off wanted, on now, off pending: waits for reboot to finish: reboot " +
			"the node": {Current: true, Waits: "reboot"},
		"MIG mode on wanted, off now, on pending: waits for the GPU to be free to finish: end what uses the GPU, then " +
			"repeat the command": {Wanted: true, Pending: true, Waits: "in use"},
		"MIG mode on wanted, off now, off pending": {Wanted: true},
		"MIG mode off wanted, on now, on pending":  {Current: true, Pending: true},
	} {
		m.GPU = gpu2
		out := drawn(func(p *page) { writeMode(p, &m) })
		fits(t, out)

		if flat(out) != want {
			t.Errorf("got  %s\nwant %s", flat(out), want)
		}
	}
}
