package collector

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Names says under whose names metrics are served.
type Names string

// The names.
const (
	NamesNative Names = "native"
	NamesDCGM   Names = "dcgm" // those of NVIDIA's dcgm-exporter, and what the exporter says of itself
	NamesBoth   Names = "both"
)

// HostnameLabel is the label of the host's name under dcgm-exporter's names.
type HostnameLabel string

// The labels.
const (
	HostnameUpper HostnameLabel = "Hostname"
	HostnameLower HostnameLabel = "hostname" // what dcgm-exporter has since 4.8.3
	HostnameOff   HostnameLabel = "off"
)

// dcgmWindow is dcgm-exporter's default of both windows.
const dcgmWindow = 5 * time.Minute

// serves tells whose names a mode has; an error is a mode that does not exist.
func (n Names) serves() (native, dcgm bool, err error) {
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
	pods     podLabels
	hostname string // the label's name; empty for none
	node     string // the label's value; empty: the Snapshot's
	repeat   bool
	counts   *dcgmCounts
	rows     []dcgmRow
	texts    []dcgmRow
}

// dcgmRow is a row of the counters file that is served.
type dcgmRow struct {
	*dcgmField
	family *family
}

// newDCGM checks the options. The counters must be such as ParseCounters gives.
func newDCGM(opts Options, pods podLabels) (*dcgmGroup, error) {
	if opts.Counters == nil {
		opts.Counters = DefaultCounters()
	}
	d := &dcgmGroup{pods: pods, repeat: opts.RepeatGPUFields, node: opts.NodeName}
	switch opts.HostnameLabel {
	case "":
		d.hostname = string(HostnameUpper)
	case HostnameUpper, HostnameLower:
		d.hostname = string(opts.HostnameLabel)
	case HostnameOff:
	default:
		return nil, fmt.Errorf("hostname label %q: expected Hostname, hostname or off", string(opts.HostnameLabel))
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
		switch {
		case f.text != nil:
			d.texts = append(d.texts, row)
		case !f.without():
			d.rows = append(d.rows, row)
		}
	}
	d.counts = newDCGMCounts(opts, d.rows)
	return d, nil
}

// dcgmDevice is a GPU or an instance with its labels, which all its series share.
type dcgmDevice struct {
	labels   labels
	memory   *gpu.Memory      // nil: none of its own
	media    *gpu.Media       // nil: none of its own
	activity *gpu.Activity    // nil: none of its own
	instance *gpu.GPUInstance // of the first of a GPU instance's devices, nil of others
}

// collect writes all rows of a Snapshot. A GPU with GPU instances has no series of what the instances have: summed up, it
// would count twice.
func (d *dcgmGroup) collect(k *sink, v *view) {
	for i := range v.gpus {
		g := &v.gpus[i]
		base := d.gpuLabels(v, g.GPU)
		board := d.device(base, g.Holders, g.Jobs)
		parts := d.parts(base, g.GPU)
		for _, row := range d.rows {
			switch {
			case row.board != nil:
				d.put(k, &row, &board, row.board(g.GPU))
				d.copies(k, &row, parts, row.board(g.GPU))
			case row.own != nil:
				d.putOwn(k, &row, g, &board, parts)
			case row.xids != nil:
				d.putXIDs(k, &row, g, &board, parts)
			case len(g.Instances) == 0:
				whole := board
				whole.memory, whole.media, whole.activity = &g.Readings.Memory, &g.Readings.Media, &g.Activity
				d.putPart(k, &row, &whole)
			default:
				for p := range parts {
					d.putPart(k, &row, &parts[p])
				}
			}
		}
	}
}

// putPart writes what a device has of its own.
func (d *dcgmGroup) putPart(k *sink, row *dcgmRow, part *dcgmDevice) {
	switch {
	case row.memory != nil && part.memory != nil:
		d.put(k, row, part, row.memory(part.memory))
	case row.media != nil && part.media != nil:
		d.put(k, row, part, row.media(part.media))
	case row.activity != nil && part.activity != nil:
		d.put(k, row, part, row.activity(part.activity))
	}
}

// copies repeats a value of the whole GPU for its GPU instances where that was asked for.
func (d *dcgmGroup) copies(k *sink, row *dcgmRow, parts []dcgmDevice, value gpu.Opt[float64]) {
	for p := range parts {
		if d.repeat && !row.gpuOnly && parts[p].instance != nil {
			d.put(k, row, &parts[p], value)
		}
	}
}

