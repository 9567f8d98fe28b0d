package rival

import (
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// oracle judges both sides from what is true of the node, and from the order of all calls.
type oracle struct {
	truth func(index int) tree
	busy  func(index int, gi, ci uint32) bool
	uuids []gpu.UUID

	now    int // counts calls
	trees  []tree
	views  []*view
	seen   []map[string]bool // trees of each GPU since our own last change there
	parts  map[part]*origin
	ops    []*operation
	begun  *operation // planned, and perhaps accepted: its id is not known yet
	target map[int]part

	broken    []string
	log       []string
	gaps      [3]int // by gap
	outcomes  map[string]int
	handovers int
}

// part is a GPU instance or a compute instance, by the ids that it has now.
type part struct {
	gpu     int
	gi, ci  uint32
	compute bool
}

// origin is how a part came to be.
type origin struct {
	foreign bool
	at      int
	claimed bool // by the foreign partitioner: it reported it as done
}

// operation is what the oracle knows of one of ours.
type operation struct {
	id     string
	verb   api.Verb
	gpus   map[int]*changedGPU
	since  int // what was created after this is not the operation's to destroy, unless it has created it
	end    int // the last time that it was seen to be over
	state  api.OperationState
	closed bool
	steps  []mig.Step
	// accepted reports whether it was asked to be closed with the current layout.
	accepted bool
}

// changedGPU is one GPU of an operation.
type changedGPU struct {
	before, after string
	left          tree // by our last change, or before the first
	// left; after a crash or a destruction also what was there before it, after a call that failed
	// what it was to leave
	expected  []tree
	last      tree // before our last change
	changes   int
	touched   bool // a change was tried
	disturbed bool // the rival has changed the GPU
	read      string
	unlike    bool // of a rollback: the tree that it began with is not the one that the operation had left
}

// expects returns the tree that is the same by placement, if it is one of those that are expected.
func (c *changedGPU) expects(t tree) tree {
	for _, e := range c.expected {
		if e.String() == t.String() {
			return e
		}
	}

	return nil
}

// view is what our process has read of a GPU since it last changed it itself.
type view struct {
	ever  map[uint32]bool // profiles that are ever listed
	gis   map[uint32]tree // by profile
	cis   map[string][]ci // by the key of the GPU instance
	when  map[uint32]int  // of the listing, by profile
	whenC map[string]int  // of the listing of compute instances, by GPU instance
}

// The gaps of the contract.
const (
	noGap           = iota
	gapIdentical    // an identical tree was rebuilt between two readings
	gapAfterReading // it was rebuilt between the last reading, which takes several calls, and the destruction
)

func newOracle(uuids []gpu.UUID, truth func(int) tree, busy func(int, uint32, uint32) bool) *oracle {
	o := &oracle{truth: truth, busy: busy, uuids: uuids, parts: map[part]*origin{}, outcomes: map[string]int{},
		target: map[int]part{}}
	for i := range uuids {
		o.trees = append(o.trees, truth(i))
		o.views = append(o.views, &view{ever: map[uint32]bool{}})
		o.seen = append(o.seen, map[string]bool{o.trees[i].String(): true})
		o.forget(i)

		for _, p := range partsOf(i, o.trees[i]) {
			o.parts[p] = &origin{}
		}
	}

	return o
}

func partsOf(index int, t tree) []part {
	var list []part
	for _, g := range t {
		list = append(list, part{gpu: index, gi: g.ID})
		for _, c := range g.CIs {
			list = append(list, part{index, g.ID, c.ID, true})
		}
	}

	return list
}

func (o *oracle) note(what any) {
	o.now++
	if o.log = append(o.log, fmt.Sprintf("%5d %v", o.now, what)); len(o.log) > 4000 {
		o.log = slices.Clone(o.log[2000:])
	}
}

func (o *oracle) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	o.broken = append(o.broken, text)
	o.note("VIOLATION: " + text)
}

func (o *oracle) forget(index int) {
	v := o.views[index]
	v.gis = map[uint32]tree{}
	v.cis = map[string][]ci{}
	v.when = map[uint32]int{}
	v.whenC = map[string]int{}
}

// refresh takes in the layout of a GPU after a call, and accounts for what is new and what is not
// there any more.
func (o *oracle) refresh(index int, foreign bool) {
	o.trees[index] = o.truth(index)

	now := partsOf(index, o.trees[index])
	for p := range o.parts {
		if p.gpu == index && !slices.Contains(now, p) {
			delete(o.parts, p)
		}
	}

	for _, p := range now {
		if o.parts[p] == nil {
			o.parts[p] = &origin{foreign: foreign, at: o.now}
		}
	}

	o.seen[index][o.trees[index].String()] = true
}

