package mig

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// layout reads instances written "3g.20gb@4", with the profile's ids and sizes.
func layout(t testing.TB, m Model, instances ...string) []Placed {
	t.Helper()
	var placed []Placed

	for _, s := range instances {
		name, start, _ := strings.Cut(s, "@")
		n, ok := gpu.ParseDecimal(start)

		i := slices.IndexFunc(m.Profiles, func(p gpu.Profile) bool { return p.Name == name })
		if !ok || i < 0 {
			t.Fatalf("%s: no instance %q", m.Name, s)
		}

		p := m.Profiles[i]
		placed = append(placed, Placed{
			ProfileID: p.ID, Profile: name, Placement: gpu.Placement{Start: int(n), Size: p.MemorySlices},
		})
	}

	return placed
}

// available lists the profiles that could be created, "1g.5gb:3", in the model's order.
func available(c gpu.Capacity) string {
	var s []string

	for _, p := range c.Profiles {
		if p.Available > 0 {
			s = append(s, fmt.Sprintf("%s:%d", p.Name, p.Available))
		}
	}

	return strings.Join(s, " ")
}

type capacityCase struct {
	about, model    string
	layout          []string
	compute, memory gpu.SliceCount
	available       string
}

func capacityCases() []capacityCase {
	return []capacityCase{
		{
			about: "empty", model: "A100-40GB",
			compute: gpu.SliceCount{Free: 7}, memory: gpu.SliceCount{Free: 8},
			available: "1g.5gb:7 1g.5gb+me:1 1g.10gb:4 2g.10gb:3 3g.20gb:2 4g.20gb:1 7g.40gb:1",
		},
		{
			about: "the seventh compute slice has no memory", model: "A100-40GB", layout: []string{"3g.20gb@0", "3g.20gb@4"},
			compute: gpu.SliceCount{Used: 6, Stranded: 1}, memory: gpu.SliceCount{Used: 8},
		},
		{
			about: "the eighth memory slice has no compute slice", model: "A100-40GB",
			layout:  []string{"1g.5gb@0", "1g.5gb@1", "1g.5gb@2", "1g.5gb@3", "1g.5gb@4", "1g.5gb@5", "1g.5gb@6"},
			compute: gpu.SliceCount{Used: 7}, memory: gpu.SliceCount{Used: 7, Stranded: 1},
		},
		{
			about: "4g and 3g", model: "A100-40GB", layout: []string{"4g.20gb@0", "3g.20gb@4"},
			compute: gpu.SliceCount{Used: 7}, memory: gpu.SliceCount{Used: 8},
		},
		{
			about: "a 3g on the left shuts out 4g", model: "A100-40GB", layout: []string{"3g.20gb@0"},
			compute: gpu.SliceCount{Used: 3, Free: 3, Stranded: 1}, memory: gpu.SliceCount{Used: 4, Free: 4},
			available: "1g.5gb:3 1g.5gb+me:1 1g.10gb:2 2g.10gb:1 3g.20gb:1",
		},
		{
			about: "a 3g on the right leaves room for 4g", model: "A100-40GB", layout: []string{"3g.20gb@4"},
			compute: gpu.SliceCount{Used: 3, Free: 4}, memory: gpu.SliceCount{Used: 4, Free: 4},
			available: "1g.5gb:4 1g.5gb+me:1 1g.10gb:2 2g.10gb:2 3g.20gb:1 4g.20gb:1",
		},
		{
			about: "what 19,19,14 leave where the driver puts them: nothing for a 3g", model: "A100-40GB",
			layout:  []string{"1g.5gb@6", "1g.5gb@4", "2g.10gb@0"},
			compute: gpu.SliceCount{Used: 4, Free: 3}, memory: gpu.SliceCount{Used: 4, Free: 3, Stranded: 1},
			available: "1g.5gb:3 1g.5gb+me:1 1g.10gb:1 2g.10gb:1",
		},
		{
			about: "one +me", model: "H100-80GB", layout: []string{"1g.10gb+me@6"},
			compute: gpu.SliceCount{Used: 1, Free: 6}, memory: gpu.SliceCount{Used: 1, Free: 6, Stranded: 1},
			available: "1g.10gb:6 1g.20gb:3 2g.20gb:3 3g.40gb:1 4g.40gb:1",
		},
		{
			about: "an axis of four", model: "A30", layout: []string{"1g.6gb@1"},
			compute: gpu.SliceCount{Used: 1, Free: 3}, memory: gpu.SliceCount{Used: 1, Free: 3},
			available: "1g.6gb:3 1g.6gb+me:1 2g.12gb:1 2g.12gb+me:1",
		},
		{
			about: "an axis of twelve, +me.all takes all decoders", model: "RTX PRO 6000",
			layout:  []string{"2g.48gb+me.all@0", "1g.24gb-me@9"},
			compute: gpu.SliceCount{Used: 3, Free: 1}, memory: gpu.SliceCount{Used: 9, Free: 3},
			available: "1g.24gb-me:1",
		},
		{
			about: "more decoders in use than there are", model: "RTX PRO 6000",
			layout:  []string{"2g.48gb+me.all@0", "1g.24gb@9"},
			compute: gpu.SliceCount{Used: 3, Free: 1}, memory: gpu.SliceCount{Used: 9, Free: 3},
			available: "1g.24gb-me:1",
		},
	}
}

