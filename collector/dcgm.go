package collector

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Names selects the names under which metrics are served.
type Names string

// The names.
const (
	NamesNative Names = "native"
	NamesDCGM   Names = "dcgm" // dcgm-exporter's names; the metrics about this exporter keep theirs
	NamesBoth   Names = "both"
)

// HostnameLabel is the label of the host name under dcgm-exporter's names.
type HostnameLabel string

// The labels.
const (
	HostnameUpper HostnameLabel = "Hostname"
	HostnameLower HostnameLabel = "hostname" // as dcgm-exporter since 4.8.3
	HostnameOff   HostnameLabel = "off"
)

// dcgmWindow is the default of XIDWindow and ClockEventsWindow, as in dcgm-exporter.
const dcgmWindow = 5 * time.Minute

// parse returns which names are served. It returns an error for an unknown mode.
func (n Names) parse() (native, dcgm bool, err error) {
	switch n {
	case "", NamesNative:
		return true, false, nil
	case NamesDCGM:
		return false, true, nil
	case NamesBoth:
		return true, true, nil
	}

	return false, false, fmt.Errorf("names %q: expected native, dcgm or both", string(n))
}

// dcgmGroup writes the families under dcgm-exporter's names.
type dcgmGroup struct {
	podLabels       podLabels
	hostname        string // the label's name; empty for none
	nodeName        string // the label's value; empty: the Snapshot's
	repeatGPUFields bool
	counters        *dcgmCounters
	rows            []dcgmRow
	labelRows       []dcgmLabel
}

// dcgmRow is a row of the counters file that is served.
type dcgmRow struct {
	*dcgmField
	family *family
}

// dcgmLabel is a row of the type label: the text is a label of all series.
type dcgmLabel struct {
	name string
	text labelText
}

// newDCGM returns the group for opts. An error names the invalid option.
func newDCGM(opts Options, pods podLabels) (*dcgmGroup, error) {
	if opts.Counters == nil {
		opts.Counters = DefaultCounters()
	}

	d := &dcgmGroup{podLabels: pods, repeatGPUFields: opts.RepeatGPUFields, nodeName: opts.NodeName}
	switch opts.HostnameLabel {
	case "":
		d.hostname = string(HostnameUpper)
	case HostnameUpper, HostnameLower:
		d.hostname = string(opts.HostnameLabel)
	case HostnameOff:
	default:
		return nil, fmt.Errorf(
			"hostname label %q: expected Hostname, hostname or off",
			string(opts.HostnameLabel),
		)
	}

	fields := dcgmFields()
	for _, c := range opts.Counters {
		f, ok := fields[c.Field]
		if !ok {
			return nil, fmt.Errorf("counters: %s", unservedField(c.Field))
		}

		if wrong := f.wrongType(c); wrong != "" {
			return nil, fmt.Errorf("counters: %s", wrong)
		}

		row := dcgmRow{dcgmField: f, family: &family{
			desc: prometheus.NewDesc(c.Field, c.Help, nil, nil), counter: c.Type == CounterCounter,
		}}
		switch value := f.value.(type) {
		case nil:
		case labelText:
			d.labelRows = append(d.labelRows, dcgmLabel{name: f.name, text: value})
		default:
			d.rows = append(d.rows, row)
		}
	}

	d.counters = newDCGMCounters(opts, d.rows)

	return d, nil
}

// servesMedia reports whether a row is of the media engines, which we read only if they are served.
func (d *dcgmGroup) servesMedia() bool {
	return slices.ContainsFunc(d.rows, func(r dcgmRow) bool {
		_, ok := r.value.(ofMedia)
		return ok
	})
}

// dcgmDevices are a GPU as a whole, and its parts with series of their own.
type dcgmDevices struct {
	*gpu.GPU
	whole dcgmDevice
	parts []dcgmDevice
}

// dcgmDevice is a GPU or an instance with the labels of all its series. Readings that it has no
// series of are nil.
type dcgmDevice struct {
	labels   labels
	memory   *gpu.Memory
	media    *gpu.Media
	activity *gpu.Activity
	instance *gpu.GPUInstance // set in only one device of each GPU instance: its values are written once
}

