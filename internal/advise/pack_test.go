package advise

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// sliced returns the recommendation of a slice for a whole GPU.
func sliced(g *gpu.GPU, owner, profile string, power, pcie float64) Recommendation {
	return Recommendation{
		GPU: g.UUID, Index: g.Index, Model: g.Name, Action: ActionSlice, Recommended: profile,
		Workload: &Key{Owner: owner, Model: g.Name}, Evidence: &Evidence{leastPower: power, PCIeMax: gpu.Some(pcie)},
	}
}

// node returns GPUs of a model and a recommendation for each, by profile; "" is a free GPU.
func node(t testing.TB, model string, profiles ...string) ([]gpu.GPU, []Recommendation) {
	var gpus []gpu.GPU
	var devices []Recommendation

	for i, profile := range profiles {
		g := wholeGPU(t, model, i, load{})

		r := Recommendation{GPU: g.UUID, Index: i, Model: g.Name, Action: ActionFree}
		if profile != "" {
			r = sliced(&g, fmt.Sprintf("Deployment/d-%d", i), profile, 0.05, 0.01)
		}

		gpus, devices = append(gpus, g), append(devices, r)
	}

	return gpus, devices
}

// packCandidates returns the packing of the candidates of a report, in one search for each model.
func packCandidates(r *Report, gpus []gpu.GPU) *Packing {
	packing, _ := newNodePacker(r, gpus).pack((*Recommendation).Candidate, func(*packer) bool { return true })
	return packing
}

// TestPackingNeedsTheFewestGPUs: on random nodes of up to six pods, no assignment of pods to GPUs
// needs fewer.
func TestPackingNeedsTheFewestGPUs(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))

	for _, model := range []string{"A30-24GB", "A100-40GB", "H100-80GB"} {
		m, _ := mig.FindModel(model)

		whole := 0
		for _, p := range m.Profiles {
			whole = max(whole, p.MemorySlices)
		}

		for range 60 {
			var names []string

			for range 1 + random.IntN(6) {
				if p := m.Profiles[random.IntN(len(m.Profiles))]; p.MemorySlices < whole {
					names = append(names, p.Name)
				}
			}

			if len(names) == 0 {
				continue
			}

			gpus, devices := node(t, model, names...)

			packing := packCandidates(&Report{Devices: devices}, gpus)
			if want := fewestGPUs(m.Profiles, names); packing.Needed != want || !packing.Proven {
				t.Fatalf("%s: %v need %d GPUs, proven %v; want %d", model, names, packing.Needed, packing.Proven, want)
			}

			checkPacking(t, packing, gpus, devices)
		}
	}
}

// fewestGPUs tries every assignment of slices to GPUs and every order of their creation.
func fewestGPUs(profiles []gpu.Profile, names []string) int {
	best := len(names)
	on := make([][]mig.Placed, len(names))
	var try func(k, used int)
	try = func(k, used int) {
		if used >= best {
			return
		}

		if k == len(names) {
			best = used
			return
		}

		for i := range min(used+1, len(names)) {
			for _, p := range profiles {
				if p.Name != names[k] {
					continue
				}

				for _, place := range mig.FreePlacements(profiles, on[i], p) {
					before := on[i]
					on[i] = append(before[:len(before):len(before)], mig.Placed{ProfileID: p.ID, Profile: p.Name, Placement: place})
					try(k+1, max(used, i+1))
					on[i] = before
				}
			}
		}
	}
	try(0, 0)

	return best
}

// checkPacking holds a packing against the planner: each moved pod has one slice of its profile,
// and there is a plan for those of a GPU.
func checkPacking(t *testing.T, packing *Packing, gpus []gpu.GPU, devices []Recommendation) {
	t.Helper()
	got := map[int]string{}

	for _, packed := range packing.GPUs {
		counts := map[string]int{}

		for _, s := range packed.Slices {
			got[s.From] = s.Profile
			counts[s.Profile]++
		}

		rule := mig.Rule{GPUs: []string{"all"}, Enabled: true}
		for profile, n := range counts {
			rule.Want = append(rule.Want, mig.Want{Profile: profile, Count: n})
		}

		g := mig.GPULayout{Facts: gpus[packed.Index].Facts, MIG: gpu.Some(true), Pending: gpu.Some(true)}
		if _, err := mig.PlanNode(t.Context(), []mig.GPULayout{g}, mig.Spec{Rules: []mig.Rule{rule}}); err != nil {
			t.Errorf("GPU %d: %v: %v", packed.Index, counts, err)
		}
	}

	want := map[int]string{}

	for _, r := range devices {
		if r.Action == ActionSlice {
			want[r.Index] = r.Recommended
		}
	}

	cmptest.Equal(t, "slices by the GPU that their pods leave", got, want)
}

