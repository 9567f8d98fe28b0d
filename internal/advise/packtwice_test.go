package advise

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// unchecked leaves the media engines of a device unchecked for good.
func unchecked(r *Recommendation) { r.NotChecked = true }

// TestOneSearchIfNothingCanBeRefused: a slice whose media engines are never checked does not make
// every packing search twice. With a free GPU it does: only the search says whether the slice would
// be alone on it, and so gain nothing.
func TestOneSearchIfNothingCanBeRefused(t *testing.T) {
	profiles := []string{"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "1g.10gb", "2g.20gb"}

	for _, c := range []struct {
		about    string
		profiles []string
		isTwice  bool
	}{
		{"no GPU is free", profiles, false},
		{"one is", append([]string{""}, profiles...), true},
	} {
		steps := func(change func(*Recommendation)) int {
			gpus, devices := node(t, "H100-80GB", c.profiles...)
			change(&devices[len(devices)-1])

			n := newNodePacker(&Report{Devices: devices}, gpus)
			n.packNode()

			return n.steps
		}

		without := steps(func(r *Recommendation) { r.Action = ActionKeep })
		cmptest.Equal(t, c.about+": more than one search", steps(unchecked) > without, c.isTwice)
	}
}

// TestPackingIsTheSameAsByTwoSearches: on random nodes nothing differs from what comes out if what is
// not final is always searched for.
func TestPackingIsTheSameAsByTwoSearches(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	always := func(*packer) bool { return true }
	refused := 0
	saved := 0

	for n := range 400 {
		seed := random.Uint64()
		nodeOf := func() (*Report, []gpu.GPU) { return randomReport(t, rand.New(rand.NewPCG(seed, 9))) }

		got, gpus := nodeOf()
		once := newNodePacker(got, gpus)
		got.Packing = once.packNode()

		want, gpus := nodeOf()
		candidate, unfinished := (*Recommendation).Candidate, (*Recommendation).isUnfinishedSlice
		twice := newNodePacker(want, gpus)

		if slices.ContainsFunc(want.Devices, func(d Recommendation) bool { return unfinished(&d) }) {
			twice.packUntilGain((*Recommendation).isSlice, unfinished, always)
			clear(twice.arrangements)
		}

		want.Packing = twice.packUntilGain(candidate, candidate, always)

		for i := range want.Devices {
			isRefused := want.Devices[i].Reason == ReasonNoGain
			if isRefused && (want.Devices[i].Provisional || want.Devices[i].NotChecked) {
				refused++
			}
		}

		saved += boolToInt(once.steps < twice.steps)

		cmptest.Equal(t, fmt.Sprintf("packing of node %d", n), got.Packing, want.Packing)

		for i := range want.Devices {
			a, b := got.Devices[i], want.Devices[i]
			cmptest.Equal(t, fmt.Sprintf("GPU %d of node %d", i, n),
				[]any{a.Action, a.Reason, a.Recommended, a.Explanation, a.Gain, a.Provisional, a.NotChecked},
				[]any{b.Action, b.Reason, b.Recommended, b.Explanation, b.Gain, b.Provisional, b.NotChecked})
		}
	}

	if refused < 20 || saved < 50 {
		t.Errorf("%d answers that are not final are refused, and %d nodes need fewer searches; want 20 and 50", refused, saved)
	}
}

func boolToInt(is bool) int {
	if is {
		return 1
	}

	return 0
}

// randomReport returns a node of up to six GPUs: free ones, partitioned ones, and those with a slice
// that may not be final; some are replicas of one owner, some nodes have the single strategy, and some
// two models.
func randomReport(t testing.TB, random *rand.Rand) (*Report, []gpu.GPU) {
	names := []string{"", "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb"}
	report := &Report{SingleStrategy: random.IntN(6) == 0}
	one := names[1+random.IntN(5)] // the profile under the single strategy

	var profiles []string

	for range 1 + random.IntN(6) {
		profile := names[random.IntN(len(names))]
		if report.SingleStrategy && profile != "" {
			profile = one
		}

		profiles = append(profiles, profile)
	}

	gpus, devices := node(t, "H100-80GB", profiles...)

	for i := range devices {
		d := &devices[i]
		if d.Action != ActionSlice {
			continue
		}

		d.Provisional = random.IntN(4) == 0
		d.NotChecked = random.IntN(4) == 0
		d.sentence = "it fits"

		if random.IntN(3) == 0 {
			d.Workload.Owner = "Deployment/one"
		}

		if random.IntN(8) == 0 {
			gpus[i].Name, d.Model, d.Workload.Model = "another", "another", "another"
		}
	}

	if !report.SingleStrategy && random.IntN(3) == 0 {
		g := slicedGPU(t, "H100-80GB", "4g.40gb", load{})
		g.UUID = "GPU-sliced"
		g.Index = len(gpus)
		g.Instances[0].Placement = gpu.Some(gpu.Placement{Start: 0, Size: 4})
		devices = append(devices, Recommendation{GPU: g.UUID, Index: g.Index, Model: g.Name, Action: ActionKeep,
			Instance: gpu.Some(g.Instances[0].ID)})
		gpus = append(gpus, g)
	}

	report.Devices = devices

	return report, slices.Clone(gpus)
}

// BenchmarkPackUnchecked packs a node with a slice whose media engines are never checked, as an
// exporter does every minute.
func BenchmarkPackUnchecked(b *testing.B) {
	names := []string{"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb"}

	for name, first := range map[string]string{"full": "2g.20gb", "free GPU": ""} {
		b.Run(name, func(b *testing.B) {
			profiles := []string{first}
			for i := range 15 {
				profiles = append(profiles, names[i%len(names)])
			}

			gpus, devices := node(b, "H100-80GB", profiles...)
			unchecked(&devices[len(devices)-1])

			steps := 0

			for b.Loop() {
				n := newNodePacker(&Report{Devices: slices.Clone(devices)}, gpus)
				n.packNode()
				steps = n.steps
			}

			b.ReportMetric(float64(steps), "steps/op")
		})
	}
}
