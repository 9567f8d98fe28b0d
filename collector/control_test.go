package collector

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func newControl() *Control {
	return NewControl(ControlOptions{
		Verbs: []string{"apply", "mode"}, Results: []string{"succeeded", "degraded"},
		States: []string{"idle", "running", "degraded"},
		Now:    func() time.Time { return time.Unix(1700000000, 500000000) },
	})
}

// Every series is there before anything has happened: rates need a zero to begin with.
func TestControlBeginsAtZero(t *testing.T) {
	c := newControl()

	want := `
# HELP mig_control_api_reads_total Calls to the API of partition control that only read. All other calls are in its audit log.
# TYPE mig_control_api_reads_total counter
mig_control_api_reads_total 0
# HELP mig_control_last_error_timestamp_seconds Unix time at which an operation of partition control last failed; 0 if none has since the start.
# TYPE mig_control_last_error_timestamp_seconds gauge
mig_control_last_error_timestamp_seconds 0
# HELP mig_control_operations_total Operations of partition control that have ended, by verb and result.
# TYPE mig_control_operations_total counter
mig_control_operations_total{result="degraded",verb="apply"} 0
mig_control_operations_total{result="degraded",verb="mode"} 0
mig_control_operations_total{result="succeeded",verb="apply"} 0
mig_control_operations_total{result="succeeded",verb="mode"} 0
# HELP mig_control_state 1 for the state that partition control is in, 0 for the others. degraded, stuck and read-only need an operator.
# TYPE mig_control_state gauge
mig_control_state{state="degraded"} 0
mig_control_state{state="idle"} 1
mig_control_state{state="running"} 0
# HELP mig_control_unsettled_operations Operations of partition control whose layout is in force while the kubelet does not offer exactly its devices, or a hook has failed. Pods may be given devices that do not exist.
# TYPE mig_control_unsettled_operations gauge
mig_control_unsettled_operations 0
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want),
		"mig_control_operations_total", "mig_control_state", "mig_control_last_error_timestamp_seconds",
		"mig_control_api_reads_total", "mig_control_unsettled_operations"); err != nil {
		t.Error(err)
	}

	if n := testutil.CollectAndCount(c, "mig_control_operation_duration_seconds"); n != 2 {
		t.Errorf("durations of %d verbs, want 2", n)
	}

	problems, err := testutil.CollectAndLint(c)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func TestControlCounts(t *testing.T) {
	c := newControl()
	c.Ended("apply", "succeeded", 3*time.Second, false)

	if got := testutil.ToFloat64(c.lastError); got != 0 {
		t.Errorf("last error at %v after a success", got)
	}

	c.Read()

	if got := testutil.ToFloat64(c.reads); got != 1 {
		t.Errorf("%v reads, want 1", got)
	}

	c.Ended("apply", "degraded", 7*time.Second, true)
	c.SetState("degraded")
	c.SetState("a state of no name known")

	if got := testutil.ToFloat64(c.lastError); got != 1700000000.5 {
		t.Errorf("last error at %v", got)
	}

	c.SetUnsettled(2)

	if got := testutil.ToFloat64(c.unsettled); got != 2 {
		t.Errorf("%v unsettled operations, want 2", got)
	}

	for series, want := range map[string]float64{"idle": 0, "running": 0, "degraded": 1} {
		if got := testutil.ToFloat64(c.state.WithLabelValues(series)); got != want {
			t.Errorf("state %s: %v, want %v", series, got, want)
		}
	}

	if n := testutil.CollectAndCount(c, "mig_control_state"); n != 3 {
		t.Errorf("%d states, want 3", n)
	}

	if n := testutil.CollectAndCount(c, "mig_control_gpu_not_restored"); n != 0 {
		t.Errorf("%d GPUs not restored, want none", n)
	}

	c.SetUnrestored([]UnrestoredGPU{{"GPU-1", "pending"}, {"GPU-2", "pending"}})
	c.SetUnrestored([]UnrestoredGPU{{"GPU-2", "failed"}})

	if n := testutil.CollectAndCount(c, "mig_control_gpu_not_restored"); n != 1 {
		t.Errorf("%d GPUs not restored, want 1", n)
	}

	if got := testutil.ToFloat64(c.unrestored.WithLabelValues("GPU-2", "failed")); got != 1 {
		t.Errorf("GPU-2 is not restored: %v, want 1", got)
	}

	want := `
# HELP mig_control_operations_total Operations of partition control that have ended, by verb and result.
# TYPE mig_control_operations_total counter
mig_control_operations_total{result="degraded",verb="apply"} 1
mig_control_operations_total{result="degraded",verb="mode"} 0
mig_control_operations_total{result="succeeded",verb="apply"} 1
mig_control_operations_total{result="succeeded",verb="mode"} 0
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "mig_control_operations_total"); err != nil {
		t.Error(err)
	}
}
