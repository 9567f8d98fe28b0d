package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// operation is a change of one GPU's partition by a client. It holds the node's lock and, if the
// state is shared, the lock of the state file. If it ends without commit, everything is undone.
type operation struct {
	node *Node
	// stepBegan, totals and counters (by GPU) are the node's before the operation ended the running
	// step.
	stepBegan time.Time
	totals    []totals
	counters  []map[CountersOf]Activity
	gpu       *simGPU
	before    layoutState
	committed bool
	hits      []*FaultSpec // the faults of single calls that affect this call
}

// layoutState has the fields of a GPU that operations change.
type layoutState struct {
	migOn, migPending bool
	instances         []*Instance
	computeInstances  [][]*Compute // by instance
	devices           []*Compute
}

// change begins an operation of a kind that a client asks for. If err is nil, the caller calls
// op.end.
func (n *Node) change(index int, kind ChangeOp, on changedInstance) (g *simGPU, op *operation, err error) {
	hits, err := n.countChange(index, kind, on)
	if err != nil {
		return nil, nil, err
	}

	now, err := n.beginCall(index, gpu.ReadingMIG)
	if err != nil {
		return nil, nil, err
	}

	if !n.privileged(index, now) {
		n.mu.Unlock()
		return nil, nil, gpu.ErrNoPermission
	}

	if op, err = n.begin(n.gpus[index]); err != nil {
		n.mu.Unlock()
		return nil, nil, err
	}

	op.hits = hits
	if err := op.refusal(kind); err != nil {
		op.end()
		return nil, nil, err
	}

	return op.gpu, op, nil
}

// begin begins an operation. It ends the running step at the present time, so that the change holds
// from then on. The caller holds n.mu, and calls op.end or, to keep n.mu, op.commitOrUndo.
func (n *Node) begin(g *simGPU) (*operation, error) {
	if n.shared != nil {
		if err := n.shared.lock(); err != nil {
			return nil, err
		}

		n.syncShared()

		if err := n.stateError(); err != nil {
			n.shared.unlock()
			return nil, err
		}
	}

	now := n.clock.Now()
	n.catchUp(now)

	op := &operation{node: n, stepBegan: n.stateTime, gpu: g, before: g.layoutState()}
	for _, g := range n.gpus {
		op.totals = append(op.totals, g.totals)
		op.counters = append(op.counters, maps.Clone(g.counters))
	}

	n.endStep(now)

	return op, nil
}

func (g *simGPU) layoutState() layoutState {
	s := layoutState{
		migOn: g.migOn, migPending: g.migPending,
		instances: slices.Clone(g.instances), devices: slices.Clone(g.devices),
	}
	for _, i := range g.instances {
		s.computeInstances = append(s.computeInstances, slices.Clone(i.ComputeInstances))
	}

	return s
}

// commit makes the operation last: other nodes that share the state see it from now on. After an
// error op.end undoes the operation, but clients that watch the GPU may have got an event of it.
func (op *operation) commit(c Change) error {
	n := op.node
	if n.shared != nil {
		c.At = n.stateTime
		c.GPU = op.gpu.index

		if err := n.shared.add(c); err != nil {
			return err
		}
	}

	op.committed = true
	n.resample = true

	return nil
}

// end ends the operation and unlocks the node.
func (op *operation) end() {
	op.commitOrUndo()
	op.node.mu.Unlock()
}

// commitOrUndo ends the operation without unlocking the node: it undoes it unless it was committed.
func (op *operation) commitOrUndo() {
	n := op.node
	if op.committed {
		n.sampleIfChanged(n.stateTime.Sub(op.stepBegan))
	} else {
		op.undo()
	}

	if n.shared != nil {
		n.shared.unlock()
	}
}

func (op *operation) undo() {
	n := op.node
	n.forgetDescriptions()
	n.stateTime = op.stepBegan
	n.resample = false

	for i, g := range n.gpus {
		g.totals = op.totals[i]
		g.counters = op.counters[i]
	}

	g := op.gpu
	g.migOn = op.before.migOn
	g.migPending = op.before.migPending
	g.instances = op.before.instances
	g.devices = op.before.devices

	for i, inst := range g.instances {
		inst.ComputeInstances = op.before.computeInstances[i]
	}
}
