package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/version"

	"github.com/mig-exporter/mig-exporter/internal/control/cluster"
	"github.com/mig-exporter/mig-exporter/internal/control/handles"
	"github.com/mig-exporter/mig-exporter/internal/control/owners"
	"github.com/mig-exporter/mig-exporter/internal/control/server"
	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kernellog"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/pidns"
	"github.com/mig-exporter/mig-exporter/internal/podmeta"
	"github.com/mig-exporter/mig-exporter/internal/podresources"
	"github.com/mig-exporter/mig-exporter/internal/poll"
	"github.com/mig-exporter/mig-exporter/internal/procinfo"
)

// machine is the nodeKind of the machine that this process runs on.
type machine struct {
	hostname  string
	inCluster bool // we run in a pod of a Kubernetes cluster, so there is a kubelet
}

// openMachine opens the driver of this machine.
func (n *node) openMachine(library string) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host name: %w", err)
	}

	n.kind = machine{hostname: name, inCluster: os.Getenv("KUBERNETES_SERVICE_HOST") != ""}
	n.hostname = name
	n.boot = readBootID
	n.now = time.Now
	n.library = nvmlsource.Open(library)

	n.mayOpen = func(confidential gpu.Opt[bool]) error {
		guard := openingGuard{
			proc:    procDir,
			sys:     "/sys",
			handles: handles.New(procDir, n.processesHidden),
		}
		n.confidential.Store(guard.isConfidential(confidential))

		return guard.mayOpen(confidential)
	}

	n.log = kernellog.Options{
		Open:   func() (kernellog.Device, error) { return kernellog.OpenFile(kernellog.Path) },
		Uptime: kernellog.Uptime,
	}
	n.opening = nvmlsource.Opening{
		BoundGPUs:  (&boundGPUs{sys: "/sys", proc: procDir, now: time.Now}).list,
		OpenMinors: func() ([]int, error) { return listOpenMinors("/proc/self/fd") },
		Rights:     func() string { return describeMIGRights(procDir, "/dev") },
	}
	n.admin = isAdmin(procDir)
	n.processesHidden = pidns.CheckInitial("/proc/self")

	return nil
}

// openPods opens the machine's process table and kubelet, and the API server if the configuration
// names the node.
func (m machine) openPods(n *node, cfg *KubernetesConfig, markDir string) error {
	metadata, err := n.openMetadata(cfg)
	if err != nil {
		return err
	}

	containers := podresources.NewContainers(podresources.ContainersOptions{
		ProcDir: procDir, LogDir: logDir, Now: time.Now, Logger: n.logger,
	})
	n.setContainers(containers)

	if cfg.Socket == "" {
		n.poll.Pods = noKubelet{}
		return nil
	}

	opts := podresources.Options{
		Socket:       cfg.Socket,
		Metadata:     metadata,
		Checkpoint:   cfg.Checkpoint,
		Witness:      m.witness(cfg.WitnessPod),
		NodeNames:    m.nodeNames(cfg.NodeName),
		Containers:   containers,
		Expected:     m.inCluster || cfg.socketSet,
		KubeletPaths: append(kubeletFolders(), filepath.Dir(cfg.Socket)),
		Contained:    n.processesHidden != nil || isContained(os.Getenv, containerFiles(), mountInfo),
	}

	if markDir != "" {
		boot, err := readBootID()
		if err != nil {
			return err
		}

		mark := kubeletMark{
			path:   filepath.Join(markDir, "kubelet-boot"),
			boot:   boot,
			logger: n.logger,
		}
		opts.Expected = opts.Expected || mark.isSet()
		opts.Answered = mark.set
	}

	n.openKubelet(cfg.ResourceNames, opts)

	return nil
}

func (machine) openProcessTable(withUsers bool) poll.ProcessTable {
	return procinfo.New(procDir, withUsers)
}

// openMetadata starts to ask the API server about the node's pods. It returns nil if the
// configuration does not name the node.
func (n *node) openMetadata(cfg *KubernetesConfig) (podresources.Metadata, error) {
	if cfg.NodeName == "" {
		return nil, nil
	}

	server, err := kubeapi.InClusterServer(os.Getenv)
	if err != nil {
		return nil, fmt.Errorf("--kubernetes.node-name=%s: %w", cfg.NodeName, err)
	}

	m, err := podmeta.New(podmeta.Options{
		Server:         server,
		CredentialsDir: kubeapi.DefaultCredentialsDir,
		UserAgent:      userAgent(),
		Node:           cfg.NodeName,
		Labels:         cfg.PodLabelNames,
		WorkloadLabel:  cfg.WorkloadLabel,
		Logger:         n.logger,
	})
	if err != nil {
		return nil, err
	}

	n.onClose(m.Close)
	n.addMetadataState(m.State)
	n.serverPods = m

	return m, nil
}

// kubeletFolders returns the folders of the kubelets of Kubernetes, microk8s and k0s.
func kubeletFolders() []string {
	return []string{
		"/var/lib/kubelet",
		"/var/snap/microk8s/common/var/lib/kubelet",
		"/var/lib/k0s/kubelet",
	}
}

