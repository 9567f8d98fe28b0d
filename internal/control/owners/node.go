// Package owners finds out who else manages the partitions of a node's GPUs, from what is on the node itself, and joins
// that with what others know.
package owners

import (
	"context"
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Source knows owners of a node's GPUs, by what shows it; the key "" is all GPUs. An error says that there may be others.
type Source interface {
	Owners(ctx context.Context) (map[gpu.UUID][]string, error)
}

// Cordoner keeps new pods from the node, as control.Cluster says.
type Cordoner interface {
	Cordon(ctx context.Context) (bool, error)
	Uncordon(ctx context.Context) error
}

// Node is a node in its cluster, if it is in one: it implements control.Cluster.
type Node struct {
	cordoner Cordoner
	sources  []Source
}

// NewNode joins sources. A nil cordoner is that of a node without a cluster, or one that is not to be cordoned.
func NewNode(cordoner Cordoner, sources ...Source) *Node {
	return &Node{cordoner: cordoner, sources: sources}
}

// Owners asks all sources. With an error, the owners are those that are known nevertheless.
func (n *Node) Owners(ctx context.Context) (map[gpu.UUID][]string, error) {
	out := map[gpu.UUID][]string{}
	var errs []error
	for _, source := range n.sources {
		owners, err := source.Owners(ctx)
		if err != nil {
			errs = append(errs, err)
		}
		for id, shown := range owners {
			out[id] = append(out[id], shown...)
		}
	}
	for _, shown := range out {
		slices.Sort(shown)
	}
	return out, errors.Join(errs...)
}

// Cordon does nothing without a cordoner.
func (n *Node) Cordon(ctx context.Context) (bool, error) {
	if n.cordoner == nil {
		return false, nil
	}
	return n.cordoner.Cordon(ctx)
}

// Uncordon does nothing without a cordoner.
func (n *Node) Uncordon(ctx context.Context) error {
	if n.cordoner == nil {
		return nil
	}
	return n.cordoner.Uncordon(ctx)
}
