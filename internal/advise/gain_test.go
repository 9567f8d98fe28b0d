package advise

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// gainsOf packs a node and returns what is said of each GPU: the gain of a candidate, or the reason
// why it is none.
func gainsOf(report *Report, gpus []gpu.GPU) []string {
	report.Pack(&gpu.Snapshot{GPUs: gpus})
	var said []string

	for i := range report.Devices {
		r := &report.Devices[i]
		switch {
		case r.Gain != nil:
			said = append(said, r.Gain.String())
		case r.Reason != ReasonNone:
			said = append(said, string(r.Reason))
		default:
			said = append(said, string(r.Action))
		}
	}

	return said
}

// TestGain: a candidate frees GPUs, or makes room for a profile that has none on the node. One that
// does neither is no candidate, and is not packed.
func TestGain(t *testing.T) {
	const half, most, room = "frees 0.50 of a GPU, packed with others", "frees 0.75 of a GPU, packed with others",
		"frees no whole GPU, room for 3g.40gb"
	for _, c := range []struct {
		about    string
		profiles []string
		freed    int // whole GPUs, on balance
		want     []string
	}{
		{"one pod on the only GPU", []string{"4g.40gb"}, 0, []string{room}},
		{"pods of which no two fit on a GPU", []string{"4g.40gb", "4g.40gb"}, 0, []string{room, room}},
		{"one pod, and a GPU is free", []string{"1g.10gb", ""}, 0, []string{"no-gain", "free"}},
		{"wide pods, and a GPU is free", []string{"4g.40gb", "4g.40gb", ""}, 0, []string{"no-gain", "no-gain", "free"}},
		{"two that share a GPU", []string{"3g.40gb", "4g.40gb"}, 1, []string{half, half}},
		{"four that share a free GPU", []string{"1g.10gb", "1g.20gb", "2g.20gb", "1g.10gb", ""}, 3,
			[]string{most, most, most, most, "free"}},
		{"two that share and one too many", []string{"3g.40gb", "4g.40gb", "4g.40gb", ""}, 1,
			[]string{half, half, "no-gain", "free"}},
	} {
		t.Run(c.about, func(t *testing.T) {
			gpus, devices := node(t, "H100-80GB", c.profiles...)
			report := &Report{Devices: devices}
			cmptest.Equal(t, "gains", gainsOf(report, gpus), c.want)

			freed := 0
			if report.Packing != nil {
				freed = report.Packing.InUse - report.Packing.Needed
			}

			cmptest.Equal(t, "freed", freed, c.freed)

			for i := range report.Devices {
				r := &report.Devices[i]
				if r.Reason != ReasonNoGain {
					continue
				}

				cmptest.Equal(t, "candidate", r.Candidate(), false)
				cmptest.HasTexts(t, r.Explanation, c.profiles[i]+" would do", "gain nothing")
			}
		})
	}
}

// TestGainOfRoomInMIGMode: what fits beside the slices of another GPU has room already; what does
// not gets it.
func TestGainOfRoomInMIGMode(t *testing.T) {
	for profile, want := range map[string]string{"1g.10gb": "no-gain", "2g.20gb": "frees no whole GPU, room for 3g.40gb"} {
		gpus, devices := node(t, "H100-80GB", "4g.40gb")
		g := slicedGPU(t, "H100-80GB", "4g.40gb", load{})

		g.UUID, g.Index, g.Instances[0].Placement = "GPU-sliced", 1, gpu.Some(gpu.Placement{Start: 0, Size: 4})
		if profile == "2g.20gb" { // one more slice leaves room for no 3g.40gb
			other := g.Instances[0]
			other.ID, other.Profile, other.Placement = 9, profile, gpu.Some(gpu.Placement{Start: 4, Size: 2})
			g.Instances = append(g.Instances, other)
		}

		for k := range g.Instances {
			devices = append(devices, Recommendation{GPU: g.UUID, Index: 1, Model: g.Name, Action: ActionKeep,
				Instance: gpu.Some(g.Instances[k].ID)})
		}

		report := &Report{Devices: devices}
		cmptest.Equal(t, "beside "+profile, gainsOf(report, append(gpus, g))[0], want)
	}
}

// TestGainUnderTheSingleStrategy: the node moves as a whole or not at all, and no GPU of it stays whole.
func TestGainUnderTheSingleStrategy(t *testing.T) {
	const large, small = "frees no whole GPU, room for 3g.40gb", "frees no whole GPU, room for 1g.10gb"
	for _, c := range []struct {
		profiles, want []string
		freeSlices     int // on the GPUs that no workload moves to
	}{
		{[]string{"3g.40gb", "3g.40gb", "3g.40gb"}, []string{large, large, large}, 2},
		{[]string{"4g.40gb", "4g.40gb"}, []string{"no-gain", "no-gain"}, 0},
		{[]string{"3g.40gb"}, []string{large}, 0},
		{[]string{"1g.10gb", "1g.10gb", ""}, []string{small, small, "free"}, 14},
	} {
		gpus, devices := node(t, "H100-80GB", c.profiles...)
		report := &Report{Devices: devices, SingleStrategy: true}
		cmptest.Equal(t, "gains", gainsOf(report, gpus), c.want)

		if report.Packing == nil {
			cmptest.Equal(t, "free slices without a packing", c.freeSlices, 0)
			continue
		}

		cmptest.Equal(t, "freed whole GPUs", report.Packing.FreedGPUs, []int{})
		cmptest.Equal(t, "free slices", report.Packing.FreeSlices, c.freeSlices)
	}
}

// TestReplicasMoveTogether: one that gains nothing of its own stays a candidate with one that does.
func TestReplicasMoveTogether(t *testing.T) {
	gpus, devices := node(t, "H100-80GB", "3g.40gb", "4g.40gb", "4g.40gb", "")
	devices[2].Workload = devices[1].Workload
	got := gainsOf(&Report{Devices: devices}, gpus)
	cmptest.Equal(t, "the other replica", got[1:3], []string{"frees 0.50 of a GPU, packed with others",
		"frees no whole GPU, and moves with the other replicas of its owner"})
}

// TestGainOfWhatIsNotFinal: what would gain nothing if all answers were final is refused at once. What
// would gain with others that are not final either waits for them, and is not packed yet.
func TestGainOfWhatIsNotFinal(t *testing.T) {
	for _, c := range []struct {
		about    string
		profiles []string
		final    int // the first answers
		want     []string
	}{
		{"one pod, and a GPU is free", []string{"1g.10gb", ""}, 0, []string{"no-gain", "free"}},
		{"two that share a GPU", []string{"3g.40gb", "4g.40gb"}, 0, []string{"slice", "slice"}},
		{"one of them is final", []string{"3g.40gb", "4g.40gb", ""}, 1, []string{"no-gain", "slice", "free"}},
		{"one too many", []string{"3g.40gb", "4g.40gb", "4g.40gb", ""}, 2,
			[]string{"frees 0.50 of a GPU, packed with others", "frees 0.50 of a GPU, packed with others", "no-gain", "free"}},
	} {
		gpus, devices := node(t, "H100-80GB", c.profiles...)
		for i := range devices {
			devices[i].Provisional = i >= c.final && devices[i].Action == ActionSlice
		}

		cmptest.Equal(t, c.about, gainsOf(&Report{Devices: devices}, gpus), c.want)
	}
}
