package sim

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// FaultKind is a way in which a driver or a GPU misbehaves.
type FaultKind string

// The faults.
const (
	FaultHang            FaultKind = "hang"                 // calls to the GPU do not return until it ends
	FaultDriverLock      FaultKind = "driver-lock"          // calls to any GPU do not return until it ends
	FaultLost            FaultKind = "lost"                 // the GPU has fallen off the bus
	FaultResetRequired   FaultKind = "reset-required"       // the GPU wants a reset
	FaultNotSupported    FaultKind = "not-supported"        // one reading is not offered
	FaultNoPermission    FaultKind = "no-permission"        // one reading, or everything that needs rights, is refused
	FaultSlow            FaultKind = "slow"                 // every call to the GPU takes a time
	FaultXID             FaultKind = "xid"                  // an XID error is reported
	FaultVersionMismatch FaultKind = "version-mismatch"     // the driver was upgraded under the library
	FaultNoDriver        FaultKind = "no-driver"            // the kernel driver is not loaded
	FaultOverheat        FaultKind = "overheat"             // the GPU is hot
	FaultPowerBrake      FaultKind = "power-brake"          // the server's power brake reduces the GPU's clocks
	FaultReconfigure     FaultKind = "external-reconfigure" // another client repartitions the GPU
	FaultDestroyLies     FaultKind = "destroy-lies"         // destroying an instance succeeds and leaves it there
	FaultChangeFails     FaultKind = "change-fails"         // a change of the partition is refused
	FaultElsewhere       FaultKind = "create-elsewhere"     // what is created is at another place than asked for
	// a process begins on a compute instance as it is to be destroyed
	FaultProcessStarts FaultKind = "process-starts"
	FaultReboot        FaultKind = "reboot" // the node reboots
	// the GPU is unbound from the driver, as soon as no client has it open, and bound again at the end
	FaultUnbind FaultKind = "unbind"
	// every queue of events fails once, and what was in it is lost
	FaultEventsLost  FaultKind = "events-lost"
	FaultKubeletDown FaultKind = "kubelet-down" // no process listens on the kubelet's socket
	FaultKubeletSlow FaultKind = "kubelet-slow" // every answer of the kubelet takes a time
	// the kubelet is down for a time, or an instant, and is started again
	FaultKubeletRestart FaultKind = "kubelet-restart"
	FaultAPIServerDown  FaultKind = "api-server-down" // the API server does not answer
	FaultAPIServerSlow  FaultKind = "api-server-slow" // the API server reports new pods after a time
	// the checkpoint of the kubelet's device manager is cut short
	FaultBadCheckpoint FaultKind = "checkpoint-invalid"
	// the device plugin offers the devices that there were when it began
	FaultPluginStale FaultKind = "device-plugin-stale"
	// every allocation of a device plugin takes a time
	FaultPluginSlow  FaultKind = "device-plugin-slow"
	FaultClockJump   FaultKind = "clock-jump"   // the node's clock is wrong by a time
	FaultActivityNaN FaultKind = "activity-nan" // profiling counters return NaN
	// profiling ratios exceed 1, as with mixed profiles on A100
	FaultActivityAbove FaultKind = "activity-above-one"
	FaultDCGMDown      FaultKind = "dcgm-down"    // the host engine does not answer; what it had is gone
	FaultDCGMRestart   FaultKind = "dcgm-restart" // the host engine ends and starts again
	// the host engine is stopped: calls do not return until it ends
	FaultDCGMHang    FaultKind = "dcgm-hang"
	FaultDCGMPaused  FaultKind = "dcgm-paused"        // profiling is paused: values are blank
	FaultDCGMNonRoot FaultKind = "dcgm-requires-root" // the host engine runs without root's rights
	// the host engine lacks the module that profiles GPUs without GPM
	FaultDCGMNoModule FaultKind = "dcgm-no-profiling-module"
	FaultDCGMGroups   FaultKind = "dcgm-groups-taken"     // another client has taken all groups of the host engine
	FaultDCGMVersion  FaultKind = "dcgm-version-mismatch" // the host engine is of another version than its clients
)

// FaultSpec is a fault that lasts for a period or occurs at an instant.
type FaultSpec struct {
	Kind FaultKind
	At   time.Duration `yaml:",omitempty"`
	For  time.Duration `yaml:",omitempty"`    // 0: it does not end
	GPU  gpu.Opt[int]  `yaml:"gpu,omitempty"` // absent: every GPU

	Reading gpu.Reading `yaml:",omitempty"` // of not-supported and no-permission
	// the fault begins with the first call for this reading after At; empty: at At
	During gpu.Reading `yaml:",omitempty"`
	// the fault is about changes of the partition of this kind, anyChange for all; see call.go
	On    ChangeOp `yaml:",omitempty"`
	After int      `yaml:",omitempty" range:"0..65536"` // this many of them succeed first
	// how many calls are affected, for a fault of single calls
	Times    int                     `default:"1" range:"1..65536"`
	Error    error                   `yaml:",omitempty"` // of change-fails
	Delay    time.Duration           `yaml:",omitempty"`
	By       clockOffset             `yaml:",omitempty"`                // of a clock-jump; negative: backwards
	Celsius  int                     `yaml:",omitempty" range:"0..127"` // of an overheat
	XID      uint64                  `yaml:"xid,omitempty" range:"1..1048576"`
	Instance gpu.Opt[gpu.InstanceID] `yaml:"gi,omitempty" range:"0..255"` // where an XID is reported
	Compute  gpu.Opt[gpu.ComputeID]  `yaml:"ci,omitempty" range:"0..255"`
	// Recovery is what the driver asks for while an XID's time lasts; empty: nothing.
	Recovery gpu.RecoveryAction `yaml:",omitempty" oneof:"none reset reboot drain drain_and_reset"`
	Layout   []LayoutSpec       `yaml:"-"` // of an external-reconfigure
}

