package mig

import (
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// model returns a known model or ends the test.
func model(t testing.TB, name string) Model {
	t.Helper()

	m, ok := FindModel(name)
	if !ok {
		t.Fatalf("FindModel(%q) finds none", name)
	}

	return m
}

// modelsWithPlacements returns the models that have a geometry.
func modelsWithPlacements(t testing.TB) []Model {
	t.Helper()

	models := slices.DeleteFunc(Models(), func(m Model) bool { return !m.PlacementsKnown() })
	if len(models) == 0 {
		t.Fatal("no model has placements")
	}

	return models
}

func TestModelsWithKnownPlacements(t *testing.T) {
	var names []string
	for _, m := range modelsWithPlacements(t) {
		names = append(names, m.Name)
	}

	want := []string{
		"A30-24GB", "A100-40GB", "A100-80GB", "H100-80GB", "H100-94GB", "H200-141GB", "B200-180GB",
		"RTX PRO 6000 Blackwell 96GB",
	}
	if !slices.Equal(names, want) {
		t.Errorf("models with placements: %q, want %q", names, want)
	}

	if all := len(Models()); all != 19 {
		t.Errorf("%d models, want 19", all)
	}
}

func TestModelTableIsConsistent(t *testing.T) {
	names := map[uint32]string{}

	for _, m := range Models() {
		for field, missing := range map[string]bool{
			"name": m.Name == "", "architecture": m.Architecture == "", "source": m.Source == "",
			"profiles": len(m.Profiles) == 0,
		} {
			if missing {
				t.Errorf("%+v: no %s", m, field)
			}
		}

		for _, id := range m.PCIDeviceIDs {
			if names[id] != "" {
				t.Errorf("PCI device %#x is both %s and %s", id, names[id], m.Name)
			}

			names[id] = m.Name
		}

		for _, p := range m.Profiles {
			n, err := ParseName(p.Name)
			if err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}

			if n.Slices != p.ComputeSlices {
				t.Errorf("%s %s: %d compute slices", m.Name, p.Name, p.ComputeSlices)
			}
		}
	}
}

func TestGeometryTablesAreComplete(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		capacity := CapacityOf(m.Profiles, nil)

		ids := map[uint32]bool{}
		largest := gpu.Profile{}

		for i, p := range m.Profiles {
			if ids[p.ID] {
				t.Errorf("%s %s: its id %d is another's, too", m.Name, p.Name, p.ID)
			}

			ids[p.ID] = true
			for field, missing := range map[string]bool{
				"SMs": p.SMs == 0, "memory": p.MemoryBytes == 0, "memory slices": p.MemorySlices == 0,
				"copy engines": p.Engines.Or(gpu.Engines{}).Copy == 0,
			} {
				if missing {
					t.Errorf("%s %s: no %s", m.Name, p.Name, field)
				}
			}

			for _, placement := range p.Placements {
				if placement.Size != p.MemorySlices || placement.End() > m.AxisUnits {
					t.Errorf("%s %s: placement %s", m.Name, p.Name, placement)
				}
			}

			if got := capacity.Profiles[i].Max; got != p.MaxInstances {
				t.Errorf("%s %s: placements allow %d, published are %d", m.Name, p.Name, got, p.MaxInstances)
			}

			if p.SMs > largest.SMs {
				largest = p
			}
		}

		if [...]int{largest.SMs, largest.ComputeSlices, largest.MemorySlices} != [...]int{m.SMs, m.ComputeSlices,
			m.AxisUnits} {
			t.Errorf("%s: %d SMs, %d compute slices, %d units; its largest profile has %d, %d, %d", m.Name,
				m.SMs, m.ComputeSlices, m.AxisUnits, largest.SMs, largest.ComputeSlices, largest.MemorySlices)
		}
	}
}

// `nvidia-smi mig -lgip` of an A100-PCIE-40GB with driver 460.91.03, published by an operator: that
// driver offered the five plain profiles only. Memory is in GiB, rounded down to hundredths.
func TestA100ListGPUInstanceProfiles(t *testing.T) {
	m := model(t, "A100-40GB")
	rows := []struct {
		name          string
		id            uint32
		total         int
		hundredthsGiB uint64
		sms           int
		engines       gpu.Engines
	}{
		{"1g.5gb", 19, 7, 475, 14, gpu.Engines{Copy: 1}},
		{"2g.10gb", 14, 3, 975, 28, gpu.Engines{Copy: 2, Decoder: 1}},
		{"3g.20gb", 9, 2, 1962, 42, gpu.Engines{Copy: 3, Decoder: 2}},
		{"4g.20gb", 5, 1, 1962, 56, gpu.Engines{Copy: 4, Decoder: 2}},
		{"7g.40gb", 0, 1, 3950, 98, gpu.Engines{Copy: 7, Decoder: 5, JPEG: 1, OFA: 1}},
	}

	capacity := CapacityOf(m.Profiles, nil)
	for _, row := range rows {
		i := slices.IndexFunc(m.Profiles, func(p gpu.Profile) bool { return p.Name == row.name })
		if i < 0 {
			t.Errorf("no profile %s", row.name)
			continue
		}

		p := m.Profiles[i]

		c := capacity.Profiles[i]
		if c.Available != row.total || c.Max != row.total {
			t.Errorf("%s: free/total %d/%d, want %d/%d", row.name, c.Available, c.Max, row.total, row.total)
		}

		want := p
		want.ID, want.SMs, want.Engines = row.id, row.sms, gpu.Some(row.engines)
		cmptest.Equal(t, row.name, p, want)
		cmptest.Equal(t, row.name+", hundredths of a GiB", p.MemoryBytes*100>>30, row.hundredthsGiB)
	}
}

