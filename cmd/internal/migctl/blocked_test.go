package migctl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

func blocked(t api.ProblemType, instances ...string) http.HandlerFunc {
	p := api.Problem{Type: t, Title: "In use", Status: 409, Detail: "Because."}

	for i, name := range instances {
		b := api.Blocker{GPU: gpu2, Instance: name, Profile: "1g.5gb", Placement: at(i, 1), Holders: holds()}
		if strings.HasPrefix(name, "GPU-") {
			b.Profile = ""
			b.Placement = gpu.Placement{}
		}

		p.Blocking = append(p.Blocking, b)
	}

	return refuse(p)
}

// TestForceIsOneCommand: what is in the way of a plan can be forced by the command that is printed,
// which is parsed here.
func TestForceIsOneCommand(t *testing.T) {
	_, address := serve(t, map[string]http.HandlerFunc{"POST /plans": blocked(api.Infeasible, "MIG-1", "MIG-2", "MIG-1")})
	got := runner{}.run(t, address, "apply", "--gpus", "2", "--devices=1g.5gb+me=1,it's=1", "--force=MIG-0",
		"--take-over", "-y")

	_, command, found := strings.Cut(got.err, "\n  migctl ")
	if !found {
		t.Fatal(got.err)
	}

	s := session{out: io.Discard, errOut: io.Discard}
	if _, err := s.parseCommandLine(shellWords(t, strings.ReplaceAll(command, "\\\n", " "))); err != nil {
		t.Fatal(err, command)
	}

	cmptest.Equal(t, command, s.opts, options{
		Command: commandApply, Output: formText, TakeOver: true, Address: s.opts.Address, Timeout: s.opts.Timeout, Color: s.opts.Color,
		Spec: specOptions{GPUs: []string{"2"}, Devices: []string{"1g.5gb+me=1,it's=1"},
			Force: []string{"MIG-0,MIG-1,MIG-2"}},
	})
}

func TestLongCommandsAreNotCut(t *testing.T) {
	_, address := serve(t, map[string]http.HandlerFunc{"POST /plans": blocked(api.Busy, "MIG-1")})

	demand := "memory=" + strings.Repeat("0", 90) + "1GiB"
	if got := (runner{}).run(t, address, "plan", "--demand", demand); !strings.Contains(got.err,
		"--demand "+demand+" \\\n") {
		t.Error(got.err)
	}
}

// TestNoForceWhereThereIsNone: MIG mode and rollbacks know no force.
func TestNoForceWhereThereIsNone(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		args   string
		says   string
	}{
		"processes of a GPU":    {blocked(api.Busy, "GPU-00811850"), "mode on 0 -y", "end whatever has the GPU open"},
		"instances of a GPU":    {blocked(api.Busy, "MIG-1", "MIG-2"), "mode on 0 -y", "--devices none"},
		"nothing named":         {blocked(api.Busy), "mode on 0 -y", "end whatever"},
		"a rollback":            {blocked(api.Busy, "MIG-1"), "rollback op -y", "repeat the command"},
		"nothing to roll back":  {refuse(api.Problem{Type: api.BadSpec, Status: 422}), "rollback op -y", "migctl operations"},
		"a plan, seen before":   {blocked(api.Busy, "MIG-1"), "apply --plan=p --hash=h -y", "plan again"},
		"a GPU without a place": {blocked(api.Busy, "GPU-00811850"), "rollback op -y", "in the way: GPU-00811850 in use"},
	} {
		t.Run(name, func(t *testing.T) {
			routes := applied()
			routes["GET /node"] = file(t, "node-dgx-a100-mixed.json")
			routes["GET /plans/p"] = answer(repartition())
			routes["GET /operations/op"] = answer(api.Operation{ID: "op", State: api.Succeeded})
			routes["POST /operations/op/rollback"], routes["POST /operations"] = c.answer, c.answer
			routes["PUT /gpus/GPU-5f65f8d5-d4b3-5c36-b975-c901d71a2c3a/mig-mode"] = c.answer

			_, address := serve(t, routes)
			got := runner{}.run(t, address, strings.Fields(c.args)...)

			cmptest.HasTexts(t, flat(got.err), c.says)
			cmptest.LacksTexts(t, got.err, "--force", "0:0")
		})
	}
}

// TestInterruptAtTheQuestion: Ctrl-C is an answer, although the terminal goes on being read.
func TestInterruptAtTheQuestion(t *testing.T) {
	f, address := serve(t, applied())
	ctx, cancel := context.WithCancel(t.Context())
	in, typing := io.Pipe()
	defer typing.Close()
	asked := &onQuestion{cancel: cancel}
	s := &session{
		in: in, out: asked, errOut: io.Discard, inTerminal: true, retry: time.Millisecond,
		lookup: func(string) (string, bool) { return "", false },
	}
	code := execute(ctx, []string{"--address=" + address, "apply", "--gpus=2", "--devices=2g.10gb=1"}, s)
	cmptest.Equal(t, "exit code", code, exitInterrupted)
	cmptest.Equal(t, "started", f.bodies(t, "POST /operations"), nil)
	cmptest.HasTexts(t, asked.text.String(), "Nothing was done.")
}

