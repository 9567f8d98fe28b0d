package migctl

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

const lostGPU = gpu.UUID("GPU-aaaaaaaa-0000-0000-0000-000000000000")

// notRestored are two GPUs that are not restored: one is lost, the other has another client's
// instances.
func notRestored(t *testing.T) (routes map[string]http.HandlerFunc, second gpu.UUID) {
	t.Helper()

	second = mustNode(t, "node-dgx-a100-mixed.json").GPUs[2].UUID
	routes = applied()
	routes["GET /node"] = file(t, "node-dgx-a100-mixed.json")
	routes["GET /operations"] = answer(api.Operations{APIVersion: api.Version, State: "idle", Unrestored: []api.Unrestored{
		{GPU: lostGPU, Reason: api.NotReadable, Detail: string(lostGPU) + " cannot be read, or is not there: GPU is lost",
			Next: time.Unix(1, 0), Wanted: []api.Instance{{Profile: "3g.20gb", Placement: at(4, 4)}}},
		{GPU: second, Reason: api.NotEmpty, Detail: "GPU 2 has instances: 1g.5gb@0:1", Operation: op1},
	}, Operations: []api.Operation{}})
	refused := refuse(api.Problem{Type: api.Unavailable, Title: "The driver does not answer", Status: 503,
		Detail: "it cannot be read"})
	routes["POST /gpus/"+string(lostGPU)+"/restore"] = refused
	routes["POST /gpus/"+string(second)+"/restore"] = answer(operation(api.Pending))

	return routes, second
}

// TestRestore: the GPUs that are not restored are shown and restored, each on its own.
func TestRestore(t *testing.T) {
	routes, second := notRestored(t)
	f, address := serve(t, routes)
	got := plainTerminal("y\n").run(t, address, "restore")
	cmptest.Equal(t, "exit code", got.code, exitFailed) // of the first GPU
	fits(t, got.out)
	golden(t, "restore.txt", got.out)
	cmptest.Equal(t, "asked", f.bodies(t, "POST "), []string{"{}", "{}"})

	got = runner{}.run(t, address, "restore", "--yes", "--take-over", "2")
	cmptest.Equal(t, "exit code for one GPU", got.code, exitOK)
	cmptest.Equal(t, "asked for one GPU", f.bodies(t, "POST /gpus/"+string(second)), []string{"{}", `{"takeOver":true}`})

	if got := plainTerminal("n\n").run(t, address, "restore"); got.code != exitFailed || len(f.requests("POST ")) != 3 {
		t.Errorf("declined: exit code %d, asked %+v", got.code, f.requests("POST "))
	}

	if got := (runner{}).run(t, address, "restore", "--yes", "99"); got.code != exitUsage {
		t.Errorf("a GPU that does not exist: exit code %d", got.code)
	}
}

// TestNothingToRestore: nothing is asked of the operator or the server.
func TestNothingToRestore(t *testing.T) {
	routes := applied()
	routes["GET /node"] = file(t, "node-dgx-a100-mixed.json")
	f, address := serve(t, routes)
	got := runner{}.run(t, address, "restore")
	cmptest.Equal(t, "exit code", got.code, exitOK)
	cmptest.HasTexts(t, got.out, "Nothing to restore")

	// A node whose driver has listed no GPU has nothing to restore, either.
	routes = applied()
	routes["GET /node"] = answer(nodedoc.New(&gpu.Snapshot{}))
	_, address = serve(t, routes)
	cmptest.Equal(t, "exit code without GPUs", runner{}.run(t, address, "restore").code, exitOK)
	cmptest.Equal(t, "changes", len(f.requests("POST ")), 0)
}

