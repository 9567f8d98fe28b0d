// Package capture writes down what a node's driver says, question by question, as a file that a person can read and send;
// and answers from such a file as that driver did, poll by poll. It stands at the driver seam of nvmlsrc: what is above
// it cannot tell a replay from the node.
package capture

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Recording is what the driver of one node said during some polls. It must not be modified while a Replay of it is open.
type Recording struct {
	Hostname string
	By       string    // the program that made it
	Start    time.Time // of the first poll
	// Moments are the times of the polls, counted from Start; the first is 0. They follow the node's clock, which may have
	// been set back.
	Moments []time.Duration
	// Pseudonyms says that identities are not the node's own.
	Pseudonyms bool

	node   answers
	gpus   []gpuRecord
	events []eventRecord
}

// gpuRecord is what was said by one GPU, or rather by one handle of it.
type gpuRecord struct {
	name string
	answers
	devices   map[int]answers  // MIG devices, by NVML's index
	instances map[slot]answers // GPU instances
}

// slot is where a GPU instance stands in the lists that the driver gives: by profile id and position. Its handle has no
// other name before it is asked.
type slot struct {
	profile  uint32
	position int
}

// eventRecord is an event of the driver, or the failure of its queue.
type eventRecord struct {
	before int    // the moment before whose poll it came
	gpu    string // name of the GPU; empty where the event named none that is known
	event  event
	ret    nvml.Return // other than SUCCESS: the queue failed
}

// event is nvmlEventData_t without the device.
type event struct {
	Type              uint64
	Data              uint64
	GPUInstanceID     uint32
	ComputeInstanceID uint32
}
