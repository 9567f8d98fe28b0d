package truth

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

var seriesDir = flag.String("series", "", "folder for what the exporter serves of the nodes, and what is true of them")

// seriesMinutes is for how long before the advice series are written, a mean or maximum of
// seriesStep minutes each.
const (
	seriesMinutes = 50 * 60
	seriesStep    = 5
)

// TestWriteSeries writes what Prometheus sees of the nodes before the advice is applied, for rules
// to be compared with it (internal/promtest).
func TestWriteSeries(t *testing.T) {
	if *seriesDir == "" {
		t.Skip("needs -series, a folder")
	}

	results := evaluateAll(*seed, *nodes)

	file, err := os.Create(filepath.Join(*seriesDir, "series.txt"))
	if err != nil {
		t.Fatal(err)
	}

	w := bufio.NewWriter(file)
	writeSeries(w, results)

	if err := errors.Join(w.Flush(), file.Close()); err != nil {
		t.Fatal(err)
	}

	var facts []seriesFact

	for _, res := range results {
		for i, s := range appliedSubjects(res.node) {
			f := factOf(res.node, &res.records[i])
			for _, c := range s.candidates {
				if 2*c.profile.MemorySlices == res.node.model.AxisUnits {
					f.HalfHarms, f.HalfKills = f.HalfHarms || s.harms(res.node, &c), f.HalfKills || s.dies(&c)
				}
			}

			facts = append(facts, f)
		}
	}

	text, err := json.Marshal(facts)
	if err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(*seriesDir, "facts.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// seriesFact is what is true of the workload of a GPU.
type seriesFact struct {
	Node, GPU, Kind string
	Recommended     string // by the advisor
	// What that does to it in the week after, and what a slice with half of the memory does: it
	// kills a workload that lacks memory or an engine.
	Harms, Kills, HalfHarms, HalfKills bool
}

// appliedSubjects returns the workloads of a node after a week in slices of all sizes.
func appliedSubjects(n *node) []*subject {
	list := n.subjects()
	for _, s := range list {
		for minute := observedMinutes; minute < observedMinutes+appliedMinutes; minute++ {
			s.apply(n, minute)
		}
	}

	return list
}

func factOf(n *node, r *record) seriesFact {
	v := &r.verdicts[byDefault]

	f := seriesFact{Node: n.name, Kind: r.kind, Recommended: v.profile, Harms: v.given && v.harmed(), Kills: v.dies()}
	if _, err := fmt.Sscanf(r.name, n.name+" GPU %s", &f.GPU); err != nil {
		panic(err)
	}

	return f
}

// writeSeries writes the scrapes of all nodes in the order of their times, each after a line with
// both.
func writeSeries(w io.Writer, results []*result) {
	all := make([]*gpu.Snapshot, len(results))
	for k, res := range results {
		all[k] = res.node.snapshot()
	}

	for minute := observedMinutes - seriesMinutes; minute < observedMinutes; minute += seriesStep {
		for k, res := range results {
			var sums [8]scrapeSums

			for step := range seriesStep {
				res.node.advance(all[k], minute+step)

				for i := range sums {
					sums[i].add(&all[k].GPUs[i])
				}
			}

			fmt.Fprintf(w, "#! %d %s\n", all[k].Time.UnixMilli(), res.node.name)

			for i := range sums {
				sums[i].write(w, res.node.name, &all[k].GPUs[i])
			}

			if minute >= observedMinutes-60 {
				writeAdvice(w, res)
			}
		}
	}
}

// scrapeSums are what a GPU does in the minutes of a scrape.
type scrapeSums struct {
	busy, sm float64
	memory   uint64
}

func (s *scrapeSums) add(g *gpu.GPU) {
	s.busy += g.Activity.GraphicsEngine.Or(0) / seriesStep
	s.sm += g.Activity.SM.Or(0) / seriesStep
	s.memory = max(s.memory, g.Readings.Memory.Used.Or(0))
}

func (s *scrapeSums) write(w io.Writer, node string, g *gpu.GPU) {
	on := fmt.Sprintf(`gpu="%d",uuid="%s-%d"`, g.Index, node, g.Index)
	for _, v := range []struct {
		family string
		value  float64
	}{
		{"up", 1}, {"mig_enabled", 0}, {"graphics_engine_activity_ratio", s.busy}, {"sm_activity_ratio", s.sm},
		{"memory_used_bytes", float64(s.memory)}, {"memory_total_bytes", float64(g.Readings.Memory.Total.Or(0))},
	} {
		fmt.Fprintf(w, "nvidia_gpu_%s{%s} %v\n", v.family, on, v.value)
	}

	for i := range g.Holders {
		h := &g.Holders[i]
		fmt.Fprintf(w, "nvidia_gpu_pod_info{%s,namespace=%q,pod=%q,container=%q,sharing=%q,confirmed=\"true\"} 1\n",
			on, h.Namespace, h.Pod, h.Name, h.Sharing)
	}
}

// writeAdvice writes the answers that the advisor comes to at the end.
func writeAdvice(w io.Writer, res *result) {
	for i := range res.records {
		f := factOf(res.node, &res.records[i])
		profiles := res.node.model.Profiles

		at := slices.IndexFunc(profiles, func(p gpu.Profile) bool { return p.Name == f.Recommended })
		if at < 0 {
			continue
		}

		on := fmt.Sprintf(`gpu="%s",uuid="%s-%s"`, f.GPU, f.Node, f.GPU)
		fmt.Fprintf(w, "nvidia_gpu_rightsizing_candidate{%s,recommended_profile=%q} 1\n", on, f.Recommended)
		fmt.Fprintf(w, "nvidia_gpu_rightsizing_reclaimable_ratio{%s} %v\n", on,
			1-float64(profiles[at].SMs)/float64(res.node.model.sms))
	}
}
