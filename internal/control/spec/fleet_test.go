package spec

import (
	"strings"
	"testing"
)

const goodFleet = `apiVersion: mig-exporter/v1
kind: Fleet
entries:
  - node: gpu-01
    spec: {layout: all-balanced}
  - selector: pool=h100
    spec:
      gpus: [all]
      devices: {1g.10gb: 7}
  - node: gpu-02
    spec: {demand: [{memory: 12GiB}]}
`

func TestDecodeFleet(t *testing.T) {
	f, err := DecodeFleet("fleet.yaml", []byte(goodFleet))
	if err != nil {
		t.Fatal(err)
	}

	if len(f.Entries) != 3 || f.Entries[0].Spec.Layout != "all-balanced" ||
		f.Entries[1].Spec.Devices["1g.10gb"].Count != 7 || f.Entries[2].Spec.Demand[0].Count != 1 {
		t.Errorf("got %+v", f)
	}

	if f.Entries[0].SameLayout(&f.Entries[1]) || !f.Entries[0].SameLayout(&f.Entries[0]) {
		t.Error("layouts are not compared by their specs")
	}

	if !IsFleet([]byte(goodFleet)) || IsFleet([]byte("layout: all-balanced")) || IsFleet([]byte("{")) {
		t.Error("fleets are not told apart")
	}
}

func TestWrongFleets(t *testing.T) {
	for _, test := range []struct{ old, with, want string }{
		{"mig-exporter/v1", "v1", `fleet.yaml:1: apiVersion: is "v1"; expected one of mig-exporter/v1`},
		{"kind: Fleet", "kind: Node", `fleet.yaml:2: kind: is "Node"; expected one of Fleet`},
		{"kind: Fleet\n", "", "kind: is missing"},
		{"entries:", "items:", "fleet.yaml:3: items: is not known here"},
		{"node: gpu-01", "nodes: gpu-01", "fleet.yaml:4: entries[0].nodes: is not known here"},
		{"node: gpu-01", "node: ''", "fleet.yaml:4: entries[0].node: is \"\"; expected the name of a node"},
		{"selector: pool=h100", "selector: a=b\n    node: x", "fleet.yaml:6: entries[1]: expected either node or selector"},
		{"node: gpu-01\n    spec", "spec", "fleet.yaml:4: entries[0]: expected either node or selector"},
		{"    spec: {layout: all-balanced}\n", "", "entries[0].spec: is missing"},
		{"{layout: all-balanced}", "{}", "fleet.yaml:5: entries[0].spec: nothing is asked for"},
		{"gpus: [all]", "gpus: []", "fleet.yaml:8: entries[1].spec.gpus: is empty"},
		{"1g.10gb: 7", "1g.10gb: 700", "entries[1].spec.devices.1g.10gb"},
		{"node: gpu-02", "node: gpu-02\n    node: gpu-03", "duplicate key"},
	} {
		data := strings.Replace(goodFleet, test.old, test.with, 1)

		_, err := DecodeFleet("fleet.yaml", []byte(data))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q instead of %q: got %v; expected %q", test.with, test.old, err, test.want)
		}
	}
}
