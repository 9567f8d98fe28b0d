package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// rightsRemedy says how to give this process the rights that the driver asks for with MIG on.
const rightsRemedy = "grant CAP_SYS_ADMIN with NVIDIA_MIG_MONITOR_DEVICES=all (docs/image.md)"

// nodeJudge makes the checks of the report from what check-node has read.
type nodeJudge struct {
	cfg             *Config
	extras          gpu.Extras
	host            hostFacts
	confidential    bool  // the GPUs are in confidential-computing mode
	processesHidden error // why lists of processes can be incomplete; nil if they are complete
	last            *gpu.Snapshot
	lastPoll        time.Time   // when the last poll began: older readings are late
	calls           []callTime  // of the driver
	checks          []nodeCheck // the result
}

func (j *nodeJudge) add(c nodeCheck) { j.checks = append(j.checks, c) }

func (j *nodeJudge) judge() {
	j.judgeDriver()
	j.judgeBound()
	j.judgeCalls()
	j.judgePIDNamespace()
	j.judgeHost()
	j.judgeRights()

	for i := range j.last.GPUs {
		j.judgeGPU(&j.last.GPUs[i])
	}

	for _, index := range j.last.Unread {
		j.add(nodeCheck{Name: fmt.Sprintf("gpu %d", index), State: checkMissing, Asked: true,
			Found: "the driver lists it, and has not answered in time"})
	}

	j.judgeExtras()
	j.judgeKernelLog()
	j.judgeDCGM()
	j.judgePods()
}

// source returns the state of a source; nil if we did not ask it.
func (j *nodeJudge) source(name string) *gpu.SourceState {
	for i := range j.last.Sources {
		if j.last.Sources[i].Name == name {
			return &j.last.Sources[i]
		}
	}

	return nil
}

func (j *nodeJudge) judgeDriver() {
	c := nodeCheck{Name: "driver", State: checkMissing, Asked: true, Found: "it has not answered"}
	if driver, ok := j.last.Driver.Get(); ok {
		c.State = checkOK
		c.Found = fmt.Sprintf("%s, NVML %s, CUDA %s, %s", driver.Version, driver.NVML, driver.CUDA,
			nodedoc.Count(len(j.last.GPUs), "GPU", "GPUs"))
	}

	if s := j.source(gpu.SourceNVML); s != nil && s.Err != nil {
		c.State = checkMissing
		c.Found = s.Err.Error()

		switch {
		case errors.Is(s.Err, errFirstToOpen):
			c.Remedy = "run nvidia-persistenced --persistence-mode on the host; this process needs root, " +
				"CAP_SYS_PTRACE and hostPID to see that it has the GPUs open"
		case errors.Is(s.Err, gpu.ErrNoDriver):
			c.Remedy = "install the driver, or mount its library into the container " +
				"(--nvml.library-path; docs/image.md)"
		case errors.Is(s.Err, gpu.ErrVersionMismatch):
			c.Remedy = "reload the kernel module or reboot, so that it matches the library"
		}
	}

	if c.State == checkOK && len(j.last.GPUs)+len(j.last.Unread) == 0 {
		c.State = checkMissing
		c.Found += ": the driver lists none"
	}

	j.add(c)
}

// judgeBound reports GPUs that the kernel driver has bound but that NVML does not list. In a container
// that was given only some of the GPUs this is normal, so the check never fails the command.
func (j *nodeJudge) judgeBound() {
	bound, known := j.host.bound.Get()
	if !known || len(bound) <= len(j.last.GPUs) || len(j.last.GPUs) == 0 || len(j.last.Unread) > 0 {
		return
	}

	missing := slices.DeleteFunc(slices.Clone(bound), func(id string) bool {
		return slices.ContainsFunc(j.last.GPUs, func(g gpu.GPU) bool {
			return g.PCIBusID != "" &&
				strings.HasSuffix(strings.ToLower(g.PCIBusID), strings.ToLower(id))
		})
	})
	j.add(nodeCheck{
		Name:  "unlisted-gpus",
		State: checkMissing,
		Found: fmt.Sprintf(
			"the kernel driver has %d GPUs; not among those that are listed: %s",
			len(bound),
			strings.Join(missing, ", "),
		),
		Remedy: "nothing in a container that was given the others alone; else look for XIDs of these GPUs in dmesg",
	})
}

