package collector

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	runtimemetrics "runtime/metrics"
	"strconv"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Process serves what the process says of itself, go_*, process_* and its version, as it is at each call. Its families are a choice of those
// of the Prometheus library, with their names, types and help, see TestProcessIsOfTheLibrary.
//
// The library's own collectors are not used because they read more than is served: on every scrape /proc/stat, a line for
// each CPU, for the time at which the process started, and the network counters, which are those of the whole network
// namespace. That was most of the cost of a scrape. Its methods are safe for concurrent use.
type Process struct {
	families []processFamily
	samples  []runtimemetrics.Sample // of all families that are read from the runtime, in their order

	mu       sync.Mutex
	rendered rendered
}

// processFamily is a family with one series.
type processFamily struct {
	*family
	labels labels
	read   func() (float64, error) // nil: it is the sum of samples
	names  []string                // of the samples in package runtime/metrics
}

// NewProcess returns a Process.
func NewProcess() *Process {
	p := &Process{}
	cat := &catalog{}
	add := func(name, help string, read func() (float64, error), samples ...string) *processFamily {
		p.families = append(p.families, processFamily{family: cat.family(name, help, ""), read: read, names: samples})
		for _, sample := range samples {
			p.samples = append(p.samples, runtimemetrics.Sample{Name: sample})
		}
		return &p.families[len(p.families)-1]
	}
	constant := func(f *dto.MetricFamily) {
		for _, m := range f.GetMetric() {
			var pairs []string
			for _, pair := range m.GetLabel() {
				pairs = append(pairs, pair.GetName(), pair.GetValue())
			}
			value := m.GetGauge().GetValue()
			add(f.GetName(), f.GetHelp(), func() (float64, error) { return value, nil }).labels = labels(nil).extend(pairs...)
		}
	}
	constant(gatherOne(versioncollector.NewCollector("mig_exporter"), "mig_exporter_build_info"))
	constant(gatherOne(collectors.NewGoCollector(), "go_info"))
	constant(gatherOne(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), "process_start_time_seconds"))
	add("go_goroutines", "Number of goroutines that currently exist.", nil, "/sched/goroutines:goroutines")
	add("go_threads", "Number of OS threads created.", nil, "/sched/threads/total:threads")
	add("go_sched_gomaxprocs_threads", "The current runtime.GOMAXPROCS setting, or the number of operating system threads that can execute "+
		"user-level Go code simultaneously. Sourced from /sched/gomaxprocs:threads.", nil, "/sched/gomaxprocs:threads")
	add("go_gc_gomemlimit_bytes", "Go runtime memory limit configured by the user, otherwise math.MaxInt64. This value is set by the "+
		"GOMEMLIMIT environment variable, and the runtime/debug.SetMemoryLimit function. Sourced from /gc/gomemlimit:bytes.", nil,
		"/gc/gomemlimit:bytes")
	add("go_memstats_alloc_bytes_total", "Total number of bytes allocated in heap until now, even if released already. "+
		"Equals to /gc/heap/allocs:bytes.", nil, "/gc/heap/allocs:bytes")
	add("go_memstats_heap_alloc_bytes", "Number of heap bytes allocated and currently in use, same as go_memstats_alloc_bytes. "+
		"Equals to /memory/classes/heap/objects:bytes.", nil, "/memory/classes/heap/objects:bytes")
	add("go_memstats_heap_inuse_bytes", "Number of heap bytes that are in use. Equals to /memory/classes/heap/objects:bytes + "+
		"/memory/classes/heap/unused:bytes", nil, "/memory/classes/heap/objects:bytes", "/memory/classes/heap/unused:bytes")
	add("go_memstats_stack_inuse_bytes", "Number of bytes obtained from system for stack allocator in non-CGO environments. "+
		"Equals to /memory/classes/heap/stacks:bytes.", nil, "/memory/classes/heap/stacks:bytes")
	add("go_memstats_sys_bytes", "Number of bytes obtained from system. Equals to /memory/classes/total:byte.", nil, "/memory/classes/total:bytes")
	add("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", cpuSeconds)
	add("process_max_fds", "Maximum number of open file descriptors.", maxFiles)
	add("process_open_fds", "Number of open file descriptors.", openFiles)
	add("process_resident_memory_bytes", "Resident memory size in bytes.", residentBytes)
	return p
}

// Gather implements prometheus.Gatherer. What cannot be read is left out and is in the error.
func (p *Process) Gather() ([]*dto.MetricFamily, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var k sink
	p.collect(&k)
	families, err := gather(k.metrics)
	return families, errors.Join(k.err, err)
}

// Render appends to dst what an encoder of the format makes of Gather's families and reports true. Or it appends nothing
// and reports false, for a format that is no text.
func (p *Process) Render(dst *bytes.Buffer, format expfmt.Format) (bool, error) {
	if !isText(format) {
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.rendered
	k := sink{metrics: r.metrics[:0]}
	p.collect(&k)
	r.metrics = k.metrics
	r.keepLayout()
	return r.fill(dst, format, func(string, *dto.Metric) int { return 0 }, nil), k.err
}

// collect writes all families to k. The caller holds p.mu.
func (p *Process) collect(k *sink) {
	runtimemetrics.Read(p.samples)
	samples := p.samples
	for i := range p.families {
		f := &p.families[i]
		var value float64
		if f.read != nil {
			var err error
			if value, err = f.read(); err != nil {
				k.fail(err)
				continue
			}
		}
		for range f.names {
			value += float64(samples[0].Value.Uint64())
			samples = samples[1:]
		}
		k.add(f.family, f.labels, value)
	}
}

// gatherOne returns a family of a collector of the library, nil if it has none of that name.
func gatherOne(c prometheus.Collector, name string) *dto.MetricFamily {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, _ := registry.Gather() // with an error, what is there is still valid
	for _, f := range families {
		if f.GetName() == name {
			return f
		}
	}
	return nil
}

// cpuSeconds returns the CPU time that the process has used.
func cpuSeconds() (float64, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, fmt.Errorf("read the CPU time: %w", err)
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9, nil
}

// maxFiles returns how many files the process may open.
func maxFiles() (float64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	return float64(limit.Cur), nil
}

// openFiles returns how many files the process has open.
func openFiles() (float64, error) {
	const folder = "/proc/self/fd"
	if info, err := os.Stat(folder); err == nil && info.Size() > 0 { // since Linux 6.2
		return float64(info.Size()), nil
	}
	files, err := os.ReadDir(folder)
	if err != nil {
		return 0, fmt.Errorf("count open files: %w", err)
	}
	return float64(len(files) - 1), nil // without that of the folder itself
}

// residentBytes returns the resident memory: the second field of statm, in pages (proc_pid_statm(5)).
func residentBytes() (float64, error) {
	file, err := os.Open("/proc/self/statm")
	if err != nil {
		return 0, fmt.Errorf("read the resident memory: %w", err)
	}
	defer file.Close()
	var buffer [256]byte // seven numbers
	length, err := file.Read(buffer[:])
	if err != nil {
		return 0, fmt.Errorf("read the resident memory: %w", err)
	}
	text := buffer[:length]
	_, rest, _ := bytes.Cut(text, []byte(" "))
	pages, _, _ := bytes.Cut(rest, []byte(" "))
	n, err := strconv.ParseUint(string(pages), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the resident memory: %q: %w", text, err)
	}
	return float64(n) * float64(os.Getpagesize()), nil
}
