package promtest

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

const badRuns = 80 * time.Minute

// loadBad loads what a node serves at each time, by the time since the start, and returns a view of
// it.
func loadBad(t *testing.T, f *fleet, name string, serve func(since time.Duration) string) view {
	t.Helper()

	node := fleetNode{name: name}
	for since := scrapeInterval; since <= badRuns; since += scrapeInterval {
		f.addScrapeOf(t, node.target("old"), scraped().Add(since), Text, []byte(serve(since)))
	}

	return view{from: scraped(), to: scraped().Add(badRuns), step: fleetStep, set: map[string]string{"node": name}}
}

// TestCounterResetIsNoDrop: counters that start again, as after a restart of the exporter, make no
// negative rate and no spike.
func TestCounterResetIsNoDrop(t *testing.T) {
	t.Parallel()
	f := &fleet{Prometheus: NewPrometheus(t)}
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
			"nvidia_gpu_nvlink_errors_total" + on + `,kind="replay"`, "nvidia_gpu_clock_event_seconds_total" + on +
				`,reason="sw_power_cap"`,
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

// TestReplacedGPUKeepsItsLine: the GPU at an index, and the slice at a place, are one line whatever
// their identity.
func TestReplacedGPUKeepsItsLine(t *testing.T) {
	t.Parallel()
	f := &fleet{Prometheus: NewPrometheus(t)}
	v := loadBad(t, f, "replaced", func(since time.Duration) string {
		uuid := "GPU-old"
		gi := "1"

		if since > badRuns/2 {
			uuid = "GPU-new"
			gi = "2"
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
	if want := map[string]int{"GPU 0 whole": points, "GPU 1 3g.40gb@0:4": points}; !maps.Equal(got, want) {
		t.Errorf("points of each line: got %v, want %v", got, want)
	}
}

// TestReadingsThatStop: neither the time between scrapes nor a node whose clock is wrong looks as
// if readings had stopped; one that hangs does, and goes on to.
func TestReadingsThatStop(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		read        func(since time.Duration) time.Duration // when the Snapshot is from, by the node's clock
		age, behind float64
	}{
		"well":  {func(since time.Duration) time.Duration { return since - time.Second }, 1, 0},
		"early": {func(since time.Duration) time.Duration { return since - time.Hour }, 3600, 0},
		"late":  {func(since time.Duration) time.Duration { return since + time.Hour }, 3600, 0},
		"hangs": {func(since time.Duration) time.Duration { return min(since, badRuns-40*time.Minute) }, 2400, 600},
		"hung":  {func(since time.Duration) time.Duration { return max(0, since-badRuns/2) }, 2400, 0},
	} {
		f := &fleet{Prometheus: NewPrometheus(t)}
		v := loadBad(t, f, name, func(since time.Duration) string {
			return fmt.Sprintf("mig_exporter_build_info{version=\"1\"} 1\nmig_exporter_snapshot_timestamp_seconds %d\n",
				scraped().Add(c.read(since)).Unix())
		})
		v.to = v.to.Add(scrapeInterval - time.Second)
		health := loadDashboards(t)["mig-exporter-health"]

		table := health.panel(t, "All exporters")
		for what, a := range map[string]answer{"age": f.query(t, health.panel(t, "Age of readings"), "A", v),
			"age in the table": f.query(t, table, "Age", v)} {
			if len(a.series) != 1 || a.series[0].Floats[0].F != c.age {
				t.Errorf("%s: %s is %v, want %v", name, what, a.series, c.age)
			}
		}

		if a := f.query(t, table, "Behind", v); len(a.series) != 1 || a.series[0].Floats[0].F != c.behind {
			t.Errorf("%s: without readings for %v, want %v", name, a.series, c.behind)
		}
	}
}

// TestIdleAcrossLayouts: the id of an instance comes back with another profile. Its new pod is not
// the one that was idle for an hour.
func TestIdleAcrossLayouts(t *testing.T) {
	t.Parallel()
	f := &fleet{Prometheus: NewPrometheus(t)}
	v := loadBad(t, f, "layouts", func(since time.Duration) string {
		profile := "3g.40gb"
		pod := "first"

		if since > badRuns/2 {
			profile = "1g.10gb"
			pod = "second"
		}

		on := fmt.Sprintf(`{gpu="0",uuid="GPU-0",gpu_instance="1",mig_profile="%s"`, profile)

		return fmt.Sprintf("nvidia_gpu_up{gpu=\"0\",uuid=\"GPU-0\"} 1\nnvidia_gpu_mig_enabled{gpu=\"0\",uuid=\"GPU-0\"} 1\n"+
			"nvidia_mig_gpu_instance_graphics_engine_activity_ratio%[1]s} 0\nnvidia_mig_gpu_instance_sm_activity_ratio%[1]s} "+
			"0\nnvidia_mig_gpu_instance_allocated%[1]s} 1\n"+
			"nvidia_mig_gpu_instance_pod_info%[1]s,namespace=\"ns\",pod=\"%[2]s\",container=\"c\",sharing=\"exclusive\",confirmed=\"true\"} 1\n", on, pod)
	})
	f.recordAll(t, time.Minute, v.to)

	board := loadDashboards(t)["mig-fleet"]
	if a := f.query(t, board.panel(t, "Idle devices and their pods"), "Busy", v); len(a.series) != 0 {
		t.Errorf("idle for an hour: %v", a.series)
	}

	for _, s := range f.query(t, board.panel(t, "Held and idle for an hour"), "A", v).series {
		if last := s.Floats[len(s.Floats)-1]; last.F != 0 {
			t.Errorf("held and idle: %v", last.F)
		}
	}
}