// judgeCalls judges whether all calls of the driver have returned. A call can hang for a GPU whose
// last reading was good, so the GPU's own check does not show it.
func (j *nodeJudge) judgeCalls() {
	var hanging []string

	for _, c := range j.calls {
		if len(c.Unreturned) > 0 {
			hanging = append(hanging, c.Function+": "+c.describeUnreturned())
		}
	}

	c := nodeCheck{Name: "driver-calls", State: checkOK, Asked: true, Found: "all have returned"}
	if j.last.HungCalls > 0 || len(hanging) > 0 {
		c.State = checkMissing

		c.Found = fmt.Sprintf(
			"%s not returned in time (--poll.timeout=%s)",
			nodedoc.Count(j.last.HungCalls, "reading", "readings"),
			j.cfg.Poll.Timeout,
		)
		if len(hanging) > 0 {
			c.Found = strings.Join(hanging, "; ")
		}

		c.Remedy = "look for XIDs and hung tasks in dmesg; docs/faults.md has each failure"
	}

	j.add(c)
}

// judgePIDNamespace judges whether lists of processes are complete. The configuration asks for them
// with the collectors of processes, and with partition control: it takes an instance for busy if it
// does not know its processes.
func (j *nodeJudge) judgePIDNamespace() {
	asked := j.cfg.Control.Enabled
	for _, name := range []string{"instance_processes", processCollector} {
		off, known := j.cfg.Metrics.Disabled[name]
		asked = asked || known && !off
	}

	c := nodeCheck{Name: "pid-namespace", State: checkOK, Asked: asked, Found: "the host's"}

	switch err := j.processesHidden; {
	case err == nil && j.cfg.Driver.PIDNamespace == pidNamespaceHost:
		c.Found = "taken for the host's (--pid-namespace=host)"
	case err == nil:
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		c.State = checkUnknown
		c.Found = err.Error()
	default:
		c.State = checkMissing
		c.Found = "not the host's: the driver leaves out the processes that are not in it, " +
			"so an empty list says nothing"
		c.Remedy = "hostPID: true in the pod; --pid=host with Docker"
	}

	j.add(c)
}

// judgeHost judges what we read without the driver.
func (j *nodeJudge) judgeHost() {
	c := nodeCheck{Name: "cgroup", State: checkOK, Found: "version " + j.host.cgroup}
	if j.host.cgroup == "" {
		c.State = checkUnknown
		c.Found = "/sys/fs/cgroup shows no version"
	}

	j.add(c)

	c = nodeCheck{
		Name:  "runtime-power",
		State: checkUnknown,
		Found: "/sys does not say whether GPUs sleep",
	}
	if sleeping, ok := j.host.sleeping.Get(); ok {
		c.State = checkOK
		c.Found = "no GPU slept"

		if len(sleeping) > 0 {
			c.State = checkOff
			c.Found = "slept before this command: " + strings.Join(sleeping, ", ")
			c.Remedy = "the exporter keeps them awake (docs/faults.md)"
		}
	}

	j.add(c)
}