// onQuestion interrupts when it is asked something.
type onQuestion struct {
	text   strings.Builder
	cancel func()
}

func (q *onQuestion) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "[y/N]") {
		q.cancel()
	}

	return q.text.Write(b)
}

func TestApplyWithoutATerminalSaysHowToApprove(t *testing.T) {
	_, address := serve(t, applied())

	got := runner{}.run(t, address, "apply", "--gpus=2", "--devices=2g.10gb=1")
	if !strings.Contains(flat(got.out), "migctl apply --yes --plan "+repartition().ID+" --hash \\ "+repartition().Hash) {
		t.Error(got.out)
	}
}

func TestWhoGivesRights(t *testing.T) {
	p := &api.Problem{Type: api.Forbidden}
	if h := problemHint(p, &options{Address: "https://node7:9402"}); strings.Contains(h, "socket") {
		t.Error(h)
	}

	if h := problemHint(p, &options{Address: "/run/c.sock"}); !strings.Contains(h, "sudo") {
		t.Error(h)
	}
}

// TestBlockedGPUIsNamedOnce: of the instances in the way on one GPU, the first names it.
func TestBlockedGPUIsNamedOnce(t *testing.T) {
	mig := func(uuid string, start int) api.Blocker {
		return api.Blocker{GPU: gpu2, Instance: uuid, Profile: "1g.5gb", Placement: at(start, 1), Holders: holds()}
	}
	problem := &api.Problem{Type: api.Busy, Title: "In use", Blocking: []api.Blocker{
		mig("MIG-1", 0), mig("MIG-2", 1), {GPU: node2, Instance: node2 + "/3", Profile: "1g.6gb", Placement: at(0, 1)},
	}}

	out := flat(drawn(func(p *page) { reportProblem(p, problem, &options{Command: commandPlan}) }))
	cmptest.Equal(t, "lines that name the GPU", strings.Count(out, "in the way on "+string(gpu2)+": 1g.5gb@0 "), 1)
	cmptest.HasTexts(t, out, " 1g.5gb@1 pod ml/train-0 (main); process 4711 (python3) runs on it in the way",
		"in the way on "+node2+": 1g.6gb@0 What")
}

// TestABusyGPUTakesALineForEachInstance: seven instances in the way are named as an operator knows
// them, and one line forces them: its short UUIDs are completed.
func TestABusyGPUTakesALineForEachInstance(t *testing.T) {
	var node nodedoc.Document

	data, err := os.ReadFile(testdata + "node-dgx-a100-mixed.json")
	if err != nil {
		t.Fatal(err)
	}

	if err := json.Unmarshal(data, &node); err != nil {
		t.Fatal(err)
	}

	problem := api.Problem{Type: api.Infeasible, Title: "It does not fit", Status: 422, Detail: "Because."}
	var names []string

	for _, uuid := range uuidsOf(node.GPUs) {
		if strings.HasPrefix(uuid, "MIG-") && len(names) < 7 {
			problem.Blocking = append(problem.Blocking, api.Blocker{GPU: gpu2, Instance: uuid, Profile: "1g.5gb",
				Placement: at(len(names), 1), Holders: []api.Hold{{Kind: api.HoldProcess, PID: 7},
					{Kind: api.HoldPod, What: "ml/train-0 (main)"}}})
			names = append(names, uuid)
		}
	}

	f, address := serve(t, map[string]http.HandlerFunc{
		"GET /node": answer(node), "POST /plans": inTurn(refuse(problem), answer(nothingToDo())),
	})
	got := runner{}.run(t, address, "plan", "--layout", "all-balanced")
	cmptest.Equal(t, "instances", len(names), 7)

	if lines := strings.Count(got.err, "\n"); lines > 16 {
		t.Errorf("%d lines:\n%s", lines, got.err)
	}

	for i, uuid := range names {
		cmptest.HasTexts(t, got.err, fmt.Sprintf("    1g.5gb@%d  pod ml/train-0 (main); process 7 runs on it\n", i))
		cmptest.LacksTexts(t, got.err, uuid)
	}

	_, command, _ := strings.Cut(got.err, "\n  migctl ")
	runner{}.run(t, address, shellWords(t, strings.ReplaceAll(command, "\\\n", " "))...)

	plans := f.requests("POST /plans")

	var asked api.PlanRequest
	if err := json.Unmarshal([]byte(plans[len(plans)-1].body), &asked); err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "forced", asked.Force, names)
}
