package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/owners"
	"github.com/mig-exporter/mig-exporter/internal/control/server"
	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kernellog"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/podmeta"
	"github.com/mig-exporter/mig-exporter/internal/podresources"
	"github.com/mig-exporter/mig-exporter/internal/poll"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/kubelet"
	"github.com/mig-exporter/mig-exporter/internal/sim/simdcgm"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// stateVariable is the variable with the path of the state file of a simulated node that processes
// share, such as programs that load the simulated C library.
const stateVariable = "MIG_SIM_STATE"

// startVariable is the variable with the time at which a stepped clock begins. A demonstration can
// begin in the past, to have a history.
const startVariable = "MIG_SIM_START"

// simulation is the nodeKind of a simulated node: its GPUs, pods and host engine do not exist.
type simulation struct {
	*sim.Node
	evaluation *evaluation
}

// openSimulation starts the simulated node of a scenario.
func (n *node) openSimulation(cfg *DriverConfig) error {
	scenario, err := loadScenario(cfg.Scenario)
	if err != nil {
		return err
	}

	simulated, err := startSimulated(scenario, cfg.Clock)
	if err != nil {
		return err
	}

	builtIn := scenario.Name + ", which is built in; another one: --sim.scenario=FILE"
	level.Info(n.logger).Log(
		"msg", "serving a simulated node: its GPUs and pods do not exist",
		"scenario", cmp.Or(cfg.Scenario, builtIn),
	)

	kind := simulation{simulated, newEvaluation(simulated)}
	n.kind = kind
	n.hostname = scenario.Node.Hostname
	n.boot = func() (string, error) { return simulated.BootID(), nil }
	n.now = simulated.Now
	n.library = simnvml.New(simulated)
	n.log = kernellog.Options{
		Open:   func() (kernellog.Device, error) { return simulated.OpenKernelLog() },
		Uptime: simulated.Uptime,
	}
	n.opening = nvmlsource.Opening{BoundGPUs: kind.boundGPUs, OpenMinors: kind.openMinors}
	n.mayOpen = kind.mayOpen
	n.polled = kind.evaluation.addOutcomes

	if scenario.Node.PIDNamespace == sim.PIDNamespaceContainer {
		n.processesHidden = gpu.ErrPIDNamespace
	}

	n.closers = append(n.closers, simulated.Close)

	return nil
}

// loadScenario reads a scenario file; the built-in scenario if the path is empty.
func loadScenario(path string) (*sim.Scenario, error) {
	if path == "" {
		return sim.Demo()
	}

	return sim.Load(path)
}

func startSimulated(scenario *sim.Scenario, clock sim.ClockMode) (*sim.Node, error) {
	if path := os.Getenv(stateVariable); path != "" {
		return sim.Join(scenario, clock, path)
	}

	if text := os.Getenv(startVariable); text != "" && clock == sim.ClockStep {
		start, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, fmt.Errorf(
				"%s=%.64q: expected a time such as 2026-01-01T00:00:00Z",
				startVariable,
				text,
			)
		}

		return sim.New(scenario, sim.NewSteppedClock(start))
	}

	return sim.New(scenario, sim.NewClock(clock))
}