// judgeRights judges the rights of this process. The configuration asks for the rights to read MIG if
// a GPU has MIG on, and for the rights of partition control if that is on and a GPU has MIG.
func (j *nodeJudge) judgeRights() {
	mig := false
	control := false

	for i := range j.last.GPUs {
		mig = mig || j.last.GPUs[i].MIG.Enabled.Or(false)
		control = control || j.cfg.Control.Enabled && j.last.GPUs[i].MIG.Enabled.Present()
	}

	changes := control && j.cfg.Control.Mode == controlApply
	c := nodeCheck{Name: "root", State: checkOK, Found: "yes"}

	if !j.host.root {
		c.State = checkOff
		c.Found = "no: what needs it is in the lines below"
	}

	j.add(c)

	for _, right := range []struct {
		name string
		has  gpu.Opt[bool]
		need bool
		use  string // what this process needs it for
	}{
		{"cap-sys-admin", j.host.has(capSysAdmin), mig || changes,
			"GPU instances without a compute instance, placements, free slices"},
		{"cap-sys-ptrace", j.host.has(capSysPtrace), control,
			"open files of other processes, for partition control"},
		{"cap-dac-read-search", j.host.has(capDACReadSearch), control,
			"files of other users, for partition control"},
		{"mig-monitor", j.host.migMonitor, mig, "memory and processes of whole GPUs in MIG mode, and their events"},
		{"mig-config", j.host.migConfig, changes, "changes of the layout, for partition control"},
	} {
		c := nodeCheck{
			Name:  right.name,
			State: checkOff,
			Asked: right.need,
			Found: "no: " + right.use,
		}

		has, known := right.has.Get()
		switch {
		case has:
			c.State = checkOK
			c.Found = "yes"
		case !known:
			c.State = checkUnknown
			c.Found = "unknown: " + right.use
		case c.Asked:
			c.State = checkMissing
			c.Remedy = rightsRemedy

			if strings.HasSuffix(right.use, "for partition control") {
				c.Remedy = "docs/partition-control.md has the rights that it needs"
			}
		}

		j.add(c)
	}
}

// judgeDCGM judges the DCGM host engine. Without one, GPUs without GPM have no activity.
func (j *nodeJudge) judgeDCGM() {
	var without []string

	for i := range j.last.GPUs {
		if lacksActivity(&j.last.GPUs[i]) {
			without = append(without, fmt.Sprint(j.last.GPUs[i].Index))
		}
	}

	asked := j.cfg.Profiling.dcgmMode() != dcgmOff && j.cfg.Profiling.Source != profilingOff &&
		j.cfg.Profiling.Source != profilingGPM
	c := nodeCheck{
		Name:  "dcgm",
		State: checkOff,
		Asked: asked,
		Found: "not asked (--dcgm.address, --profiling.source)",
	}

	state := j.source(gpu.SourceDCGM)
	switch {
	case asked && j.host.dcgm != nil:
		c = j.host.dcgm.check()
	case asked && state == nil:
		c.State = checkUnknown
		c.Found = "it has not been asked: no GPU was read"
	case asked && !state.Up:
		c.State = checkMissing
		c.Found = fmt.Sprintf("it does not answer: %v", state.Err)
		c.Remedy = "start nv-hostengine, and name it by --dcgm.address"
	case asked:
		c.State = checkOK
		c.Found = "it answers (" + j.cfg.Profiling.dcgmMode() + ")"

		if len(without) > 0 {
			c.State = checkMissing
			c.Found += ", and profiles nothing on GPUs " + strings.Join(without, ", ")
			c.Remedy = "install datacenter-gpu-manager-4-proprietary where the host engine runs, and restart it"
		}
	}

	j.add(c)
}

// check judges the libraries that an embedded engine would load. We do not start the engine: it could
// take the profiling away from the service that already runs.
func (d *dcgmFiles) check() nodeCheck {
	c := nodeCheck{Name: "dcgm", State: checkMissing, Asked: true}

	switch {
	case d.engine == "":
		c.Found = "libdcgm.so.4 is in none of the linker's usual folders"
		c.Remedy = "install datacenter-gpu-manager-4-core, or set LD_LIBRARY_PATH"
	case d.profiling == "":
		c.Found = d.engine + ", without libdcgmmoduleprofiling.so.4: no activity of A100 and A30"
		c.Remedy = "install datacenter-gpu-manager-4-proprietary"
	default:
		c.State = checkUnknown
		c.Asked = false // that we do not start it must not fail the command
		c.Found = d.engine + " with " + d.profiling + "; whether it profiles is unknown: it was not started, " +
			"so as not to take the profiling of the service"
	}

	return c
}

