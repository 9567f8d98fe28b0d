package collector

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// NodeConfig has the metrics of the layout that the node's label nvidia.com/mig.config names. It is
// a prometheus.Collector of its own, as Control is: its values are not those of a Snapshot.
type NodeConfig struct {
	info    *prometheus.GaugeVec
	applied *prometheus.GaugeVec
	paused  *prometheus.GaugeVec

	mu sync.Mutex // so that a scrape does not see a change half made
}

// NewNodeConfig returns the metrics, without series.
func NewNodeConfig() *NodeConfig {
	return &NodeConfig{
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mig_node_config_info",
			Help: "1 with the layout that the node's label nvidia.com/mig.config names, and the state " +
				"that nvidia.com/mig.config.state has.",
		}, []string{"config", "state"}),
		applied: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mig_node_config_applied",
			Help: "1 if the GPUs have the layout that the node's label nvidia.com/mig.config names, 0 if not. " +
				"No series if it is not known.",
		}, nil),
		paused: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mig_node_paused_clients",
			Help: "Clients of the GPUs that are paused: labels nvidia.com/gpu.deploy.* of the node that are " +
				"paused-for-mig-change. No series if the labels cannot be read.",
		}, nil),
	}
}

// Set sets the layout, its state, and whether the GPUs have it.
func (c *NodeConfig) Set(config, state string, applied gpu.Opt[bool]) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.clear()
	c.info.WithLabelValues(config, state).Set(1)

	if hasLayout, known := applied.Get(); known {
		c.applied.WithLabelValues().Set(boolToFloat(hasLayout))
	}
}

// SetPaused sets how many clients are paused, if that is known.
func (c *NodeConfig) SetPaused(n gpu.Opt[int]) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.paused.Reset()

	if count, known := n.Get(); known {
		c.paused.WithLabelValues().Set(float64(count))
	}
}

// Clear removes the series of the layout: the node has no label, or it could not be read.
func (c *NodeConfig) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.clear()
}

func (c *NodeConfig) clear() {
	c.info.Reset()
	c.applied.Reset()
}

// Describe implements prometheus.Collector.
func (c *NodeConfig) Describe(to chan<- *prometheus.Desc) {
	c.info.Describe(to)
	c.applied.Describe(to)
	c.paused.Describe(to)
}

// Collect implements prometheus.Collector.
func (c *NodeConfig) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.info.Collect(to)
	c.applied.Collect(to)
	c.paused.Collect(to)
}
