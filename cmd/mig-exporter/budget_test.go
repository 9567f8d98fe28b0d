package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// costedBench is the file of the bench's scenario without pods, on which each call of the driver
// takes some time.
func costedBench(t *testing.T, costs string) string {
	t.Helper()

	text, err := os.ReadFile(benchScenario)
	if err != nil {
		t.Fatal(err)
	}

	head, _, found := strings.Cut(string(text), "\npods:\n")
	if !found || !strings.Contains(head, "kubernetes: true") {
		t.Fatalf("%s: no pods, or no Kubernetes", benchScenario)
	}

	head = strings.Replace(head, "kubernetes: true", "kubernetes: false", 1)

	path := t.TempDir() + "/costed.yaml"
	if err := os.WriteFile(path, []byte(head+"\ndriverCosts: "+costs+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

// everyCall is what every class of calls costs.
func everyCall(cost string) string {
	var list []string
	for _, class := range gpu.CallClasses() {
		list = append(list, fmt.Sprintf("%s: %s", class, cost))
	}

	return "{" + strings.Join(list, ", ") + "}"
}

// followPaces runs the program on the costed bench for some seconds and returns how often the GPUs
// were read at the end of each. It fails the test if a GPU is down at any time.
func followPaces(t *testing.T, costs string, seconds int, flags ...string) (paces []gpu.Pace, last *gpu.Snapshot) {
	t.Helper()
	x := startInProcess(t, append(flags, "--sim.scenario="+costedBench(t, costs))...)

	for second := range seconds {
		time.Sleep(time.Second) // in the time of the test's bubble
		synctest.Wait()

		last = x.poller.Current()
		if last == nil {
			continue
		}

		for i := range last.GPUs {
			if g := &last.GPUs[i]; !g.Up {
				t.Fatalf("GPU %d is down after %d s: %v", g.Index, second+1, g.Errors)
			}
		}

		paces = append(paces, last.Pace)
	}

	return paces, last
}

// With calls of 50 ms, of which a reading makes hundreds, no GPU is ever down: each call answers.
// The loop reads less often, step by step.
func TestSlowCallsTakeNoGPUDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		paces, last := followPaces(t, everyCall("50ms"), 120)

		cmptest.Equal(t, "GPUs", len(last.GPUs), benchGPUs)

		if age := last.Time.Sub(last.GPUs[0].LastRead); age > 2*longestRead {
			t.Errorf("the readings are %s old", age)
		}

		var steps []time.Duration
		for _, p := range paces {
			if n := len(steps); n == 0 || steps[n-1] != p.Fast.Now {
				steps = append(steps, p.Fast.Now)
			}
		}

		cmptest.Equal(t, "intervals", steps, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second})
	})
}

// longestRead is longer than any reading of the bench at 50 ms a call, but the first.
const longestRead = 10 * time.Second

// With calls of 0.1 ms nothing is stretched.
func TestCheapCallsStretchNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		paces, last := followPaces(t, everyCall("100us"), 120)

		cmptest.Equal(t, "GPUs", len(last.GPUs), benchGPUs)

		for i, p := range paces {
			if p.Stretched() {
				t.Fatalf("stretched after %d s: %+v", i+1, p)
			}
		}
	})
}

// Only the tier is stretched that costs much: here lists of processes, and calls of the slow tier.
func TestOnlyTheDearTierIsStretched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		paces, _ := followPaces(t, "{nvmlDeviceGetMemoryErrorCounter: 30ms}", 300)

		last := paces[len(paces)-1]
		cmptest.Equal(t, "fast tier", last.Fast.Now, time.Second)

		if last.Slow.Now <= last.Slow.Configured {
			t.Errorf("the slow tier is read every %s although it costs 1 s every 15 s", last.Slow.Now)
		}
	})
}

// Without a budget nothing is stretched, whatever it costs.
func TestNoBudgetStretchesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		paces, _ := followPaces(t, everyCall("50ms"), 60, "--poll.driver-budget=0")
		if last := paces[len(paces)-1]; last.Stretched() {
			t.Errorf("stretched without a budget: %+v", last)
		}
	})
}

func TestBudgetsThatAreNone(t *testing.T) {
	for _, value := range []string{"-0.05", "NaN", "+Inf", "101", "5ms", ""} {
		_, err := parseCommandLine([]string{"--poll.driver-budget=" + value}, nil)
		expectError(t, value, err, "--poll.driver-budget="+value+": expected")
	}
}
