package sim

import (
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// redo makes a change that another process has made on the shared node. It returns an error if the
// result here differs.
func (n *Node) redo(c Change) error {
	g := n.gpus[c.GPU]
	switch c.Op {
	case opMIGMode:
		g.migPending = c.On
		if !c.Pending {
			n.setMIGMode(g, c.On)
		}
	case opReset:
		n.reset(g)
	case opTrigger:
		n.triggerFault(&n.scenario.Faults[c.Fault], c.GPU)
	case opCall:
		n.countChangeFor(c.Fault, c.GPU, changedInstance{c.GI, c.CI})
	case opReplacePod:
		replace := n.replacerOf(c.Namespace, c.Pod)
		if replace == nil {
			return fmt.Errorf("replace pod %s/%s: %w", c.Namespace, c.Pod, gpu.ErrNotFound)
		}

		replace(c.Resource)
	case opReboot:
		n.reboot()
	case opCreateGI:
		return n.redoCreateInstance(g, c)
	case opCreateCI:
		return n.redoCreateCompute(g, c)
	case opDestroyGI:
		return n.redoDestroyInstance(g, c)
	case opDestroyCI:
		return n.redoDestroyCompute(g, c)
	default:
		return fmt.Errorf("%q is no change; expected one of those that this version makes", c.Op)
	}

	return nil
}

func (n *Node) redoCreateInstance(g *simGPU, c Change) error {
	i, err := n.createInstance(g, c.Profile, gpu.Some(c.Start))
	if err != nil {
		return fmt.Errorf("create GPU instance %d: %w", c.GI, err)
	}

	if i.ID != c.GI {
		return fmt.Errorf("GPU instance %d has become %d", c.GI, i.ID)
	}

	return nil
}

func (n *Node) redoCreateCompute(g *simGPU, c Change) error {
	i := g.instance(c.GI)
	if i == nil {
		return fmt.Errorf("create compute instance in GPU instance %d: %w", c.GI, gpu.ErrNotFound)
	}

	created, err := n.createCompute(g, i, c.Slices, gpu.Some(c.Start))
	if err != nil {
		return fmt.Errorf("create compute instance in GPU instance %d: %w", c.GI, err)
	}

	if created.ID != c.CI {
		return fmt.Errorf("compute instance %d of GPU instance %d has become %d", c.CI, c.GI, created.ID)
	}

	return nil
}

func (n *Node) redoDestroyInstance(g *simGPU, c Change) error {
	i := g.instance(c.GI)
	if i == nil || len(i.ComputeInstances) > 0 {
		return fmt.Errorf("destroy GPU instance %d: it is not there, or in use", c.GI)
	}

	n.removeInstance(g, i)

	return nil
}

func (n *Node) redoDestroyCompute(g *simGPU, c Change) error {
	instance, compute := g.compute(c.GI, c.CI)
	if compute == nil {
		return fmt.Errorf("destroy compute instance %d of GPU instance %d: it is not there", c.CI, c.GI)
	}

	for _, t := range slices.Clone(g.tasks) {
		if t.on.compute == compute {
			n.kill(t.proc, "its compute instance was destroyed")
		}
	}

	n.removeCompute(g, instance, compute)

	return nil
}