// moved takes in what the foreign partitioner has done.
func (o *oracle) moved(m move) {
	o.note(m)

	if m.Ended {
		if m.Layout == nil {
			return
		}

		if got := o.truth(m.GPU).String(); got != m.Layout.String() {
			o.fault("the rival says that GPU %d has %s, and it has %s", m.GPU, m.Layout, got)
		}

		for p, from := range o.parts {
			from.claimed = from.claimed || p.gpu == m.GPU && from.foreign
		}

		return
	}

	if m.Error != "" || m.Op == listTree {
		return
	}

	o.refresh(m.GPU, true)

	if op := o.owner(m.GPU); op != nil {
		op.gpus[m.GPU].disturbed = true
	}
}

// owner is the operation that is under way on a GPU, or waits for an operator.
func (o *oracle) owner(index int) *operation {
	if o.begun != nil && o.begun.gpus[index] != nil {
		return o.begun
	}

	for _, op := range slices.Backward(o.ops) {
		if !op.closed && op.gpus[index] != nil {
			return op
		}
	}

	return nil
}

// passed takes in a point of our process, once the rival has had its turn there.
func (o *oracle) passed(p point) {
	if p.reads() {
		o.now++
	} else {
		o.note(p)
	}

	v := o.views

	switch {
	case p.Kind == planned:
		o.plan(p.Plan)
	case p.Kind == wholeRead:
		for _, index := range p.Read {
			o.noteRead(index)
		}
	case p.Kind == listGIs:
		v[p.GPU].ever[p.Profile] = true
		v[p.GPU].when[p.Profile] = o.now
		v[p.GPU].gis[p.Profile] = slices.DeleteFunc(slices.Clone(o.trees[p.GPU]),
			func(g gi) bool { return g.Profile != p.Profile })
	case p.Kind == listCIs:
		if g := o.trees[p.GPU].find(p.GI); g != nil {
			other := func(c ci) bool { return p.Slices > 0 && c.Slices != p.Slices }
			known := slices.DeleteFunc(slices.Clone(v[p.GPU].cis[g.key()]), func(c ci) bool { return !other(c) })
			v[p.GPU].cis[g.key()] = append(known, slices.DeleteFunc(slices.Clone(g.CIs), other)...)
			v[p.GPU].whenC[g.key()] = o.now
		}
	case p.changes() && !p.After:
		o.changing(p)
	case p.changes() && p.Error == "":
		o.changed(p)
	}
}

// tree is what our process has read of a GPU since its own last change; complete reports whether it
// has read all of it.
func (v *view) tree() (t tree, complete bool) {
	t, complete = tree{}, len(v.ever) > 0
	for profile := range v.ever {
		if _, ok := v.when[profile]; !ok {
			complete = false
		}

		for _, g := range v.gis[profile] {
			list, ok := v.cis[g.key()]
			complete = complete && ok
			g.CIs = list
			t = append(t, g)
		}
	}

	return t, complete
}

// noteRead notes that the engine has read another tree than the one that its operation has left.
func (o *oracle) noteRead(index int) {
	op := o.owner(index)

	t, complete := o.views[index].tree()
	if op == nil || !complete {
		return
	}

	c := op.gpus[index]
	switch {
	case c.expected == nil: // of a rollback, which has no plan: it begins with what it reads first
		c.left, c.expected, c.last, c.unlike = t, []tree{t}, t, t.String() != c.after
		c.before, c.after = t.String(), c.before
	case op != o.begun && c.expects(t) == nil: // of a plan, Start compares
		c.read = t.String()
	}
}

// changing judges a change of ours right before it is made.
func (o *oracle) changing(p point) {
	if p.Kind == destroyCI && o.busy(p.GPU, p.GI, p.CI) {
		o.fault("ours destroys compute instance %d of GPU instance %d on GPU %d, which a process is on", p.CI, p.GI, p.GPU)
	}

	if op := o.owner(p.GPU); op != nil {
		op.gpus[p.GPU].touched = true
	}
}

// changed judges a change of ours that the driver has made.
func (o *oracle) changed(p point) {
	index := p.GPU
	target := o.parts[part{index, p.GI, p.CI, p.Kind == destroyCI}]
	destroys := p.Kind == destroyGI || p.Kind == destroyCI

	op := o.owner(index)
	if op == nil {
		o.fault("ours changes GPU %d, and no operation is under way there", index)
		o.refresh(index, false)

		return
	}

	c := op.gpus[index]
	strange := destroys && target != nil && target.foreign && target.at > op.since

	seen, complete := o.views[index].tree()
	switch {
	case c.read != "":
		o.fault("%s on GPU %d although the engine has read another tree: %s; expected %v", p.Kind, index, c.read, c.expected)
	case complete && c.expects(seen) == nil:
		o.fault("%s on GPU %d although it read another tree: %s; expected %v", p.Kind, index, seen, c.expected)
	case !complete && (strange || c.expects(o.trees[index]) == nil):
		o.fault("%s on GPU %d, which the rival has changed, without reading it since our own last change", p.Kind, index)
	case strange && c.unlike:
		o.fault("a rollback destroys on GPU %d what the rival has made since the operation", index)
	case strange:
		o.classify(p, target)
	}

	o.refresh(index, false)

	if complete && c.expects(seen) != nil {
		c.left = seen
	}

	c.last = c.left
	c.read = ""
	c.left = c.left.after(p)

	c.expected = []tree{c.left}
	if destroys { // drivers are known to say so of what is still there: rebuilt, it cannot be told from that
		c.expected = append(c.expected, c.last)
	}

	c.changes++
	o.seen[index] = map[string]bool{o.trees[index].String(): true}
	o.forget(index)
}