func (d *dcgmGroup) put(k *sink, row *dcgmRow, to *dcgmDevice, value gpu.Opt[float64]) {
	if v, ok := value.Get(); ok {
		k.add(row.family, to.labels, v)
	}
}

// putOwn writes a counter of dcgm-exporter's own, which has labels beside those of its device.
func (d *dcgmGroup) putOwn(k *sink, row *dcgmRow, g *gpuView, board *dcgmDevice, parts []dcgmDevice) {
	row.own(d.counts, g.GPU, func(value float64, pairs ...string) {
		k.add(row.family, board.labels.extend(pairs...), value)
		for p := range parts {
			if d.repeat && parts[p].instance != nil {
				k.add(row.family, parts[p].labels.extend(pairs...), value)
			}
		}
	})
}

// putXIDs writes what is told of XIDs. One of a GPU instance stands there and not on its GPU, as DCGM has it. XIDs are not received of those
// of a GPU that was never read.
func (d *dcgmGroup) putXIDs(k *sink, row *dcgmRow, g *gpuView, board *dcgmDevice, parts []dcgmDevice) {
	if g.Totals.XIDs.Since.IsZero() {
		return
	}
	history := d.counts.of(g.UUID)
	to := func(labels labels) emitFunc {
		return func(value float64, pairs ...string) { k.add(row.family, labels.extend(pairs...), value) }
	}
	row.xids(&xidCounts{board: true, list: g.Totals.GPUXIDs, recent: history.recentXIDs(), window: d.counts.xidWindow}, to(board.labels))
	for p := range parts {
		if gi := parts[p].instance; gi != nil && (len(gi.XIDErrors) > 0 || row.source == fromNVML) { // counts begin with the first
			recent := history.instances[g.Key(gi)].recentXIDs()
			row.xids(&xidCounts{list: gi.XIDErrors, recent: recent, window: d.counts.xidWindow}, to(parts[p].labels))
		}
	}
}

// gpuLabels are the labels that all series of a GPU and its instances have.
func (d *dcgmGroup) gpuLabels(v *view, g *gpu.GPU) labels {
	index := strconv.Itoa(g.Index)
	pairs := []string{
		"gpu", index, "UUID", string(g.UUID), "pci_bus_id", dcgmBusID(g), "device", "nvidia" + index, "modelName", g.Name,
	}
	if d.hostname != "" {
		pairs = append(pairs, d.hostname, cmp.Or(d.node, v.Hostname))
	}
	for _, row := range d.texts {
		pairs = append(pairs, row.name, row.text(v.Snapshot, g))
	}
	return v.root.extend(pairs...)
}

// dcgmBusID is in capitals, as NVML and DCGM write it.
func dcgmBusID(g *gpu.GPU) string { return strings.ToUpper(g.PCIBusID) }

// parts are the GPU instances and, where one is divided, its compute instances too. The pods then are on the activity of the
// compute instances alone, or a sum by pod would count a pod that holds all of them twice.
func (d *dcgmGroup) parts(base labels, g *gpu.GPU) []dcgmDevice {
	var parts []dcgmDevice
	for i := range g.Instances {
		gi := &g.Instances[i]
		plain := base.extend("GPU_I_PROFILE", gi.Profile, "GPU_I_ID", formatUint(gi.ID))
		part := d.device(plain, gi.Holders, gi.Jobs)
		part.memory, part.media, part.instance = &gi.Memory, &gi.Media, gi
		if !gi.IsSplit() {
			part.activity = &gi.Activity
			parts = append(parts, part)
			continue
		}
		parts = append(parts, part, dcgmDevice{labels: plain, activity: &gi.Activity})
		for j := range gi.ComputeInstances {
			ci := &gi.ComputeInstances[j]
			of := d.device(plain.extend("GPU_CI_ID", formatUint(ci.ID)), ci.Holders, gi.Jobs)
			of.activity = &ci.Activity
			parts = append(parts, of)
		}
	}
	return parts
}

// device adds who holds a device to its labels. As dcgm-exporter does, it tells the batch job whatever is told of pods;
// where there are several it tells none, for clones of a series would count it several times. Unlike dcgm-exporter, it adds no
// labels of the pod: when the API server answers late, the series without them would end and others with them begin.
func (d *dcgmGroup) device(plain labels, holders []gpu.Holder, jobs []string) dcgmDevice {
	var pairs []string
	if h := nameable(holders); h != nil && d.pods.namesContainers() {
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
