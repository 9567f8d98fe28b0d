package main

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/common/version"

	"github.com/mig-exporter/mig-exporter/internal/control/cluster"
	"github.com/mig-exporter/mig-exporter/internal/control/handles"
	"github.com/mig-exporter/mig-exporter/internal/control/owners"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// openNeighbours finds what partition control asks of this machine and its cluster. A simulated node has none of it: its
// processes are the driver's, and no other controller manages its GPUs.
func (n *node) openNeighbours(cfg *Config) error {
	if n.simulated != nil {
		return nil
	}
	n.handles = handles.New(cfg.ProcDir)
	local := &owners.LocalFinder{ProcDir: cfg.ProcDir, SysDir: "/sys", GresFiles: owners.DefaultGresFiles()}
	if cfg.NodeName == "" {
		n.cluster = owners.NewCluster(nil, local)
		return nil
	}
	address, err := kubeapi.InClusterServer(os.Getenv)
	if err != nil {
		return fmt.Errorf("--kubernetes.node-name=%s: %w", cfg.NodeName, err)
	}
	client, err := kubeapi.New(kubeapi.Options{Server: address, CredentialsDir: kubeapi.DefaultCredentialsDir, UserAgent: userAgent()})
	if err != nil {
		return err
	}
	n.onClose(client.Close)
	here, err := cluster.New(cluster.Options{API: client, Node: cfg.NodeName, Audiences: cfg.Control.Audiences, Now: time.Now})
	if err != nil {
		return err
	}
	n.reviewer = here
	var cordoner owners.Cordoner
	if cfg.Control.Cordon {
		cordoner = here
	}
	n.cluster = owners.NewCluster(cordoner, local, here)
	return nil
}

// userAgent names this program to the API server.
func userAgent() string { return "mig-exporter/" + cmp.Or(version.Version, "unknown") }