// collect writes all rows of a Snapshot. If GPU instances have a value, the whole GPU has none: a
// sum would count it twice.
func (d *dcgmGroup) collect(w *metricWriter, v *view) {
	out := dcgmWriter{metrics: w, counters: d.counters, repeatsGPU: d.repeatGPUFields}

	for i := range v.gpus {
		g := &v.gpus[i]
		base := d.gpuLabels(v, g.GPU)
		devices := dcgmDevices{
			GPU:   g.GPU,
			whole: d.newDevice(base, g.Holders, g.Jobs),
			parts: d.listParts(base, g.GPU),
		}

		if len(devices.parts) == 0 { // without instances the whole GPU has their series
			whole := &devices.whole
			whole.memory = &g.Readings.Memory
			whole.media = &g.Readings.Media
			whole.activity = &g.Activity
			devices.parts = []dcgmDevice{*whole}
		}

		for r := range d.rows {
			out.row = &d.rows[r]
			out.row.value.write(&out, &devices)
		}
	}
}

// gpuLabels returns the labels that all series of a GPU and its instances have.
func (d *dcgmGroup) gpuLabels(v *view, g *gpu.GPU) labels {
	index := strconv.Itoa(g.Index)

	pairs := []string{
		"gpu",
		index,
		"UUID",
		string(g.UUID),
		"pci_bus_id",
		dcgmBusID(g),
		"device",
		"nvidia" + index,
		"modelName",
		g.Name,
	}
	if d.hostname != "" {
		pairs = append(pairs, d.hostname, cmp.Or(d.nodeName, v.Hostname))
	}

	for _, label := range d.labelRows {
		pairs = append(pairs, label.name, label.text(v.Snapshot, g))
	}

	return v.root.extend(pairs...)
}

// dcgmBusID returns the PCI bus id in upper case, as NVML and DCGM write it.
func dcgmBusID(g *gpu.GPU) string { return strings.ToUpper(g.PCIBusID) }

// listParts returns the GPU instances and, after a split one, its compute instances. The activity
// of a split GPU instance has no pod: a sum by pod would count a pod that holds all its compute
// instances twice.
func (d *dcgmGroup) listParts(base labels, g *gpu.GPU) []dcgmDevice {
	var parts []dcgmDevice
	var plain labels // of the GPU instance, without its holder

	for v := range g.DistinctDevices() {
		gi := v.Instance
		if gi == nil {
			continue
		}

		if v.Compute != nil {
			ofCompute := plain.extend("GPU_CI_ID", formatUint(v.Compute.ID))
			part := d.newDevice(ofCompute, v.Holders, v.Jobs())
			part.activity = &v.Activity
			parts = append(parts, part)

			continue
		}

		plain = base.extend("GPU_I_PROFILE", gi.Profile, "GPU_I_ID", formatUint(gi.ID))
		part := d.newDevice(plain, gi.Holders, gi.Jobs)
		part.memory = &gi.Memory
		part.media = &gi.Media
		part.instance = gi

		if !gi.IsSplit() {
			part.activity = &gi.Activity
			parts = append(parts, part)
			continue
		}

		parts = append(parts, part, dcgmDevice{labels: plain, activity: &gi.Activity})
	}

	return parts
}

// newDevice returns a device whose labels name its holder. As in dcgm-exporter, they name the batch
// job in every mode of pod labels; with several jobs they name none, because a series for each
// would count several times. Unlike dcgm-exporter, they have no labels of the pod: when the API
// server answers late, the series without them would end and others with them begin.
func (d *dcgmGroup) newDevice(plain labels, holders []gpu.Holder, jobs []string) dcgmDevice {
	var pairs []string
	if h := nameableHolder(holders); h != nil && d.podLabels.namesContainers() {
		pairs = containerPairs(h.Container)
	}

	if len(jobs) == 1 {
		pairs = append(pairs, "hpc_job", jobs[0])
	}

	if len(pairs) == 0 {
		return dcgmDevice{labels: plain}
	}

	return dcgmDevice{labels: plain.extend(pairs...)}
}
