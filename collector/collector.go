// Package collector converts a Snapshot to metrics. It never calls the driver, the kubelet or
// anything else that can block: a value that the Snapshot lacks has no series.
package collector

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// PodLabelMode says which families have labels for the holder of a device.
type PodLabelMode string

// The modes.
const (
	PodLabelsContainer PodLabelMode = "container" // info families and families of containers
	PodLabelsSeries    PodLabelMode = "series"    // also families about how a device is used
	PodLabelsInfo      PodLabelMode = "info"      // only info families
	PodLabelsOff       PodLabelMode = "off"       // no family
)

// Options configure a Collector.
type Options struct {
	PodLabels PodLabelMode // empty means PodLabelsContainer
	// PodLabelNames are the Kubernetes labels of a pod that its info series carry, as label_<name>.
	PodLabelNames []string
	// Jobs adds the label hpc_job to info families and to those of containers. Set it if you read a
	// batch scheduler's mapping of devices to jobs.
	Jobs bool
	// Disabled says by name which groups are off. Groups that it does not name are on, except
	// opt-in ones.
	Disabled map[string]bool
	// DriverUse returns the driver calls so far, by class; nil if they are not counted. It must not
	// block.
	DriverUse func() []gpu.CallUse
	// ProfilerCalls returns the number of DCGM calls so far; nil if DCGM is not used. It must not
	// block.
	ProfilerCalls func() uint64
	// Advice returns right-sizing's advice for devices; nil if it is off. It must not block. The
	// Collector does not modify the list.
	Advice func() []Advice
	Now    func() time.Time // for durations; nil means time.Now
	// Former is a Collector with the same labels that this one replaces; nil if it replaces none.
	// This one continues its histograms and windows, so Former must not observe Snapshots any more.
	Former *Collector
	Names  Names // empty means NamesNative

	// About dcgm-exporter's names:

	Counters []Counter // as returned by ParseCounters; nil means DefaultCounters
	// RepeatGPUFields repeats the values of the whole GPU for each of its GPU instances, besides
	// the GPU's own series.
	RepeatGPUFields bool
	HostnameLabel   HostnameLabel // empty means HostnameUpper
	NodeName        string        // value of that label; empty means the Snapshot's host name
	// The windows of DCGM_EXP_XID_ERRORS_COUNT and DCGM_EXP_CLOCK_EVENTS_COUNT; 0 means five
	// minutes, as in dcgm-exporter.
	XIDWindow, ClockEventsWindow time.Duration
}

// Collector converts Snapshots to metrics. It is safe for concurrent use.
type Collector struct {
	groups     []enabledGroup
	groupNames map[string]string // the group of each native family, "" for the status families
	podLabels  podLabels
	histograms *histogramStore
	dcgm       *dcgmGroup // nil: no metrics under dcgm-exporter's names
	now        func() time.Time
	success    *family // status family
	duration   *family // status family

	mu          sync.Mutex
	rootLabels  labelSet // an empty set that the labels of all series extend
	metricCount int      // of the last Snapshot, to allocate for the next

	renderedText, renderedProtobuf renderState
}

// enabledGroup is a group that is switched on, ready to collect.
type enabledGroup struct {
	name    string
	collect collectFunc
}

// New returns a Collector. An error names the invalid option.
func New(opts Options) (*Collector, error) {
	pods, err := newPodLabels(opts.PodLabels, opts.PodLabelNames)
	if err != nil {
		return nil, err
	}

	pods.jobs = opts.Jobs
	if err := checkGroupNames(opts.Disabled); err != nil {
		return nil, err
	}

	native, asDCGM, err := opts.Names.parse()
	if err != nil {
		return nil, err
	}

	if opts.Now == nil {
		opts.Now = time.Now
	}

	c := &Collector{podLabels: pods, histograms: newHistogramStore(), now: opts.Now}
	if opts.Former != nil {
		c.histograms = opts.Former.histograms
	}

	// The groups put their families into the catalog.
	cat := &catalog{
		driverUse:     opts.DriverUse,
		profilerCalls: opts.ProfilerCalls,
		advice:        opts.Advice,
		histograms:    c.histograms,
		pods:          pods,
	}
	c.success, c.duration = statusFamilies(cat)

	for _, g := range groups() {
		if !g.isDisabled(opts.Disabled) && (native || g.name == ExporterGroup) {
			cat.group = g.name
			c.groups = append(c.groups, enabledGroup{name: g.name, collect: g.build(cat)})
		}
	}

	c.groupNames = make(map[string]string, len(cat.families))
	for _, f := range cat.families {
		c.groupNames[f.Name] = f.Group
	}

	if asDCGM {
		if c.dcgm, err = newDCGM(opts, pods); err != nil {
			return nil, err
		}

		if former := opts.Former; former != nil && former.dcgm != nil {
			c.dcgm.counters.takeOver(former.dcgm.counters)
		}

		c.groups = append(c.groups, enabledGroup{name: string(NamesDCGM), collect: c.dcgm.collect})
	}

	return c, nil
}

