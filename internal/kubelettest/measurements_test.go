package kubelettest

import (
	"fmt"
	"os"
	"path/filepath"
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

// recordDurations records the median, the least and the greatest. A holder can be shown before the container starts:
// the kubelet gives devices to pods when it admits them.
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
