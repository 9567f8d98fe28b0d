package sim

import (
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// SetMIGMode turns MIG on or off. The mode changes at once, unless it stays pending: while the GPU
// has instances or processes, with the error ErrInUse; and for an Ampere GPU in a pass-through
// machine until a Reset or a Reboot, because Ampere GPUs need a reset for it, which the driver
// cannot do there.
func (n *Node) SetMIGMode(index int, on bool) error {
	g, op, err := n.change(index, opMIGMode, changedInstance{})
	if err != nil {
		return fmt.Errorf("set MIG mode: %w", err)
	}
	defer op.end()

	inUse := g.migOn != on && (len(g.instances) > 0 || len(g.tasks) > 0) ||
		op.keepsModePending(gpu.ErrInUse)

	pending := inUse || op.keepsModePending(gpu.ErrResetRequired)
	if pending {
		g.migPending = on
	} else {
		n.setMIGMode(g, on)
	}

	if err := op.commit(Change{Op: opMIGMode, On: on, Pending: pending}); err != nil {
		return err
	}

	if inUse {
		return fmt.Errorf("set MIG mode of GPU %d: %w", index, gpu.ErrInUse)
	}

	return nil
}

func (n *Node) setMIGMode(g *simGPU, on bool) {
	g.migPending = on
	if g.model.arch != Ampere || !n.scenario.Node.PassThrough {
		n.applyMIGMode(g)
	}
}

// Reset resets a GPU: a pending MIG mode takes effect and its instances are gone. It returns
// ErrInUse while a process runs on the GPU.
func (n *Node) Reset(index int) error {
	g, op, err := n.change(index, opReset, changedInstance{})
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	defer op.end()

	if len(g.tasks) > 0 {
		return fmt.Errorf("reset GPU %d: %w", index, gpu.ErrInUse)
	}

	n.reset(g)

	return op.commit(Change{Op: opReset})
}

func (n *Node) reset(g *simGPU) {
	g.instances = nil
	g.devices = nil
	n.applyMIGMode(g)
}

func (n *Node) applyMIGMode(g *simGPU) {
	g.migOn = g.migPending
	n.treeChanged(g, nil, nil)
}

// Reboot reboots the node: all instances and processes are gone. On Ampere GPUs a pending MIG mode
// takes effect; later GPUs come up without MIG.
func (n *Node) Reboot() error {
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	if len(n.gpus) == 0 {
		return nil
	}

	op, err := n.begin(n.gpus[0])
	if err != nil {
		return fmt.Errorf("reboot: %w", err)
	}
	defer op.commitOrUndo()

	if err := op.commit(Change{Op: opReboot}); err != nil {
		return fmt.Errorf("reboot: %w", err)
	}

	n.reboot()

	return nil
}

func (n *Node) reboot() {
	n.boots++
	n.kernel.clear()

	for _, g := range n.gpus {
		for _, t := range slices.Clone(g.tasks) {
			n.kill(t.proc, "the node was rebooted")
		}

		for _, i := range g.instances {
			i.ComputeInstances = nil
		}

		if g.model.arch != Ampere {
			g.migPending = false
		}

		n.reset(g)
	}

	n.record(Record{Message: "the node was rebooted"})
}

// buildLayout creates a layout on a GPU without instances.
func (n *Node) buildLayout(g *simGPU, layout []InstanceSpec) error {
	// We create the last placement first, as the driver does if it chooses placements. With
	// GIIDByCreation that gives the ids that published listings show.
	lastFirst := slices.Clone(layout)
	slices.SortStableFunc(lastFirst, func(a, b InstanceSpec) int {
		return b.placement.Start - a.placement.Start
	})

	for _, l := range lastFirst {
		i, err := n.createInstance(g, l.profile.ID, gpu.Some(l.placement.Start))
		if err != nil {
			return fmt.Errorf(
				"layout of GPU %d: %s@%d: %w",
				g.index,
				l.profile.Name,
				l.placement.Start,
				err,
			)
		}

		for _, size := range l.computeSlices {
			if _, err := n.createCompute(g, i, size, gpu.Opt[int]{}); err != nil {
				return fmt.Errorf(
					"layout of GPU %d: %dc of %s@%d: %w",
					g.index,
					size,
					l.profile.Name,
					l.placement.Start,
					err,
				)
			}
		}
	}

	return nil
}

// repartition changes the layout as another client would (FaultReconfigure): it kills the GPU's
// processes and replaces its instances.
func (n *Node) repartition(g *simGPU, layout []InstanceSpec) {
	for _, t := range slices.Clone(g.tasks) {
		n.kill(t.proc, "its GPU was reconfigured")
	}

	for _, i := range g.instances {
		i.ComputeInstances = nil
	}

	g.instances = nil
	g.devices = nil
	g.migOn = true
	g.migPending = true
	n.treeChanged(g, nil, nil)

	message := fmt.Sprintf("reconfigured into %d GPU instances", len(layout))
	if err := n.buildLayout(g, layout); err != nil {
		message = err.Error()
	}

	n.record(Record{GPU: gpu.Some(g.index), Message: message})
}