// Observe adds the readings of a Snapshot to the histograms and drops the devices that it lacks.
// Call it once for every published Snapshot, in their order.
func (c *Collector) Observe(s *gpu.Snapshot) {
	c.histograms.observe(s)

	if c.dcgm != nil {
		c.dcgm.counters.observe(s)
	}
}

// Gather returns the metrics of a Snapshot, which must not be nil, sorted. If it had to leave
// metrics out, it also returns an error that says which; the families are valid even then, so serve
// them, as with every prometheus.Gatherer. They share memory with each other: do not modify them.
func (c *Collector) Gather(s *gpu.Snapshot) ([]*dto.MetricFamily, error) {
	w := &metricWriter{}
	runs := c.collect(w, s)

	families, err := gatherMetrics(w.metrics)
	if err == nil {
		return families, joinErrors(runs)
	}

	// The registry left metrics out, such as one of two with equal labels. We gather each group
	// alone to find where, and write the status families again.
	for i := range runs {
		if _, err := gatherMetrics(w.metrics[runs[i].from:runs[i].to]); err != nil {
			runs[i].err = errors.Join(runs[i].err, err)
		}
	}

	// writeStatus wrote last, two metrics for each run.
	w.metrics = w.metrics[:len(w.metrics)-2*len(runs)]
	c.mu.Lock()
	c.writeStatus(w, runs)
	c.mu.Unlock()
	families, err = gatherMetrics(w.metrics)

	return families, errors.Join(err, joinErrors(runs))
}

// groupRun is what became of one group in one collect.
type groupRun struct {
	group    string
	from, to int // its metrics are w.metrics[from:to]
	took     time.Duration
	err      error
}

// collect writes the metrics of all groups and the status families to w.
func (c *Collector) collect(w *metricWriter, s *gpu.Snapshot) []groupRun {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.collectLocked(w, s)
}

// collectLocked is collect with c.mu held.
func (c *Collector) collectLocked(w *metricWriter, s *gpu.Snapshot) []groupRun {
	v := newView(s, &c.rootLabels, c.podLabels)
	if w.metrics == nil {
		w.metrics = make(metrics, 0, c.metricCount)
	}

	runs := make([]groupRun, len(c.groups))
	for i := range c.groups {
		runs[i] = c.runGroup(&c.groups[i], w, v)
	}

	c.writeStatus(w, runs)
	c.metricCount = len(w.metrics)
	c.rootLabels.dropUnused()

	return runs
}

// runGroup collects one group. If it fails or panics, the metrics that it has written stay.
func (c *Collector) runGroup(g *enabledGroup, w *metricWriter, v *view) (r groupRun) {
	begin := c.now()
	r.group = g.name
	r.from = len(w.metrics)
	w.err = nil

	defer func() {
		if p := recover(); p != nil {
			w.err = errors.Join(w.err, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}

		r.to = len(w.metrics)
		r.err = w.err
		r.took = c.now().Sub(begin)
	}()

	g.collect(w, v)

	return r
}

// writeStatus writes the status families: success and duration of every group. The caller holds
// c.mu.
func (c *Collector) writeStatus(w *metricWriter, runs []groupRun) {
	for i := range runs {
		l := c.rootLabels.extend(statusLabel, runs[i].group)
		w.addBool(c.success, l, runs[i].err == nil)
		w.add(c.duration, l, runs[i].took.Seconds())
	}
}

func joinErrors(runs []groupRun) error {
	var errs []error

	for i := range runs {
		if runs[i].err != nil {
			errs = append(errs, fmt.Errorf("collector %s: %w", runs[i].group, runs[i].err))
		}
	}

	return errors.Join(errs...)
}

// metrics is a prometheus.Collector of existing metrics. It describes none, so that the registry
// does not check that all metrics of a family have the same labels: only devices with a holder have
// its labels.
type metrics []series

// Describe implements prometheus.Collector.
func (metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m metrics) Collect(ch chan<- prometheus.Metric) {
	for i := range m {
		ch <- &m[i]
	}
}

// gatherMetrics lets a registry check, group and sort the metrics.
func gatherMetrics(m metrics) ([]*dto.MetricFamily, error) {
	registry := prometheus.NewRegistry()
	if err := registry.Register(m); err != nil {
		return nil, err
	}

	return registry.Gather()
}
