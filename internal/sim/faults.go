package sim

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// FaultKind is a way in which a driver or a GPU misbehaves.
type FaultKind string

// The faults.
const (
	FaultHang          FaultKind = "hang"           // calls to the GPU do not return until the fault ends
	FaultDriverLock    FaultKind = "driver-lock"    // calls to any GPU do not return until the fault ends
	FaultLost          FaultKind = "lost"           // the GPU has fallen off the bus
	FaultResetRequired FaultKind = "reset-required" // the GPU needs a reset
	FaultNotSupported  FaultKind = "not-supported"  // the driver does not support Reading
	// the driver refuses Reading or, if that is empty, everything that needs root's rights
	FaultNoPermission    FaultKind = "no-permission"
	FaultSlow            FaultKind = "slow"                 // every call to the GPU takes Delay
	FaultXID             FaultKind = "xid"                  // an XID error is reported
	FaultVersionMismatch FaultKind = "version-mismatch"     // the driver was upgraded under the library
	FaultNoDriver        FaultKind = "no-driver"            // the kernel driver is not loaded
	FaultOverheat        FaultKind = "overheat"             // the GPU is hot
	FaultPowerBrake      FaultKind = "power-brake"          // the server's power brake reduces the GPU's clocks
	FaultReconfigure     FaultKind = "external-reconfigure" // another client repartitions the GPU
	// destroying an instance succeeds and leaves it there
	FaultDestroyLies FaultKind = "destroy-lies"
	FaultChangeFails FaultKind = "change-fails"     // a change of the partition fails with Error
	FaultElsewhere   FaultKind = "create-elsewhere" // the driver creates an instance at another placement
	// a process starts on a compute instance just before a client destroys that
	FaultProcessStarts FaultKind = "process-starts"
	FaultReboot        FaultKind = "reboot" // the node reboots
	// the GPU is unbound from the driver once no client has it open, and bound again when the fault
	// ends
	FaultUnbind FaultKind = "unbind"
	// every queue of events fails once and loses its events
	FaultEventsLost  FaultKind = "events-lost"
	FaultKubeletDown FaultKind = "kubelet-down" // no process listens on the kubelet's socket
	FaultKubeletSlow FaultKind = "kubelet-slow" // the kubelet answers after Delay
	// the kubelet stops and starts again: after For, or at once
	FaultKubeletRestart FaultKind = "kubelet-restart"
	FaultAPIServerDown  FaultKind = "api-server-down" // the API server does not answer
	FaultAPIServerSlow  FaultKind = "api-server-slow" // the API server reports new pods after Delay
	// the checkpoint of the kubelet's device manager is cut short
	FaultBadCheckpoint FaultKind = "checkpoint-invalid"
	// the device plugin offers the devices that existed when the fault began
	FaultPluginStale FaultKind = "device-plugin-stale"
	// the device plugin takes Delay for every allocation
	FaultPluginSlow  FaultKind = "device-plugin-slow"
	FaultClockJump   FaultKind = "clock-jump"   // the node's clock is wrong by By
	FaultActivityNaN FaultKind = "activity-nan" // profiling counters return NaN
	// profiling ratios exceed 1, as with mixed profiles on A100
	FaultActivityAbove FaultKind = "activity-above-one"
	FaultDCGMDown      FaultKind = "dcgm-down"    // the host engine is gone, with its groups and samples
	FaultDCGMRestart   FaultKind = "dcgm-restart" // the host engine ends and starts again
	// the host engine is stopped: calls do not return until the fault ends
	FaultDCGMHang    FaultKind = "dcgm-hang"
	FaultDCGMPaused  FaultKind = "dcgm-paused"        // profiling is paused: values are blank
	FaultDCGMNonRoot FaultKind = "dcgm-requires-root" // the host engine runs without root's rights
	// the host engine lacks the module that profiles GPUs without GPM
	FaultDCGMNoModule FaultKind = "dcgm-no-profiling-module"
	// another client has taken all groups of the host engine
	FaultDCGMGroups FaultKind = "dcgm-groups-taken"
	// the host engine is of another version than its clients
	FaultDCGMVersion FaultKind = "dcgm-version-mismatch"
)