// judgePods judges the sources that say which container holds which device.
func (j *nodeJudge) judgePods() {
	kubelet := j.judgeKubelet()
	j.add(kubelet)

	c := j.judgeSource(
		gpu.SourceCheckpoint,
		j.cfg.Kubernetes.Checkpoint,
		"run as root and mount /var/lib/kubelet/device-plugins",
	)

	c.Name = "checkpoint"
	if c.Asked && j.source(gpu.SourceCheckpoint) == nil {
		c.State = checkUnknown
		c.Asked = false
		c.Found = "it is read once the kubelet has answered"

		if kubelet.State == checkOff {
			c.State = checkOff
			c.Found = "there is no kubelet"
		}
	}

	j.add(c)
	j.add(j.judgeWitness(kubelet.State != checkOff))

	c = j.judgeSource(
		gpu.SourceKubernetes,
		j.cfg.Kubernetes.NodeName,
		"grant get, list and watch of pods (docs/kubernetes.md)",
	)

	c.Name = "api-server"
	if j.cfg.Kubernetes.NodeName == "" && c.State == checkOff {
		c.Found = "not asked (--kubernetes.node-name)"
	}

	j.add(c)

	c = j.judgeSource(
		gpu.SourceJobs,
		j.cfg.JobDir,
		"docs/deploy-slurm.md has the folder and the prolog that fills it",
	)
	c.Name = "batch-jobs"
	j.add(c)
}

// judgeKubelet judges the kubelet's list of pods.
func (j *nodeJudge) judgeKubelet() nodeCheck {
	c := j.judgeSource(gpu.SourceKubelet, j.cfg.Kubernetes.Socket,
		"mount /var/lib/kubelet/pod-resources, and run as root or in the socket's group")

	c.Name = "kubelet"
	if c.Asked && j.host.noKubelet {
		c.State = checkOff
		c.Asked = false
		c.Found = "this host has no kubelet: " + j.cfg.Kubernetes.Socket + " is not there"
	}

	if j.lacksKubeletConfig() { // a node without kubelet lacks nothing
		c.State = checkUnknown
		c.Asked = false
		c.Remedy = "--kubernetes.socket= (empty) if the node has no kubelet; else " + c.Remedy
	}

	if j.host.podsErr != nil {
		c.State = checkMissing
		c.Asked = true
		c.Found = j.host.podsErr.Error()
	}

	return c
}

// lacksKubeletConfig reports whether we cannot find out if the node has a kubelet, so that the
// configuration would have to say it.
func (j *nodeJudge) lacksKubeletConfig() bool {
	state := j.source(gpu.SourceKubelet)
	return state != nil && errors.Is(state.Err, gpu.ErrNotConfigured)
}

// judgeWitness judges whether the kubelet's list of pods is known to be complete (see
// --kubernetes.witness-pod). kubelet says whether there is one.
func (j *nodeJudge) judgeWitness(kubelet bool) nodeCheck {
	c := nodeCheck{Name: "witness", State: checkOff, Asked: kubelet, Found: "there is no kubelet"}

	switch {
	case j.lacksKubeletConfig():
		c.Asked = false
		c.Found = "no kubelet is configured"
	case kubelet:
		c.State = checkUnknown
		c.Found = "the kubelet has not answered yet"
	}

	named, ok := j.last.Witness.Get()
	switch {
	case !ok:
	case !named:
		c.State = checkMissing
		c.Found = "no pod is named without which the kubelet's list is incomplete"
		c.Remedy = "--kubernetes.witness-pod=NAMESPACE/NAME of a DaemonSet's pod (docs/kubernetes.md)"
	case j.last.HoldersIncomplete != "":
		c.State = checkUnknown
		c.Found = "the kubelet's list is not complete yet: " + j.last.HoldersIncomplete
	default:
		c.State = checkOK
		c.Found = "the kubelet's list is complete"
	}

	return c
}

// judgeSource judges a source by its state. The configuration asks for it unless setting is empty.
func (j *nodeJudge) judgeSource(name, setting, remedy string) nodeCheck {
	c := nodeCheck{State: checkOff, Asked: setting != "", Found: "not asked"}
	state := j.source(name)

	switch {
	case state == nil && c.Asked:
		c.State = checkUnknown
		c.Found = "it has not answered yet"
	case state == nil:
	case state.Up:
		c.State = checkOK
		c.Asked = true
		c.Found = "it answers"
	case state.Err != nil:
		c.State = checkMissing
		c.Asked = true
		c.Found = state.Err.Error()
		c.Remedy = remedy
	default:
		c.State = checkUnknown
		c.Asked = true
		c.Found = "it has not answered yet"
	}

	return c
}
