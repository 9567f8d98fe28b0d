package nvmlsrc

import (
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// What a step is about is found by where it stands, and must be what the step says in every other respect: ids and UUIDs
// are given out again.

// stands tells whether a GPU instance stands where the step says.
func (c *changing) stands(n *instanceNode) bool { return n.Placement == gpu.Some(c.step.Placement) }

// instance reads the layout and finds the step's GPU instance in it.
func (c *changing) instance() (*round, *instanceNode, error) {
	r, err := c.layout(c.step.GPU)
	if err != nil {
		return nil, nil, err
	}
	n := r.node(c.stands)
	if n == nil {
		if other := r.node(func(n *instanceNode) bool { return n.Placement.Or(gpu.Placement{}).Overlaps(c.step.Placement) }); other != nil {
			return nil, nil, fmt.Errorf("GPU instance: %w: GPU instance %d has its place", gpu.ErrReplaced, other.ID)
		}
		return nil, nil, fmt.Errorf("GPU instance: %w", gpu.ErrNotFound)
	}
	if n.ProfileID != gpu.Some(c.step.ProfileID) {
		return nil, nil, fmt.Errorf("GPU instance: %w: one of profile %s has its place", gpu.ErrReplaced, n.Profile)
	}
	if id, ok := c.step.Instance.Get(); ok && id != n.ID {
		return nil, nil, fmt.Errorf("GPU instance %d: %w: GPU instance %d has its place", id, gpu.ErrReplaced, n.ID)
	}
	return r, n, nil
}

// compute finds the step's compute instance. Old drivers do not tell where it stands; there its id is what it goes by.
func (c *changing) compute(n *instanceNode) (*computeNode, error) {
	place, ok := c.step.Compute.Get()
	if !ok {
		return nil, fmt.Errorf("%w: the place of the compute instance is missing", gpu.ErrInvalidArgument)
	}
	for i := range n.computes {
		at := &n.computes[i]
		id, known := c.step.ComputeID.Get()
		where, told := at.place().Get()
		switch {
		case told && !where.Overlaps(place), !told && (!known || at.ID != id):
			continue
		case told && where != place, known && at.ID != id, c.step.UUID != "" && at.UUID != c.step.UUID:
			return nil, fmt.Errorf("compute instance: %w: %s has its place", gpu.ErrReplaced, at.UUID)
		}
		return at, nil
	}
	return nil, fmt.Errorf("compute instance: %w", gpu.ErrNotFound)
}

// mutable is the handle of a GPU instance, for changing it.
func (r *round) mutable(id gpu.InstanceID) (MutableInstance, error) {
	for _, e := range r.board.tree.scan.instances {
		if gpu.InstanceID(e.info.ID) == id {
			if h, ok := e.handle.(MutableInstance); ok {
				return h, nil
			}
			return nil, fmt.Errorf("%w: %w", gpu.ErrNotSupported, errReadOnly)
		}
	}
	return nil, fmt.Errorf("GPU instance %d: %w", id, gpu.ErrNotFound)
}
