package migctl

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// gpuProfiles holds the profiles of one GPU as "profiles -o json" prints them.
type gpuProfiles struct {
	Index     int                   `json:"index"`
	UUID      gpu.UUID              `json:"uuid"`
	Name      string                `json:"name"`
	Profiles  []gpu.Profile         `json:"profiles"`
	Available []gpu.ProfileCapacity `json:"available,omitempty"`
}

// showProfiles lists the profiles of each GPU. The compute instance profiles are listed for the
// first GPU of each model only.
func (s *session) showProfiles(ctx context.Context) error {
	var node nodedoc.Document
	if err := s.client.fetch(ctx, "/node", &node); err != nil {
		return err
	}

	gpus, err := chooseGPUs(s.opts.GPUs, &node)
	if err != nil {
		return err
	}

	if s.opts.Output != formTable {
		return s.printProfiles(gpus)
	}

	writeUnread(s.page, &node)
	var listedModels []string

	for i := range gpus {
		g := &gpus[i]
		s.page.line(span{gpuTitle(s.page, g.Index, g.Name, g.UUID), bold})

		if len(g.Profiles) == 0 {
			s.page.line(text("  offers no profiles: it has no MIG, or does not answer").in(dim))
			continue
		}

		writeProfiles(s.page, g)

		if !slices.Contains(listedModels, g.Name) {
			listedModels = append(listedModels, g.Name)
			writeComputeProfiles(s.page, g)
		}

		s.page.line()
	}

	return nil
}

func (s *session) printProfiles(gpus []nodedoc.GPU) error {
	list := make([]gpuProfiles, 0, len(gpus))
	for i := range gpus {
		g := &gpus[i]
		out := gpuProfiles{Index: g.Index, UUID: g.UUID, Name: g.Name, Profiles: g.Profiles}

		if g.Capacity != nil {
			out.Available = g.Capacity.Profiles
		}

		list = append(list, out)
	}

	data, err := json.Marshal(map[string]any{"gpus": list})
	if err != nil {
		return err
	}

	return s.printDocument(data)
}

func writeProfiles(p *page, g *nodedoc.GPU) {
	p.line(
		text(
			"  %-15s %4s %9s %8s %4s  %-11s %s",
			"PROFILE",
			"ID",
			"FREE/ALL",
			"GiB",
			"SMs",
			"ENGINES",
			"PLACEMENTS",
		).in(dim),
	)

	for i := range g.Profiles {
		pr := &g.Profiles[i]
		c := plain

		free := availableText(g, pr)
		if free == "0" {
			c = dim
		}

		lead := fmt.Sprintf("  %s %4d %9s %8s %4d  %-11s ", p.cell(pr.Name, 15), pr.ID,
			free+"/"+strconv.Itoa(pr.MaxInstances),
			formatGiB(pr.MemoryBytes), pr.SMs, enginesText(pr.Engines))
		p.paragraph(lead, c, placementsText(pr.Placements))
	}
}

// availableText returns how many more instances of a profile could be created now.
func availableText(g *nodedoc.GPU, pr *gpu.Profile) string {
	if g.Capacity != nil {
		for _, c := range g.Capacity.Profiles {
			if c.Name == pr.Name {
				return strconv.Itoa(c.Available)
			}
		}
	}

	return unknown
}

// placementsText writes placements as nvidia-smi mig -lgipp does: "{0,2,4}:2" is 3 placements of
// size 2, which start at 0, 2 and 4.
func placementsText(places []gpu.Placement) string {
	if len(places) == 0 {
		return unknown
	}

	starts := make([]string, 0, len(places))
	for _, place := range places {
		starts = append(starts, strconv.Itoa(place.Start))
	}

	return fmt.Sprintf("{%s}:%d", strings.Join(starts, ","), places[0].Size)
}

// enginesText writes the engines of an instance as counts and letters: "2c1d" is 2 copy engines and
// 1 decoder.
func enginesText(engines gpu.Opt[gpu.Engines]) string {
	e, ok := engines.Get()
	if !ok {
		return unknown
	}

	var b strings.Builder

	for _, kind := range []struct {
		letter string
		count  int
	}{{"c", e.Copy}, {"d", e.Decoder}, {"e", e.Encoder}, {"j", e.JPEG}, {"o", e.OFA}} {
		if kind.count > 0 {
			fmt.Fprintf(&b, "%d%s", kind.count, kind.letter)
		}
	}

	return orUnknown(b.String())
}

// writeComputeProfiles lists the sizes of compute instances that each GPU instance profile allows,
// and for each size how many fit and how many SMs one has. Profiles with equally many compute
// slices are listed once.
func writeComputeProfiles(p *page, g *nodedoc.GPU) {
	p.paragraph("  ", dim, "Engines: c copy, d decoder, e encoder, j JPEG, o optical flow.")
	p.line()
	p.paragraph(
		"  ",
		dim,
		"Compute instances within a GPU instance (spec: compute: [\"1c\", \"2c\"]); without saying so, "+
			"one of all its slices:",
	)
	p.line(text("  %-15s %-10s %s", "GPU INSTANCE", "COMPUTE", "ALL  SMs").in(dim))
	seen := map[int]bool{}

	for i := range g.Profiles {
		pr := &g.Profiles[i]
		if seen[pr.ComputeSlices] || pr.ComputeSlices < 1 {
			continue
		}

		seen[pr.ComputeSlices] = true
		name := pr.Name

		for _, n := range computeSizes(pr.ComputeSlices) {
			p.line(
				text(
					"  %s %-10s %3d %4d",
					p.cell(name, 15),
					fmt.Sprintf("%dc", n),
					pr.ComputeSlices/n,
					pr.SMs*n/pr.ComputeSlices,
				),
			)
			name = ""
		}
	}
}

// computeSizes returns how many slices a compute instance can have, in a GPU instance that has the
// given number of compute slices: 1, 2, 3, 4 or 7, or all of them.
func computeSizes(slices int) []int {
	var sizes []int

	for n := 1; n <= slices; n++ {
		if n <= 4 || n == 7 || n == slices {
			sizes = append(sizes, n)
		}
	}

	return sizes
}
