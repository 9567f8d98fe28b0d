package sim

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// canCreate judges by brute force whether one more instance can be created on a GPU: a unit of the
// axis holds one instance, a GPU has so many compute slices, one set of media extensions, and the
// engines that its largest profile has.
func canCreate(s *GPUState, axis, computeSlices int, f gpu.Profile, p gpu.Placement) bool {
	units := make([]bool, axis)
	used := f.ComputeSlices

	for _, i := range s.Instances {
		for u := i.Placement.Start; u < i.Placement.End(); u++ {
			units[u] = true
		}

		used += i.Profile.ComputeSlices
		if hasMediaExtensions(f) && hasMediaExtensions(i.Profile) {
			return false
		}
	}

	for u := p.Start; u < p.End(); u++ {
		if units[u] {
			return false
		}
	}

	for kind, has := range enginesByKind(s.Profiles[len(s.Profiles)-1]) { // the table lists the largest profiles last
		need := enginesByKind(f)[kind]
		for _, i := range s.Instances {
			need += enginesByKind(i.Profile)[kind]
		}

		if need > has {
			return false
		}
	}

	return used <= computeSlices
}

func enginesByKind(f gpu.Profile) []int {
	e := f.Engines.Or(gpu.Engines{})
	return []int{e.Copy, e.Decoder, e.Encoder, e.JPEG, e.OFA}
}

// On every model, whatever was made and destroyed before: an instance is created where it can be
// and nowhere else, and the remaining capacity is what can be made then.
func TestPlacementAgreesWithBruteForce(t *testing.T) {
	for _, b := range gpuModels() {
		t.Run(b.key, func(t *testing.T) {
			n := start(t, "version: 1\ngpus: [{model: \""+b.key+"\", mig: true}]\n")
			model := n.gpus[0].mig
			random := rand.New(rand.NewPCG(1, 2))

			for range 300 {
				s := state(t, n, 0)
				if len(s.Instances) > 0 && random.IntN(3) == 0 {
					if err := n.DestroyGPUInstance(0, s.Instances[random.IntN(len(s.Instances))].ID); err != nil {
						t.Fatal(err)
					}

					continue
				}

				f := s.Profiles[random.IntN(len(s.Profiles))]
				p := f.Placements[random.IntN(len(f.Placements))]

				_, err := n.CreateGPUInstance(0, f.ID, gpu.Some(p.Start))
				if want := canCreate(&s, model.AxisUnits, model.ComputeSlices, f, p); want != (err == nil) || !want &&
					!errors.Is(err, gpu.ErrInsufficientResources) {
					t.Fatalf("%s at %v beside %+v: %v, want success: %v", f.Name, p, s.Instances, err, want)
				}

				checkRemaining(t, n, s.Profiles[random.IntN(len(s.Profiles))])
			}
		})
	}
}

// checkRemaining fills the GPU with instances of one profile and takes them away again.
func checkRemaining(t *testing.T, n *Node, f gpu.Profile) {
	t.Helper()

	want, err := n.Remaining(0, f.ID)
	if err != nil {
		t.Fatal(err)
	}

	var made []gpu.InstanceID

	for {
		id, err := n.CreateGPUInstance(0, f.ID, gpu.None[int]())
		if err != nil {
			break
		}

		made = append(made, id)
	}

	if len(made) != want {
		t.Fatalf("%s: %d remaining, %d could be made", f.Name, want, len(made))
	}

	for _, id := range made {
		if err := n.DestroyGPUInstance(0, id); err != nil {
			t.Fatal(err)
		}
	}
}
