package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

const podsText = `
version: 1
gpus: [{model: H100-80GB, count: 2}]
workloads: [{name: w, memory: 4GiB, sm: 20}]
pods:
  - {name: short, resource: nvidia.com/gpu, workload: w, for: 10s}
  - {name: long, resource: nvidia.com/gpu, workload: w}
  - {name: third, resource: nvidia.com/gpu, workload: w, at: 5s}
  - {name: next, resource: nvidia.com/gpu, workload: w, at: 10s}
`

func TestAdmission(t *testing.T) {
	n := start(t, podsText)
	short := mustContainer(t, n, "short")
	cmptest.Equal(t, "device of short (the first free GPU)", short.Devices[0].IDs[0], string(state(t, n, 0).UUID))
	cmptest.Equal(t, "length of its container id", len(short.ID), 64)

	if short.PodUID == "" {
		t.Error("short has no UID")
	}

	advance(t, n, 5*time.Second)

	if !recorded(n, "default/third: refused: no free device of nvidia.com/gpu") {
		t.Error("third was not refused")
	}

	advance(t, n, 5*time.Second)

	next := mustContainer(t, n, "next")
	if next.Devices[0].IDs[0] != short.Devices[0].IDs[0] {
		t.Errorf("next has %v, want what short had", next.Devices)
	}

	if lingering := mustContainer(t, n, "short"); len(lingering.PIDs) != 0 {
		t.Errorf("a pod that has ended has processes %v", lingering.PIDs)
	}

	advance(t, n, 2*time.Second)

	if _, ok := findContainer(n, "short"); ok {
		t.Error("short lingers beyond two seconds")
	}

	p := state(t, n, 0).Processes
	if len(p) != 1 {
		t.Fatalf("processes %+v, want one", p)
	}

	cmptest.Equal(t, "process (that of next)", p[0].PID, next.PIDs[0])
	cmptest.Equal(t, "its memory", p[0].MemoryBytes, 4<<30)
}

// idForms is a node with every kind of device; WHOLE, SLICE and HALF stand for the resources.
const idForms = `
gpus:
  - {model: H100-80GB, minor: 4}
  - {model: H100-80GB, minor: 2, mig: true, layout: ["1g.10gb@0"]}
  - {model: H100-80GB, minor: 7, sharing: {kind: time-slicing, replicas: 3}}
  - {model: H100-80GB, minor: 9, mig: true, layout: ["3g.40gb@4"], sharing: {kind: time-slicing, replicas: 2}}
pods:
  - {name: whole, resource: WHOLE, device: 0}
  - {name: slice, resource: SLICE, device: 1/1g.10gb@0}
  - {name: first, resource: WHOLE, device: 2}
  - {name: second, resource: WHOLE, device: 2}
  - {name: half, resource: HALF, device: 3/3g.40gb@4}
`

// idCase is how one allocator writes them. GPU<n> and MIG<n> stand for the UUIDs of GPU n and of
// its MIG device.
type idCase struct {
	node               string
	whole, slice, half string // resources
	ids                [5]string
}

func idCases() []idCase {
	return []idCase{
		{"{}", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb",
			[5]string{"GPU0", "MIG1", "GPU2::0", "GPU2::1", "MIG3::0"}},
		{"{migUUIDs: legacy}", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb",
			[5]string{"GPU0", "MIG-GPU1/7/0", "GPU2::0", "GPU2::1", "MIG-GPU3/2/0::0"}},
		{"{allocator: gke}", "nvidia.com/gpu", "nvidia.com/gpu", "nvidia.com/gpu",
			[5]string{"nvidia4", "nvidia2/gi7", "nvidia7/vgpu0", "nvidia7/vgpu1", "nvidia9/gi2/vgpu0"}},
		{"{allocator: hami}", "nvidia.com/gpu", "nvidia.com/gpu", "nvidia.com/gpu",
			[5]string{"GPU0-0", "GPU1-0", "GPU2-0", "GPU2-1", "GPU3-0"}},
	}
}

func (c idCase) start(t *testing.T) *Node {
	t.Helper()
	text := strings.NewReplacer("WHOLE", c.whole, "SLICE", c.slice, "HALF", c.half).Replace(idForms)

	return start(t, "version: 1\nnode: "+c.node+text)
}

