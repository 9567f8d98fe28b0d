package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// How much the long runs do.
const (
	longPolls   = 10_000
	longScrapes = 1_000
	settled     = 1_000 // polls after which nothing may grow
)

// BenchmarkResident is the built program on the bench for longPolls polls with longScrapes scrapes
// among them.
func BenchmarkResident(b *testing.B) {
	for range b.N {
		p := launch(b, "--driver=sim", "--sim.clock=step", "--sim.scenario="+benchScenario)
		early := 0.0

		for i := 1; i <= longPolls; i++ {
			p.advance(time.Second)

			if i%(longPolls/longScrapes) == 0 {
				f := benchForms[i/(longPolls/longScrapes)%len(benchForms)]
				p.request("GET", "/metrics", map[string]string{"Accept": f.accept, "Accept-Encoding": f.coding})
			}

			if i == settled {
				early = residentMiB(b, p.cmd.Process.Pid, "RssAnon")
			}
		}

		b.ReportMetric(early, fmt.Sprintf("MiB-anon@%d", settled))
		b.ReportMetric(residentMiB(b, p.cmd.Process.Pid, "RssAnon"), fmt.Sprintf("MiB-anon@%d", longPolls))
		b.ReportMetric(residentMiB(b, p.cmd.Process.Pid, "RssFile"), "MiB-of-files")
		b.ReportMetric(residentMiB(b, p.cmd.Process.Pid, "VmHWM"), "MiB-peak")

		if code := p.stop(); code != exitOK {
			b.Fatalf("exit code %d", code)
		}
	}
}

// residentMiB reads one line of /proc/PID/status.
func residentMiB(tb testing.TB, pid int, line string) float64 {
	tb.Helper()

	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()

	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), line+":"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				tb.Fatal(err)
			}

			return float64(kib) / 1024
		}
	}

	tb.Fatalf("no %s", line)

	return 0
}