// active reports whether the fault holds for a GPU after a time; index -1 is the driver as a whole.
func (f *FaultSpec) active(index int, t time.Duration) bool {
	if which, ok := f.GPU.Get(); ok && which != index {
		return false
	}

	return f.At <= t && (f.For == 0 || t < f.At+f.For)
}

// driverAsWhole stands for no GPU in calls and faults.
const driverAsWhole = -1

// beginCall begins a driver call for a GPU. It blocks while a fault makes the call hang, and returns the error that the
// active faults cause. If err is nil it holds the lock, with the state brought up to now.
func (n *Node) beginCall(index int, reading gpu.Reading) (now time.Time, err error) {
	if index < 0 || index >= len(n.gpus) {
		return time.Time{}, gpu.ErrInvalidArgument
	}

	return n.enterAny(index, reading)
}

// enterAny is beginCall for a GPU that exists, or for driverAsWhole.
func (n *Node) enterAny(index int, reading gpu.Reading) (now time.Time, err error) {
	slept := false

	for {
		select {
		case <-n.closed:
			return time.Time{}, ErrClosed
		default:
		}

		now = n.lock()
		if err := n.stateError(); err != nil {
			n.mu.Unlock()
			return time.Time{}, err
		}

		n.triggerFaults(index, reading, now)

		until, delay, blocked := n.blocked(index, now)
		if !blocked && (delay == 0 || slept) {
			break
		}

		n.mu.Unlock()

		if blocked {
			n.clock.waitUntil(until, n.closed)
			continue
		}

		slept = true
		n.sleep(delay)
	}

	if err := n.faultError(index, reading, now); err != nil {
		n.mu.Unlock()
		return time.Time{}, err
	}

	return now, nil
}

// sleep takes real time, whatever the clock: it is the caller that is made to wait.
func (n *Node) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
	case <-n.closed:
	}
}

// eachActiveFault calls do for every fault that is active for a GPU, or for driverAsWhole. For a GPU, the caller holds
// the lock.
func (n *Node) eachActiveFault(index int, now time.Time, do func(f *FaultSpec)) {
	passed := now.Sub(n.start)
	for i := range n.scenario.Faults {
		if f := &n.scenario.Faults[i]; f.active(index, passed) && !f.ofCall() &&
			(!f.beginsWithCall() || index != driverAsWhole && n.triggered[f]) {
			do(f)
		}
	}
}

// blocked reports whether a call hangs now and until when (zero: for good), or else how long it takes.
func (n *Node) blocked(
	index int,
	now time.Time,
) (until time.Time, delay time.Duration, blocked bool) {
	if index == driverAsWhole {
		return time.Time{}, 0, false
	}

	n.eachActiveFault(index, now, func(f *FaultSpec) {
		switch f.Kind {
		case FaultHang, FaultDriverLock:
			if blocked = true; f.For > 0 {
				until = n.start.Add(f.At + f.For)
			}
		case FaultSlow:
			delay = max(delay, f.Delay)
		}
	})

	return until, delay, blocked
}

// faultError returns the error that the active faults cause in a call. The most general fault takes precedence.
func (n *Node) faultError(index int, reading gpu.Reading, now time.Time) error {
	order := []error{
		gpu.ErrVersionMismatch,
		gpu.ErrNoDriver,
		gpu.ErrLost,
		gpu.ErrResetRequired,
		gpu.ErrNoPermission,
		gpu.ErrNotSupported,
	}
	worst := len(order)
	n.eachActiveFault(index, now, func(f *FaultSpec) {
		rank := len(order)

		switch f.Kind {
		case FaultVersionMismatch:
			rank = 0
		case FaultNoDriver:
			rank = 1
		case FaultLost:
			rank = 2
		case FaultResetRequired:
			rank = 3
		case FaultNoPermission:
			if f.Reading == reading {
				rank = 4
			}
		case FaultNotSupported:
			if f.Reading == reading {
				rank = 5
			}
		}

		if index == driverAsWhole && rank > 1 {
			return
		}

		worst = min(worst, rank)
	})

	if worst == len(order) {
		return nil
	}

	return order[worst]
}