// wanted puts the node's UUIDs into the ids.
func (c idCase) wanted(t *testing.T, n *Node) []string {
	t.Helper()
	var names []string

	for i := range n.Count() {
		s := state(t, n, i)

		names = append(names, fmt.Sprintf("GPU%d", i), string(s.UUID))
		if len(s.Devices) > 0 && !strings.Contains(c.node, "legacy") {
			names = append(names, fmt.Sprintf("MIG%d", i), string(s.Devices[0].Compute.UUID))
		}
	}

	var ids []string
	for _, id := range c.ids {
		ids = append(ids, strings.NewReplacer(names...).Replace(id))
	}

	return ids
}

func TestDeviceIDs(t *testing.T) {
	for _, tc := range idCases() {
		t.Run(tc.node, func(t *testing.T) {
			n := tc.start(t)

			wanted := tc.wanted(t, n)
			for i, pod := range []string{"whole", "slice", "first", "second", "half"} {
				c := mustContainer(t, n, pod)
				if len(c.Devices) != 1 {
					t.Fatalf("%s has %v, want one grant", pod, c.Devices)
				}

				cmptest.Equal(t, "devices of "+pod, c.Devices[0].IDs, []string{wanted[i]})
			}
		})
	}
}

func TestClaims(t *testing.T) {
	n := idCase{node: "{allocator: dra, hostname: h}", whole: "nvidia.com/gpu", slice: "nvidia.com/mig-1g.10gb",
		half: "nvidia.com/mig-3g.40gb"}.start(t)
	for pod, want := range map[string]string{
		"whole": "gpu-4", "slice": "gpu-2-mig-1g10gb-19-0", "first": "gpu-7", "second": "gpu-7",
		"half": "gpu-9-mig-3g40gb-9-4",
	} {
		c := mustContainer(t, n, pod)

		claim := Claim{Name: pod + "-main", Namespace: "default", Driver: "gpu.nvidia.com", Pool: "h", Device: want}
		if len(c.Devices) != 0 || !slices.Equal(c.Claims, []Claim{claim}) {
			t.Errorf("%s has %v and %v, want %+v", pod, c.Devices, c.Claims, claim)
		}
	}

	if all := n.Allocatable(); len(all) != 0 {
		t.Errorf("allocatable resources %v beside claims", all)
	}
}

func TestAllocatableHoldsEverythingThatIsGiven(t *testing.T) {
	for _, name := range shippedNames(t) {
		n := shipped(t, name)
		all := make(map[string]string)

		for _, d := range n.Allocatable() {
			for _, id := range d.IDs {
				if all[id] != "" {
					t.Errorf("%s: %s twice", name, id)
				}

				all[id] = d.Resource
			}
		}

		for _, c := range n.Containers() {
			for _, d := range c.Devices {
				for _, id := range d.IDs {
					if all[id] != d.Resource {
						t.Errorf("%s: %s was given as %s and is allocatable as %q", name, id, d.Resource, all[id])
					}
				}
			}
		}
	}
}

func TestSeveralDevicesAndContainers(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: H100-80GB, count: 4}]
workloads: [{name: w, memory: 4GiB, sm: 20, nvlink: 1GiB}]
pods:
  - name: p
    containers:
      - {name: a, resource: nvidia.com/gpu, count: 2, workload: w}
      - {name: b, resource: nvidia.com/gpu}
      - {name: c}
  - {name: greedy, resource: nvidia.com/gpu, count: 2}
  - {name: q, resource: nvidia.com/gpu}
`)
	advance(t, n, 10*time.Second)
	lengths := map[string]int{}

	for _, c := range n.Containers() {
		for _, d := range c.Devices {
			lengths[c.Pod+"/"+c.Name] += len(d.IDs)
		}
	}

	cmptest.Equal(t, "devices of each container (greedy must get none)", lengths,
		map[string]int{"p/a": 2, "p/b": 1, "q/main": 1})

	a := state(t, n, 0)

	b := state(t, n, 1)
	if len(a.Processes) != 1 || len(b.Processes) != 1 {
		t.Fatalf("processes %v and %v, want one on each GPU", a.Processes, b.Processes)
	}

	cmptest.Equal(t, "process on both GPUs", a.Processes[0].PID, b.Processes[0].PID)

	if a.NVLinkBytes != 10<<30 || state(t, n, 3).NVLinkBytes != 0 {
		t.Errorf("%d bytes over NVLink", a.NVLinkBytes)
	}
}
