package promtest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const badRuns = 40 * time.Minute

// loadBad loads what a node serves at each time, by the time since the start, and returns a view of it.
func loadBad(t *testing.T, f *fleet, name string, serve func(since time.Duration) string) view {
	t.Helper()
	node := fleetNode{name: name}
	for since := scrapeInterval; since <= badRuns; since += scrapeInterval {
		f.LoadFrom(t, node.target(), scraped().Add(since), Text, []byte(serve(since)))
	}
	return view{from: scraped(), to: scraped().Add(badRuns), step: fleetStep, set: map[string]string{"node": name}}
}

// TestCounterResetIsNoDrop: counters that begin anew, as after a restart of the exporter, make no negative rate and no spike.
func TestCounterResetIsNoDrop(t *testing.T) {
	f := &fleet{Engine: Open(t)}
	const on = `{gpu="0",uuid="GPU-0"`
	v := loadBad(t, f, "reset", func(since time.Duration) string {
		count := since / scrapeInterval
		if since > badRuns/2 {
			count -= badRuns / 2 / scrapeInterval
		}
		text := "nvidia_gpu_up" + on + "} 1\nnvidia_gpu_mig_enabled" + on + "} 0\n"
		for _, counter := range []string{
			"nvidia_gpu_xids_total" + on, "nvidia_gpu_mig_layout_changes_total" + on, "nvidia_gpu_pcie_receive_bytes_total" + on,
			"nvidia_gpu_pcie_transmit_bytes_total" + on, "nvidia_gpu_pcie_replays_total" + on,
			"nvidia_gpu_nvlink_receive_bytes_total" + on, "nvidia_gpu_nvlink_transmit_bytes_total" + on,
			"nvidia_gpu_nvlink_errors_total" + on + `,kind="replay"`, "nvidia_gpu_clock_event_seconds_total" + on + `,reason="sw_power_cap"`,
			"nvidia_gpu_read_errors_total" + on + `,reading="device",reason="lost"`,
			"nvidia_gpu_ecc_errors_total" + on + `,severity="corrected",lifetime="aggregate",location="sram"`,
		} {
			text += fmt.Sprintf("%s} %d\n", counter, count)
		}
		return text
	})
	rates := 0
	for _, p := range loadDashboards(t)["mig-node"].all() {
		for _, target := range p.Targets {
			if target.Instant || !strings.Contains(target.Expr, "$__rate_interval") {
				continue
			}
			for _, s := range f.query(t, p, target.RefID, v).series {
				rates++
				for _, x := range s.Floats {
					if x.F < 0 || x.F > 5 {
						t.Errorf("%s, %s: %v at %d", p.Title, s.Metric, x.F, x.T)
					}
				}
			}
		}
	}
	if rates < 8 {
		t.Errorf("%d lines of rates", rates)
	}
}

// TestReplacedGPUKeepsItsLine: the GPU at an index, and the slice at a place, are one line whatever their identity.
func TestReplacedGPUKeepsItsLine(t *testing.T) {
	f := &fleet{Engine: Open(t)}
	v := loadBad(t, f, "replaced", func(since time.Duration) string {
		uuid, gi := "GPU-old", "1"
		if since > badRuns/2 {
			uuid, gi = "GPU-new", "2"
		}
		on := fmt.Sprintf(`{gpu="1",uuid="%s"`, uuid)
		slice := fmt.Sprintf(`%s,gpu_instance="%s",mig_profile="3g.40gb"`, on, gi)
		return fmt.Sprintf(`nvidia_gpu_up{gpu="0",uuid="%[1]s-0"} 1
nvidia_gpu_sm_activity_ratio{gpu="0",uuid="%[1]s-0"} 0.5
nvidia_gpu_up%[2]s} 1
nvidia_gpu_mig_enabled%[2]s} 1
nvidia_gpu_sm_activity_ratio%[2]s} 0.25
nvidia_mig_gpu_instance_info%[3]s,placement="0:4"} 1
nvidia_mig_gpu_instance_up%[3]s} 1
nvidia_mig_gpu_instance_sm_activity_ratio%[3]s} 0.75
`, uuid, on, slice)
	})
	p := loadDashboards(t)["mig-node"].panel(t, "SM activity of each device")
	a := f.query(t, p, "A", v)
	got := map[string]int{}
	for _, s := range a.series {
		got[legend(p.Targets[0].LegendFormat, s)] = len(s.Floats)
	}
	points := int(badRuns / fleetStep)
	if len(got) != 2 || got["GPU 0 whole"] != points || got["GPU 1 3g.40gb@0:4"] != points {
		t.Errorf("lines with points %v, want two of %d", got, points)
	}
}

// TestHostileNames: names of pods reach legends and cells as they are, and are no patterns.
func TestHostileNames(t *testing.T) {
	f := &fleet{Engine: Open(t)}
	names := []string{`a"b`, `x{{gpu}}$node`, "new\nline", `$1 back\slash`, `.*`, `pod false`, `<b>bold</b>`, "Köln"}
	v := loadBad(t, f, "hostile", func(time.Duration) string {
		text := ""
		for i, name := range names {
			on := fmt.Sprintf(`{gpu="%d",uuid="GPU-%d"`, i, i)
			label := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(name)
			text += fmt.Sprintf("nvidia_gpu_up%[1]s} 1\nnvidia_gpu_allocated%[1]s} 1\n"+
				"nvidia_gpu_container_memory_used_bytes%[1]s,namespace=\"ns\",pod=\"%[2]s\",container=\"c\",sharing=\"exclusive\"} 5\n"+
				"nvidia_gpu_pod_info%[1]s,namespace=\"ns\",pod=\"%[2]s\",container=\"c\",sharing=\"exclusive\",confirmed=\"%[3]v\"} 1\n", on, label, i != 0)
		}
		return text
	})
	boards := loadDashboards(t)
	holders := f.query(t, boards["mig-node"].panel(t, "Every GPU and slice, and who holds it"), "Holder", v)
	for _, s := range holders.series {
		i, err := strconv.Atoi(s.Metric.Get("gpu"))
		if err != nil {
			t.Fatal(err)
		}
		want := "ns/" + names[i]
		if i == 0 {
			want += " (unconfirmed)"
		}
		if got := s.Metric.Get("holder"); got != want {
			t.Errorf("GPU %d is held by %q, want %q", i, got, want)
		}
	}
	for board, title := range map[string]string{"mig-node": "Who held what", "mig-workloads": "Memory used by each pod"} {
		p := boards[board].panel(t, title)
		var legends []string
		for _, s := range f.query(t, p, "A", v).series {
			legends = append(legends, legend(p.Targets[0].LegendFormat, s))
		}
		for _, name := range names {
			if !slices.ContainsFunc(legends, func(l string) bool { return strings.Contains(l, "ns/"+name) }) {
				t.Errorf("%s: no line of %q: %q", title, name, legends)
			}
		}
		if len(legends) != len(names) || len(holders.series) != len(names) {
			t.Errorf("%d legends and %d holders of %d names", len(legends), len(holders.series), len(names))
		}
	}
}
