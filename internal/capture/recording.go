// Package capture records what a node's driver answers, call by call, in a file that a person can
// read and send, and answers from such a file as that driver did, poll by poll. It implements the
// driver seam of nvmlsource, whose callers cannot tell a replay from the node.
package capture

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Recording is what the driver of one node answered during some polls. Its fields are those of the
// file.
type Recording struct {
	Version  int      `yaml:"version" range:"1..1" expected:"1, the format's version"`
	Node     nodeInfo `yaml:"node,flow"`
	Recorded recorded `yaml:"recorded"`
}

type nodeInfo struct {
	Hostname   string `yaml:"hostname"`
	Kubernetes bool   `yaml:"kubernetes" oneof:"false" expected:"false: the kubelet of a node is not recorded"`
	// PIDNamespace says where the program that made the recording ran: on the host, or in a container,
	// in which the host's processes are hidden. Files of earlier versions do not have it.
	PIDNamespace string `yaml:"pidNamespace,omitempty" oneof:"host container"`
}

// ProcessesHidden returns why processes may have been hidden from the program that made the
// recording, nil if they were not. The error wraps gpu.ErrPIDNamespace.
func (r *Recording) ProcessesHidden() error {
	switch r.Node.PIDNamespace {
	case hostNamespace:
		return nil
	case "":
		return fmt.Errorf(
			"the recording does not say in which PID namespace it was made: %w",
			gpu.ErrPIDNamespace,
		)
	}

	return fmt.Errorf("the recording was made in a container: %w", gpu.ErrPIDNamespace)
}

// The PID namespaces of recordings, as in scenarios.
const (
	hostNamespace      = "host"
	containerNamespace = "container"
)

type recorded struct {
	By    string    `yaml:"by"`    // the program that made the recording
	Start time.Time `yaml:"start"` // when the first poll began
	// Polls are the times of the polls, counted from Start; the first is 0. They follow the node's
	// clock, which may have been set back.
	Polls      pollTimes              `yaml:"polls,flow"`
	Pseudonyms bool                   `yaml:"pseudonyms"` // identities are not the node's own
	Node       nodeAnswers            `yaml:"node"`
	Events     []eventRecord          `yaml:"events,omitempty"`
	GPUs       map[gpuName]*gpuRecord `yaml:"gpus"`
}

// gpuRecord is what was answered for one handle of a GPU.
type gpuRecord struct {
	Answers      gpuAnswers               `yaml:"answers"`
	MIGDevices   map[int]migAnswers       `yaml:"mig_devices,omitempty"` // by NVML's index
	GPUInstances map[slot]instanceAnswers `yaml:"gpu_instances,omitempty"`
}

// eventRecord is an event of the driver, or the failure of its queue.
type eventRecord struct {
	Before pollNumber `yaml:"before"` // the poll before which it arrived
	Error  code       `yaml:"error,omitempty"`
	Event  *event     `yaml:"event,omitempty,flow"`
}

// event is nvmlEventData_t. It has no GPU if the driver named none that is known.
type event struct {
	GPU               gpuName   `yaml:"gpu,omitempty"`
	Type              eventType `yaml:"type"`
	Data              uint64    `yaml:"data"`
	GPUInstanceID     uint32    `yaml:"gpu_instance_id"`
	ComputeInstanceID uint32    `yaml:"compute_instance_id"`
}

// clone returns a copy, which shares the values of answers: they are never modified.
func (r *Recording) clone() *Recording {
	out := *r
	out.Recorded.Node = cloneSeries(r.Recorded.Node)
	out.Recorded.Events = slices.Clone(r.Recorded.Events)

	out.Recorded.GPUs = make(map[gpuName]*gpuRecord, len(r.Recorded.GPUs))
	for name, g := range r.Recorded.GPUs {
		out.Recorded.GPUs[name] = &gpuRecord{
			cloneSeries(g.Answers),
			cloneAll(g.MIGDevices),
			cloneAll(g.GPUInstances),
		}
	}

	return &out
}

func cloneAll[K comparable, A ~map[string]*series](all map[K]A) map[K]A {
	out := make(map[K]A, len(all))
	for key, a := range all {
		out[key] = cloneSeries(a)
	}

	return out
}

func cloneSeries[A ~map[string]*series](a A) A {
	out := make(A, len(a))
	for call, s := range a {
		out[call] = &series{entries: slices.Clone(s.entries)}
	}

	return out
}

const head = `# What the NVIDIA driver of one node answered, call by call, written by "mig-exporter capture".
#
# To serve the same metrics again (add --sim.clock=step to go poll by poll):
#   mig-exporter --driver=sim --sim.scenario=THIS-FILE
#
# In it: models, versions, PCI addresses, MIG layout, readings, events, the memory of processes, ` +
	`and every error of
# the driver. Not in it: names or command lines of processes, pods, users, files; ` +
	`nothing that the driver was not asked
# for metrics.
# UUIDs, serial numbers, process ids and the host's name are %s.
#
# An answer is a value, ok, or {error: NVML's code}. {polls: {0: A, 2: B}} is A ` +
	`from the first poll on and B from the
# third (2.2: what the second call in that poll got). {hangs: 3, then: A}: ` +
	`the call returned in the fourth poll,
# {hangs: ever}: not while this was recorded.
`

// Bytes returns the recording as a scenario file. Equal recordings give equal bytes.
func (r *Recording) Bytes() ([]byte, error) {
	identities := "THE NODE'S OWN (--capture.keep-identities)"
	if r.Recorded.Pseudonyms {
		identities = "replaced by pseudonyms, the same throughout the file"
	}

	var out bytes.Buffer
	fmt.Fprintf(&out, head, identities)
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)

	if err := encoder.Encode(r); err != nil {
		return nil, fmt.Errorf("encode recording: %w", err)
	}

	if err := encoder.Close(); err != nil {
		return nil, fmt.Errorf("encode recording: %w", err)
	}

	return out.Bytes(), nil
}
