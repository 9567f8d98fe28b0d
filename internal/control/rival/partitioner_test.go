package rival

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
)

// driver is what the foreign partitioner calls. It has two faces: the simulated node itself, and
// NVML.
type driver interface {
	list(index int) (tree, error)
	createGI(index int, profile uint32, start, size int) (id uint32, err error)
	createCI(index int, gi uint32, slices int) (id uint32, err error) // the driver chooses the place
	destroyGI(index int, gi uint32) error
	destroyCI(index int, gi, ci uint32) error
}

// The calls of the driver, of either side.
const (
	listGIs   = "list-gi"
	listCIs   = "list-ci"
	createGI  = "create-gi"
	createCI  = "create-ci"
	destroyGI = "destroy-gi"
	destroyCI = "destroy-ci"
	listTree  = "list" // of the partitioner
)

// move is one driver call of the foreign partitioner and what came of it, or the end of one of its
// programs.
type move struct {
	GPU     int    `json:"gpu"`
	Op      string `json:"op,omitempty"`
	GI      uint32 `json:"gi"`
	CI      uint32 `json:"ci"`
	Error   string `json:"error,omitempty"`
	Program string `json:"program"`
	// Ended reports whether the program has ended. Layout is then what it says that the GPU has;
	// nil if it failed.
	Ended  bool `json:"ended,omitempty"`
	Layout tree `json:"layout"`
}

func (m move) String() string {
	text := fmt.Sprintf("rival: GPU %d %s: %s gi %d ci %d %s", m.GPU, m.Program, m.Op, m.GI, m.CI, m.Error)
	if m.Ended && m.Layout != nil {
		text = fmt.Sprintf("rival: GPU %d %s: done: the layout is %s", m.GPU, m.Program, m.Layout)
	} else if m.Ended {
		text = fmt.Sprintf("rival: GPU %d %s: failed: %s", m.GPU, m.Program, m.Error)
	}

	return text
}

// partitioner is a foreign partitioner: one program at a time for each GPU, one driver call at a
// time.
type partitioner struct {
	driver driver
	next   map[int]func() (move, bool)
	stop   map[int]func()
}

func newPartitioner(d driver) *partitioner {
	return &partitioner{driver: d, next: map[int]func() (move, bool){}, stop: map[int]func(){}}
}

// order asks the partitioner for one driver call on a GPU. The program and the seed are those of
// the next program, if none is under way there; an empty program is drawn by the seed.
type order struct {
	GPU     int    `json:"gpu"`
	Seed    uint64 `json:"seed"`
	Program string `json:"program,omitempty"`
	Layout  tree   `json:"layout"` // of clearAndBuild; drawn if it is nil
}

func (p *partitioner) step(o order) move {
	if p.next[o.GPU] == nil {
		p.next[o.GPU], p.stop[o.GPU] = iter.Pull(p.program(o))
	}

	m, ok := p.next[o.GPU]()
	if !ok {
		p.stop[o.GPU]()
		delete(p.next, o.GPU)

		return p.step(o)
	}

	if m.Ended {
		p.stop[o.GPU]()
		delete(p.next, o.GPU)
	}

	return m
}

// kill ends all programs where they are.
func (p *partitioner) kill() {
	for _, stop := range p.stop {
		stop()
	}

	clear(p.next)
	clear(p.stop)
}

// The programs of the partitioner.
const (
	clearAndBuild    = "clear-and-build"
	editComputes     = "edit-computes"
	rebuildTheSame   = "rebuild-the-same"
	failHalfWay      = "fail-half-way"
	destroyOne       = "destroy-one-compute"
	maxCallsToGoWell = 8
)

func (p *partitioner) program(o order) iter.Seq[move] {
	rng := rand.New(rand.NewPCG(o.Seed, 0))

	name := o.Program
	if name == "" {
		programs := []string{clearAndBuild, clearAndBuild, editComputes, rebuildTheSame, rebuildTheSame, failHalfWay}
		name = programs[rng.IntN(len(programs))]
	}

	layout := o.Layout
	if layout == nil {
		layout = layouts()[rng.IntN(len(layouts()))]
	}

	return func(yield func(move) bool) {
		r := &run{driver: p.driver, gpu: o.GPU, name: name, yield: yield, left: -1}
		if name == failHalfWay {
			r.left = 1 + rng.IntN(maxCallsToGoWell)
		}

		err := r.do(rng, layout)

		end := move{GPU: o.GPU, Program: name, Ended: true}
		if err == nil {
			end.Layout, err = p.driver.list(o.GPU)
		}

		if err == nil && !r.intact(end.Layout) {
			err = fmt.Errorf("another client has changed the GPU meanwhile: %s", end.Layout)
		}

		if err != nil {
			end.Error = err.Error()
			end.Layout = nil
		}

		if !r.stopped {
			yield(end)
		}
	}
}

// run is a program under way.
type run struct {
	driver  driver
	gpu     int
	name    string
	yield   func(move) bool
	left    int // calls until it fails; negative: it does not
	stopped bool
	made    tree // what it has created and not destroyed again
}

type stopError struct{}

