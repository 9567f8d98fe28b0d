package migctl

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// The documents are those of mig-exporter for its simulated nodes, axes of 8 (A100) and 4 (A30)
// slices; sick.json and rtxpro.json are made by hand: everything that can be missing or wrong, and
// an axis of 12.
var nodes = []string{"dgx-a100-mixed", "a30", "mps-and-timeslicing", "sick", "rtxpro"}

func TestGetDrawsTheNode(t *testing.T) {
	for _, name := range nodes {
		t.Run(name, func(t *testing.T) {
			_, address := serve(t, map[string]http.HandlerFunc{"GET /node": file(t, "node-"+name+".json")})
			got := runner{}.run(t, address, "get")
			got.expectGolden(t, "get-"+name+".txt")
			wide := runner{}.run(t, address, "get", "-o", "wide")
			golden(t, "get-"+name+".wide.txt", wide.out)

			ascii := runner{env: map[string]string{"LANG": "C"}}.run(t, address, "get")
			if i := strings.IndexFunc(ascii.out, func(r rune) bool { return r > 126 }); i >= 0 {
				t.Errorf("not ASCII: %s", ascii.out[i:])
			}

			fits(t, ascii.out)
			golden(t, "get-"+name+".ascii.txt", ascii.out)
		})
	}
}

// TestGetHiddenComputeInstances: those that the exporter may not see are not none.
func TestGetHiddenComputeInstances(t *testing.T) {
	snap := &gpu.Snapshot{GPUs: []gpu.GPU{{
		Device: gpu.Device{Up: true}, MIG: gpu.MIGState{Enabled: gpu.Some(true)},
		Instances: []gpu.GPUInstance{
			{ID: 1, Profile: "3g.20gb", Device: gpu.Device{Up: true}, ComputeInstancesHidden: true}, {ID: 2, Profile: "3g.20gb", Device: gpu.Device{Up: true}},
		},
	}}}
	_, address := serve(t, map[string]http.HandlerFunc{"GET /node": answer(nodedoc.New(snap))})
	out := runner{}.run(t, address, "get").out
	cmptest.HasTexts(t, out, "CIs are hidden", "no compute instance")
}

// TestGetGPUsThatWereNotRead: right after a start of the exporter, GPUs that are not there yet are
// not no GPUs.
func TestGetGPUsThatWereNotRead(t *testing.T) {
	get := func(snap *gpu.Snapshot, args ...string) outcome {
		_, address := serve(t, map[string]http.HandlerFunc{"GET /node": answer(nodedoc.New(snap))})
		return runner{}.run(t, address, append([]string{"get"}, args...)...)
	}
	nvml := gpu.SourceState{Name: gpu.SourceNVML, Up: true, LastSuccess: time.Unix(1, 0)}

	unread := &gpu.Snapshot{Sources: []gpu.SourceState{nvml}, Unread: []int{0, 3}}
	out := get(unread).out
	cmptest.HasTexts(t, out, "2 GPUs have not been read yet and are missing here: index 0, 3")
	cmptest.LacksTexts(t, out, "No GPUs")
	cmptest.HasTexts(t, get(unread, "3").err, "2 GPUs have not been read yet")
	cmptest.HasTexts(t, get(unread, "-o", "json").out, `"gpusUnread": [`)

	nvml.LastSuccess, nvml.Up, nvml.Err = time.Time{}, false, errors.New("the driver has not answered yet")
	unknown := &gpu.Snapshot{Sources: []gpu.SourceState{nvml}}
	out = get(unknown).out
	cmptest.HasTexts(t, out, "it is not known yet which GPUs this node has: the driver has not answered yet")
	cmptest.LacksTexts(t, out, "No GPUs")
	cmptest.HasTexts(t, get(unknown, "-o", "json").out, `"gpusUnknown": "the driver has not answered yet"`)

	out = get(unknown, "3").err
	cmptest.HasTexts(t, out, "it is not known yet which GPUs this node has", "the driver has not answered yet")
	cmptest.LacksTexts(t, out, "this node has no GPU")

	nvml.LastSuccess = time.Unix(1, 0)
	nvml.Up = true
	nvml.Err = nil
	cmptest.HasTexts(t, get(&gpu.Snapshot{Sources: []gpu.SourceState{nvml}}).out, "No GPUs.")
}

// TestAllGPUsAreThoseThatWereRead: while some GPUs are not there yet, the others are not all of
// them.
func TestAllGPUsAreThoseThatWereRead(t *testing.T) {
	snap := &gpu.Snapshot{Unread: []int{0, 3}}
	_, address := serve(t, map[string]http.HandlerFunc{"GET /node": answer(nodedoc.New(snap))})
	const missing = "2 GPUs have not been read yet"

	out := runner{}.run(t, address, "mode", "on", "all")
	cmptest.HasTexts(t, out.err, missing)
	cmptest.LacksTexts(t, out.out, "Nothing to do")
	cmptest.HasTexts(t, runner{}.run(t, address, "profiles").out, missing)
}

// TestGetWithoutOperations: a node whose operations cannot be read is drawn, and not as one without any. A server
// without partition control has none.
func TestGetWithoutOperations(t *testing.T) {
	const says = "! the operations could not be read, so GPUs that they block, and layouts that are not restored, are not shown: "

	for name, c := range map[string]struct {
		operations http.HandlerFunc
		says       string
	}{
		"none":        {raw(`{"apiVersion":"mig-exporter/v1","operations":[]}`), ""},
		"no control":  {refuse(api.Problem{Type: api.NotFound, Title: "Not found", Status: 404}), ""},
		"not built":   {refuse(api.Problem{Type: api.NotBuilt, Title: "Not built", Status: 501}), ""},
		"forbidden":   {refuse(api.Problem{Type: api.Forbidden, Title: "Forbidden", Status: 403, Detail: "No."}), says + "Forbidden: No."},
		"unavailable": {refuse(api.Problem{Type: api.Unavailable, Title: "Unavailable", Status: 503}), says + "Unavailable"},
		"no document": {raw("{}"), says + "cannot reach"},
	} {
		_, address := serve(t, map[string]http.HandlerFunc{"GET /node": file(t, "node-rtxpro.json"), "GET /operations": c.operations})
		got := runner{}.run(t, address, "get")
		cmptest.Equal(t, name+": exit code", got.code, exitOK)
		cmptest.HasTexts(t, flat(got.out), c.says, "rtx-pro-6")
		cmptest.Equal(t, name+": is known", !strings.Contains(flat(got.out), says), c.says == "")
	}
}
