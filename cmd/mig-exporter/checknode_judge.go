package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// nodeJudge makes the lines of the report from what was read.
type nodeJudge struct {
	cfg    *Config
	host   hostFacts
	last   *gpu.Snapshot
	checks []nodeCheck
}

func (j *nodeJudge) add(c nodeCheck) { j.checks = append(j.checks, c) }

func (j *nodeJudge) judge() {
	j.judgeDriver()
	j.judgeHost()
	j.judgeRights()
	for i := range j.last.GPUs {
		j.judgeGPU(&j.last.GPUs[i])
	}
	for _, index := range j.last.Unread {
		j.add(nodeCheck{Name: fmt.Sprintf("gpu %d", index), State: checkMissing, Asked: true,
			Found: "the driver lists it, and has not answered in time"})
	}
	j.judgeDCGM()
	j.judgePods()
}

// source returns the state of a source, nil if it was not asked.
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
			countOf(len(j.last.GPUs), "GPU"))
	}

	if s := j.source(gpu.SourceNVML); s != nil && s.Err != nil {
		c.State = checkMissing
		c.Found = s.Err.Error()
		switch {
		case errors.Is(s.Err, errFirstToOpen):
			c.Remedy = "run nvidia-persistenced --persistence-mode on the host; this process needs root, CAP_SYS_PTRACE and " +
				"hostPID to see that it has the GPUs open"
		case errors.Is(s.Err, gpu.ErrNoDriver):
			c.Remedy = "install the driver, or mount its library into the container (--nvml.library-path; docs/image.md)"
		case errors.Is(s.Err, gpu.ErrVersionMismatch):
			c.Remedy = "reload the kernel module or reboot, so that it matches the library"
		}
	}
	if c.State == checkOK && len(j.last.GPUs)+len(j.last.Unread) == 0 {
		c.State, c.Found = checkMissing, c.Found+": the driver lists none"
	}
	j.add(c)
}

// judgeHost judges what needs no driver.
func (j *nodeJudge) judgeHost() {
	c := nodeCheck{Name: "pid-namespace", State: checkUnknown, Asked: true}
	inside, known := j.host.pidNamespace.Get()
	switch {
	case !known:
		c.Found = "cannot be told: " + fmt.Sprint(j.host.pidErr)
	case inside:
		c.State, c.Found = checkOK, "the host's"
	default:
		c.State = checkMissing
		c.Found = "not the host's: the driver leaves out the processes that are not in it, so an empty list says nothing"
		c.Remedy = "hostPID: true in the pod; --pid=host with Docker"
	}
	j.add(c)

	c = nodeCheck{Name: "cgroup", State: checkOK, Found: "version " + j.host.cgroup}
	if j.host.cgroup == "" {
		c.State, c.Found = checkUnknown, "/sys/fs/cgroup shows no version"
	}
	j.add(c)

	c = nodeCheck{Name: "runtime-power", State: checkUnknown, Found: "/sys does not say whether GPUs sleep"}
	if sleeping, ok := j.host.sleeping.Get(); ok {
		c.State, c.Found = checkOK, "no GPU slept"
		if len(sleeping) > 0 {
			c.State, c.Found = checkOff, "slept until this command woke them: "+strings.Join(sleeping, ", ")
			c.Remedy = "the exporter keeps them awake (docs/faults.md)"
		}
	}
	j.add(c)
}

// judgeRights judges the rights of this process. Those of MIG matter if a GPU has it on.
func (j *nodeJudge) judgeRights() {
	mig := false
	for i := range j.last.GPUs {
		mig = mig || j.last.GPUs[i].MIG.Enabled.Or(false)
	}

	c := nodeCheck{Name: "root", State: checkOK, Found: "yes"}
	if !j.host.root {
		c.State, c.Found = checkOff, "no: what needs it is in the lines below"
	}
	j.add(c)

	for _, right := range []struct {
		name string
		has  gpu.Opt[bool]
		mig  bool // MIG needs it
		what string
	}{
		{"cap-sys-admin", j.host.has(capSysAdmin), true, "GPU instances without a compute instance, placements, free slices"},
		{"cap-sys-ptrace", j.host.has(capSysPtrace), false, "open files of other processes, for partition control"},
		{"cap-dac-read-search", j.host.has(capDACReadSearch), false, "files of other users, for partition control"},
		{"mig-monitor", j.host.migMonitor, true, "memory and processes of whole GPUs in MIG mode, and their events"},
		{"mig-config", j.host.migConfig, false, "changes of the layout, for partition control"},
	} {
		c := nodeCheck{Name: right.name, State: checkOff, Asked: right.mig && mig, Found: "no: " + right.what}
		has, known := right.has.Get()
		switch {
		case has:
			c.State, c.Found = checkOK, "yes"
		case !known:
			c.State, c.Found = checkUnknown, "cannot be told: "+right.what
		case c.Asked:
			c.State = checkMissing
			c.Remedy = "securityContext capabilities SYS_ADMIN with NVIDIA_MIG_MONITOR_DEVICES=all (docs/image.md)"
		}
		j.add(c)
	}
}

