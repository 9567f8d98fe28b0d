package fleet

import (
	"cmp"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// place is a GPU and the slices that it gets.
type place struct {
	profiles []int // indices of the model's profiles
	wanted   []int // indices of the slices
}

// pack places slices of the given profiles: each, the largest first, goes to the first GPU on which
// it fits. Fewer GPUs may do.
func pack(profiles []gpu.Profile, wanted []string) []place {
	p := packer{profiles: profiles, fits: map[string]bool{}}
	type slice struct{ profile, wanted int }

	list := make([]slice, 0, len(wanted))
	for i, name := range wanted {
		at := slices.IndexFunc(profiles, func(p gpu.Profile) bool { return p.Name == name })
		if at >= 0 {
			list = append(list, slice{at, i})
		}
	}

	slices.SortFunc(list, func(a, b slice) int {
		x := &profiles[a.profile]
		y := &profiles[b.profile]

		return cmp.Or(cmp.Compare(y.MemorySlices, x.MemorySlices), cmp.Compare(y.SMs, x.SMs),
			cmp.Compare(a.profile, b.profile), cmp.Compare(a.wanted, b.wanted))
	})

	var gpus []place
	refused := map[string]int{}

	for _, s := range list {
		name := profiles[s.profile].Name

		at := refused[name] // the GPUs before have no room for this profile, and get no more
		for at < len(gpus) && !p.holds(append(slices.Clone(gpus[at].profiles), s.profile)) {
			at++
		}

		refused[name] = at
		if at == len(gpus) {
			gpus = append(gpus, place{})
		}

		gpus[at].profiles = append(gpus[at].profiles, s.profile)
		gpus[at].wanted = append(gpus[at].wanted, s.wanted)
	}

	return gpus
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
