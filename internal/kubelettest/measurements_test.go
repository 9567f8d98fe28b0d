package kubelettest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// measurements are what the tests have measured, in the order of the tests.
var measurements struct {
	sync.Mutex
	lines []string
}

func record(format string, args ...any) {
	measurements.Lock()
	defer measurements.Unlock()
	measurements.lines = append(measurements.lines, fmt.Sprintf(format, args...))
}

// recordDurations records the median, the least and the greatest. A holder can be shown before the
// container starts: the kubelet gives devices to pods when it admits them.
func recordDurations(what string, durations []time.Duration) {
	slices.Sort(durations)
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
	record("%s: median %s, %s to %s (%d)", what, round(durations[len(durations)/2]), round(durations[0]),
		round(durations[len(durations)-1]), len(durations))
}

// writeMeasurements prints them and writes them beside the logs.
func writeMeasurements() error {
	text := strings.Join(measurements.lines, "\n") + "\n"
	fmt.Print(text)

	return os.WriteFile(filepath.Join(shared.logs, "measurements.txt"), []byte(text), 0o644)
}

// recordUse records what the exporter's process has used since it started.
func recordUse() error {
	c, err := allocators()
	if err != nil {
		return err
	}

	_, id, _ := strings.Cut(c.exporter.Status.ContainerStatuses[0].ContainerID, "://")

	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return err
	}

	for _, file := range files {
		if cgroup, err := os.ReadFile(file); err != nil || !strings.Contains(string(cgroup), id) {
			continue
		}

		status, err := os.ReadFile(filepath.Join(filepath.Dir(file), "status"))
		if err != nil {
			return err
		}

		families, err := scrape()
		if err != nil {
			return err
		}

		value := func(family string) float64 {
			m := families[family].GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
		lived := time.Since(time.Unix(int64(value("process_start_time_seconds")), 0))
		record("the exporter in its pod, for %s: at most %s of memory, %.1f ms of CPU in a second", lived.Round(time.Second),
			regexp.MustCompile(`VmHWM:\s*(.*)`).FindSubmatch(status)[1],
			value("process_cpu_seconds_total")*1000/lived.Seconds())

		return nil
	}

	return fmt.Errorf("no process of the exporter's container %s", id)
}