// judgeDCGM judges the host engine. GPUs without GPM have no activity without one.
func (j *nodeJudge) judgeDCGM() {
	var without []string
	for i := range j.last.GPUs {
		if lacksActivity(&j.last.GPUs[i]) {
			without = append(without, fmt.Sprint(j.last.GPUs[i].Index))
		}
	}

	asked := j.cfg.DCGMMode != dcgmOff && j.cfg.Profiling != profilingOff && j.cfg.Profiling != profilingGPM
	c := nodeCheck{Name: "dcgm", State: checkOff, Asked: asked, Found: "not asked (--dcgm.mode, --profiling.source)"}
	state := j.source(gpu.SourceDCGM)
	switch {
	case asked && j.host.dcgm != nil:
		c = j.host.dcgm.check()
	case asked && state == nil:
		c.State, c.Found = checkUnknown, "it has not been asked: no GPU was read"
	case asked && !state.Up:
		c.State, c.Found = checkMissing, describeError("it does not answer", state.Err)
		c.Remedy = "start nv-hostengine, and name it by --dcgm.address"
	case asked:
		c.State, c.Found = checkOK, "it answers ("+j.cfg.DCGMMode+")"
		if len(without) > 0 {
			c.State = checkMissing
			c.Found += ", and profiles nothing on GPUs " + strings.Join(without, ", ")
			c.Remedy = "install datacenter-gpu-manager-4-proprietary where the host engine runs, and restart it"
		}
	}
	j.add(c)
}

// check judges the libraries that an embedded engine would load. It is not started: it could take the profiling of the
// service that runs already.
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
		c.State = checkOK
		c.Found = d.engine + " with " + d.profiling + "; not started, so as not to take the profiling of the service"
	}
	return c
}

// judgePods judges the sources that say which container holds which device.
func (j *nodeJudge) judgePods() {
	kubelet := j.judgeSource(gpu.SourceKubelet, j.cfg.KubeletSocket,
		"mount /var/lib/kubelet/pod-resources, and run as root or in the socket's group")
	kubelet.Name = "kubelet"
	if kubelet.State == checkOff && j.cfg.KubeletSocket != "" {
		kubelet.Asked, kubelet.Found = false, "this host has no kubelet: "+j.cfg.KubeletSocket+" is not there"
	}
	if j.host.podsErr != nil {
		kubelet.State, kubelet.Asked, kubelet.Found = checkMissing, true, j.host.podsErr.Error()
	}
	j.add(kubelet)

	c := j.judgeSource(gpu.SourceCheckpoint, j.cfg.Checkpoint, "run as root and mount /var/lib/kubelet/device-plugins")
	c.Name = "checkpoint"
	if c.State == checkOff && c.Asked {
		c.State, c.Asked, c.Found = checkUnknown, false, "it is read once the kubelet has answered"
	}
	j.add(c)

	c = nodeCheck{Name: "witness", State: checkOff, Asked: kubelet.State != checkOff, Found: "there is no kubelet"}
	if named, ok := j.last.Witness.Get(); ok {
		c.State, c.Found = checkOK, "the kubelet's list is complete"
		if !named {
			c.State, c.Found = checkMissing, "no pod is named without which the kubelet's list is incomplete"
			c.Remedy = "--kubernetes.witness-pod=NAMESPACE/NAME of a DaemonSet's pod (docs/kubernetes.md)"
		} else if j.last.HoldersIncomplete != "" {
			c.State, c.Found = checkUnknown, "the kubelet's list is not complete yet: "+j.last.HoldersIncomplete
		}
	}
	j.add(c)

	c = j.judgeSource(gpu.SourceKubernetes, j.cfg.NodeName, "grant get, list and watch of pods (docs/kubernetes.md)")
	c.Name = "api-server"
	if j.cfg.NodeName == "" && c.State == checkOff {
		c.Found = "not asked (--kubernetes.node-name)"
	}
	j.add(c)
}

// judgeSource judges a source by its state. An empty setting means that it is not asked for.
func (j *nodeJudge) judgeSource(name, setting, remedy string) nodeCheck {
	c := nodeCheck{State: checkOff, Asked: setting != "", Found: "not asked"}
	state := j.source(name)
	switch {
	case state == nil:
	case state.Up:
		c.State, c.Asked, c.Found = checkOK, true, "it answers"
	case state.Err != nil:
		c.State, c.Asked, c.Found, c.Remedy = checkMissing, true, state.Err.Error(), remedy
	default:
		c.State, c.Asked, c.Found = checkUnknown, true, "it has not answered yet"
	}
	return c
}

// countOf returns "1 GPU" and "2 GPUs".
func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
