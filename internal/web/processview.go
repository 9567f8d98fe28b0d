package web

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// processesView is the list of a GPU's processes. It is empty if the configuration does not ask for it.
type processesView struct {
	Summary string // "3 processes"
	Rows    []processView
	Users   bool   // the list has a column of users
	More    int    // how many processes Rows leaves out
	Unknown string // why we can't see the processes
}

// processView is one process on one device.
type processView struct {
	nodedoc.Process
	Key                    string // unique among the rows: a process may have a row for each device
	Device, Memory, Holder string
}

// newProcessesView returns the view of the same processes that the node's document lists for a GPU.
func newProcessesView(g *gpu.GPU, detail gpu.ProcessDetail) processesView {
	view := processesView{Users: detail == gpu.ProcessUsers}
	if !detail.ListsProcesses() {
		return view
	}

	if slices.ContainsFunc(g.Errors, func(e gpu.ReadError) bool {
		return errors.Is(e.Err, gpu.ErrPIDNamespace)
	}) {
		view.Unknown = nodedoc.ProcessesHidden
	}

	list := nodedoc.ListProcesses(g, detail)
	if len(list) == 0 {
		return view
	}

	all := len(g.Readings.Processes.Or(nil))
	view.More = all - len(list)
	view.Summary = nodedoc.Count(all, "process", "processes")
	view.Rows = mapSlice(list, newProcessView)

	return view
}

func newProcessView(p *nodedoc.Process) processView {
	view := processView{Process: *p}

	if gi, ok := p.GPUInstance.Get(); ok {
		view.Device = fmt.Sprintf("GI %d", gi)
		if ci, ok := p.ComputeInstance.Get(); ok {
			view.Device += fmt.Sprintf(" CI %d", ci)
		}
	}

	view.Key = fmt.Sprintf("pid%d %s", p.PID, view.Device)

	if bytes, ok := p.MemoryUsedBytes.Get(); ok {
		view.Memory = bytesText(bytes)
	}

	if p.Pod != "" {
		view.Holder = p.Namespace + "/" + p.Pod
	} else if p.Job != "" {
		view.Holder = "job " + p.Job
	}

	return view
}
