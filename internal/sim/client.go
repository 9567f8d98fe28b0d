package sim

import (
	"fmt"
	"slices"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// LookupScope says which GPUs a client opens when it looks one up by its PCI bus id.
type LookupScope string

// The scopes. nvml.h says of lookups by index and PCI bus id that they cause "NVML to initialize the
// target GPU" (LookupOwn), and of lookups by UUID and serial number that they "may initialize
// additional GPUs as it searches" (LookupAll). The library is closed, so we do not know for which of
// them it opens /dev/nvidia*: clients must cope with both.
const (
	LookupOwn LookupScope = "own" // only the GPU that it looks up
	LookupAll LookupScope = "all" // all GPUs
)

// Client is a process that uses the driver. Between Begin and End it sees the GPUs that were bound
// at Begin, and keeps those open that it has attached. NVML does the same from nvmlInit, which
// attaches all GPUs unless NVML_INIT_FLAG_NO_ATTACH is set, to nvmlShutdown
// (kubernetes-sigs/dra-driver-nvidia-gpu#1076, NVIDIA/dcgm-exporter#706 and #716). It is safe for
// concurrent use.
type Client struct {
	node   *Node
	opened func(index int, open bool) // called for each GPU that the client opens or closes; may be nil

	mu      sync.Mutex
	begins  int          // calls of Begin less calls of End; NVML counts them, too
	visible []int        // the GPUs that the client sees, by index of the node
	open    map[int]bool // the GPUs that the client has open
}

// NewClient returns a client that has not begun. opened may be nil.
func (n *Node) NewClient(opened func(index int, open bool)) *Client {
	return &Client{node: n, opened: opened, open: map[int]bool{}}
}

// Begin begins to use the driver, and attaches all GPUs if attach is set. If there are several
// Begins, only the first one's attach counts: for a later one, nvml.h has another flag,
// NVML_INIT_FLAG_FORCE_INIT.
func (c *Client) Begin(attach bool) error {
	if err := c.node.Driver(); err != nil { // not under the lock: it may block for long
		return err
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.begins++
	if c.begins > 1 {
		return nil
	}

	c.visible = c.node.BoundGPUs()
	if attach {
		c.attach(c.visible)
	}

	return nil
}

// End undoes one Begin. The last closes all GPUs. It reports whether there was a Begin.
func (c *Client) End() (begun bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.begins == 0 {
		return false
	}

	c.begins--
	if c.begins == 0 {
		for index := range c.open {
			c.setOpen(index, false)
		}

		clear(c.open)
		c.visible = nil
	}

	return true
}

// Count returns how many GPUs the client sees.
func (c *Client) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return len(c.visible)
}

// At returns the GPU at an index of the client, and attaches it.
func (c *Client) At(index int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if index < 0 || index >= len(c.visible) {
		return 0, gpu.ErrInvalidArgument
	}

	c.attach(c.visible[index : index+1])

	return c.visible[index], nil
}

// Open attaches a GPU that the client has looked up by another name than its index, or all GPUs
// with LookupAll.
func (c *Client) Open(index int) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	if !slices.Contains(c.visible, index) {
		return gpu.ErrNotFound
	}

	if c.node.scenario.Node.LookupOpens == LookupAll {
		c.attach(c.visible)
	}

	c.attach([]int{index})

	return nil
}

// attach opens GPUs. The caller holds mu.
func (c *Client) attach(indices []int) {
	for _, index := range indices {
		if !c.open[index] {
			c.open[index] = true
			c.setOpen(index, true)
		}
	}
}

func (c *Client) setOpen(index int, open bool) {
	c.node.countOpen(index, open)

	if c.opened != nil {
		c.opened(index, open)
	}
}

// countOpen counts one more client that has a GPU open, or one less.
func (n *Node) countOpen(index int, open bool) {
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	if open {
		n.open[index]++
	} else {
		n.open[index]--
	}
}

// OpenGPUs returns the GPUs that clients of this process have open, by index.
func (n *Node) OpenGPUs() []int {
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	var list []int

	for index, clients := range n.open {
		if clients > 0 {
			list = append(list, index)
		}
	}

	slices.Sort(list)

	return list
}

