package migctl

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// TestReleaseAnswers: a request that had nothing to change is not told that NVML was closed.
func TestReleaseAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		command string
		answer  api.Release
		want    string
	}{
		"release":            {"release", api.Release{Released: true, Seconds: 0.25}, "NVML was closed for 250ms"},
		"released already":   {"release", api.Release{Released: true}, "it is released already: NVML stayed open"},
		"reacquire":          {"reacquire", api.Release{Seconds: 1}, "not released any more. NVML was closed for 1s"},
		"was never released": {"reacquire", api.Release{}, "it is not released: NVML stayed open"},
		"NVML stays closed":  {"release", api.Release{Released: true, Closed: "it is open"}, "no GPU of this node is read"},
	} {
		t.Run(name, func(t *testing.T) {
			_, address := serve(t, map[string]http.HandlerFunc{
				"POST /gpus/3/" + c.command: func(w http.ResponseWriter, _ *http.Request) {
					c.answer.APIVersion = api.Version
					c.answer.GPU = "GPU-3"
					w.Header().Set("Content-Type", "application/json")
					_ = json.NewEncoder(w).Encode(c.answer)
				},
			})
			got := runner{}.run(t, address, c.command, "3")

			cmptest.Equal(t, "exit code", got.code, exitOK)
			cmptest.HasTexts(t, flat(got.out), c.want)
		})
	}
}

// TestReleaseRefused: no group has the right to release GPUs on a socket, and a request that is
// still being carried out is no operation.
func TestReleaseRefused(t *testing.T) {
	for _, c := range []struct {
		problem api.ProblemType
		status  int
		says    string
	}{
		{api.Forbidden, http.StatusForbidden, "root alone"},
		{api.Unauthenticated, http.StatusUnauthorized, "root alone"},
		{api.InProgress, http.StatusConflict, "mig-exporter's log names it"},
		{api.Busy, http.StatusConflict, "Try again once"},
		{api.NotFound, http.StatusNotFound, "never read"},
	} {
		p := api.Problem{Type: c.problem, Status: c.status}
		for _, command := range []string{commandRelease, commandReacquire} {
			hint := problemHint(&p, &options{Command: command, Address: releaseAddress})
			cmptest.HasTexts(t, hint, c.says)
			cmptest.LacksTexts(t, hint, "--control.allow-gid", "operations")
		}
	}

	denied := &unreachable{releaseAddress,
		&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)}}
	cmptest.HasTexts(t, unreachableHint(denied), "root alone")
}

// TestReleaseUnfinished: the GPU may be open although it is listed as released, so the operator is not
// sent to that list, but learns what to wait for and what else to do.
func TestReleaseUnfinished(t *testing.T) {
	refused := api.Problem{Type: api.InProgress, Title: "Still being carried out", Status: http.StatusConflict}
	_, address := serve(t, map[string]http.HandlerFunc{
		"POST /gpus/3/release":   refuse(refused),
		"POST /gpus/3/reacquire": refuse(refused),
	})

	got := runner{}.run(t, address, "release", "3")
	cmptest.Equal(t, "exit code", got.code, exitFailed)
	cmptest.HasTexts(t, flat(got.err), "do not reset or unbind the GPU until migctl release succeeds", "by itself",
		"fuser -v /dev/nvidia", "restart mig-exporter")
	cmptest.LacksTexts(t, flat(got.err), "--follow", "shows the GPU as released once it is")

	got = runner{}.run(t, address, "reacquire", "3")
	cmptest.Equal(t, "exit code", got.code, exitFailed)
	cmptest.HasTexts(t, flat(got.err), "migctl get shows the GPU as released until it is open again")
	cmptest.LacksTexts(t, flat(got.err), "--follow", "unbind")
}
