// Package owners finds other controllers that manage the partitions of a node's GPUs: by files of
// the node itself, and by other packages' finders.
package owners

import (
	"context"
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Finder finds the owners of a node's GPUs.
type Finder interface {
	// Owners describes the owners of each GPU, with what shows them, such as "Slurm
	// (/etc/slurm/gres.conf: AutoDetect=nvml)". The key "" has the owners of all GPUs. After an
	// error there may be further owners.
	Owners(ctx context.Context) (map[gpu.UUID][]string, error)
}

// Cordoner keeps new pods off the node: see control.Cluster.
type Cordoner interface {
	Cordon(ctx context.Context) (bool, error)
	Uncordon(ctx context.Context) error
}

// Cluster implements control.Cluster with finders of owners and, if the node is in a Kubernetes
// cluster, a cordoner.
type Cluster struct {
	cordoner Cordoner // nil without a Kubernetes cluster
	finders  []Finder
}

// NewCluster joins the owners of all finders. The cordoner is nil if there is no Kubernetes
// cluster.
func NewCluster(cordoner Cordoner, finders ...Finder) *Cluster {
	return &Cluster{cordoner: cordoner, finders: finders}
}

// Owners returns the owners of all finders. With an error, they are those that could be found.
func (c *Cluster) Owners(ctx context.Context) (map[gpu.UUID][]string, error) {
	out := map[gpu.UUID][]string{}
	var errs []error

	for _, finder := range c.finders {
		owners, err := finder.Owners(ctx)
		if err != nil {
			errs = append(errs, err)
		}

		for id, texts := range owners {
			out[id] = append(out[id], texts...)
		}
	}

	for _, texts := range out {
		slices.Sort(texts)
	}

	return out, errors.Join(errs...)
}

// Cordon does nothing without a cordoner.
func (c *Cluster) Cordon(ctx context.Context) (bool, error) {
	if c.cordoner == nil {
		return false, nil
	}

	return c.cordoner.Cordon(ctx)
}

// Uncordon does nothing without a cordoner.
func (c *Cluster) Uncordon(ctx context.Context) error {
	if c.cordoner == nil {
		return nil
	}

	return c.cordoner.Uncordon(ctx)
}