// `nvidia-smi mig -lgip` of a B200, published with a driver of early 2025 (mig-parted PR 166), as
// far as it is known: what is derived is not in it. Memory is in GiB, rounded down to hundredths.
func TestB200ListGPUInstanceProfiles(t *testing.T) {
	m := model(t, "B200")
	for _, row := range []struct {
		name          string
		id            uint32
		total         int
		hundredthsGiB uint64
		sms           int
		engines       gpu.Engines
	}{
		{"1g.23gb", 19, 7, 2200, 18, gpu.Engines{Copy: 2, Decoder: 1, JPEG: 1}},
		{"1g.23gb+me", 20, 1, 2200, 18, gpu.Engines{Copy: 2, Decoder: 1, JPEG: 1, OFA: 1}},
		{"1g.45gb", 15, 4, 4425, 30, gpu.Engines{Copy: 2, Decoder: 1, JPEG: 1}},
		{"2g.45gb", 14, 3, 4425, 36, gpu.Engines{Copy: 4, Decoder: 2, JPEG: 2}},
	} {
		i := slices.IndexFunc(m.Profiles, func(p gpu.Profile) bool { return p.Name == row.name })
		if i < 0 {
			t.Fatalf("no profile %s", row.name)
		}

		p := m.Profiles[i]
		want := p
		want.ID, want.MaxInstances, want.SMs, want.Engines = row.id, row.total, row.sms, gpu.Some(row.engines)
		cmptest.Equal(t, row.name, p, want)
		cmptest.Equal(t, row.name+", hundredths of a GiB", p.MemoryBytes*100>>30, row.hundredthsGiB)
	}

	placements := 0
	for _, p := range m.Profiles {
		placements += len(p.Placements)
	}

	cmptest.Equal(t, "placements, as a published test counts them", placements, 25)
}

func TestDerivedIsMarked(t *testing.T) {
	all := map[string]map[string][]string{
		"A100-80GB": {"1g.10gb+me": {"memory"}, "1g.20gb": {"memory"}},
		"B200-180GB": {
			"1g.23gb": {"placements"}, "1g.23gb+me": {"placements"}, "1g.45gb": {"placements"},
			"3g.90gb": {"engines", "placements"}, "4g.90gb": {"engines", "memory", "placements"},
			"7g.180gb": {"engines", "id", "memory", "placements", "sms"},
		},
	}
	for _, m := range modelsWithPlacements(t) {
		want := all[m.Name]
		if want == nil {
			want = map[string][]string{}
		}

		cmptest.Equal(t, m.Name, m.Derived, want)
	}

	memory := map[string]uint64{}
	for _, p := range model(t, "A100-80GB").Profiles {
		memory[p.Name] = p.MemoryBytes
	}

	if memory["1g.10gb+me"] != memory["1g.10gb"] || memory["1g.20gb"] != memory["2g.20gb"] {
		t.Errorf("derived memory differs from the profile that it is derived from: %v", memory)
	}
}

func TestFindModel(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"A100-40GB", "A100-40GB"},
		{"a100-40gb", "A100-40GB"},
		{"A100-SXM4-40GB", "A100-40GB"},
		{"A100-PCIE-80GB", "A100-80GB"},
		{"A30", "A30-24GB"},
		{"H100-80GB", "H100-80GB"},
		{"H100 NVL", "H100-94GB"},
		{"H100-94GB", "H100-94GB"},
		{"H200", "H200-141GB"},
		{"H200-141GB", "H200-141GB"},
		{"H20", "H20-96GB"},
		{"RTX-PRO-6000", "RTX PRO 6000 Blackwell 96GB"},
		{"rtx pro 6000", "RTX PRO 6000 Blackwell 96GB"},
		{"RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell 96GB"},
		{"H100", ""},    // 80, 94 or 96 GB
		{"A100", ""},    // 40 or 80 GB
		{"RTX PRO", ""}, // three GPUs
		{"H2", ""},      // not a whole word
		{"A100-40", ""}, // not a whole word
		{"A100-40GB-X", ""},
		{"V100", ""},
		{"", ""},
		{"-", ""},
	} {
		m, ok := FindModel(c.name)
		if m.Name != c.want || ok != (c.want != "") {
			t.Errorf("FindModel(%q) = %q, %v, want %q", c.name, m.Name, ok, c.want)
		}
	}
}

func TestModelsBelongToTheCaller(t *testing.T) {
	Models()[0].Profiles[0].Placements[0].Start = 9
	if start := Models()[0].Profiles[0].Placements[0].Start; start != 0 {
		t.Errorf("a caller's change shows in the next answer: start %d", start)
	}
}