// FaultSpec is a fault that lasts for a period or occurs at an instant.
type FaultSpec struct {
	Kind FaultKind
	At   time.Duration `yaml:",omitempty"`    // since the start of the node
	For  time.Duration `yaml:",omitempty"`    // 0: it does not end
	GPU  gpu.Opt[int]  `yaml:"gpu,omitempty"` // absent: every GPU

	// Reading is the reading that not-supported or no-permission strikes.
	Reading gpu.Reading `yaml:",omitempty"`
	// During makes the fault begin with the first call for this reading after At. Empty: at At.
	During gpu.Reading `yaml:",omitempty"`
	// On makes the fault affect changes of the partition of this kind, or of all kinds (anyChange),
	// once After of them have gone through: see call.go.
	On    ChangeOp `yaml:",omitempty"`
	After int      `yaml:",omitempty" range:"0..65536"`
	// Times is how many calls a fault of single calls affects.
	Times   int           `default:"1" range:"1..65536"`
	Error   error         `yaml:",omitempty"`                // of change-fails
	Delay   time.Duration `yaml:",omitempty"`                // of the faults called -slow, and of slow
	By      clockOffset   `yaml:",omitempty"`                // of clock-jump; negative: backwards
	Celsius int           `yaml:",omitempty" range:"0..127"` // of overheat
	XID     uint64        `yaml:"xid,omitempty" range:"1..1048576"`
	// Instance and Compute say where an XID is reported; absent: for the GPU as a whole.
	Instance gpu.Opt[gpu.InstanceID] `yaml:"gi,omitempty" range:"0..255"`
	Compute  gpu.Opt[gpu.ComputeID]  `yaml:"ci,omitempty" range:"0..255"`
	// Recovery is the action that the driver asks for while an XID fault lasts; empty: none.
	Recovery gpu.RecoveryAction `yaml:",omitempty" oneof:"none reset reboot drain drain_and_reset"`
	Layout   []InstanceSpec     `yaml:"-"` // of external-reconfigure
}

// active reports whether the fault holds at a time since the start, for a GPU or for noSingleGPU.
func (f *FaultSpec) active(index int, sinceStart time.Duration) bool {
	if only, ok := f.GPU.Get(); ok && only != index {
		return false
	}

	return f.At <= sinceStart && (f.For == 0 || sinceStart < f.At+f.For)
}

// noSingleGPU is the index of calls and faults that concern the node or its driver as a whole.
const noSingleGPU = -1

// beginCall begins a driver call for a GPU. It blocks while a fault makes the call hang, and
// returns the error that the active faults cause. If err is nil, the state is that of now and the
// caller must unlock n.mu.
func (n *Node) beginCall(index int, reading gpu.Reading) (now time.Time, err error) {
	if index < 0 || index >= len(n.gpus) {
		return time.Time{}, gpu.ErrInvalidArgument
	}

	return n.beginAnyCall(index, reading)
}

// beginAnyCall is beginCall for a GPU that exists, or for noSingleGPU.
func (n *Node) beginAnyCall(index int, reading gpu.Reading) (now time.Time, err error) {
	slept := false // a slow fault delays a call once, a hang blocks it while it lasts

	for {
		select {
		case <-n.closed:
			return time.Time{}, ErrClosed
		default:
		}

		now = n.lockAndCatchUp()
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

// sleep waits in real time, even with a stepped clock: the caller is to notice that it waits.
func (n *Node) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
	case <-n.closed:
	}
}

// eachActiveFault calls do for every fault that is active for a GPU or for noSingleGPU, except
// faults of single calls. The caller holds n.mu if it asks for a GPU.
func (n *Node) eachActiveFault(index int, now time.Time, do func(f *FaultSpec)) {
	sinceStart := now.Sub(n.start)

	for i := range n.scenario.Faults {
		f := &n.scenario.Faults[i]
		if f.affectsSingleCalls() || !f.active(index, sinceStart) {
			continue
		}

		if !f.beginsWithCall() || index != noSingleGPU && n.triggered[f] {
			do(f)
		}
	}
}

// blocked reports whether a call hangs now, and until when; a zero until means forever. If the call
// does not hang, delay is how long it takes.
func (n *Node) blocked(
	index int,
	now time.Time,
) (until time.Time, delay time.Duration, blocked bool) {
	if index == noSingleGPU {
		return time.Time{}, 0, false
	}

	n.eachActiveFault(index, now, func(f *FaultSpec) {
		switch f.Kind {
		case FaultHang, FaultDriverLock:
			blocked = true

			if f.For > 0 {
				until = n.start.Add(f.At + f.For)
			}
		case FaultSlow:
			delay = max(delay, f.Delay)
		}
	})

	return until, delay, blocked
}

// faultError returns the error that the active faults cause in a call; nil if they cause none. The
// most general fault takes precedence.
func (n *Node) faultError(index int, reading gpu.Reading, now time.Time) error {
	byPrecedence := []struct {
		kind FaultKind
		err  error
	}{
		{FaultVersionMismatch, gpu.ErrVersionMismatch},
		{FaultNoDriver, gpu.ErrNoDriver},
		{FaultLost, gpu.ErrLost},
		{FaultResetRequired, gpu.ErrResetRequired},
		{FaultNoPermission, gpu.ErrNoPermission},
		{FaultNotSupported, gpu.ErrNotSupported},
	}

	active := map[FaultKind]bool{}
	n.eachActiveFault(index, now, func(f *FaultSpec) {
		switch f.Kind {
		case FaultLost, FaultResetRequired:
			active[f.Kind] = index != noSingleGPU
		case FaultNoPermission, FaultNotSupported:
			active[f.Kind] = active[f.Kind] || index != noSingleGPU && f.Reading == reading
		default:
			active[f.Kind] = true
		}
	})

	for _, f := range byPrecedence {
		if active[f.kind] {
			return f.err
		}
	}

	return nil
}

