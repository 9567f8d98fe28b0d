package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// operation is a change of one GPU's partition state by a client. It holds the node's lock, and if the state is
// shared the file's too. What is not committed leaves no trace on the GPU.
type operation struct {
	node      *Node
	at        time.Time // where the running step had begun
	totals    []totals
	counters  []map[CountersOf]Activity
	gpu       *simGPU
	before    layoutState
	committed bool
	hits      []*FaultSpec // that are about this very call
}

// layoutState is what operations change of a GPU.
type layoutState struct {
	migOn, migPending bool
	instances         []*Instance
	computes          [][]*Compute
	devices           []*Compute
}

// change begins an operation of a client: what is what it does, of is what it does it to. Where err is nil the caller
// calls end.
func (n *Node) change(index int, what ChangeOp, of target) (g *simGPU, op *operation, err error) {
	hits, err := n.countCall(index, what, of)
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
	if err := op.refused(what); err != nil {
		op.end()
		return nil, nil, err
	}

	return op.gpu, op, nil
}

// begin begins an operation under the node's lock, which its end leaves unlocked.
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

	op := &operation{node: n, at: n.at, gpu: g, before: g.layoutState()}
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
		s.computes = append(s.computes, slices.Clone(i.ComputeInstances))
	}

	return s
}

// commit makes the operation last: if the state is shared, all others see it from now on. On an error nothing has
// happened, but that a client that watches the GPU may have got an event for it.
func (op *operation) commit(c Change) error {
	n := op.node
	if n.shared != nil {
		c.At = n.at
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

func (op *operation) commitOrUndo() {
	n := op.node
	if op.committed {
		n.sampleIfChanged(n.at.Sub(op.at))
	} else {
		op.undo()
	}

	if n.shared != nil {
		n.shared.unlock()
	}
}

func (op *operation) undo() {
	n := op.node
	g := op.gpu
	n.forgetDescriptions()

	n.at = op.at
	n.resample = false

	for i, g := range n.gpus {
		g.totals = op.totals[i]
		g.counters = op.counters[i]
	}

	g.migOn = op.before.migOn
	g.migPending = op.before.migPending

	g.instances = op.before.instances
	g.devices = op.before.devices

	for k, i := range g.instances {
		i.ComputeInstances = op.before.computes[k]
	}
}
