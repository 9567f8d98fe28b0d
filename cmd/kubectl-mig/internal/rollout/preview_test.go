package rollout

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
)

// labelled are nodes by their labels.
type labelled map[string][]string

func (l labelled) Select(_ context.Context, selector string) ([]string, error) {
	return l[selector], nil
}

func (l labelled) Exists(_ context.Context, name string) (bool, error) {
	for _, names := range l {
		if slices.Contains(names, name) {
			return true, nil
		}
	}

	return false, nil
}

func TestSelectNodes(t *testing.T) {
	nodes := labelled{"pool=h100": {"b", "a"}, "zone=1": {"c", "b"}}
	balanced := api.Spec{Layout: "all-balanced"}
	other := api.Spec{Layout: "all-1g.10gb"}

	for _, test := range []struct {
		entries []spec.FleetEntry
		want    string // the nodes with the index of their layout, or the error
	}{
		{[]spec.FleetEntry{{Node: "c", Spec: other}, {Selector: "pool=h100", Spec: balanced}}, "a1 b1 c0"},
		{[]spec.FleetEntry{{Node: "b", Spec: balanced}, {Selector: "pool=h100", Spec: balanced}}, "a1 b0"},
		{[]spec.FleetEntry{{Node: "b", Spec: other}, {Selector: "pool=h100", Spec: balanced}},
			"node b is selected by entries[0] (node b) and by entries[1] (selector pool=h100), which have different"},
		{[]spec.FleetEntry{{Selector: "pool=h100", Spec: other}, {Selector: "zone=1", Spec: balanced}},
			"node b is selected by entries[0] (selector pool=h100) and by entries[1] (selector zone=1)"},
		{[]spec.FleetEntry{{Node: "d", Spec: other}}, "entries[0] (node d): there is no such node"},
		{[]spec.FleetEntry{{Selector: "x=y", Spec: other}}, "entries[0] (selector x=y): no node has these labels"},
	} {
		targets, _, err := SelectNodes(t.Context(), nodes, &spec.Fleet{Entries: test.entries})

		var got []string
		for _, target := range targets {
			got = append(got, target.Node+string(rune('0'+target.Spec)))
		}

		text := strings.Join(got, " ")
		if err != nil {
			text = err.Error()
		}

		if !strings.HasPrefix(text, test.want) {
			t.Errorf("%v: got %q; expected %q", test.entries, text, test.want)
		}
	}
}

func TestPreview(t *testing.T) {
	w := newWorld(t, "busy", "ready", "refused", "standing", "unknown")
	w.nodes["busy"].holders = []api.Hold{podHold("ml/train-0")}
	w.nodes["refused"].refuse = &api.Problem{Type: api.Infeasible, Detail: "no room"}
	w.nodes["standing"].layout = "new"
	w.nodes["unknown"].holders = []api.Hold{{Kind: api.HoldUnknown, What: "processes: denied"}}

	run := w.newTestRun(Options{})
	_, c := w.load("laptop")

	var targets []Target
	for i := range run.Nodes {
		targets = append(targets, Target{Node: run.Nodes[i].Name})
	}

	for _, evict := range []bool{false, true} {
		options := Options{}
		if evict {
			options = evicting()
		}

		previewer := &Previewer{Exporter: c, Evictions: c, Options: options, Parallel: 2}
		list := previewer.Preview(t.Context(), targets, run.Specs)

		for i, want := range []string{"--evict", "", "no room", "", "not known who"} {
			v := &list[i]
			if evict && v.Node == "busy" {
				want = ""
			}

			if v.Refused == "" != (want == "") || !strings.Contains(v.Refused, want) {
				t.Errorf("node %s: refused %q; expected %q", v.Node, v.Refused, want)
			}
		}

		if !slices.Equal(list[0].Evicts, []Pod{{"ml", "train-0"}}) || len(list[1].Plan.Steps) != 1 ||
			len(list[3].Plan.Steps) != 0 {
			t.Errorf("got %+v", list)
		}
	}
}

// A plan refuses a node with pods that its eviction would refuse.
func TestPreviewOfPodsThatStay(t *testing.T) {
	w := newWorld(t, "a")
	w.nodes["a"].holders = []api.Hold{podHold("ml/train-0")}
	w.nodes["a"].stays = true

	run := w.newTestRun(evicting())
	_, c := w.load("laptop")
	previewer := &Previewer{Exporter: c, Evictions: c, Options: run.Options}

	list := previewer.Preview(t.Context(), []Target{{Node: "a"}}, run.Specs)
	if !strings.Contains(list[0].Refused, "ml/train-0 stays") || len(list[0].Evicts) != 1 {
		t.Errorf("got %+v", list[0])
	}
}

func TestTooManyNodesForOneObject(t *testing.T) {
	targets := make([]Target, 1000)
	if _, err := NewRun(newWorld(t).now, targets, []api.Spec{{}}, Options{}); err == nil {
		t.Error("no error")
	}

	if _, err := NewRun(newWorld(t).now, targets[:400], []api.Spec{{}}, Options{MaxUnavailable: 4}); err != nil {
		t.Error(err)
	}
}