// TestRestoreOfGPUsThatAreUnknown: a script that waits for restore must not take a node that was not read for
// one that has all its layouts.
func TestRestoreOfGPUsThatAreUnknown(t *testing.T) {
	lost := gpu.GPU{Facts: gpu.Facts{UUID: lostGPU}, Device: gpu.Device{Errors: []gpu.ReadError{{Err: gpu.ErrLost}}}}
	released := gpu.GPU{Facts: gpu.Facts{UUID: lostGPU, Index: 1}, Released: gpu.Some(gpu.Release{})}
	up := gpu.GPU{Facts: gpu.Facts{UUID: "GPU-1", Index: 2}, Device: gpu.Device{Up: true}}

	for name, c := range map[string]struct {
		snap *gpu.Snapshot
		code int
		says string
	}{
		"no driver": {&gpu.Snapshot{Sources: []gpu.SourceState{{Name: gpu.SourceNVML, Err: gpu.ErrNoDriver}}}, exitFailed,
			"it is not known yet which GPUs this node has: no NVIDIA driver"},
		"not read yet":    {&gpu.Snapshot{Unread: []int{0}}, exitFailed, "1 GPU has not been read yet"},
		"lost":            {&gpu.Snapshot{GPUs: []gpu.GPU{lost, released}}, exitFailed, "no GPU can be read: GPU 0: GPU is lost"},
		"released":        {&gpu.Snapshot{GPUs: []gpu.GPU{released}}, exitFailed, "no GPU can be read: GPU 1: it is released"},
		"one can be read": {&gpu.Snapshot{GPUs: []gpu.GPU{lost, up}}, exitOK, "Nothing to restore"},
	} {
		t.Run(name, func(t *testing.T) {
			routes := applied()
			routes["GET /node"] = answer(nodedoc.New(c.snap))
			_, address := serve(t, routes)

			got := runner{}.run(t, address, "restore")
			cmptest.Equal(t, "exit code", got.code, c.code)
			cmptest.HasTexts(t, flat(got.out+got.err), c.says)
		})
	}

	for says, operations := range map[string]api.Operations{
		"what its last run has left":                                {State: "running", Recovering: true},
		"partition control is read-only: the folder cannot be read": {State: "read-only", Reason: "the folder cannot be read"},
	} {
		routes := applied()
		routes["GET /node"] = file(t, "node-dgx-a100-mixed.json")
		routes["GET /operations"] = answer(operations)
		_, address := serve(t, routes)
		got := runner{}.run(t, address, "restore")
		cmptest.Equal(t, "exit code", got.code, exitFailed)
		cmptest.HasTexts(t, flat(got.err), says)
	}
}

// TestForget: of a GPU that is lost, too.
func TestForget(t *testing.T) {
	routes, _ := notRestored(t)
	path := "POST /gpus/" + string(lostGPU) + "/forget-layout"
	routes[path] = answer(api.ForgottenLayout{APIVersion: api.Version, GPU: lostGPU,
		Forgotten: []api.Instance{{Profile: "3g.20gb", Placement: at(4, 4)}}})
	f, address := serve(t, routes)

	if got := (runner{}).run(t, address, "restore", "--forget", "--yes"); got.code != exitUsage {
		t.Errorf("of no GPU: exit code %d", got.code)
	}

	got := plainTerminal("y\n").run(t, address, "restore", "--forget", strings.ToLower(string(lostGPU)))
	cmptest.Equal(t, "exit code", got.code, exitOK)
	cmptest.HasTexts(t, flat(got.out), "Forget the layout of 1 GPU? [y/N]", "forgotten: 3g.20gb at 4:4")
	cmptest.Equal(t, "asked", f.bodies(t, path), []string{""})
}

// TestNotRestoredIsShown: by the list of operations and the drawing of the node.
func TestNotRestoredIsShown(t *testing.T) {
	routes, second := notRestored(t)
	_, address := serve(t, routes)

	for command, wants := range map[string][]string{
		"operations": {string(lostGPU), string(second), "the layout is not restored: GPU 2 has instances: 1g.5gb@0:1; it is not " +
			"tried again by itself: migctl restore", "wanted: 3g.20gb at 4:4"},
		"get": {"! " + string(lostGPU) + ": the layout is not restored", "! the layout is not restored: GPU 2 has instances"},
	} {
		got := runner{}.run(t, address, command)
		fits(t, got.out)
		cmptest.HasTexts(t, flat(got.out), wants...)
	}
}

// TestServerDiesWhileItIsFollowed: migctl says what becomes of the operation, when the connection
// is lost, when it gives up, and when it is interrupted meanwhile.
func TestServerDiesWhileItIsFollowed(t *testing.T) {
	dead := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	says := []string{"The connection to mig-exporter is lost. If mig-exporter still runs, the operation goes on; if it has " +
		"ended, its next start finishes the operation or rolls it back. To follow it: migctl operations --follow " + op1}
	routes := applied()
	routes["GET /operations/"+op1] = dead
	routes["GET /operations/"+op1+"/events"] = inTurn(stream(true, news()[:3]...), dead)
	_, address := serve(t, routes)

	got := runner{}.run(t, address, "apply", "--layout=x", "--yes")
	cmptest.Equal(t, "exit code", got.code, exitUnreachable)
	cmptest.HasTexts(t, flat(got.out), append(says, "Trying to follow it again for a minute.")...)

	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()

	var attempts atomic.Int32
	routes = maps.Clone(routes) // the first server may still read the other one
	routes["GET /operations/"+op1+"/events"] = func(http.ResponseWriter, *http.Request) {
		if attempts.Add(1) == 5 {
			interrupt()
		}

		panic(http.ErrAbortHandler)
	}

	_, address = serve(t, routes)
	got = runner{ctx: ctx}.run(t, address, "apply", "--layout=x", "--yes")
	cmptest.Equal(t, "exit code of one that is interrupted", got.code, exitInterrupted)
	cmptest.HasTexts(t, flat(got.out), says...)
}