// refusedByDriver notes that a change has failed with an error which does not say that nothing was
// done. If the rival makes the very change at that moment, the GPU is as if the call had made it:
// what counts is what reading back says.
func (o *oracle) refusedByDriver(p point) {
	o.note("the driver refuses it")

	op := o.owner(p.GPU)
	if op == nil {
		return
	}

	c := op.gpus[p.GPU]
	c.expected = append(c.expected, c.left.after(p))
}

// classify says which of the two gaps let ours destroy what the rival has made. That what it read
// is the tree which it expected is known: so the rival had rebuilt it before the last listings,
// between two readings; or after the first of them.
func (o *oracle) classify(p point, target *origin) {
	if !target.claimed {
		return
	}

	v := o.views[p.GPU]
	g := o.trees[p.GPU].find(p.GI)

	listed := v.when[g.Profile]
	if p.Kind == destroyCI {
		listed = min(listed, v.whenC[g.key()])
	}

	gap := gapIdentical
	if target.at > listed {
		gap = gapAfterReading
	}

	o.gaps[gap]++
	o.note(fmt.Sprintf("gap %d: rebuilt at %d, listed at %d", gap, target.at, listed))
}

func (o *oracle) plan(p *api.Plan) {
	op := &operation{verb: api.VerbApply, gpus: map[int]*changedGPU{}, since: o.now, steps: p.Steps}
	for _, g := range p.GPUs {
		left := treeOfAPI(g.Before)
		before := left.String()
		op.gpus[g.Index] = &changedGPU{before: before, after: treeOfAPI(g.After).String(), left: left, expected: []tree{left},
			last: left}
		o.seen[g.Index] = map[string]bool{o.trees[g.Index].String(): true}
	}

	o.begun = op
}

// rollingBack begins an operation that rolls another one back.
func (o *oracle) rollingBack(id string) {
	at := slices.IndexFunc(o.ops, func(op *operation) bool { return op.id == id })
	if at < 0 || !o.ops[at].closed {
		return // it is tried again
	}

	op := &operation{verb: api.VerbRollback, gpus: map[int]*changedGPU{}, since: o.ops[at].end}
	for index, c := range o.ops[at].gpus {
		op.gpus[index] = &changedGPU{before: c.before, after: c.after}
		o.seen[index] = map[string]bool{o.trees[index].String(): true}
	}

	o.begun = op
}

// pointOf is the change that a step makes to a tree.
func pointOf(s mig.Step, t tree) point {
	p := point{Kind: string(s.Op), Profile: s.ProfileID, Start: s.Placement.Start, Size: s.Placement.Size}
	for _, g := range t {
		if g.Profile == s.ProfileID && g.Start == s.Placement.Start {
			p.GI = g.ID
		}
	}

	if at, ok := s.Compute.Get(); ok {
		p.CI = uint32(s.ComputeID.Or(0))
		p.Start = at.Start
		p.Size = at.Size
	}

	return p
}

// crashed notes that our process is gone: the next one has read nothing, may not know of the last
// change, and does not know whether a change was made that it was about to make.
func (o *oracle) crashed(p point) {
	o.note("ours is killed")

	if op := o.owner(p.GPU); op != nil && p.changes() && !p.After {
		op.gpus[p.GPU].expected = append(op.gpus[p.GPU].expected, op.gpus[p.GPU].left.after(p))
	}

	for i := range o.views {
		o.forget(i)
	}

	for _, op := range append(slices.Clone(o.ops), o.begun) {
		if op == nil || op.closed {
			continue
		}

		for _, c := range op.gpus {
			if c.changes > 0 {
				c.expected = append(c.expected, c.last)
			}

			c.read = ""
		}

		for _, s := range op.steps { // one of them may have been written down as about to be done
			index := slices.Index(o.uuids, s.GPU)
			op.gpus[index].expected = append(op.gpus[index].expected, op.gpus[index].left.after(pointOf(s, op.gpus[index].left)))
		}
	}
}
