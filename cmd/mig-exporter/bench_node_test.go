package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// The figures are of the program as run wires it, on the node of testdata/scenarios/h100-56.yaml,
// whose every GPU has seven instances with a pod on each. docs/performance.md keeps them.

const (
	benchScenario = "../../testdata/scenarios/h100-56.yaml"
	benchGPUs     = 8
	benchSlices   = 7 // of a GPU
)

// growth is the numbers of GPUs at which growth is measured.
var growth = []int{1, 2, 4, 8, 16}

var (
	benchCount = regexp.MustCompile(`count: \d+`)
	benchPod   = regexp.MustCompile(`-(\d{3}),`)
)

// benchNode starts the bench's node with a number of GPUs on a stepped clock, and its loop.
func benchNode(tb testing.TB, gpus int) *exporter {
	tb.Helper()

	x := runInProcess(tb, "--sim.scenario="+scaledScenario(tb, gpus))
	for range 2 { // what is asked once has been asked, and the pods are there
		pollOnce(tb, x)
	}

	return x
}

// scaledScenario is the file of the bench's scenario, with as many GPUs and as many pods as they
// have slices.
func scaledScenario(tb testing.TB, gpus int) string {
	tb.Helper()

	if gpus == benchGPUs {
		return benchScenario
	}

	text, err := os.ReadFile(benchScenario)
	if err != nil {
		tb.Fatal(err)
	}

	head, list, found := strings.Cut(string(text), "\npods:\n")
	pods := slices.Collect(strings.Lines(list))

	if !found || !benchCount.MatchString(head) {
		tb.Fatalf("%s: no pods, or no count of GPUs", benchScenario)
	}

	if want := benchGPUs * benchSlices; len(pods) != want {
		tb.Fatalf("%s: %d lines of pods, want %d, one for each slice", benchScenario, len(pods), want)
	}

	var out strings.Builder
	out.WriteString(benchCount.ReplaceAllString(head, fmt.Sprintf("count: %d", gpus)) + "\npods:\n")

	for i := range gpus * benchSlices {
		out.WriteString(benchPod.ReplaceAllString(pods[i%len(pods)], fmt.Sprintf("-%03d,", i)))
	}

	path := tb.TempDir() + "/scaled.yaml"
	if err := os.WriteFile(path, []byte(out.String()), 0o600); err != nil {
		tb.Fatal(err)
	}

	return path
}

// TestBenchNode holds the bench to what it is said to be.
func TestBenchNode(t *testing.T) {
	for _, gpus := range []int{1, benchGPUs, 16} {
		x := benchNode(t, gpus)
		s := x.poller.Current()
		held := 0

		for i := range s.GPUs {
			for _, gi := range s.GPUs[i].Instances {
				held += len(gi.Holders)
			}
		}

		cmptest.Equal(t, "GPUs", len(s.GPUs), gpus)
		cmptest.Equal(t, "held instances", held, gpus*benchSlices)
		cmptest.Equal(t, "unmatched devices", len(s.Unmatched), 0)

		if records := simulatedNode(x).Records(); slices.ContainsFunc(records,
			func(r sim.Record) bool { return !strings.HasPrefix(r.Message, "admitted") }) {
			t.Errorf("something happened on the bench: %v", records)
		}
	}
}

// cpuTime is what this process has used of the processors so far.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()

	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}

	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// reportQuantiles reports the median and the 99th percentile of durations under a name.
func reportQuantiles(b *testing.B, name string, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	b.ReportMetric(float64(quantile(took, 0.5).Nanoseconds()), name+"p50-ns")
	b.ReportMetric(float64(quantile(took, 0.99).Nanoseconds()), name+"p99-ns")
}

// quantile is the smallest of sorted durations that a share of them does not exceed.
func quantile(sorted []time.Duration, share float64) time.Duration {
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}
