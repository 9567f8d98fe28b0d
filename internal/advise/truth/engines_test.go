package truth

import (
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
)

// decodingNode returns a node of H100s, each of which decodes: all have narrow kernels and little
// memory, so that their decoders alone decide.
func decodingNode(decoders ...float64) *node {
	n := &node{name: "video"}
	all := models()

	n.model = all[slices.IndexFunc(all, func(m model) bool { return m.Name == "H100-80GB" })]
	for i, used := range decoders {
		n.gpus[i] = &workload{
			kind: "video", mix: mixAlike, seed: uint64(i), pods: 1, needGiB: steady(2), busy: steady(0.2), start: starting{name: startPlain, peak: 1, began: 1},
			states:  [][]kernels.Phase{{{Share: 1, Width: 4, Bandwidth: 0.02}}},
			stateAt: func(int) int { return 0 }, media: kernels.Engines{1: used}, mediaAt: steady(1),
		}
	}

	return n
}

// TestDecodersDecide: workloads that keep some of an H100's seven decoders busy get the slice that
// has as many, or none, and are not harmed. The smallest slice with a decoder harms most of them.
func TestDecodersDecide(t *testing.T) {
	t.Parallel()
	res := evaluate(decodingNode(0.1, 0.5, 1.2, 2, 3, 5, 7))
	var given []string

	for i := range res.records {
		r := &res.records[i]
		for way := range naively {
			if v := &r.verdicts[way]; v.given && v.harmed() {
				t.Errorf("%s: harmed in %s, throughput %v", r.name, v.profile, v.seen.throughput)
			}
		}

		given = append(given, r.verdicts[byDefault].profile)
	}

	cmptest.Equal(t, "slices", given, []string{"1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "", ""})

	harmed := 0
	for i := range res.records {
		if v := &res.records[i].verdicts[naively]; v.given && v.harmed() {
			harmed++
		}
	}

	cmptest.Equal(t, "harmed by the naive rule", harmed, 5)
}

// TestTooFewDecodersAreNoticed: a workload that needs five decoders is moved to a slice with three
// all the same. The advice to grow comes within a quarter of an hour. It names the next profile
// with more, or, if the workload was seen on the whole GPU, the only one with as many.
func TestTooFewDecodersAreNoticed(t *testing.T) {
	t.Parallel()
	n := decodingNode(5)
	s := n.subjects()[0]
	on := []slice{{index: 0, work: s.work, profile: s.find("3g.40gb").profile}}

	for before, want := range map[int]string{0: "4g.40gb", 60: "7g.80gb"} {
		a := advise.New(options(false))
		adviceOn(a, fastPath(n, before))
		r := adviceOn(a, slicedPath(n, on, before, 15))[0]
		cmptest.Equal(t, r.Explanation, [3]string{string(r.Action), string(r.Reason), r.Recommended},
			[3]string{"grow", "media-engines", want})
	}
}
