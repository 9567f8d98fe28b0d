package rollout

import (
	"context"
	"fmt"
)

// A node is cordoned before its change, and uncordoned once it offers what it has then.

func (x *execution) cordon(ctx context.Context, n *Node) error {
	if err := x.ensureCordon(ctx, n); err != nil {
		return err
	}

	if n.Before == nil {
		before, err := x.offer(ctx, n)
		if err != nil {
			return err
		}

		n.Before = before
	}

	n.Phase = Planning

	return nil
}

// offer returns what a node has before its change. If that is not known, the node fails: awaitDevices
// could not compare what it offers later.
func (x *execution) offer(ctx context.Context, n *Node) (*Offer, error) {
	var o Offer

	err := x.retry(ctx, func() (err error) {
		o.Resources, err = x.Cluster.Offered(ctx, n.Name)
		return err
	})
	if err != nil {
		return nil, failUnchanged("what the node offers: %w", err)
	}

	err = x.retry(ctx, func() error {
		v, err := x.Exporter.Inventory(ctx, n.Name)
		if err == nil {
			o.Devices = v.Devices
		}

		return err
	})
	if err != nil {
		return nil, failUnchanged("the node's devices: %w", err)
	}

	return &o, nil
}

// ensureCordon cordons a node that is not cordoned. We do so again before each deed that needs it:
// another client can have uncordoned the node since, or it is a new one of the same name.
func (x *execution) ensureCordon(ctx context.Context, n *Node) error {
	var own bool

	err := x.retry(ctx, func() (err error) {
		if err = x.Store.Held(); err == nil {
			own, err = x.Cluster.Cordon(ctx, n.Name, x.run.Name)
		}

		return err
	})
	if err != nil {
		// The last attempt may have cordoned it although we got no answer.
		n.Cordon = Own
		return failUnchanged("cordon: %w", err)
	}

	n.Cordon = Foreign
	if own {
		n.Cordon = Own
	}

	return nil
}

// awaitDevices blocks until the API server shows that the node offers the devices that it has.
func (x *execution) awaitDevices(ctx context.Context, n *Node) error {
	until := x.Clock.Now().Add(x.run.Options.Timeout)

	for {
		missing, err := x.missing(ctx, n)
		if err == nil && len(missing) == 0 {
			n.Phase = Uncordoning
			return nil
		}

		if err != nil && !isTemporary(err) {
			return failUnclear(Settling, "%w", err)
		}

		if !x.Clock.Now().Before(until) {
			if err == nil {
				err = fmt.Errorf("the layout stands, but the node's allocatable does not follow: %s",
					joinFirst(missing))
			}

			return failUnclear(Settling, "%w", err)
		}

		if err := x.Clock.Sleep(ctx, pollEvery); err != nil {
			return err
		}
	}
}

// missing describes how the devices that the node offers differ from those that it has.
func (x *execution) missing(ctx context.Context, n *Node) ([]string, error) {
	v, err := x.Exporter.Inventory(ctx, n.Name)
	if err != nil {
		return nil, err
	}

	return x.Cluster.Missing(ctx, n.Name, v.Devices, n.Before)
}

// uncordon lifts the run's cordon, if it has made one, and ends the node.
func (x *execution) uncordon(ctx context.Context, n *Node) error {
	if n.Cordon == Own {
		err := x.retry(ctx, func() error {
			if err := x.Store.Held(); err != nil {
				return err
			}

			return x.Cluster.Uncordon(ctx, n.Name, x.run.Name)
		})
		if err != nil {
			return &failure{err: fmt.Errorf("uncordon: %w", err), retry: Uncordoning, cordoned: true}
		}
	}

	n.Before = nil
	n.Cordon = ""
	n.LeftBy = ""
	n.Unclear = false
	n.Phase = Done

	if n.Failure != "" {
		n.Phase = Failed
	}

	return nil
}
