package collector

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Control has the metrics of partition control. It is a prometheus.Collector of its own, since its
// values do not come from a Snapshot.
type Control struct {
	operations *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	state      *prometheus.GaugeVec
	unsettled  prometheus.Gauge
	lastError  prometheus.Gauge
	reads      prometheus.Counter
	unrestored *prometheus.GaugeVec
	states     []string
	now        func() time.Time

	mu sync.Mutex // so that a scrape sees state in one value only
}

// ControlOptions are the possible label values, so that every series exists from the start.
type ControlOptions struct {
	Verbs, Results, States []string
	Now                    func() time.Time
}

// NewControl returns the metrics of partition control, in the first of the states.
func NewControl(opts ControlOptions) *Control {
	c := &Control{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mig_control_operations_total",
			Help: "Operations of partition control that have ended, by verb and result.",
		}, []string{"verb", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mig_control_operation_duration_seconds",
			Help: "Time from the acceptance of an operation to its end, " +
				"hooks and the wait for the kubelet included.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300},

			NativeHistogramBucketFactor: 1.1,
		}, []string{"verb"}),
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mig_control_state",
			Help: "1 for the state that partition control is in, 0 for the others. " +
				"degraded, stuck and read-only need an operator.",
		}, []string{"state"}),
		unsettled: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mig_control_unsettled_operations",
			Help: "Operations of partition control whose layout is in force while the kubelet does not " +
				"offer exactly its devices, or a hook has failed. Pods may be given devices that do not exist.",
		}),
		lastError: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mig_control_last_error_timestamp_seconds",
			Help: "Unix time at which an operation of partition control last failed; 0 if none has since the start.",
		}),
		reads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mig_control_api_reads_total",
			Help: "Calls to the API of partition control that only read. All other calls are in its audit log.",
		}),
		unrestored: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mig_control_gpu_not_restored",
			Help: "1 for each GPU whose layout was to be restored after the reboot " +
				"(--control.restore) and is not, with the reason.",
		}, []string{"uuid", "reason"}),
		states: opts.States,
		now:    opts.Now,
	}
	for _, verb := range opts.Verbs {
		for _, result := range opts.Results {
			c.operations.WithLabelValues(verb, result)
		}

		c.duration.WithLabelValues(verb)
	}

	c.SetState(opts.States[0])

	return c
}

// Ended counts an operation that has ended. failed is whether its result is an error.
func (c *Control) Ended(verb, result string, took time.Duration, failed bool) {
	c.operations.WithLabelValues(verb, result).Inc()
	c.duration.WithLabelValues(verb).Observe(took.Seconds())

	if failed {
		c.lastError.Set(float64(c.now().UnixNano()) / 1e9)
	}
}

// Read counts an API request that only reads.
func (c *Control) Read() { c.reads.Inc() }

// SetState sets the current state. An unknown state is ignored.
func (c *Control) SetState(state string) {
	if !slices.Contains(c.states, state) {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	for _, s := range c.states {
		c.state.WithLabelValues(s).Set(boolToFloat(s == state))
	}
}

// SetUnsettled sets the number of unsettled operations.
func (c *Control) SetUnsettled(number int) { c.unsettled.Set(float64(number)) }

// UnrestoredGPU is a GPU whose layout is not restored, and why.
type UnrestoredGPU struct{ UUID, Reason string }

// SetUnrestored sets the GPUs whose layout is not restored.
func (c *Control) SetUnrestored(list []UnrestoredGPU) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.unrestored.Reset()

	for _, u := range list {
		c.unrestored.WithLabelValues(u.UUID, u.Reason).Set(1)
	}
}

// Describe implements prometheus.Collector.
func (c *Control) Describe(to chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(c, to)
	c.unrestored.Describe(to) // it has no series while all GPUs have their layout
}

// Collect implements prometheus.Collector.
func (c *Control) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.operations.Collect(to)
	c.duration.Collect(to)
	c.state.Collect(to)
	c.unsettled.Collect(to)
	c.lastError.Collect(to)
	c.reads.Collect(to)
	c.unrestored.Collect(to)
}