// privileged reports whether callers have root's rights on a GPU. A no-permission fault without a reading takes them
// away.
func (n *Node) privileged(index int, now time.Time) bool {
	privileged := n.scenario.Node.Privileged
	n.eachActiveFault(index, now, func(f *FaultSpec) {
		if f.Kind == FaultNoPermission && f.Reading == "" {
			privileged = false
		}
	})

	return privileged
}

// recovery is what the driver asks an operator to do about a GPU.
func (n *Node) recovery(index int, now time.Time) gpu.RecoveryAction {
	action := gpu.RecoveryNone
	n.eachActiveFault(index, now, func(f *FaultSpec) {
		if f.Kind == FaultXID && f.Recovery != "" {
			action = f.Recovery
		}
	})

	return action
}

// scheduleFault puts a fault that happens at a moment on the schedule; the others are looked up when a call is made.
func (n *Node) scheduleFault(f *FaultSpec) {
	if f.beginsWithCall() {
		return
	}

	at := n.start.Add(f.At)
	switch f.Kind {
	case FaultXID:
		n.schedule = append(n.schedule, scheduledEvent{at, rankFault, func() { n.xid(f) }})
	case FaultReboot:
		n.schedule = append(n.schedule, scheduledEvent{at, rankFault, n.reboot})
	case FaultEventsLost:
		n.schedule = append(n.schedule, scheduledEvent{at, rankFault, n.loseEvents})
	case FaultReconfigure:
		n.schedule = append(n.schedule,
			scheduledEvent{at, rankFault, func() { n.repartition(n.gpus[f.GPU.Or(0)], f.Layout) }})
	case FaultKubeletDown, FaultKubeletRestart:
		if f.For > 0 || f.Kind == FaultKubeletRestart {
			n.schedule = append(
				n.schedule,
				scheduledEvent{at.Add(f.For), rankFault, n.writeCheckpoint},
			)
		}
	case FaultBadCheckpoint:
		n.scheduleSpan(f, rankFault, n.touchCheckpoint, n.touchCheckpoint)
	case FaultPluginStale: // before what else happens at its time: that is what it does not notice
		n.scheduleSpan(f, rankEnd, n.freezeOffers, n.thawOffers)
	}
}

// scheduleSpan puts the begin and the end of a fault on the schedule.
func (n *Node) scheduleSpan(f *FaultSpec, rank int, begin, end func()) {
	n.schedule = append(n.schedule, scheduledEvent{n.start.Add(f.At), rank, begin})
	if f.For > 0 {
		n.schedule = append(n.schedule, scheduledEvent{n.start.Add(f.At + f.For), rank, end})
	}
}

// channelsPerProcess is how many channels a simulated process has; a CUDA program has several.
const channelsPerProcess = 4

// xid reports an XID error in the kernel's log and by the driver's events. With those after which the driver cannot use
// the GPU any more it says so first, by an event of its own (open-gpu-kernel-modules 595.45.04: 79 in osinit.c, 119 in
// kernel_gsp.c, NV2080_NOTIFIERS_GPU_UNAVAILABLE).
func (n *Node) xid(f *FaultSpec) {
	index := f.GPU.Or(0)
	n.gpus[index].errors.count(f.XID)
	n.printXID(f)

	if f.XID == 79 || f.XID == 119 {
		n.emit(Event{Kind: gpu.EventUnavailable, GPU: index, Time: n.at})
	}

	if f.Recovery != "" {
		n.emit(Event{Kind: gpu.EventRecoveryAction, GPU: index, Time: n.at})
	}

	for range n.xidEvents(f) {
		n.emit(
			Event{
				Kind:     gpu.EventXID,
				GPU:      index,
				Instance: f.Instance,
				Compute:  f.Compute,
				XID:      f.XID,
				Time:     n.at,
			},
		)
	}
}

// xidEvents returns how many events the driver sends for an XID. NVML's event is made of the notifier of a channel that
// fails (open-gpu-kernel-modules 595.45.04, src/nvidia/src/kernel/gpu/rc/kernel_rc_notification.c 463). 79 and 120
// strike all channels of the GPU, so that an idle one sends none (kernel_rc.c 690-760, osinit.c 367-392). 62, which GSP
// reports, is only printed (kernel_gsp.c 735-771); of a 119 the GPU being unavailable is all that is sent (kernel_gsp.c
// 2618; NVIDIA/DCGM#235).
func (n *Node) xidEvents(f *FaultSpec) int {
	switch f.XID {
	case 62, 119:
		return 0
	case 79, 120:
		return channelsPerProcess * len(n.gpus[f.GPU.Or(0)].tasks)
	}

	return 1
}

// errorCounts are a GPU's memory errors.
type errorCounts struct {
	ecc      ECC
	remapped gpu.RemappedRows
}

// count adds what an XID says of memory (NVIDIA's XID catalogue): 48, 94 and 95 are uncorrectable errors, 63 a row that
// was or will be remapped, 64 one that could not be.
func (e *errorCounts) count(xid uint64) {
	switch xid {
	case 48, 94, 95:
		e.ecc.UncorrectedVolatile++
		e.ecc.UncorrectedAggregate++
	case 63:
		e.remapped.Uncorrectable++
		e.remapped.Pending = true
	case 64:
		e.remapped.Failure = true
	}
}