// mountInfo is the list of the file systems that this process sees.
const mountInfo = "/proc/self/mountinfo"

// containerFiles returns files that exist only in containers: of Docker, of Podman, and of our image.
func containerFiles() []string {
	return []string{"/.dockerenv", "/run/.containerenv", "/etc/mig-exporter-image"}
}

// isContained reports whether this process may run in a container, where it may not see the host's
// kubelet. To take a host for a container is the better mistake: then the holders of devices are
// unknown, until --kubernetes.socket= says that there is no kubelet.
func isContained(getenv func(string) string, files []string, mounts string) bool {
	// systemd-nspawn, LXC and Podman set the variable.
	return anyExists(files...) || getenv("container") != "" || isRootOverlay(mounts)
}

// isRootOverlay reports whether the root file system is an overlay, as in the containers of
// containerd, CRI-O and Docker, or may be: the list of mounts cannot be read.
func isRootOverlay(mounts string) bool {
	text, err := os.ReadFile(mounts)
	if err != nil {
		return true
	}

	// A line is "ID parent device root mount-point options [tags] - type source options".
	for line := range strings.Lines(string(text)) {
		mount, system, _ := strings.Cut(line, " - ")
		fields := strings.Fields(mount)
		types := strings.Fields(system)

		if len(fields) > 4 && fields[4] == "/" && len(types) > 0 && types[0] == "overlay" {
			return true
		}
	}

	return false
}

// anyExists reports whether any of the files exists, or may exist: it cannot be examined.
func anyExists(paths ...string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		_, err := os.Stat(path)
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// nodeNames returns the names that the kubelet may have for this node. The kubelet adds its name for
// the node to the names of static pods.
func (m machine) nodeNames(configured string) []string {
	short, _, _ := strings.Cut(m.hostname, ".")
	var names []string

	for _, name := range []string{configured, m.hostname, short} {
		if name != "" {
			names = append(names, strings.ToLower(name))
		}
	}

	return names
}

// ownPod returns "namespace/name" of the pod that this process runs in: from the downward API, or
// else from the service account and the host name. It is empty if they do not have it.
func ownPod(getenv func(string) string, credentialsDir, hostname string) string {
	namespace := getenv("POD_NAMESPACE")
	name := cmp.Or(getenv("POD_NAME"), hostname)

	if namespace == "" {
		text, err := os.ReadFile(filepath.Join(credentialsDir, "namespace"))
		if err != nil {
			return ""
		}

		namespace = strings.TrimSpace(string(text))
	}

	if namespace == "" || name == "" {
		return ""
	}

	return namespace + "/" + name
}

// witness returns the pod without which the kubelet's list is not complete: the configured one or, in
// a cluster, the pod of this process.
func (m machine) witness(configured string) string {
	if configured != "" || !m.inCluster {
		return configured
	}

	return ownPod(os.Getenv, kubeapi.DefaultCredentialsDir, m.hostname)
}

// hostEngine opens the host engine that the configuration names.
func (machine) hostEngine(cfg *ProfilingConfig) (dcgmsource.Connector, func() int) {
	return dcgmsource.Open(dcgmsource.Mode(cfg.dcgmMode()), cfg.hostEngine()), os.Geteuid
}

// apiServer returns the API server of the cluster that this process runs in.
func (m machine) apiServer() (apiServer, error) {
	address, err := kubeapi.InClusterServer(os.Getenv)
	if err != nil {
		return apiServer{}, err
	}

	return apiServer{
		address:     address,
		credentials: kubeapi.DefaultCredentialsDir,
		ownPod:      ownPod(os.Getenv, kubeapi.DefaultCredentialsDir, m.hostname),
	}, nil
}

// openDependencies opens the process table, for open files of GPUs, and finds other programs that
// manage the GPUs, on the machine and in its cluster.
func (machine) openDependencies(n *node, cfg *ControlConfig) (server.Reviewer, error) {
	var err error
	if n.control.BootID, err = readBootID(); err != nil {
		return nil, err
	}

	n.control.Handles = handles.New(procDir, n.processesHidden)

	local := &owners.LocalFinder{
		ProcDir:   procDir,
		SysDir:    "/sys",
		GresFiles: owners.DefaultGresFiles(),
	}

	if n.cluster == nil {
		n.control.Cluster = owners.NewCluster(nil, local)
		return nil, nil
	}

	n.control.Cluster = owners.NewCluster(n.cluster, local, n.cluster)

	if cfg.DevicePlugin != "" {
		selector, err := cluster.ParsePluginSelector(cfg.DevicePlugin)
		if err != nil {
			return nil, fmt.Errorf("--control.device-plugin: %w", err)
		}

		n.control.DevicePlugin = cluster.NewDevicePlugin(n.cluster, selector)
	}

	return n.cluster, nil
}

// userAgent returns the name of this program for the API server.
func userAgent() string { return "mig-exporter/" + cmp.Or(version.Version, "unknown") }

// readBootID returns the kernel's id of this boot.
func readBootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}

	return strings.TrimSpace(string(text)), nil
}
