package hostengine

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestIncidents: each kind of trouble is one incident of its GPU, with DCGM's code (dcgm_errors.h)
// and system.
func TestIncidents(t *testing.T) {
	n, e := start(t, `version: 1
gpus: [{model: A100-40GB, count: 6}]
workloads: [{name: w, memory: 1GiB, sm: 108, tensor: 1, dram: 1}]
processes: [{device: 4, workload: w}]
faults:
- {kind: xid, gpu: 1, xid: 63}
- {kind: xid, gpu: 2, xid: 64}
- {kind: xid, gpu: 3, xid: 48}
- {kind: overheat, gpu: 5, celsius: 90, at: 2s}
`)
	s := open(t, e)

	group, err := s.CreateGroup("all")
	if err != nil {
		t.Fatal(err)
	}

	for id := range uint32(6) {
		if err := s.AddEntity(group, Entity{GPU, id}); err != nil {
			t.Fatal(err)
		}
	}

	if err := s.SetHealth(group, HealthMemory|HealthThermal|HealthPower); err != nil {
		t.Fatal(err)
	}

	check := func() (list []Incident) {
		advance(t, n, 5*time.Second)
		list, err := s.CheckHealth(group)
		cmptest.Equal(t, "error of the check", err, nil)

		for i := range list {
			list[i].Text = ""
		}

		return list
	}

	memory := []Incident{
		{Entity: Entity{GPU, 1}, System: HealthMemory, Health: HealthWarning, Code: 85},
		{Entity: Entity{GPU, 2}, System: HealthMemory, Health: HealthFailure, Code: 80},
		{Entity: Entity{GPU, 3}, System: HealthMemory, Health: HealthFailure, Code: 4},
	}
	cmptest.Equal(t, "first check", check(), memory)
	cmptest.Equal(t, "second check", check(), append(memory,
		Incident{Entity: Entity{GPU, 4}, System: HealthPower, Health: HealthWarning, Code: 12},
		Incident{Entity: Entity{GPU, 5}, System: HealthThermal, Health: HealthWarning, Code: 10}))
}
