package nodedoc

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// UseState is whether a device is held. The page and migctl show no other word for it.
type UseState string

// The states.
const (
	// Held is the state of a device that a pod, a batch job or a process has.
	Held UseState = "held"
	// Free is the state of a device that nothing has.
	Free UseState = "free"
	// UnknownUse is the state of a device of which we do not know whether anything has it.
	UnknownUse UseState = "unknown"
)

// UseEvidence is what a document says about whether a device is held.
type UseEvidence struct {
	Allocated     gpu.Opt[bool]
	ConfirmedFree bool
	Holders       int // how many are confirmed
	Jobs          int // how many batch jobs
	JobsUnknown   bool
	Processes     gpu.Opt[int]
	Active        bool // its SMs or its graphics engine have worked lately
	Kubelet       bool // see Document.HasKubelet
}

// State returns whether the device is held. It is free only if we know both that no pod has it and
// that nothing runs on it, or if an operator has confirmed that. A process that we cannot see, such
// as one in another PID namespace, may be on any other device whose memory is used.
func (e UseEvidence) State() UseState {
	switch {
	case e.Allocated.Or(false), e.Holders > 0, e.Jobs > 0, e.Processes.Or(0) > 0, e.Active:
		return Held
	case e.hidesPods(), e.JobsUnknown:
		return UnknownUse
	case e.ConfirmedFree, e.Processes.Present():
		return Free
	}

	return UnknownUse
}

// hidesPods reports whether a pod may have the device without our knowledge.
func (e UseEvidence) hidesPods() bool { return e.Kubelet && !e.Allocated.Present() }

// WhyUnknown says what is unknown of a device in the state UnknownUse.
func (e UseEvidence) WhyUnknown() string {
	switch {
	case e.hidesPods():
		return "not known whether a pod holds it"
	case e.JobsUnknown:
		return "not known whether a batch job has it"
	case e.Kubelet:
		return "no pod holds it, but not known whether anything else runs on it"
	}

	return "not known whether anything runs on it"
}

// UnnamedHolder says by what a device is held if neither a pod nor a batch job is known that has it.
func (e UseEvidence) UnnamedHolder() string {
	if n := e.Processes.Or(0); n > 0 {
		return Count(n, "process", "processes")
	}

	return "an unknown process or pod"
}

// with returns the evidence on a device and on a part of it. What has a part has the device. The
// device's own list of processes has those of its parts.
func (e UseEvidence) with(part UseEvidence) UseEvidence {
	if part.Allocated.Or(false) || part.hidesPods() && !e.Allocated.Or(false) {
		e.Allocated = part.Allocated
	}

	if part.Processes.Or(0) > e.Processes.Or(0) {
		e.Processes = part.Processes
	}

	e.Holders += part.Holders
	e.Jobs += part.Jobs
	e.JobsUnknown = e.JobsUnknown || part.JobsUnknown
	e.Active = e.Active || part.Active

	return e
}

// HasKubelet reports whether a kubelet gives out devices of the node. Then the use of a device is
// unknown while the document does not say whether it is allocated.
func (d *Document) HasKubelet() bool {
	return d.Node.HoldersIncomplete != "" || slices.ContainsFunc(d.Node.Sources, func(s SourceState) bool {
		return s.Name == gpu.SourceKubelet
	})
}

func (u *Use) evidence(activity gpu.Activity, kubelet bool) UseEvidence {
	e := UseEvidence{
		Allocated:     u.Allocated,
		ConfirmedFree: u.ConfirmedFree,
		Jobs:          len(u.Jobs),
		JobsUnknown:   u.JobsUnknown,
		Processes:     u.Processes,
		Active:        activity.SM.Or(0) > 0 || activity.GraphicsEngine.Or(0) > 0,
		Kubelet:       kubelet,
	}

	for i := range u.Holders {
		if u.Holders[i].Confirmed.Or(true) {
			e.Holders++
		}
	}

	return e
}

// emptyBelow is less memory than a process takes on a device: we choose a value between the 55 MiB
// that an idle H200 uses (9 to 22 MiB in its MIG devices, by nvidia-smi), and the 100 MiB and more
// that a CUDA context is reported to take.
const emptyBelow = 64 << 20

// excludeProcesses notes that nothing runs on a device of whose memory nearly nothing is used, where
// its processes are hidden.
func (e *UseEvidence) excludeProcesses(m gpu.Memory) {
	if used, known := m.Used.Get(); known && used < emptyBelow && !e.Processes.Present() {
		e.Processes = gpu.Some(0)
	}
}

// Evidence returns the evidence on a GPU and all its instances.
func (g *GPU) Evidence(kubelet bool) UseEvidence {
	e := g.Use.evidence(g.Activity.Activity, kubelet)
	e.excludeProcesses(g.Memory)

	for i := range g.GPUInstances {
		e = e.with(g.GPUInstances[i].Evidence(kubelet))
	}

	return e
}

// Evidence returns the evidence on a GPU instance and all its compute instances.
func (i *Instance) Evidence(kubelet bool) UseEvidence {
	e := i.Use.evidence(i.Activity, kubelet)
	e.excludeProcesses(i.Memory)

	if len(i.ComputeInstances) == 0 && !i.ComputeInstancesHidden {
		e.Processes = gpu.Some(e.Processes.Or(0)) // nothing can run there
	}

	for j := range i.ComputeInstances {
		e = e.with(i.ComputeInstances[j].Evidence(i, kubelet))
	}

	return e
}

// Evidence returns the evidence on a compute instance of i, whose memory its compute instances share.
func (c *ComputeInstance) Evidence(i *Instance, kubelet bool) UseEvidence {
	e := c.Use.evidence(c.Activity, kubelet)
	e.excludeProcesses(i.Memory)
	e.JobsUnknown = e.JobsUnknown || i.JobsUnknown || len(i.Jobs) > 0 // a job of i may have any part

	return e
}
