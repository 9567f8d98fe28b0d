package fleet

import (
	"cmp"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// gpusFor returns how many GPUs hold slices of the given profiles: each, the largest first, goes to the first GPU on
// which it fits. Fewer GPUs may do.
func gpusFor(profiles []gpu.Profile, wanted []string) int {
	p := packer{profiles: profiles, fits: map[string]bool{}}
	list := make([]int, 0, len(wanted))
	for _, name := range wanted {
		if at := slices.IndexFunc(profiles, func(p gpu.Profile) bool { return p.Name == name }); at >= 0 {
			list = append(list, at)
		}
	}
	slices.SortFunc(list, func(a, b int) int {
		x, y := &profiles[a], &profiles[b]
		return cmp.Or(cmp.Compare(y.MemorySlices, x.MemorySlices), cmp.Compare(y.SMs, x.SMs), cmp.Compare(a, b))
	})
	var gpus [][]int // the profiles on each
	refused := map[string]int{}
	for _, profile := range list {
		name := profiles[profile].Name
		at := refused[name] // the GPUs before have no room for this profile, and get no more
		for at < len(gpus) && !p.holds(append(slices.Clone(gpus[at]), profile)) {
			at++
		}
		refused[name] = at
		if at == len(gpus) {
			gpus = append(gpus, nil)
		}
		gpus[at] = append(gpus[at], profile)
	}
	return len(gpus)
}

// packer knows which slices fit on a GPU together.
type packer struct {
	profiles []gpu.Profile
	fits     map[string]bool // by the profiles' names
}

// holds reports whether an empty GPU has room for slices of the given profiles.
func (p *packer) holds(list []int) bool {
	var key strings.Builder
	for _, at := range list {
		key.WriteString(p.profiles[at].Name)
		key.WriteByte('/')
	}
	fits, known := p.fits[key.String()]
	if !known {
		fits = p.placeAll(nil, list)
		p.fits[key.String()] = fits
	}
	return fits
}

// placeAll tries all placements.
func (p *packer) placeAll(placed []mig.Placed, list []int) bool {
	if len(list) == 0 {
		return true
	}
	profile := p.profiles[list[0]]
	for _, at := range mig.FreePlacements(p.profiles, placed, profile) {
		next := mig.Placed{ProfileID: profile.ID, Profile: profile.Name, Placement: at}
		if p.placeAll(append(slices.Clone(placed), next), list[1:]) {
			return true
		}
	}
	return false
}
