package fleet

import (
	"cmp"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// packedGPU is a GPU with the slices that it gets.
type packedGPU struct {
	profiles []int // the slices' indices in the model's profiles
	wanted   []int // the slices' indices in pack's wanted
}

// pack places slices of the wanted profiles. Each slice, the largest first, goes to the first GPU on
// which it fits. The result need not have the fewest possible GPUs.
func pack(profiles []gpu.Profile, wanted []string) []packedGPU {
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

	var gpus []packedGPU
	firstWithRoom := map[string]int{} // by profile: the GPUs before have none, and get none

	for _, s := range list {
		name := profiles[s.profile].Name

		at := firstWithRoom[name]
		for at < len(gpus) && !p.hasRoom(append(slices.Clone(gpus[at].profiles), s.profile)) {
			at++
		}

		firstWithRoom[name] = at
		if at == len(gpus) {
			gpus = append(gpus, packedGPU{})
		}

		gpus[at].profiles = append(gpus[at].profiles, s.profile)
		gpus[at].wanted = append(gpus[at].wanted, s.wanted)
	}

	return gpus
}

// packer finds out which slices fit on a GPU together.
type packer struct {
	profiles []gpu.Profile
	fits     map[string]bool // results of hasRoom, by the profiles' names
}

// hasRoom reports whether an empty GPU has room for slices of the given profiles.
func (p *packer) hasRoom(list []int) bool {
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

// placeAll reports whether slices of the profiles in list have room beside those that are placed. It
// tries all placements.
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
