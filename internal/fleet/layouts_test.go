package fleet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

func TestLayouts(t *testing.T) {
	h100, ok := mig.FindModel("H100 80GB HBM3")
	if !ok {
		h100 = modelNamed("NVIDIA H100 80GB HBM3")
	}

	slice := func(cluster, node, uuid, profile string) GPU {
		return GPU{
			Cluster: cluster, Node: node, UUID: uuid, Profile: profile, Action: advise.ActionSlice, model: h100,
		}
	}
	provisional := slice("", "b", "GPU-5", "7g.80gb")
	provisional.Provisional = true
	unchecked := slice("y", "", "GPU-6", "3g.40gb")
	unchecked.NotChecked = true
	both := slice("", "b", "GPU-7", "")
	both.Provisional, both.NotChecked = true, true
	keep := GPU{Node: "a", UUID: "GPU-9", Action: "keep"}

	three := []GPU{
		slice("", "a", "GPU-1", "3g.40gb"), slice("", "a", "GPU-2", "3g.40gb"), slice("", "a", "GPU-3", "3g.40gb"),
	}
	cannotBeSaid := []GPU{
		slice("", "b", "GPU-3", ""), slice("", "c", "GPU-4", "7g.80gb"), slice("", "c", "GPU-5", "3g.40gb"),
	}

	for _, test := range []struct {
		gpus []GPU
		want string   // the error
		on   []string // else the GPUs of node a, of which one is freed
		left int      // nodes that are left out
	}{
		{gpus: []GPU{keep, three[0], three[1]}, on: []string{"GPU-1"}},
		{gpus: []GPU{provisional, three[0], unchecked, three[1], both}, on: []string{"GPU-1"}},
		{gpus: three, on: []string{"GPU-1", "GPU-2"}},
		{gpus: append(cannotBeSaid, three[:2]...), on: []string{"GPU-1"}, left: 2},
		{gpus: []GPU{keep}, want: "no slices"},
		{gpus: []GPU{keep, provisional}, want: "no slice is final yet: 1 provisional, by evidence that is not complete yet"},
		{gpus: []GPU{provisional, unchecked, both},
			want: "yet: 1 provisional, by evidence that is not complete yet, 2 with fewer media engines"},
		{gpus: []GPU{slice("", "", "GPU-1", "3g.40gb")}, want: "does not name the node of GPU-1"},
		{gpus: []GPU{slice("", "a", "GPU-1", "")}, want: "not known"},
		{gpus: []GPU{slice("x", "a", "GPU-1", "3g.40gb"), slice("y", "b", "GPU-2", "3g.40gb")}, want: "2 clusters"},
		{gpus: cannotBeSaid, want: "c would get different layouts"},
		{gpus: []GPU{slice("", "a", "GPU-1", "5g.1gb")}, want: "no profile 5g.1gb"},
	} {
		layouts, left, err := (&Report{GPUs: test.gpus}).Layouts()
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; expected %q", err, test.want)
			}

			continue
		}

		want := []NodeLayout{{Node: "a", GPUs: test.on, Devices: map[string]int{"3g.40gb": 2}, Freed: 1}}
		if err != nil || fmt.Sprint(layouts) != fmt.Sprint(want) || len(left) != test.left {
			t.Errorf("got %+v without %q, %v; want %+v", layouts, left, err, want)
		}
	}
}
