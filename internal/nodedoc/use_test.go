package nodedoc

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestUseState: a device is free only if we know that no pod has it and that nothing runs on it.
func TestUseState(t *testing.T) {
	none := gpu.Some(0)
	notAllocated := gpu.Some(false)
	active := gpu.Activity{SM: gpu.Some(0.17)}
	confirmed := Holder{Pod: "a"}
	unconfirmed := Holder{Pod: "a", Confirmed: gpu.Some(false)}

	for _, tt := range []struct {
		name     string
		use      Use
		activity gpu.Activity
		bare     UseState // without a kubelet
		kubelet  UseState // beside one
	}{
		{"nothing known", Use{}, gpu.Activity{}, UnknownUse, UnknownUse},
		{"no process", Use{Processes: none}, gpu.Activity{}, Free, UnknownUse},
		{"no pod, no process", Use{Processes: none, Allocated: notAllocated}, gpu.Activity{}, Free, Free},
		{"no pod, hidden processes", Use{Allocated: notAllocated}, gpu.Activity{}, UnknownUse, UnknownUse},
		{"no pod, hidden processes, active", Use{Allocated: notAllocated}, active, Held, Held},
		{"no pod, a process", Use{Processes: gpu.Some(1), Allocated: notAllocated}, gpu.Activity{}, Held, Held},
		{"unknown pods, a process", Use{Processes: gpu.Some(1)}, gpu.Activity{}, Held, Held},
		{"a pod", Use{Processes: none, Allocated: gpu.Some(true)}, gpu.Activity{}, Held, Held},
		{"a holder", Use{Processes: none, Holders: []Holder{confirmed}}, gpu.Activity{}, Held, Held},
		{"perhaps a pod", Use{Processes: none, Holders: []Holder{unconfirmed}}, gpu.Activity{}, Free, UnknownUse},
		{"a batch job", Use{Processes: none, Allocated: notAllocated, Jobs: []string{"7"}}, gpu.Activity{}, Held, Held},
		{"unknown jobs", Use{Processes: none, Allocated: notAllocated, JobsUnknown: true}, gpu.Activity{}, UnknownUse, UnknownUse},
		{"unknown jobs, a process", Use{Processes: gpu.Some(1), JobsUnknown: true}, gpu.Activity{}, Held, Held},
		{"unknown jobs, confirmed", Use{Allocated: notAllocated, ConfirmedFree: true, JobsUnknown: true}, gpu.Activity{}, UnknownUse,
			UnknownUse},
		{"confirmed", Use{Allocated: notAllocated, ConfirmedFree: true}, gpu.Activity{}, Free, Free},
		{"confirmed, and active", Use{Allocated: notAllocated, ConfirmedFree: true}, active, Held, Held},
	} {
		g := GPU{Use: tt.use, Activity: Activity{Activity: tt.activity}}
		cmptest.Equal(t, tt.name+", bare", g.Evidence(false).State(), tt.bare)
		cmptest.Equal(t, tt.name+", kubelet", g.Evidence(true).State(), tt.kubelet)
	}
}

// TestUseStateOfParts: what has a part of a device has the device.
func TestUseStateOfParts(t *testing.T) {
	free := Use{Processes: gpu.Some(0), Allocated: gpu.Some(false)}
	g := GPU{Use: free, GPUInstances: []Instance{
		{Use: free, ComputeInstances: []ComputeInstance{{Use: free}, {Use: free}}}, {Use: free},
	}}
	part := &g.GPUInstances[0].ComputeInstances[1]

	for _, tt := range []struct {
		name string
		use  Use
		want UseState
	}{
		{"free", free, Free},
		{"a pod", Use{Processes: gpu.Some(0), Allocated: gpu.Some(true)}, Held},
		{"a process", Use{Processes: gpu.Some(1), Allocated: gpu.Some(false)}, Held},
		{"unknown pods", Use{Processes: gpu.Some(0)}, UnknownUse},
		{"unknown jobs", Use{Processes: gpu.Some(0), Allocated: gpu.Some(false), JobsUnknown: true}, UnknownUse},
	} {
		part.Use = tt.use
		cmptest.Equal(t, tt.name+" on the compute instance", part.Evidence(&g.GPUInstances[0], true).State(), tt.want)
		cmptest.Equal(t, tt.name+" on the GPU instance", g.GPUInstances[0].Evidence(true).State(), tt.want)
		cmptest.Equal(t, tt.name+" on the GPU", g.Evidence(true).State(), tt.want)
	}

	part.Use = free
	g.GPUInstances[0].Jobs = []string{"7"}
	cmptest.Equal(t, "GPU instance of a job", g.GPUInstances[0].Evidence(true).State(), Held)
	cmptest.Equal(t, "compute instance of a job's GPU instance", part.Evidence(&g.GPUInstances[0], true).State(), UnknownUse)
	g.GPUInstances[0].Jobs = nil

	for used, want := range map[uint64]UseState{22 << 20: Free, 200 << 20: UnknownUse} {
		hidden := Use{Allocated: gpu.Some(false)}
		i := Instance{
			Use: hidden, Memory: gpu.Memory{Used: gpu.Some(used)}, ComputeInstances: []ComputeInstance{{Use: hidden}},
		}
		cmptest.Equal(t, "hidden processes, by the memory", i.Evidence(true).State(), want)
		cmptest.Equal(t, "the same on its compute instance", i.ComputeInstances[0].Evidence(&i, true).State(), want)

		g := GPU{Use: hidden, Memory: i.Memory}
		cmptest.Equal(t, "the same on a whole GPU", g.Evidence(true).State(), want)
	}

	empty := Instance{Use: Use{Allocated: gpu.Some(false)}}
	cmptest.Equal(t, "an instance on which nothing can run", empty.Evidence(true).State(), Free)

	empty.ComputeInstancesHidden = true
	cmptest.Equal(t, "an instance with hidden devices", empty.Evidence(true).State(), UnknownUse)
}
