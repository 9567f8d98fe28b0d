package migctl

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// topRow is a line of the list, with the axis that is drawn below it if it is an open GPU's. The
// row of a node has no GPU, that of a GPU no instance, that of a GPU instance no compute instance:
// these are nil.
type topRow struct {
	key      topKey
	node     *topNode
	gpu      *nodedoc.GPU
	instance *nodedoc.Instance
	compute  *nodedoc.ComputeInstance
	open     bool // the GPU's axis is drawn below the line
	flat     bool // the list has no lines of the GPUs that slices belong to
}

// axisHeight is the number of lines of an axis.
const axisHeight = 4

func (r *topRow) height() int {
	if r.open {
		return 1 + axisHeight
	}

	return 1
}

// rows returns the lines to draw. In the order of indexes, a GPU whose slices don't fit on the
// screen has no lines for them and no axis, unless it is selected. With a filter, all lines that the
// filter lets through are drawn, and the axis of the selected GPU alone.
func (s topState) rows() []topRow {
	all := s.allRows()
	if s.filter != "" {
		for i := range all {
			all[i].open = all[i].open && all[i].key == s.selected.ofGPU()
		}
	}

	if s.listHeight() == 0 || s.openAll || s.order != orderIndex || s.filter != "" {
		return all
	}

	open := s.openGPUs(all)

	return slices.DeleteFunc(all, func(r topRow) bool {
		return r.key.level > levelGPU && !open[r.key.ofGPU()]
	})
}

// openGPUs returns the GPUs that show their slices: the selected one, and of the others as many as
// fit, from the first on. It clears the field open in the rows of the rest.
func (s topState) openGPUs(rows []topRow) map[topKey]bool {
	var gpus []topKey
	lines := 0               // of nodes and GPUs
	more := map[topKey]int{} // lines for a GPU's slices and axis

	for i := range rows {
		key := rows[i].key.ofGPU()
		more[key] += rows[i].height()

		if rows[i].key.level <= levelGPU {
			more[key]--
			lines++
		}

		if rows[i].key.level == levelGPU {
			gpus = append(gpus, key)
		}
	}

	open := map[topKey]bool{}
	room := s.listHeight() - lines

	if selected := s.selected.ofGPU(); slices.Contains(gpus, selected) {
		open[selected] = true
		room -= more[selected]
	}

	for _, key := range gpus {
		if !open[key] && more[key] <= room {
			open[key] = true
			room -= more[key]
		}
	}

	for i := range rows {
		rows[i].open = rows[i].open && open[rows[i].key.ofGPU()]
	}

	return open
}

// ofGPU returns the key of the GPU that a device is, or is a part of.
func (k topKey) ofGPU() topKey {
	k.level = min(k.level, levelGPU)
	k.instance = absent
	k.compute = absent

	return k
}

// allRows returns the lines of all nodes, and of their devices that the filter lets through.
func (s topState) allRows() []topRow {
	var rows []topRow

	for i := range s.nodes {
		n := &s.nodes[i]
		key := topKey{level: levelNode, node: i, instance: absent, compute: absent}
		rows = append(rows, topRow{key: key, node: n})

		if n.view == nil {
			continue
		}

		devices := s.deviceRows(i)
		if s.order != orderIndex {
			devices = s.sortFlat(devices)
		}

		rows = append(rows, devices...)
	}

	return rows
}

// deviceRows returns the lines of a node's devices that the filter lets through, in the order of
// their indexes. A GPU that it lets through has all its slices; one that it does not is there with
// the slices that it does.
func (s topState) deviceRows(node int) []topRow {
	var rows []topRow
	n := &s.nodes[node]

	for i := range n.view.doc.GPUs {
		g := &n.view.doc.GPUs[i]
		key := topKey{level: levelGPU, node: node, gpu: gpuKey(g), instance: absent, compute: absent}
		head := topRow{key: key, node: n, gpu: g, open: isMIG(g) && len(n.view.slots(g)) > 0}

		var slices []topRow

		for _, r := range instanceRows(head) {
			if s.matches(&head) || s.matches(&r) {
				slices = append(slices, r)
			}
		}

		if len(slices) > 0 || s.matches(&head) {
			rows = append(append(rows, head), slices...)
		}
	}

	return rows
}

// gpuKey tells a GPU from the others of its node: a GPU that is lost can have the index of another
// one for a while.
func gpuKey(g *nodedoc.GPU) string {
	return cmp.Or(string(g.UUID), fmt.Sprint("index-", g.Index))
}

// instanceRows returns the lines of a GPU's instances in the order of their placements, each with
// the parts that it is split into.
func instanceRows(head topRow) []topRow {
	order := make([]*nodedoc.Instance, 0, len(head.gpu.GPUInstances))
	for i := range head.gpu.GPUInstances {
		order = append(order, &head.gpu.GPUInstances[i])
	}

	slices.SortStableFunc(order, func(a, b *nodedoc.Instance) int {
		return a.Placement.Or(gpu.Placement{}).Start - b.Placement.Or(gpu.Placement{}).Start
	})

	var rows []topRow

	for _, inst := range order {
		row := head
		row.open = false
		row.key.level = levelInstance
		row.key.instance = int(inst.ID)
		row.instance = inst
		rows = append(rows, row)

		if isWhole(inst) {
			continue
		}

		for j := range inst.ComputeInstances {
			part := row
			part.compute = &inst.ComputeInstances[j]
			part.key.level = levelCompute
			part.key.compute = int(part.compute.ID)
			rows = append(rows, part)
		}
	}

	return rows
}