// openPods starts the simulated kubelet on a socket of its own and asks it, unless the scenario or the
// configuration says that there is none.
func (s simulation) openPods(n *node, cfg *KubernetesConfig, _ string) error {
	if cfg.Socket == "" || !s.Scenario().Node.Kubernetes {
		n.poll.Pods = noKubelet{}
		return nil
	}

	dir, err := os.MkdirTemp("", "mig-exporter-sim-")
	if err != nil {
		return fmt.Errorf("simulated kubelet: %w", err)
	}

	n.closers = append(n.closers, func() error { return os.RemoveAll(dir) })

	server, err := kubelet.New(s.Node, dir, n.logger)
	if err != nil {
		return err
	}

	n.closers = append(n.closers, server.Close)
	metadata := simulatedMetadata{
		node:     s.Node,
		labels:   cfg.PodLabelNames,
		workload: cfg.WorkloadLabel,
	}
	n.addMetadataState(metadata.State)
	n.serverPods = &simulatedServers{node: s.Node}
	containers := podresources.NewContainers(podresources.ContainersOptions{
		ProcDir: server.ProcDir(), LogDir: server.LogDir(), Now: time.Now, Logger: n.logger,
	})
	n.setContainers(containers)

	checkpoint := server.Checkpoint()
	if cfg.Checkpoint == "" {
		checkpoint = ""
	}

	opts := podresources.Options{
		Socket:     server.Socket(),
		Metadata:   metadata,
		Checkpoint: checkpoint,
		Witness:    cmp.Or(cfg.WitnessPod, sim.OwnNamespace+"/"+sim.OwnPod),
		Expected:   true,
	}
	if n.processesHidden == nil { // as on a machine, only the host's PID namespace shows its processes
		opts.Containers = containers
	}

	n.openKubelet(cfg.ResourceNames, opts)
	faulty := faultyKubelet{Assignments: n.control.Assignments, node: s.Node, server: server}
	n.poll.Pods = faulty
	n.control.Assignments = faulty

	return nil
}

func (s simulation) openProcessTable(withUsers bool) poll.ProcessTable {
	return simulatedProcesses{node: s.Node, users: withUsers}
}

// simulatedProcesses is the process table of a simulated node. Only root has a name there; other users
// have their id.
type simulatedProcesses struct {
	node  *sim.Node
	users bool
}

// Describe implements poll.ProcessTable.
func (p simulatedProcesses) Describe(pid uint32) (name, user string) {
	name, uid, ok := p.node.ProcessOwner(pid)

	switch {
	case !ok || !p.users:
	case uid == 0:
		user = "root"
	default:
		user = strconv.FormatUint(uint64(uid), 10)
	}

	return name, user
}

// replacePodHandler answers POST /-/sim/replace-pod?namespace=N&pod=P&resource=R: it replaces a pod as
// if its owner had changed the pod's request (sim.Node.ReplacePod).
func replacePodHandler(s simulation) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()

		namespace := query.Get("namespace")
		pod := query.Get("pod")

		resource := query.Get("resource")
		if namespace == "" || pod == "" || resource == "" {
			http.Error(
				w,
				"expected namespace, pod and resource, such as ?namespace=ml&pod=train-0&resource=nvidia.com/mig-1g.10gb",
				http.StatusBadRequest,
			)

			return
		}

		switch err := s.ReplacePod(namespace, pod, resource); {
		case errors.Is(err, gpu.ErrNotFound):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusConflict)
		default:
			fmt.Fprintf(w, "%s/%s asks for %s\n", namespace, pod, resource)
		}
	})
}

// unprivilegedUID is the id of a user that is not root.
const unprivilegedUID = 65534

// hostEngine returns the node's own host engine if DCGM is embedded; a remote one is not simulated.
func (s simulation) hostEngine(cfg *ProfilingConfig) (dcgmsource.Connector, func() int) {
	if cfg.dcgmMode() != dcgmEmbedded {
		return dcgmsource.Open(dcgmsource.Mode(cfg.dcgmMode()), cfg.hostEngine()), os.Geteuid
	}

	return simdcgm.New(s.Node), func() int {
		if s.HostEngine().NonRoot {
			return unprivilegedUID
		}

		return 0
	}
}

// The variables that name the API server of a simulated node, and the folder with the credentials
// of a service account there.
const (
	apiServerVariable   = "MIG_SIM_API_SERVER"
	credentialsVariable = "MIG_SIM_API_CREDENTIALS"
)

func (simulation) apiServer() (apiServer, error) {
	return apiServer{
		address:     os.Getenv(apiServerVariable),
		credentials: os.Getenv(credentialsVariable),
	}, nil
}

// openDependencies only opens the cluster, if there is one: a simulated node has no process table and
// no other programs that manage its GPUs.
func (s simulation) openDependencies(n *node, _ *ControlConfig) (server.Reviewer, error) {
	n.control.BootID = s.BootID()

	if n.cluster == nil {
		return nil, nil
	}

	n.control.Cluster = owners.NewCluster(n.cluster, n.cluster)

	return n.cluster, nil
}

