package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// hostFacts are what check-node reads of the host besides the driver and the kubelet.
type hostFacts struct {
	root         bool
	capabilities gpu.Opt[capabilities] // the effective ones of this process
	// migMonitor and migConfig say whether this process can open the capability files of MIG's monitor
	// and configuration; absent if the driver has no such files.
	migMonitor, migConfig gpu.Opt[bool]
	cgroup                string            // the version of cgroups; empty if unknown
	logRestricted         gpu.Opt[bool]     // whether reading the kernel's log needs CAP_SYSLOG
	sleeping              gpu.Opt[[]string] // the PCI bus ids of GPUs that Linux has suspended
	bound                 gpu.Opt[[]string] // the PCI bus ids of GPUs that the kernel driver has bound
	dcgm                  *dcgmFiles        // nil unless DCGM is embedded
	podsErr               error             // why the sources of pods could not be opened
	noKubelet             bool              // the node has no kubelet, or we do not ask one
}

// dcgmFiles are the paths of the libraries of an embedded DCGM; empty if they were not found.
type dcgmFiles struct{ engine, profiling string }

// has reports whether this process has a capability; absent if that is unknown.
func (h *hostFacts) has(capability int) gpu.Opt[bool] {
	set, ok := h.capabilities.Get()
	if !ok {
		return gpu.None[bool]()
	}

	return gpu.Some(set.has(capability))
}

// readHost reads the facts of a machine. It opens no file of a GPU.
func (machine) readHost(embedded bool) hostFacts {
	return readHostFacts(embedded, procDir, "/sys", "/dev")
}

func readHostFacts(embedded bool, proc, sys, dev string) hostFacts {
	h := hostFacts{root: os.Geteuid() == 0, capabilities: readCapabilities(proc)}
	h.migMonitor, h.migConfig = readMIGRights(proc, dev)
	h.sleeping = readSleeping(sys)

	if bound, err := listBoundGPUs(sys, proc); err == nil {
		h.bound = gpu.Some(bound)
	}

	h.logRestricted = readLogRestricted(proc)
	h.cgroup = readCgroupVersion(sys)

	if embedded {
		h.dcgm = findDCGM()
	}

	return h
}

// readMIGRights reports whether this process may open the capability files of MIG's monitor and
// configuration, whose numbers the driver lists in lines such as "monitor 2".
func readMIGRights(proc, dev string) (monitor, config gpu.Opt[bool]) {
	text, err := os.ReadFile(filepath.Join(proc, "driver", "nvidia-caps", "mig-minors"))
	if err != nil {
		return monitor, config
	}

	for line := range strings.Lines(string(text)) {
		name, minor, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != "monitor" && name != "config" {
			continue
		}

		const read = 4 // R_OK of unistd.h

		usable := gpu.Some(
			syscall.Access(filepath.Join(dev, "nvidia-caps", "nvidia-cap"+minor), read) == nil,
		)
		if name == "monitor" {
			monitor = usable
		} else {
			config = usable
		}
	}

	return monitor, config
}

// describeMIGRights returns what readMIGRights finds, as text.
func describeMIGRights(proc, dev string) string {
	monitor, config := readMIGRights(proc, dev)
	return fmt.Sprint("monitor ", monitor.Or(false), ", config ", config.Or(false))
}

// readSleeping returns the PCI bus ids of GPUs that Linux has suspended; absent if we cannot read
// that of all GPUs.
func readSleeping(sys string) gpu.Opt[[]string] {
	files, err := filepath.Glob(
		filepath.Join(sys, "bus", "pci", "drivers", "nvidia", "*:*", "power", "runtime_status"),
	)
	if err != nil || len(files) == 0 {
		return gpu.None[[]string]()
	}

	sleeping := []string{}

	for _, file := range files {
		status, err := os.ReadFile(file)
		if err != nil {
			return gpu.None[[]string]()
		}

		if strings.TrimSpace(string(status)) == "suspended" {
			sleeping = append(sleeping, filepath.Base(filepath.Dir(filepath.Dir(file))))
		}
	}

	return gpu.Some(sleeping)
}

// readLogRestricted reports whether reading the kernel's log needs CAP_SYSLOG; absent if we cannot
// read that.
func readLogRestricted(proc string) gpu.Opt[bool] {
	text, err := os.ReadFile(filepath.Join(proc, "sys", "kernel", "dmesg_restrict"))
	if err != nil {
		return gpu.None[bool]()
	}

	return gpu.Some(strings.TrimSpace(string(text)) != "0")
}

// readCgroupVersion returns the version of cgroups, "2" or "1", by files that only one of them has;
// empty if it finds neither.
func readCgroupVersion(sys string) string {
	_, err := os.Stat(filepath.Join(sys, "fs", "cgroup", "cgroup.controllers"))
	if err == nil {
		return "2"
	}

	_, v1 := os.Stat(filepath.Join(sys, "fs", "cgroup", "memory"))
	if errors.Is(err, fs.ErrNotExist) && v1 == nil {
		return "1"
	}

	return ""
}

// findDCGM looks for two libraries of DCGM where the dynamic linker would: the engine, and the
// profiling module of the package datacenter-gpu-manager-4-proprietary.
func findDCGM() *dcgmFiles {
	folders := append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")),
		"/usr/lib64", "/usr/lib", "/lib64", "/lib", "/usr/local/lib",
		"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
	find := func(name string) string {
		for _, folder := range folders {
			path := filepath.Join(folder, name)
			if _, err := os.Stat(path); err == nil && folder != "" {
				return path
			}
		}

		return ""
	}

	return &dcgmFiles{engine: find("libdcgm.so.4"), profiling: find("libdcgmmoduleprofiling.so.4")}
}

// readHost returns the facts of a simulated node, which follow from its scenario.
func (s simulation) readHost(bool) hostFacts {
	privileged := s.Scenario().Node.Privileged

	var rights capabilities
	if privileged {
		rights = 1<<capDACReadSearch | 1<<capSysPtrace | 1<<capSysAdmin
	}

	if s.Scenario().Node.KernelLog {
		rights |= 1 << capSyslog
	}

	bound, _ := s.boundGPUs() // it does not fail

	return hostFacts{
		bound:        gpu.Some(bound),
		root:         privileged,
		capabilities: gpu.Some(rights),
		migMonitor:   gpu.Some(privileged),
		migConfig:    gpu.Some(privileged),
		cgroup:       "2",

		logRestricted: gpu.Some(true),
		sleeping:      gpu.Some([]string{}),
	}
}

// readHost returns no facts: a recording has none of its host.
func (recording) readHost(bool) hostFacts {
	return hostFacts{}
}