func (stopError) Error() string { return "it was stopped" }

// called reports a call that was made. Its error ends the program.
func (r *run) called(m move, err error) error {
	m.GPU = r.gpu

	m.Program = r.name
	if err != nil {
		m.Error = err.Error()
	}

	if !r.stopped && !r.yield(m) {
		r.stopped = true
	}

	if r.left--; r.left == 0 {
		return fmt.Errorf("%s: out of order", m.Op)
	}

	if r.stopped {
		return stopError{}
	}

	return err
}

func (r *run) do(rng *rand.Rand, layout tree) error {
	current, err := r.driver.list(r.gpu)
	if err := r.called(move{Op: listTree}, err); err != nil {
		return err
	}

	switch r.name {
	case editComputes, destroyOne:
		return r.edit(current, rng)
	case rebuildTheSame:
		layout = current
	}

	kept, err := r.clear(current)
	if err != nil {
		return err
	}

	for _, g := range layout {
		if kept.find(g.ID) != nil && r.name == rebuildTheSame {
			continue
		}

		if err := r.build(g); err != nil {
			return err
		}
	}

	return nil
}

// clear destroys everything that the driver does not say is in use, which it keeps.
func (r *run) clear(current tree) (kept tree, err error) {
	for _, g := range current {
		used := false

		for _, c := range g.CIs {
			err := r.driver.destroyCI(r.gpu, g.ID, c.ID)

			used = used || isInUse(err)
			if err := r.called(move{Op: destroyCI, GI: g.ID, CI: c.ID}, err); err != nil && !isInUse(err) {
				return nil, err
			}
		}

		if used {
			kept = append(kept, g)
			continue
		}

		err := r.driver.destroyGI(r.gpu, g.ID)
		if err := r.called(move{Op: destroyGI, GI: g.ID}, err); err != nil {
			return nil, err
		}
	}

	return kept, nil
}

// build creates a GPU instance at its place, and its compute instances in their order.
func (r *run) build(g gi) error {
	id, err := r.driver.createGI(r.gpu, g.Profile, g.Start, g.Size)
	if err := r.called(move{Op: createGI, GI: id}, err); err != nil {
		return err
	}

	r.made = append(r.made, gi{ID: id, Profile: g.Profile, Start: g.Start, Size: g.Size})

	computeInstances := slices.SortedFunc(slices.Values(g.CIs), func(a, b ci) int { return a.Start - b.Start })
	for _, c := range computeInstances {
		made, err := r.driver.createCI(r.gpu, id, c.Slices)
		if err := r.called(move{Op: createCI, GI: id, CI: made}, err); err != nil {
			return err
		}
	}

	return nil
}

// edit destroys the compute instances of a GPU instance and creates smaller ones.
func (r *run) edit(current tree, rng *rand.Rand) error {
	if len(current) == 0 {
		return nil
	}

	g := current[rng.IntN(len(current))]
	slots := 0

	for _, c := range g.CIs {
		err := r.driver.destroyCI(r.gpu, g.ID, c.ID)
		if err := r.called(move{Op: destroyCI, GI: g.ID, CI: c.ID}, err); err != nil {
			return err
		}

		if slots += c.Slices; r.name == destroyOne {
			return nil
		}
	}

	for range min(max(slots, 1), 2) {
		id, err := r.driver.createCI(r.gpu, g.ID, 1)
		if err := r.called(move{Op: createCI, GI: g.ID, CI: id}, err); err != nil {
			return err
		}
	}

	return nil
}

// intact reports whether what the program has created is still there.
func (r *run) intact(now tree) bool {
	for _, g := range r.made {
		if at := now.find(g.ID); at == nil || at.Profile != g.Profile || at.Start != g.Start {
			return false
		}
	}

	return true
}

// The profiles of an A100 with 40 GB, by the driver's id.
const (
	profile1g = 19
	profile2g = 14
	profile3g = 9
	profile4g = 5
	profile7g = 0
)

func whole(profile uint32, start int) gi {
	slices := map[uint32]int{profile1g: 1, profile2g: 2, profile3g: 3, profile4g: 4, profile7g: 7}[profile]
	size := map[uint32]int{profile1g: 1, profile2g: 2, profile3g: 4, profile4g: 4, profile7g: 8}[profile]

	return gi{Profile: profile, Start: start, Size: size, CIs: []ci{{Slices: slices}}}
}

// layouts are those that the partitioner knows.
func layouts() []tree {
	split := gi{Profile: profile3g, Start: 4, Size: 4, CIs: []ci{{Slices: 1}, {Start: 1, Slices: 2}}}

	return []tree{
		{whole(profile3g, 0), whole(profile3g, 4)},
		{whole(profile2g, 0), whole(profile2g, 2), whole(profile3g, 4)},
		{whole(profile1g, 0), whole(profile1g, 1), whole(profile2g, 2)},
		{whole(profile1g, 0), split},
		{whole(profile4g, 0), whole(profile1g, 4)},
		{whole(profile2g, 0), whole(profile1g, 3)},
		{whole(profile7g, 0)},
		{whole(profile3g, 0)},
	}
}