func TestPackingPrefersWhatIsFree(t *testing.T) {
	gpus, devices := node(t, "H100-80GB", "1g.10gb", "1g.10gb", "", "3g.40gb")
	packing := packCandidates(&Report{Devices: devices}, gpus)
	cmptest.Equal(t, "GPUs that get slices", len(packing.GPUs), 1)
	cmptest.Equal(t, "the free one", packing.GPUs[0].Index, 2)
	cmptest.Equal(t, "freed", packing.FreedGPUs, []int{0, 1, 3})
}

// TestPackingUsesSlicesThatExist: a GPU instance that nothing holds is used before another one is
// created.
func TestPackingUsesSlicesThatExist(t *testing.T) {
	gpus, devices := node(t, "H100-80GB", "1g.10gb", "")
	gpus[1].MIG.Enabled = gpu.Some(true)
	gpus[1].Instances = []gpu.GPUInstance{{
		ID: 9, Profile: "1g.10gb", Placement: gpu.Some(gpu.Placement{Start: 4, Size: 1}),
		Device:           gpu.Device{Allocated: gpu.Some(false)},
		ComputeInstances: make([]gpu.ComputeInstance, 1),
	}}
	devices[1].Instance = gpu.Some(gpu.InstanceID(9))
	packing := packCandidates(&Report{Devices: devices}, gpus)
	cmptest.Equal(t, "slices", packing.GPUs[0].Slices,
		[]PackedSlice{{Profile: "1g.10gb", Exists: true}})
	cmptest.Equal(t, "whole GPUs needed", packing.Needed, 0)
	devices[1].Action = ActionIdle // no pod holds it, but a process of the host
	packing = packCandidates(&Report{Devices: devices}, gpus)
	cmptest.Equal(t, "beside a slice in use", packing.GPUs[0].Slices[0].Exists, false)
}

