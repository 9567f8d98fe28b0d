package migctl

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestTheBeginningOfAUUIDWillDo: what get prints names a device in every command, as long as it is
// the only one.
func TestTheBeginningOfAUUIDWillDo(t *testing.T) {
	routes := applied()
	routes["GET /node"] = file(t, "node-dgx-a100-mixed.json")
	_, address := serve(t, routes)

	for args, want := range map[string]string{
		"get gpu-cfdc -o name":               "GPU-cfdc96fa-1ae1-5b1f-a20d-70b43ddc1a35\n",
		"get GPU-cfdc96fa -o json":           `"index": 1`,
		"profiles GPU-0081":                  "GPU 2",
		"confirm-free MIG-2ded0f32":          "MIG-2ded0f32-64f7-5d1d-b324-d8f3fe1ee0e2",
		"confirm-free GPU-00811850/1":        "GPU instance 1 of GPU 2",
		"mode off GPU-cfdc96fa":              "GPU 1",
		"restore GPU-0081":                   "GPU-00811850-ee92-574a-b356-24aa265037eb",
		"get -o name GPU-c5373dea GPU-6014c": "GPU-c5373dea-8c32-574b-97ca-a30023defb83\n",
	} {
		got := plainTerminal("n\n").run(t, address, strings.Fields(args)...)
		cmptest.HasTexts(t, got.out, want)

		if got.code == exitUsage {
			t.Errorf("%s: %s", args, got.err)
		}
	}

	for args, want := range map[string]string{
		"get GPU-":                         `"GPU-" is the beginning of 8 UUIDs`,
		"get GPU-5":                        "give more of it: GPU-5ad3a027, GPU-5f65f8d5 See",
		"confirm-free GPU-5/1":             `"GPU-5/1" is the beginning of 2 UUIDs`,
		"plan --demand sms=1 --force=MIG-": `"MIG-" is the beginning of`,
		"get GPU-99":                       `this node has no GPU "GPU-99"`,
	} {
		got := runner{}.run(t, address, strings.Fields(args)...)
		cmptest.Equal(t, args+": exit code", got.code, exitUsage)
		cmptest.HasTexts(t, flat(got.err), want)
	}
}

func TestBeginningsOfUUIDs(t *testing.T) {
	var many []string
	for i := range 12 {
		many = append(many, fmt.Sprintf("MIG-%08d-64f7-5d1d-b324-d8f3fe1ee0e2", i))
	}

	for want, uuids := range map[string][]string{
		"GPU-5ad3a027-49b, GPU-5ad3a027-50a": {"GPU-5ad3a027-50aa", "GPU-5ad3a027-49bb"},
		"MIG-00000000, MIG-00000001, MIG-00000002, MIG-00000003, MIG-00000004, MIG-00000005, MIG-00000006, " +
			"MIG-00000007, and 4 more": many,
		"GPU-1, GPU-1": {"GPU-1", "GPU-1"},
	} {
		cmptest.Equal(t, "beginnings", beginningsOf(uuids), want)
	}
}

// TestSpecsHaveWholeUUIDs: the server is asked for the node only if a UUID is short.
func TestSpecsHaveWholeUUIDs(t *testing.T) {
	f, address := serve(t, map[string]http.HandlerFunc{
		"GET /node": file(t, "node-dgx-a100-mixed.json"), "POST /plans": answer(nothingToDo()),
	})
	runner{}.run(t, address, "plan", "--gpus=GPU-0081,3", "--devices=3g.20gb=2", "--force=MIG-2ded0f32")
	cmptest.Equal(t, "asked", f.requests(""), []request{{line: "GET /node"}, {line: "POST /plans", body: `{"spec":` +
		`{"gpus":["GPU-00811850-ee92-574a-b356-24aa265037eb","3"],"devices":{"3g.20gb":2}},` +
		`"force":["MIG-2ded0f32-64f7-5d1d-b324-d8f3fe1ee0e2"]}`}})
}

// TestShortNames: the names of --force are as short as they still differ.
func TestShortNames(t *testing.T) {
	const rest = "-64f7-5d1d-b324-d8f3fe1ee0e2"
	cmptest.Equal(t, "short", shortNames([]string{"MIG-00000001" + rest, "GPU-00000001" + rest + "/3", "GPU-00000001" +
		rest + "/4"}), []string{"MIG-00000001", "GPU-00000001/3", "GPU-00000001/4"})
	cmptest.Equal(t, "alike", shortNames([]string{"MIG-00000001" + rest, "MIG-00000001-64f8" + rest[5:]}),
		[]string{"MIG-00000001" + rest[:8], "MIG-00000001-64f8" + rest[5:8]})
	cmptest.Equal(t, "of old drivers", shortNames([]string{"MIG-GPU-00000001" + rest + "/1/0", "MIG-1"}),
		[]string{"MIG-GPU-00000001" + rest + "/1/0", "MIG-1"})
}
