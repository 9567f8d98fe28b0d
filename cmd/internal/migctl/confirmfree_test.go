package migctl

import (
	"net/http"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

const (
	node2 = "GPU-5f65f8d5-d4b3-5c36-b975-c901d71a2c3a" // GPU 0 of the A30 node
	mig2  = "MIG-5b0e4f0a-0000-5000-8000-000000000001"
	mig3  = "MIG-5b0e4f0a-0000-5000-8000-000000000002"
)

// unsettled is a node whose kubelet has restarted: one of the pods has not come back, and of one
// device nothing is known.
func unsettled() string {
	missing := `{"namespace":"ml","pod":"train-0","container":"main","confirmed":false,"unconfirmedReason":"the kubelet has not listed it since it restarted at 10:02:03"}`
	instance := func(id, uuid, profile, place, use string) string {
		return `{"id":` + id + `,"profile":"` + profile + `","placement":` + place + `,"up":true,"processes":0,"holders":[` + use + `],"errors":[],
			"computeInstances":[{"id":0,"uuid":"` + uuid + `","profile":"` + profile + `","up":true,"processes":0,"holders":[` + use + `],"errors":[]}]}`
	}

	return `{"apiVersion":"mig-exporter/v1","time":"2026-11-22T10:02:10Z","node":{"hostname":"node-1","driverVersion":"580.95.05","sources":[],"hungCalls":0,
		"holdersIncomplete":"the kubelet has restarted at 10:02:03 and its list has not shown pod mig-exporter/mig-exporter-x yet",
		"unmatchedDevices":[{"id":"MIG-0b5a4ff2-54f4-5c7d-8f0e-9d3f0f5d5f4a","resource":"nvidia.com/mig-1g.5gb","namespace":"ml","pod":"etl-1","container":"main"},
			{"id":"nvidia9/gi1","namespace":"ml","pod":"etl-2","container":"main"}]},
		"gpus":[{"index":0,"uuid":"` + node2 + `","name":"NVIDIA A30","up":true,"pciBusId":"00000000:17:00.0","migMode":{"current":"enabled"},"processes":0,"holders":[],"errors":[],
		"gpuInstances":[` + instance("3", mig2, "2g.12gb", `{"start":0,"size":2}`, missing) + `,` + instance("4", mig3, "1g.6gb", `{"start":2,"size":1}`, "") + `]}]}`
}

func confirmation(device string, pods ...string) http.HandlerFunc {
	c := api.Confirmation{APIVersion: api.Version, Device: device, Confirmed: []api.UnconfirmedHolder{},
		Note: "this counts for 10 minutes, and no longer than until the kubelet or mig-exporter restarts"}
	for _, pod := range pods {
		c.Confirmed = append(c.Confirmed, api.UnconfirmedHolder{Namespace: "ml", Pod: pod, Container: "main", Reason: "r"})
	}

	return answer(c)
}

func TestConfirmFree(t *testing.T) {
	f, address := serve(t, map[string]http.HandlerFunc{
		"GET /node": raw(unsettled()), "POST /devices/" + mig2 + "/confirm-free": confirmation(mig2, "train-0"),
	})
	if got := plainTerminal("\n").run(t, address, "confirm-free", mig2); got.code != exitFailed ||
		len(f.requests("POST ")) > 0 {
		t.Errorf("declined: exit code %d, asked %+v", got.code, f.requests(""))
	}

	if got := (runner{}).run(t, address, "confirm-free", mig2); got.code != exitUsage || len(f.requests("POST ")) > 0 {
		t.Errorf("without a terminal: exit code %d, asked %+v", got.code, f.requests(""))
	}

	got := plainTerminal("y\n").run(t, address, "confirm-free", mig2)
	got.expectGolden(t, "confirm-free.txt")
	cmptest.Equal(t, "asked", f.bodies(t, "POST "), []string{""})
}

// TestConfirmFreeOfHiddenProcesses: that no process is listed is not shown as if none ran.
func TestConfirmFreeOfHiddenProcesses(t *testing.T) {
	for _, tt := range []struct {
		processes string
		want      bool
	}{{"", true}, {`"processes":0,`, false}} {
		doc := strings.ReplaceAll(unsettled(), `"processes":0,`, tt.processes)
		_, address := serve(t, map[string]http.HandlerFunc{
			"GET /node": raw(doc), "POST /devices/" + mig2 + "/confirm-free": confirmation(mig2, "train-0"),
		})

		got := runner{}.run(t, address, "confirm-free", "-y", mig2)
		if said := strings.Contains(flat(got.out), "what runs on it is not known"); said != tt.want {
			t.Errorf("processes %q: it is said that they are not known: %t\n%s", tt.processes, said, got.out)
		}
	}
}

// TestConfirmFreeByEveryName: devices are named as everywhere, and GPU instances as --force has
// them. Each is confirmed once, and the others are when one is refused.
func TestConfirmFreeByEveryName(t *testing.T) {
	f, address := serve(t, map[string]http.HandlerFunc{
		"GET /node": raw(unsettled()), "POST /devices/" + node2 + "/confirm-free": confirmation(node2),
		"POST /devices/" + node2 + "%2F3/confirm-free": confirmation(node2+"/3", "train-0"),
		"POST /devices/" + mig3 +
			"/confirm-free": refuse(api.Problem{Type: api.Busy, Title: "In use", Status: 409, Detail: "process 7"}),
	})
	got := runner{}.run(t, address, "confirm-free", "-y", "0", mig3, "17:00.0", node2, node2+"/3", "0")

	lines := make([]string, 0, 5)
	for _, r := range f.requests("POST ") {
		lines = append(lines, strings.TrimSuffix(strings.TrimPrefix(r.line, "POST /devices/"), "/confirm-free"))
	}

	cmptest.Equal(t, "exit code", got.code, exitFailed)
	cmptest.Equal(t, "asked", lines, []string{node2, mig3, node2 + "%2F3"})
	cmptest.HasTexts(t, flat(got.err), "counts more", "refused for 1 of 3 devices: "+mig3)
	cmptest.Equal(t, "devices confirmed", strings.Count(got.out, "this counts"), 2)

	for _, word := range []string{"7", "all", "MIG-none", node2 + "/9", "MIG-"} {
		if got := (runner{}).run(t, address, "confirm-free", "-y", mig2, word); got.code != exitUsage ||
			len(f.requests("POST ")) != len(lines) {
			t.Errorf("%s: exit code %d: %s", word, got.code, got.err)
		}
	}
}

// TestGetWhileHoldersAreNotKnown: neither is a device free whose holder is not known, nor does an
// id that names none go unseen.
func TestGetWhileHoldersAreNotKnown(t *testing.T) {
	_, address := serve(t, map[string]http.HandlerFunc{"GET /node": raw(unsettled())})
	got := runner{}.run(t, address, "get")
	fits(t, got.out)
	golden(t, "get-unsettled.txt", got.out)
	wide := runner{}.run(t, address, "get", "-o", "wide")
	golden(t, "get-unsettled.wide.txt", wide.out)
	cmptest.HasTexts(t, wide.out, "? ml/train-0\n", "? = unconfirmed: ")
	cmptest.LacksTexts(t, wide.out, "idle")
	cmptest.Equal(t, "unknown devices", strings.Count(wide.out, "unknown"), 1)
}

// TestGetWhatIsConfirmed: a device that is free by an operator's confirmation alone is not shown as
// one that is known to be free.
func TestGetWhatIsConfirmed(t *testing.T) {
	at := strings.LastIndex(unsettled(), `{"id":4,`)
	confirmed := unsettled()[:at] + strings.ReplaceAll(unsettled()[at:], `"processes":0,`,
		`"processes":0,"allocated":false,"confirmedFree":true,`)

	_, address := serve(t, map[string]http.HandlerFunc{"GET /node": raw(confirmed)})
	for _, args := range [][]string{{"get"}, {"get", "-o", "wide"}} {
		got := runner{}.run(t, address, args...)
		if !strings.Contains(got.out, "free (confirmed)\n") ||
			!strings.Contains(flat(got.out), "free (confirmed): an operator has confirmed that nothing uses") {
			t.Errorf("%v:\n%s", args, got.out)
		}

		if len(args) == 1 {
			fits(t, got.out)
		}
	}
}

// TestUnconfirmedHoldersInPlans: a refusal and a forced plan say how to settle what is not known.
func TestUnconfirmedHoldersInPlans(t *testing.T) {
	hold := api.Hold{Kind: api.HoldUnconfirmed,
		What: "ml/train-0 (main): the kubelet has not listed it since it restarted at 10:02:03"}
	blocker := func(instance string, holds ...api.Hold) api.Blocker {
		return api.Blocker{GPU: node2, Instance: instance, Profile: "1g.5gb", Placement: at(0, 1), Holders: holds}
	}
	refused := func(blocking ...api.Blocker) http.HandlerFunc {
		return refuse(api.Problem{Type: api.Infeasible, Title: "It does not fit", Status: 422, Blocking: blocking})
	}
	pod := api.Hold{Kind: api.HoldPod, What: "ml/train-1 (main)"}
	process := api.Hold{Kind: api.HoldProcess, PID: 7,
		What: "7"}
	handle := api.Hold{Kind: api.HoldHandle, PID: 8, What: "python3"}
	down := api.Hold{Kind: api.HoldUnconfirmed,
		What: "the kubelet does not answer: its socket: unavailable"}

	claim := api.Hold{Kind: api.HoldUnconfirmed,
		What: "ml/m-0 (main): its claim may be for administrative access, which holds nothing: the API server is not asked"}
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		says   []string
		not    string
	}{
		"unconfirmed only": {refused(blocker(mig2, hold), blocker(node2+"/4", hold)), []string{
			"may be in use: ml/train-0 (main): the kubelet has not listed it",
			"What to do: wait until the kubelet lists its pods again.",
			"(right force): migctl confirm-free " + mig2 + " " + node2 + "/4 To destroy"}, "end the work"},
		"kubelet is down": {refused(blocker(mig2, down, pod), blocker(mig3, down), blocker(node2+"/4", process, down),
			blocker(node2+"/5", handle, hold)),
			[]string{"confirm-free " + mig3 + " To destroy"}, "confirm-free " + mig2},
		"in use, all of them": {refused(blocker(mig2, down, pod), blocker(mig3, process, hold)),
			[]string{"For what may be in use"}, "migctl confirm-free"},
		"claim": {refused(blocker(mig2, claim)),
			[]string{"What to do: let mig-exporter read claims (--kubernetes.node-name", "migctl confirm-free " + mig2},
			"lists its pods again"},
		"claim and a missing holder": {refused(blocker(mig2, claim, hold)),
			[]string{"What to do: wait until the kubelet lists its pods again, and let mig-exporter"}, "end the work"},
		"both": {refused(blocker(mig2, hold), blocker(mig3, pod)), []string{"end the work",
			"For what may be in use: wait", "migctl confirm-free " + mig2 + " To destroy"}, "confirm-free " + mig3},
		"confirmed only": {refused(blocker(mig3, pod)), []string{"end the work"}, "confirm"},
	} {
		_, address := serve(t, map[string]http.HandlerFunc{"POST /plans": tt.answer})

		got := runner{}.run(t, address, "plan", "--layout=x")
		for _, want := range tt.says {
			if !strings.Contains(flat(got.err), want) {
				t.Errorf("%s: lacks %q: %s", name, want, got.err)
			}
		}

		if strings.Contains(flat(got.err), tt.not) {
			t.Errorf("%s: says %q: %s", name, tt.not, got.err)
		}
	}

	plan := repartition()
	for i := range plan.GPUs[0].Before {
		plan.GPUs[0].Before[i].Holders = []api.Hold{hold}
	}

	_, address := serve(t, map[string]http.HandlerFunc{"POST /plans": answer(plan)})
	got := runner{}.run(t, address, "plan", "--layout=x")
	cmptest.HasTexts(t, flat(got.out), "Affects perhaps ml/train-0 (main): the kubelet has not",
		"is not known: wait until the kubelet lists its pods again")
	cmptest.LacksTexts(t, flat(got.out), "no workload")
	fits(t, got.out)
}

// TestUseOfWhatIsNotKnown has a device that is not said to be allocated or free be unknown on nodes
// with a kubelet only.
func TestUseOfWhatIsNotKnown(t *testing.T) {
	use := nodedoc.Use{Processes: gpu.Some(0)}
	for listed, want := range map[bool]string{false: "free", true: "unknown"} {
		n := nodedoc.Document{GPUs: []nodedoc.GPU{{Use: use}}}
		if listed {
			n.Node.Sources = []nodedoc.SourceState{{Name: gpu.SourceKubelet, Up: true}}
		}

		v := newNodeView(n)
		if got := v.gpuUse(&v.doc.GPUs[0]).summary(); got != want {
			t.Errorf("listed %t: %q", listed, got)
		}
	}

	known := nodedoc.Holder{Namespace: "ml", Pod: "a", Container: "1"}
	missing := nodedoc.Holder{Namespace: "ml", Pod: "a", Container: "2", Confirmed: gpu.Some(false)}

	both := deviceUse{Use: nodedoc.Use{Holders: []nodedoc.Holder{missing, known}}}
	if got := both.summary() + " " + both.podNames(); got != "ml/a a" {
		t.Errorf("a pod with a container that is known: %q", got)
	}
}