// TestPackingKeepsTheBounds: what MIG does not isolate, and replicas.
func TestPackingKeepsTheBounds(t *testing.T) {
	for _, c := range []struct {
		about  string
		change func(*Recommendation)
		want   int
	}{
		{"nothing in the way", func(*Recommendation) {}, 1},
		// idle is 0.11: 0.11 + 2*0.3 <= 0.9 < 0.11 + 3*0.3
		{"power", func(r *Recommendation) { r.Evidence.leastPower = 0.3 }, 2},
		{"PCIe", func(r *Recommendation) { r.Evidence.PCIeMax = gpu.Some(0.3) }, 2},
		{"replicas of one owner", func(r *Recommendation) { r.Workload.Owner = "Deployment/one" }, 2},
	} {
		gpus, devices := node(t, "H100-80GB", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb")
		for i := range devices {
			c.change(&devices[i])
		}

		packing := packCandidates(&Report{Devices: devices}, gpus)
		cmptest.Equal(t, c.about+": GPUs needed", packing.Needed, c.want)
	}
}

// twoServices returns the report on two H100 with narrow workloads and a free one, after eight days of
// polls by which change changes each of them.
func twoServices(t *testing.T, change func(g *gpu.GPU, minute int)) *Report {
	t.Helper()

	l := load{busy: 0.3, sm: 0.03, dram: 0.01, gib: 4}
	whole := []gpu.GPU{
		wholeGPU(t, "H100-80GB", 0, l, pod("ml", "Deployment/a")),
		wholeGPU(t, "H100-80GB", 1, l, pod("ml", "Deployment/b")),
		wholeGPU(t, "H100-80GB", 2, load{}),
	}
	a := New(fastOptions())
	s := &gpu.Snapshot{Time: start().Add(-time.Minute), GPUs: unheld(whole)}
	a.Observe(s)

	for minute := range 8 * 1440 {
		s = &gpu.Snapshot{Time: start().Add(time.Duration(minute) * time.Minute), GPUs: slices.Clone(whole)}
		for i := range s.GPUs {
			s.GPUs[i].Readings.PCIe = gpu.PCIe{LinkWidth: gpu.Some(16), LinkGeneration: gpu.Some(5)}
			change(&s.GPUs[i], minute)
		}

		a.Observe(s)
	}

	report := a.Recommend(s)
	report.Pack(s)

	return report
}

// TestUnreadPCIeIsNotNone: a workload whose traffic could not be read may need the whole link, whether
// the reading failed from the beginning or later, when a total keeps its value.
func TestUnreadPCIeIsNotNone(t *testing.T) {
	denied := func(g *gpu.GPU) {
		g.Errors = []gpu.ReadError{{Reading: gpu.ReadingPCIe, Err: errors.New("no permission")}}
	}
	count := func(g *gpu.GPU, value float64) {
		total := gpu.Some(gpu.Counter{Value: value, Since: start()})
		g.Totals.PCIeReceive, g.Totals.PCIeTransmit = total, total
	}

	const (
		unread = "the PCIe traffic of what runs on GPU 0, 1 could not be read: it may need the whole link, " +
			"so its slice shares no GPU"
		uncounted = "the driver reports no PCIe traffic of GPU 0, 1: whether slices that share a GPU stay " +
			"within the link was not checked"
	)

	for about, c := range map[string]struct {
		change func(g *gpu.GPU, minute int)
		note   string
	}{
		"read":                {func(g *gpu.GPU, minute int) { count(g, 1e6*float64(minute)) }, ""},
		"the driver has none": {func(*gpu.GPU, int) {}, uncounted},
		"never read":          {func(g *gpu.GPU, _ int) { denied(g) }, unread},
		"another part of the reading fails": {func(g *gpu.GPU, minute int) {
			denied(g)
			count(g, 1e6*float64(minute))
			g.Readings.PCIe.ReceiveBytes, g.Readings.PCIe.TransmitBytes = gpu.Some[uint64](0), gpu.Some[uint64](0)
		}, ""},
		"not read by day": {func(g *gpu.GPU, minute int) {
			if count(g, 0); minute/60%24 >= 8 {
				denied(g)
			}
		}, unread},
		"the link is unknown": {func(g *gpu.GPU, _ int) {
			rate := gpu.Some(1e9)
			g.Rates.PCIeReceive, g.Rates.PCIeTransmit = rate, rate
			g.Readings.PCIe = gpu.PCIe{}
		}, unread},
		"gone": {func(g *gpu.GPU, minute int) {
			if minute < 1440 {
				count(g, 0)
			}
		}, unread},
	} {
		r := twoServices(t, c.change)
		for i := range 2 {
			d := &r.Devices[i]

			want := answer{Action: ActionSlice, Profile: "1g.10gb"}
			if c.note == unread {
				want = answer{Action: ActionKeep, Reason: ReasonNoGain}

				cmptest.HasTexts(t, d.Explanation, "its PCIe traffic could not be read")
			}

			cmptest.Equal(t, about+": "+d.Explanation, answer{d.Action, d.Reason, d.Recommended}, want)
			cmptest.Equal(t, about+": known", d.Evidence.PCIeMax.Present(), c.note == "")
		}

		notes := slices.DeleteFunc(slices.Clone(r.Notes), func(n string) bool { return !strings.Contains(n, "PCIe") })
		cmptest.Equal(t, about+": note", strings.Join(notes, "\n"), c.note)
	}
}

// TestUnreadPCIeOfTenants: no slice is added to a GPU with tenants whose traffic could not be read, and the
// answer says that theirs is the reason.
func TestUnreadPCIeOfTenants(t *testing.T) {
	for about, c := range map[string]struct {
		failed bool
		want   answer
		texts  []string
	}{
		"read": {false, answer{Action: ActionSlice, Profile: "1g.10gb"}, nil},
		"unread": {true, answer{Action: ActionKeep, Reason: ReasonNoGain},
			[]string{"shares no GPU with others, since their PCIe traffic could not be read"}},
	} {
		gpus := slices.Delete(sharedNode(t), 1, 2)
		gpus[1].Instances[0].Placement = gpu.Some(gpu.Placement{Start: 4, Size: 4}) // room for 4g.40gb beside it
		a := New(fastOptions())
		s := &gpu.Snapshot{Time: start().Add(-time.Minute), GPUs: unheld(gpus)}
		a.Observe(s)

		for minute := range 8 * 1440 {
			s = &gpu.Snapshot{Time: start().Add(time.Duration(minute) * time.Minute), GPUs: slices.Clone(gpus)}
			total := gpu.Some(gpu.Counter{Value: 1e6 * float64(minute), Since: start()})

			for i := range s.GPUs {
				s.GPUs[i].Readings.PCIe = gpu.PCIe{LinkWidth: gpu.Some(16), LinkGeneration: gpu.Some(4)}
				s.GPUs[i].Totals.PCIeReceive, s.GPUs[i].Totals.PCIeTransmit = total, total
			}

			if g := &s.GPUs[1]; c.failed {
				g.Totals = gpu.Totals{}
				g.Errors = []gpu.ReadError{{Reading: gpu.ReadingPCIe, Err: errors.New("no permission")}}
			}

			a.Observe(s)
		}

		r := a.Recommend(s)
		r.Pack(s)

		d := &r.Devices[0]
		cmptest.Equal(t, about+": "+d.Explanation, answer{d.Action, d.Reason, d.Recommended}, c.want)
		cmptest.HasTexts(t, d.Explanation, c.texts...)

		noted := strings.Contains(strings.Join(r.Notes, "\n"), "of what runs on the slices of GPU 2 could not be read")
		cmptest.Equal(t, about+": noted", noted, c.failed)
	}
}

// TestUnreadPowerIsNotChecked: without power, or without its limit, slices are packed, and a note says
// that the limit was not checked.
func TestUnreadPowerIsNotChecked(t *testing.T) {
	for about, change := range map[string]func(*gpu.GPU){
		"power": func(g *gpu.GPU) { g.Readings.PowerWatts = gpu.None[float64]() },
		"limit": func(g *gpu.GPU) { g.Readings.PowerLimitWatts = gpu.None[float64]() },
		"both": func(g *gpu.GPU) {
			g.Readings.PowerWatts, g.Readings.PowerLimitWatts = gpu.None[float64](), gpu.None[float64]()
		},
	} {
		r := twoServices(t, func(g *gpu.GPU, _ int) { change(g) })
		cmptest.Equal(t, about+": "+r.Devices[0].Explanation, r.Devices[0].Candidate(), true)
		cmptest.HasTexts(t, strings.Join(r.Notes, "\n"), "power limit of GPU 0, 1 could not be read", "was not checked")
	}
}

// TestPowerThatWasReadInParts: power that was not read for some of the time is no fact, as the figure may lack
// the hours that decide. What was read counts as the least that the workload draws.
func TestPowerThatWasReadInParts(t *testing.T) {
	for hours, known := range map[int]bool{24: true, 8: false} {
		r := twoServices(t, func(g *gpu.GPU, minute int) {
			g.Readings.PowerWatts = gpu.Some(500.)
			if minute/60%24 >= hours {
				g.Readings.PowerWatts = gpu.None[float64]()
			}
		})
		d := &r.Devices[0]
		about := fmt.Sprintf("read for %d hours a day", hours)

		cmptest.Equal(t, about+": known", d.Evidence.PowerP95.Present(), known)
		cmptest.Equal(t, about, d.Reason, ReasonNoGain)
		cmptest.HasTexts(t, d.Explanation, "90 % of the power limit")
	}
}

// TestNoGainNamesTheLimit: slices that would share a GPU, and pass a limit there, are refused by it.
func TestNoGainNamesTheLimit(t *testing.T) {
	for about, c := range map[string]struct {
		change func(g *gpu.GPU, minute int)
		text   string
	}{
		"power": {func(g *gpu.GPU, _ int) { g.Readings.PowerWatts = gpu.Some(500.) }, "90 % of the power limit"},
		"PCIe": {func(g *gpu.GPU, minute int) {
			total := gpu.Some(gpu.Counter{Value: 60 * 13e9 * float64(minute), Since: start()})
			g.Totals.PCIeReceive, g.Totals.PCIeTransmit = total, total
		}, "70 % of the PCIe link"},
	} {
		d := &twoServices(t, c.change).Devices[0]
		cmptest.Equal(t, about, d.Reason, ReasonNoGain)
		cmptest.HasTexts(t, d.Explanation, c.text)
	}
}

// TestPackingIsBounded: sixteen GPUs of the most varied slices are packed within the bound, and
// proven.
func TestPackingIsBounded(t *testing.T) {
	names := []string{"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb"}

	var profiles []string
	for i := range 16 {
		profiles = append(profiles, names[i%len(names)])
	}

	gpus, devices := node(t, "H100-80GB", profiles...)

	packing := packCandidates(&Report{Devices: devices}, gpus)
	if !packing.Proven || packing.Needed != 5 {
		t.Errorf("needs %d GPUs, proven %v; want 5", packing.Needed, packing.Proven)
	}

	checkPacking(t, packing, gpus, devices)
}
