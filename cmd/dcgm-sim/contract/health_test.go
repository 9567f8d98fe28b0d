package contract

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// createPair creates a group of two GPUs.
func createPair(t *testing.T) dcgm.GroupHandle {
	t.Helper()

	group, err := dcgm.CreateGroup("health")
	if err != nil {
		t.Fatal(err)
	}

	for _, id := range []uint{0, 1} {
		if err := dcgm.AddToGroup(group, id); err != nil {
			t.Fatal(err)
		}
	}

	return group
}

// incident is an incident without its text.
type incident struct {
	gpu    uint
	system dcgm.HealthSystem
	health dcgm.HealthResult
	code   dcgm.HealthCheckErrorCode
}

// A group has no health watches at first, and no incidents without them. An incident names the GPU
// and the system, which must be watched (dcgmHealthSet, dcgmHealthCheck: dcgm_agent.h).
func TestHealth(t *testing.T) {
	path := scenario(t, `gpus: [{model: A100-40GB, count: 2}]
faults:
- {kind: xid, gpu: 1, xid: 64, at: 5s}
- {kind: overheat, gpu: 0, celsius: 90, at: 10s, for: 5s}
`)
	if !inChild(t, environment(t, path)...) {
		return
	}

	n := node(t)
	defer embedded(t)()
	group := createPair(t)
	check := func(when string, overall dcgm.HealthResult, want ...incident) {
		t.Helper()

		got, err := dcgm.HealthCheck(group)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}

		cmptest.Equal(t, when+": health", got.OverallHealth, overall)

		var list []incident
		for _, i := range got.Incidents {
			list = append(list, incident{i.EntityInfo.EntityId, i.System, i.Health, i.Error.Code})
			if i.Error.Message == "" {
				t.Errorf("%s: no text: %+v", when, i)
			}
		}

		cmptest.Equal(t, when+": incidents", list, want)
	}
	watch := func(systems dcgm.HealthSystem) {
		t.Helper()

		if err := dcgm.HealthSet(group, systems); err != nil {
			t.Fatal(err)
		}

		got, err := dcgm.HealthGet(group)
		cmptest.Equal(t, "error of reading what is watched", err, nil)
		cmptest.Equal(t, "what is watched", got, systems)
	}
	failed := incident{1, dcgm.DCGM_HEALTH_WATCH_MEM, dcgm.DCGM_HEALTH_RESULT_FAIL, dcgm.DCGM_FR_ROW_REMAP_FAILURE}
	hot := incident{0, dcgm.DCGM_HEALTH_WATCH_THERMAL, dcgm.DCGM_HEALTH_RESULT_WARN, dcgm.DCGM_FR_CLOCK_THROTTLE_THERMAL}

	step(t, n, 6*time.Second)
	check("without watches", dcgm.DCGM_HEALTH_RESULT_PASS)
	watch(dcgm.DCGM_HEALTH_WATCH_THERMAL)
	check("another system", dcgm.DCGM_HEALTH_RESULT_PASS)
	step(t, n, 6*time.Second)
	check("hot since the last check", dcgm.DCGM_HEALTH_RESULT_WARN, hot)
	watch(dcgm.DCGM_HEALTH_WATCH_ALL)
	check("all, for the first time", dcgm.DCGM_HEALTH_RESULT_FAIL, failed)
	step(t, n, 2*time.Second)
	check("all", dcgm.DCGM_HEALTH_RESULT_FAIL, hot, failed)
	step(t, n, 10*time.Minute)
	check("hot for a part of the time", dcgm.DCGM_HEALTH_RESULT_FAIL, hot, failed)
	step(t, n, 10*time.Minute)
	check("cool again", dcgm.DCGM_HEALTH_RESULT_FAIL, failed)

	if err := dcgm.DestroyGroup(group); err != nil {
		t.Fatal(err)
	}

	_, err := dcgm.HealthCheck(group)
	says(t, "a group that is gone", err, "Setting not configured")
}

// DCGM has for how many nanoseconds the power limit and the temperature have held clocks down, by
// NVML's fields 74 and 75: a number for every GPU, 0 if that never happened.
func TestViolations(t *testing.T) {
	path := scenario(t, `gpus: [{model: A100-40GB, count: 2}]
workloads: [{name: w, memory: 1GiB, sm: 108, tensor: 1, dram: 1}]
processes: [{device: 0, workload: w}]
faults: [{kind: overheat, gpu: 1, celsius: 90, at: 2s, for: 3s}]
`)
	if !inChild(t, environment(t, path)...) {
		return
	}

	n := node(t)
	defer embedded(t)()
	step(t, n, 4*time.Second)

	want := map[uint][2]int64{0: {4e9, 0}, 1: {0, 2e9}}
	for id, numbers := range want {
		values, err := live(id, dcgm.DCGM_FI_DEV_POWER_VIOLATION, dcgm.DCGM_FI_DEV_THERMAL_VIOLATION)
		if err != nil {
			t.Fatal(err)
		}

		for i, v := range values {
			cmptest.Equal(t, "status", v.Status, 0)

			if got := v.Int64(); got != numbers[i] {
				t.Errorf("GPU %d: field %d is %d, want %d", id, v.FieldID, got, numbers[i])
			}
		}
	}
}