// privileged reports whether callers have root's rights on a GPU. FaultNoPermission without a
// reading takes them away.
func (n *Node) privileged(index int, now time.Time) bool {
	privileged := n.scenario.Node.Privileged
	n.eachActiveFault(index, now, func(f *FaultSpec) {
		if f.Kind == FaultNoPermission && f.Reading == "" {
			privileged = false
		}
	})

	return privileged
}

// recovery returns what the driver asks the operator to do about a GPU.
func (n *Node) recovery(index int, now time.Time) gpu.RecoveryAction {
	action := gpu.RecoveryNone
	n.eachActiveFault(index, now, func(f *FaultSpec) {
		if f.Kind == FaultXID && f.Recovery != "" {
			action = f.Recovery
		}
	})

	return action
}

// scheduleFault puts a fault on the schedule if something happens when it begins or ends. Other
// faults need no event: each call looks up which are active.
func (n *Node) scheduleFault(f *FaultSpec) {
	if f.beginsWithCall() {
		return
	}

	at := n.start.Add(f.At)
	switch f.Kind {
	case FaultXID:
		n.schedule = append(n.schedule, scheduledEvent{at, rankFault, func() { n.reportXID(f) }})
	case FaultReboot:
		n.schedule = append(n.schedule, scheduledEvent{at, rankFault, n.reboot})
	case FaultEventsLost:
		n.schedule = append(n.schedule, scheduledEvent{at, rankFault, n.loseEvents})
	case FaultReconfigure:
		n.schedule = append(n.schedule,
			scheduledEvent{at, rankFault, func() { n.repartition(n.gpus[f.GPU.Or(0)], f.Layout) }})
	case FaultKubeletDown, FaultKubeletRestart: // the device plugins register after the restart
		if f.For > 0 || f.Kind == FaultKubeletRestart {
			n.schedule = append(
				n.schedule,
				scheduledEvent{at.Add(f.For), rankFault, n.writeCheckpoint},
			)
		}
	case FaultBadCheckpoint:
		n.scheduleSpan(f, rankFault, n.touchCheckpoint, n.touchCheckpoint)
	case FaultPluginStale: // before other events: the plugin misses what happens at the same time
		n.scheduleSpan(f, rankEnd, n.freezeOffers, n.thawOffers)
	}
}

// scheduleSpan puts the begin of a fault on the schedule, and its end if it has one.
func (n *Node) scheduleSpan(f *FaultSpec, rank int, begin, end func()) {
	n.schedule = append(n.schedule, scheduledEvent{n.start.Add(f.At), rank, begin})
	if f.For > 0 {
		n.schedule = append(n.schedule, scheduledEvent{n.start.Add(f.At + f.For), rank, end})
	}
}

// channelsPerProcess is how many GPU channels each simulated process has. CUDA programs have
// several; the number is our choice.
const channelsPerProcess = 4

// reportXID reports an XID error in the kernel's log and by events of the driver. After a 79 or a
// 119 the driver cannot use the GPU any more: it first sends an event that says so
// (open-gpu-kernel-modules 595.45.04: osinit.c, kernel_gsp.c, NV2080_NOTIFIERS_GPU_UNAVAILABLE).
func (n *Node) reportXID(f *FaultSpec) {
	index := f.GPU.Or(0)
	n.gpus[index].errors.count(f.XID)
	n.printXID(f)

	if f.XID == 79 || f.XID == 119 {
		n.emit(Event{Kind: gpu.EventUnavailable, GPU: index, Time: n.stateTime})
	}

	if f.Recovery != "" {
		n.emit(Event{Kind: gpu.EventRecoveryAction, GPU: index, Time: n.stateTime})
	}

	for range n.xidEvents(f) {
		n.emit(
			Event{
				Kind:     gpu.EventXID,
				GPU:      index,
				Instance: f.Instance,
				Compute:  f.Compute,
				XID:      f.XID,
				Time:     n.stateTime,
			},
		)
	}
}

// xidEvents returns how many XID events the driver sends for an XID (lines of open-gpu-kernel-modules
// 595.45.04 in src/nvidia). It sends one event for each channel that fails
// (kernel_rc_notification.c 463). With 79 and 120 all channels of the GPU fail, so it sends none for
// an idle GPU (kernel_rc.c 690-760, osinit.c 367-392). It only prints a 62, which the GSP firmware
// reports (kernel_gsp.c 735-771). For a 119 it only sends the event that the GPU is unavailable
// (kernel_gsp.c 2618; NVIDIA/DCGM#235).
func (n *Node) xidEvents(f *FaultSpec) int {
	switch f.XID {
	case 62, 119:
		return 0
	case 79, 120:
		return channelsPerProcess * len(n.gpus[f.GPU.Or(0)].tasks)
	}

	return 1
}

// errorCounts counts a GPU's memory errors.
type errorCounts struct {
	ecc      ECC
	remapped gpu.RemappedRows
}

// count counts the memory error that an XID reports, if it reports one (NVIDIA's XID catalogue): 48,
// 94 and 95 are uncorrectable errors, 63 is a row that was or will be remapped, and 64 a row that
// could not be remapped.
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