// BoundGPUs returns the GPUs that are bound to the kernel driver, by index. With FaultUnbind the
// kernel unbinds a GPU once no client has it open.
func (n *Node) BoundGPUs() []int {
	now := n.lockAndCatchUp()
	defer n.mu.Unlock()

	var list []int

	for index := range n.gpus {
		unbinds := false
		n.eachActiveFault(
			index,
			now,
			func(f *FaultSpec) { unbinds = unbinds || f.Kind == FaultUnbind },
		)

		n.unbound[index] = unbinds && (n.unbound[index] || n.open[index] == 0)
		if !n.unbound[index] {
			list = append(list, index)
		}
	}

	return list
}

// BindEvent says that the kernel driver has bound a GPU, or begins to unbind it.
type BindEvent struct {
	Index int
	Bound bool
}

// BindWatch delivers a node's BindEvents. It is safe for concurrent use.
type BindWatch struct {
	node *Node

	mu       sync.Mutex
	reported map[int]bool // the unbinding GPUs (see Node.unbindingGPUs) as of the events so far
}

// WatchBinding returns a BindWatch with the events from now on.
func (n *Node) WatchBinding() *BindWatch { return &BindWatch{node: n, reported: n.unbindingGPUs()} }

// Events returns the events since the last call, by GPU, at most limit of them.
func (w *BindWatch) Events(limit int) []BindEvent {
	unbinding := w.node.unbindingGPUs()

	w.mu.Lock()
	defer w.mu.Unlock()

	var events []BindEvent
	for index := range w.node.Count() {
		if unbinding[index] != w.reported[index] && len(events) < limit {
			events = append(events, BindEvent{Index: index, Bound: !unbinding[index]})
			w.reported[index] = unbinding[index]
		}
	}

	return events
}

// unbindingGPUs returns the GPUs that are unbound, or about to be, by index.
func (n *Node) unbindingGPUs() map[int]bool {
	now := n.lockAndCatchUp()
	defer n.mu.Unlock()

	unbinding := map[int]bool{}

	for index := range n.gpus {
		n.eachActiveFault(index, now, func(f *FaultSpec) {
			if f.Kind == FaultUnbind {
				unbinding[index] = true
			}
		})
	}

	return unbinding
}

// PCIID returns the number by which the driver's system events name a GPU
// (open-gpu-kernel-modules, gpuGenerate32BitId).
func (n *Node) PCIID(index int) uint32 {
	domain, bus := pciBus(index, n.gpus[index].model.arch)
	return domain<<16 | bus<<8
}

// ReportsBinding reports whether the driver has events for GPUs that are unbound or bound. We
// assume that it does from 580 on.
func (n *Node) ReportsBinding() bool { return n.scenario.Node.DriverBranch() >= 580 }

// BusID returns the PCI bus id of a GPU as the kernel writes it, without a call of the driver.
func (n *Node) BusID(index int) string {
	domain, bus := pciBus(index, n.gpus[index].model.arch)
	return fmt.Sprintf("%04x:%02x:00.0", domain, bus)
}

// FindBusID returns the index of the GPU with a PCI bus id, without a call of the driver. It
// accepts the same forms as nvmlDeviceGetHandleByPciBusId_v2 in nvml.h: domain:bus:device.function,
// domain:bus:device and bus:device.function.
func (n *Node) FindBusID(busID string) (int, error) {
	var domain, bus, device, function uint32
	if count, _ := fmt.Sscanf(busID, "%x:%x:%x.%x", &domain, &bus, &device, &function); count < 3 {
		domain = 0

		if count, _ := fmt.Sscanf(busID, "%x:%x.%x", &bus, &device, &function); count < 3 {
			return 0, gpu.ErrInvalidArgument
		}
	}

	normalized := fmt.Sprintf("%04x:%02x:%02x.%x", domain, bus, device, function)
	for index := range n.gpus {
		if n.BusID(index) == normalized {
			return index, nil
		}
	}

	return 0, gpu.ErrNotFound
}

// Minor returns the minor number of a GPU's device node, without a call of the driver.
func (n *Node) Minor(index int) int { return n.gpus[index].minor }
