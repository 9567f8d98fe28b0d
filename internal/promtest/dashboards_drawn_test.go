package promtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// drawnNode serves a GPU for each of 60 pods of the namespace many, whose numbers are the watts that
// they draw, the last of them on a slice; for a pod of the namespace few, of which only memory is
// known; for a batch job; and, in the first half, for a pod that ends.
func drawnNode(since time.Duration) string {
	var b strings.Builder

	gpu := 0
	serve := func(holder string, watts, mib int) {
		on := fmt.Sprintf(`{gpu="%d",uuid="GPU-%d"`, gpu, gpu)
		fmt.Fprintf(&b, "nvidia_gpu_up%s} 1\n", on)

		if watts == 59 {
			slice := on + `,gpu_instance="1",mig_profile="3g.40gb"`
			fmt.Fprintf(&b, "nvidia_gpu_mig_enabled%s} 1\nnvidia_mig_gpu_instance_info%s,placement=\"0:4\"} 1\n", on, slice)
			on = slice
		}

		fmt.Fprintf(&b, "nvidia_gpu_container_memory_used_bytes%s,%s} %d\n", on, holder, mib<<20)

		if watts >= 0 {
			fmt.Fprintf(&b, "nvidia_gpu_container_power_estimate_watts%[1]s,%[2]s} %[3]d\n"+
				"nvidia_gpu_container_sm_activity_ratio%[1]s,%[2]s} 0.5\n", on, holder, watts)
		}

		gpu++
	}
	pod := func(namespace, name string) string {
		return fmt.Sprintf(`namespace="%s",pod="%s",container="c"`, namespace, name)
	}

	for watts := range 60 {
		serve(pod("many", fmt.Sprintf("pod-%d", watts)), watts, 1)
	}

	serve(pod("few", "shares"), -1, 70<<10)

	if since < badRuns/2 {
		serve(pod("many", "ended"), 2000, 1)
	}

	return b.String()
}

// TestDrawnPods: panels with a line for each pod draw those that draw most power, and any that is
// chosen, also if it has ended or its power is not known.
func TestDrawnPods(t *testing.T) {
	t.Parallel()

	f := &fleet{Prometheus: NewPrometheus(t)}
	all := loadBad(t, f, "drawn", drawnNode).with("node", "drawn|batch")
	few := all.with("namespace", "few")
	board := loadDashboards(t)["mig-workloads"]
	batch := labels.FromStrings("cluster", "sim", "instance", "batch", "job", "mig-exporter") // without Kubernetes

	for at := scraped().Add(scrapeInterval); !at.After(all.to); at = at.Add(scrapeInterval) {
		f.AddScrapeFrom(t, batch, at, Text, []byte(`
nvidia_gpu_container_memory_used_bytes{gpu="0",uuid="GPU-batch",hpc_job="job-1000"} 5
nvidia_gpu_container_power_estimate_watts{gpu="0",uuid="GPU-batch",hpc_job="job-1000"} 1000
nvidia_gpu_container_sm_activity_ratio{gpu="0",uuid="GPU-batch",hpc_job="job-1000"} 0.5
`))
	}

	var most []string
	for watts := 11; watts < 60; watts++ {
		most = append(most, fmt.Sprintf("pod-%d", watts))
	}

	for _, c := range []struct {
		about, title string
		v            view
		want         []string
	}{
		{"nothing is chosen", "Power of each pod", all, append([]string{"job-1000"}, most...)},
		{"nothing is chosen", "SM activity of each pod", all, append([]string{"job-1000"}, most...)},
		{"nothing is chosen", "Memory used by each pod", all, append([]string{"job-1000"}, most...)},
		{"a namespace is chosen", "Memory used by each pod", few, []string{"shares"}},
		{"a namespace is chosen", "Power of each pod", few, nil},
		{"pods are chosen", "Power of each pod", all.with("pod", "(pod-3|pod-7)"), []string{"pod-3", "pod-7"}},
		{"a pod is chosen that has ended", "Power of each pod", all.with("pod", "ended"), []string{"ended"}},
		{"a pod is chosen whose power is not known", "Memory used by each pod", all.with("pod", "shares"), []string{"shares"}},
	} {
		p := board.panel(t, c.title)

		var got []string

		for _, s := range f.query(t, p, "A", c.v).series {
			name := s.Metric.Get("pod")
			if name == "" {
				name = "job-1000"
			}

			got = append(got, name)

			if slice := s.Metric.Get("slice"); (slice == "3g.40gb@0:4") != (name == "pod-59") {
				t.Errorf("%s, %s: %s is on %q", c.about, c.title, name, slice)
			}
		}

		slices.Sort(got)
		slices.Sort(c.want)

		if !slices.Equal(got, c.want) {
			t.Errorf("%s, %s: got %q, want %q", c.about, c.title, got, c.want)
		}
	}
}
