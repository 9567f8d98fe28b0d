package rival

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// tree is the layout of a GPU: its GPU instances by placement, with their compute instances.
type tree []gi

type gi struct {
	ID      uint32 `json:"id"`
	Profile uint32 `json:"profile"` // by the driver's id
	Start   int    `json:"start"`
	Size    int    `json:"size"`
	CIs     []ci   `json:"cis,omitempty"`
}

type ci struct {
	ID     uint32 `json:"id"`
	Start  int    `json:"start"`
	Slices int    `json:"slices"`
}

// String draws the tree by placement. Ids are left out: drivers use them again.
func (t tree) String() string {
	list := make([]string, 0, len(t))
	for _, g := range t {
		list = append(list, g.String())
	}

	slices.Sort(list)

	return "{" + strings.Join(list, " ") + "}"
}

func (g gi) String() string {
	list := make([]string, 0, len(g.CIs))
	for _, c := range g.CIs {
		list = append(list, fmt.Sprintf("%d:%d", c.Start, c.Slices))
	}

	slices.Sort(list)

	return fmt.Sprintf("%d@%d:%d%v", g.Profile, g.Start, g.Size, list)
}

// key names the GPU instance, and not another one that has its id later.
func (g gi) key() string { return fmt.Sprintf("%d is %d@%d", g.ID, g.Profile, g.Start) }

func (t tree) find(id uint32) *gi {
	for i := range t {
		if t[i].ID == id {
			return &t[i]
		}
	}

	return nil
}

// after is the tree with one more change.
func (t tree) after(p point) tree {
	next := tree{}

	for _, g := range t {
		if p.Kind == destroyGI && g.ID == p.GI {
			continue
		}

		if g.ID == p.GI {
			g.CIs = slices.DeleteFunc(slices.Clone(g.CIs), func(c ci) bool { return p.Kind == destroyCI && c.ID == p.CI })
		}

		if g.ID == p.GI && p.Kind == createCI {
			g.CIs = append(g.CIs, ci{ID: p.CI, Start: p.Start, Slices: p.Size})
		}

		next = append(next, g)
	}

	if p.Kind == createGI {
		next = append(next, gi{ID: p.GI, Profile: p.Profile, Start: p.Start, Size: p.Size})
	}

	return next
}

// treeOf returns the instances of a GPU, from the simulated node itself, not through any code that
// is under test.
func treeOf(t testing.TB, node *sim.Node, index int) tree {
	t.Helper()

	s, err := node.Read(index, gpu.ReadingMIG)
	if err != nil {
		t.Fatal(err)
	}

	return treeOfState(&s)
}

func treeOfState(s *sim.GPUState) tree {
	list := tree{}

	for _, i := range s.Instances {
		g := gi{ID: uint32(i.ID), Profile: i.Profile.ID, Start: i.Placement.Start, Size: i.Placement.Size}
		for _, c := range i.ComputeInstances {
			g.CIs = append(g.CIs, ci{ID: uint32(c.ID), Start: c.Placement.Start, Slices: c.Placement.Size})
		}

		list = append(list, g)
	}

	return list
}

// treeOfAPI is a layout as the API says it.
func treeOfAPI(list []api.Instance) tree {
	t := tree{}

	for _, i := range list {
		g := gi{ID: uint32(i.ID.Or(0)), Profile: i.ProfileID, Start: i.Placement.Start, Size: i.Placement.Size}
		for _, c := range i.Compute {
			g.CIs = append(g.CIs, ci{ID: uint32(c.ID.Or(0)), Start: c.Placement.Start, Slices: c.Placement.Size})
		}

		t = append(t, g)
	}

	return t
}