func TestCapacityOf(t *testing.T) {
	for _, c := range capacityCases() {
		t.Run(c.model+"/"+c.about, func(t *testing.T) {
			m := model(t, c.model)

			got := CapacityOf(m.Profiles, layout(t, m, c.layout...))
			if got.Compute != c.compute || got.Memory != c.memory {
				t.Errorf("compute %+v, memory %+v, want %+v, %+v", got.Compute, got.Memory, c.compute, c.memory)
			}

			if s := available(got); s != c.available {
				t.Errorf("available %q, want %q", s, c.available)
			}
		})
	}
}

func TestA100FourAndThreeFitOnlyAs4gAt0And3gAt4(t *testing.T) {
	m := model(t, "A100-40GB")
	var fits []string

	for _, start4 := range []int{0, 4} {
		for _, start3 := range []int{0, 4} {
			four := Placed{ProfileID: 5, Placement: gpu.Placement{Start: start4, Size: 4}}

			three := Placed{ProfileID: 9, Placement: gpu.Placement{Start: start3, Size: 4}}
			if slices.Contains(FreePlacements(m.Profiles, []Placed{three}, profileOf(m.Profiles, four)), four.Placement) &&
				slices.Contains(FreePlacements(m.Profiles, []Placed{four}, profileOf(m.Profiles, three)), three.Placement) {
				fits = append(fits, fmt.Sprintf("4g@%d 3g@%d", start4, start3))
			}
		}
	}

	if !slices.Equal(fits, []string{"4g@0 3g@4"}) {
		t.Errorf("4g and 3g fit as %q", fits)
	}
}

// Which profile an instance is of: by id; by name if the id is of another name; else what the name
// says.
func TestProfileOfAPlacedInstance(t *testing.T) {
	m := model(t, "A100-40GB")

	at := gpu.Placement{Start: 0, Size: 2}
	for _, c := range []struct {
		about   string
		placed  Placed
		compute int
	}{
		{"id and name", Placed{ProfileID: 14, Profile: "2g.10gb", Placement: at}, 2},
		{"id alone", Placed{ProfileID: 14, Placement: at}, 2},
		{"id, a name of another driver", Placed{ProfileID: 14, Profile: "2g.9gb", Placement: at}, 2},
		{"name alone; id 0 is the 7g's", Placed{Profile: "1g.10gb", Placement: at}, 1},
		{"unknown id, known name", Placed{ProfileID: 99, Profile: "2g.10gb", Placement: at}, 2},
		{"unknown, with a name that can be read", Placed{ProfileID: 99, Profile: "2g.11gb+new", Placement: at}, 2},
		{"unknown, with a name that cannot be read", Placed{ProfileID: 99, Profile: "half", Placement: at}, 0},
		{"unknown, no name", Placed{ProfileID: 99, Placement: at}, 0},
	} {
		got := CapacityOf(m.Profiles, []Placed{c.placed})
		if got.Compute.Used != c.compute || got.Memory.Used != 2 {
			t.Errorf("%s: compute %+v, memory %+v, want %d compute and 2 memory slices used", c.about, got.Compute, got.Memory,
				c.compute)
		}

		if all := got.Compute.Used + got.Compute.Free + got.Compute.Stranded; all != 7 {
			t.Errorf("%s: compute %+v does not add up", c.about, got.Compute)
		}
	}
}