// sortFlat returns the lines of the devices that containers can hold, GPUs without MIG and slices.
// Those with most memory in use, or with most activity, come first.
func (s topState) sortFlat(rows []topRow) []topRow {
	var flat []topRow

	for _, r := range rows {
		if r.key.level == levelGPU && !isMIG(r.gpu) || r.key.level == levelInstance {
			r.open = false
			r.flat = true
			flat = append(flat, r)
		}
	}

	slices.SortStableFunc(flat, func(a, b topRow) int {
		x, y := a.memoryRatio(), b.memoryRatio()
		if s.order == orderActivity {
			x, _ = a.activityRatio()
			y, _ = b.activityRatio()
		}

		switch x, y := x.Or(-1), y.Or(-1); {
		case x > y:
			return -1
		case x < y:
			return 1
		default:
			return 0
		}
	})

	return flat
}

// matches reports whether the filter lets a device through: the device's texts have all its words.
func (s topState) matches(r *topRow) bool {
	words := strings.Fields(strings.ToLower(s.filter))
	if len(words) == 0 {
		return true
	}

	all := strings.ToLower(strings.Join(r.texts(), "\n"))

	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(all, w) })
}

// texts returns the texts of a device in which the filter looks for its words.
func (r *topRow) texts() []string {
	use := r.use()
	all := append([]string{r.title(), r.uuid()}, use.Jobs...)

	if r.key.level == levelGPU {
		all = append(all, r.gpu.Name, r.gpu.PCIBusID)
	}

	for i := range use.Holders {
		h := &use.Holders[i]
		all = append(all, h.Namespace+"/"+h.Pod, h.Container, h.Workload)
	}

	return all
}

// use returns the use of a device, and of all parts of an instance.
func (r *topRow) use() deviceUse {
	switch {
	case r.compute != nil:
		return r.node.view.computeUse(r.instance, r.compute)
	case r.instance != nil:
		return r.node.view.instanceUse(r.instance)
	default:
		return r.node.view.gpuUse(r.gpu)
	}
}

func (r *topRow) up() bool {
	switch {
	case r.compute != nil:
		return r.compute.Up
	case r.instance != nil:
		return r.instance.Up
	default:
		return r.gpu.Up
	}
}

func (r *topRow) uuid() string {
	switch {
	case r.compute != nil:
		return string(r.compute.UUID)
	case r.instance != nil && isWhole(r.instance):
		return string(r.instance.ComputeInstances[0].UUID)
	case r.instance != nil:
		return ""
	default:
		return string(r.gpu.UUID)
	}
}

func (r *topRow) memory() gpu.Memory {
	switch {
	case r.compute != nil:
		return gpu.Memory{}
	case r.instance != nil:
		return r.instance.Memory
	default:
		return r.gpu.Memory
	}
}

func (r *topRow) memoryRatio() gpu.Opt[float64] {
	m := r.memory()
	used, ok := m.Used.Get()
	total := m.Total.Or(0)

	if !ok || total == 0 {
		return gpu.None[float64]()
	}

	return gpu.Some(float64(used) / float64(total))
}

// activityRatio returns the activity of the SMs. For a GPU whose activity is not known, it returns
// the driver's utilization instead, and isUtilization is true.
func (r *topRow) activityRatio() (ratio gpu.Opt[float64], isUtilization bool) {
	switch {
	case r.compute != nil:
		return r.compute.Activity.SM, false
	case r.instance != nil:
		return r.instance.Activity.SM, false
	case !r.gpu.Activity.SM.Present():
		return r.gpu.Activity.UtilizationRatio, r.gpu.Activity.UtilizationRatio.Present()
	default:
		return r.gpu.Activity.SM, false
	}
}

func (r *topRow) watts() gpu.Opt[float64] {
	switch {
	case r.compute != nil:
		return gpu.None[float64]()
	case r.instance != nil:
		return r.instance.PowerEstimateWatts
	default:
		return r.gpu.Power.Watts
	}
}

// failures returns the readings of a device that fail.
func (r *topRow) failures() []nodedoc.Error { return failuresOf(r.errors()) }

// failuresOf returns the errors of readings that fail. Others are not read, by configuration.
func failuresOf(errs []nodedoc.Error) []nodedoc.Error {
	var failed []nodedoc.Error

	for _, e := range errs {
		if e.Reason.IsFailure() {
			failed = append(failed, e)
		}
	}

	return failed
}

// hidesProcesses reports whether errs say that processes are not known in this PID namespace.
func hidesProcesses(errs []nodedoc.Error) bool {
	return slices.ContainsFunc(errs, func(e nodedoc.Error) bool { return e.Reason == gpu.ReasonPIDNamespace })
}

func (r *topRow) errors() []nodedoc.Error {
	switch {
	case r.compute != nil:
		return r.compute.Errors
	case r.instance != nil:
		return r.instance.Errors
	default:
		return r.gpu.Errors
	}
}