// simulatedMetadata is the API server of a simulated node.
type simulatedMetadata struct {
	node     *sim.Node
	labels   []string
	workload string // the label that names a pod's workload for right-sizing
}

// PodMetadata implements podresources.Metadata. Of the pod's labels it returns those that the
// configuration has chosen.
func (m simulatedMetadata) PodMetadata(
	namespace, pod string,
	since time.Time,
) (gpu.PodMetadata, bool) {
	p, ok := m.node.PodByName(namespace, pod, since)
	known := gpu.PodMetadata{UID: p.UID, Workload: p.Owner, Template: podmeta.TemplateOf(p.Labels)}
	known.Rightsizing, _ = podmeta.ParseHints(p.Annotations)
	known.Rightsizing.Workload = p.Labels[m.workload]
	known.Group = podmeta.ParseGroup(p.Labels, p.Annotations)

	for _, name := range m.labels {
		if value, has := p.Labels[name]; has {
			known.Labels = append(known.Labels, gpu.Label{Name: name, Value: value})
		}
	}

	return known, ok
}

// PodByUID implements podresources.Metadata.
func (m simulatedMetadata) PodByUID(uid string) (namespace, pod string, ok bool) {
	p, ok := m.node.PodByUID(uid)
	return p.Namespace, p.Name, ok && !p.Ended
}

// BoundPods implements podresources.Metadata.
func (m simulatedMetadata) BoundPods(time.Time) (pods []gpu.PodName, current bool) {
	pods, current = m.node.RunningPods()
	slices.SortFunc(pods, func(a, b gpu.PodName) int {
		return strings.Compare(a.String(), b.String())
	})

	return pods, current
}

// PodGone implements podresources.Metadata. It ignores the time since which the answer must be,
// because it asks the simulated API server in each call.
func (m simulatedMetadata) PodGone(namespace, pod, uid string, _ time.Time) bool {
	return m.node.PodGone(namespace, pod, uid)
}

// AdminAccess implements podresources.Metadata.
func (m simulatedMetadata) AdminAccess(d gpu.ClaimDevice, _ time.Time) (bool, error) {
	admin, err := m.node.AdminAccess(d)
	if err != nil {
		return false, fmt.Errorf("claim %s in namespace %s: %w", d.Claim, d.Namespace, err)
	}

	return admin, nil
}

// State returns the state of the API server.
func (m simulatedMetadata) State() gpu.SourceState {
	answered, up := m.node.APIServer()
	state := gpu.SourceState{Name: gpu.SourceKubernetes, Up: up, LastSuccess: answered}

	if !up {
		state.Err = fmt.Errorf("simulated API server: %w", gpu.ErrUnavailable)
	}

	return state
}

// faultyKubelet brings the simulated kubelet into the state that the node's faults want, before each
// request to it.
type faultyKubelet struct {
	control.Assignments
	node   *sim.Node
	server *kubelet.Server
}

// List implements control.Assignments.
func (k faultyKubelet) List(ctx context.Context) (gpu.Assignments, error) {
	if err := k.server.Follow(k.node.Kubelet()); err != nil {
		return gpu.Assignments{}, fmt.Errorf("%w: %w", gpu.ErrUnavailable, err)
	}

	return k.Assignments.List(ctx)
}

// Allocatable implements control.Assignments.
func (k faultyKubelet) Allocatable(ctx context.Context) ([]gpu.Offer, error) {
	if err := k.server.Follow(k.node.Kubelet()); err != nil {
		return nil, fmt.Errorf("%w: %w", gpu.ErrUnavailable, err)
	}

	return k.Assignments.Allocatable(ctx)
}

func (s simulation) boundGPUs() ([]string, error) {
	var list []string
	for _, index := range s.BoundGPUs() {
		list = append(list, s.BusID(index))
	}

	return list, nil
}

func (s simulation) openMinors() ([]int, error) {
	var list []int
	for _, index := range s.OpenGPUs() {
		list = append(list, s.Minor(index))
	}

	return list, nil
}