func TestMediaExtensionsAreKnownWithoutNames(t *testing.T) {
	m := model(t, "RTX PRO 6000")
	for i := range m.Profiles {
		m.Profiles[i].Name = "" // as a driver before the versioned profile call leaves it
	}

	taken := []Placed{{ProfileID: 21, Placement: gpu.Placement{Start: 0, Size: 3}}} // 1g.24gb+me
	for i, p := range CapacityOf(m.Profiles, taken).Profiles {
		switch id := m.Profiles[i].ID; id {
		case 21, 65, 64: // +me, the +me.all
			if p.Max != 1 || p.Available != 0 {
				t.Errorf("profile %d: %+v, want one at most and none now", id, p)
			}
		case 14, 47, 67:
			if p.Available != 3 {
				t.Errorf("profile %d: %+v, want 3 available", id, p)
			}

		case 66: // 2g.48gb-me
			if p.Available != 1 {
				t.Errorf("profile %d: %+v, want 1 available", id, p)
			}
		}
	}
}

func TestCapacityOfWithheldPlacements(t *testing.T) {
	m := model(t, "A30")
	m.Profiles[0].Placements = nil

	got := CapacityOf(m.Profiles, nil)
	if len(got.Profiles) != len(m.Profiles)-1 || got.Profiles[0].Name != m.Profiles[1].Name {
		t.Errorf("profiles %+v, want those with placements", got.Profiles)
	}

	if got := CapacityOf(nil, []Placed{{Profile: "1g.6gb", Placement: gpu.Placement{Size: 1}}}); !equalCapacity(got,
		gpu.Capacity{}) {
		t.Errorf("without profiles: %+v, want nothing", got)
	}
}

// What a confused driver may say must neither panic nor make the sums wrong.
func TestCapacityOfImpossibleLayouts(t *testing.T) {
	m := model(t, "A100-40GB")
	m.Profiles = append(m.Profiles, gpu.Profile{ID: 77, Name: "odd", Placements: []gpu.Placement{
		{Start: -1, Size: 2}, {Start: 3, Size: 0}, {Start: 3, Size: -2}, {Start: 1 << 62, Size: 1 << 62},
		{Start: 60, Size: 9},
	}})

	seven := m.Profiles[6].Placements[0]
	for about, placed := range map[string][]Placed{
		"two on one placement": {{ProfileID: 0, Placement: seven}, {ProfileID: 0, Placement: seven}},
		"beyond the axis":      {{ProfileID: 19, Placement: gpu.Placement{Start: 62, Size: 2}}},
		"partly on the axis":   {{ProfileID: 9, Placement: gpu.Placement{Start: 6, Size: 4}}},
		"nowhere":              {{ProfileID: 9, Placement: gpu.Placement{Start: -3, Size: 1 << 62}}},
		"two +me": {
			{ProfileID: 20, Placement: gpu.Placement{Start: 0, Size: 1}},
			{ProfileID: 20, Placement: gpu.Placement{Start: 1, Size: 1}},
		},
	} {
		c := CapacityOf(m.Profiles, placed)
		compute := c.Compute.Used + c.Compute.Free + c.Compute.Stranded

		memory := c.Memory.Used + c.Memory.Free + c.Memory.Stranded
		if compute != 7 || min(c.Compute.Used, c.Compute.Free, c.Compute.Stranded) < 0 {
			t.Errorf("%s: compute %+v", about, c.Compute)
		}

		if c.Memory.Stranded < 0 || memory != 8 {
			t.Errorf("%s: memory %+v", about, c.Memory)
		}
	}
}

func BenchmarkCapacityOf(b *testing.B) {
	for _, c := range []struct {
		model  string
		layout []string
	}{
		{"A100-40GB", nil},
		{"A100-40GB", []string{"3g.20gb@4", "1g.5gb@0"}},
		{"RTX PRO 6000", nil},
	} {
		m := model(b, c.model)
		placed := layout(b, m, c.layout...)
		b.Run(fmt.Sprintf("%s/%d placed", m.Name, len(placed)), func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				CapacityOf(m.Profiles, placed)
			}
		})
	}
}
