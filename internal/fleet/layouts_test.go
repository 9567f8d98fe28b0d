package fleet

import (
	"maps"
	"slices"
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

	for _, test := range []struct {
		gpus []GPU
		want string // the error
	}{
		{[]GPU{keep, slice("", "a", "GPU-1", "3g.40gb"), slice("", "a", "GPU-2", "3g.40gb")}, ""},
		{[]GPU{provisional, slice("", "a", "GPU-1", "3g.40gb"), unchecked, slice("", "a", "GPU-2", "3g.40gb"), both}, ""},
		{[]GPU{keep}, "no slices"},
		{[]GPU{keep, provisional}, "no slice is final yet: 1 provisional, by evidence that is not complete yet"},
		{[]GPU{provisional, unchecked, both}, "yet: 1 provisional, by evidence that is not complete yet, 2 with fewer media engines"},
		{[]GPU{slice("", "", "GPU-1", "3g.40gb")}, "does not name the node of GPU-1"},
		{[]GPU{slice("", "a", "GPU-1", "")}, "not known"},
		{[]GPU{slice("x", "a", "GPU-1", "3g.40gb"), slice("y", "b", "GPU-2", "3g.40gb")}, "2 clusters"},
		{[]GPU{slice("", "a", "GPU-1", "7g.80gb"), slice("", "a", "GPU-2", "3g.40gb")}, "different layouts"},
		{[]GPU{slice("", "a", "GPU-1", "5g.1gb")}, "no profile 5g.1gb"},
	} {
		layouts, err := (&Report{GPUs: test.gpus}).Layouts()
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; expected %q", err, test.want)
			}

			continue
		}

		if err != nil || len(layouts) != 1 || layouts[0].Node != "a" ||
			!slices.Equal(layouts[0].GPUs, []string{"GPU-1"}) ||
			!maps.Equal(layouts[0].Devices, map[string]int{"3g.40gb": 2}) {
			t.Errorf("got %+v, %v", layouts, err)
		}
	}
}
