package health

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// otherXIDFor is how long an XID of ClassOther counts after it occurred.
const otherXIDFor = 10 * time.Minute

// MarginSmall is in degrees Celsius: a GPU that is closer than this to the temperature at which it
// slows down is too warm. The status page and the alert GpuTemperatureHigh use it, too.
const MarginSmall = 3

// past is what we know about a GPU from earlier Snapshots, and from earlier processes.
type past struct {
	recovered   time.Time // XIDs and events up to then are over: see gpuMemory.observe
	unavailable time.Time // when the driver last reported the GPU as unavailable; zero: never
	// xids are the XIDs that count until a reset, with the time of the last of each.
	xids map[uint64]time.Time
}

// judgeNode returns the reasons that concern the node, not a GPU in the Snapshot.
func judgeNode(s *gpu.Snapshot) []Reason {
	var reasons []Reason

	for _, source := range s.Sources {
		if source.Name == gpu.SourceNVML && !source.Up {
			reasons = append(reasons, Reason{Code: CodeDriver, State: Unknown, Action: ActionNone,
				Message: "the driver does not answer" + causeText(source.Err)})
		}
	}

	if len(reasons) == 0 && !s.Driver.Present() {
		reasons = append(reasons, Reason{Code: CodeDriver, State: Unknown, Action: ActionNone,
			Message: "no driver has answered yet"})
	}

	if len(s.Unread) > 0 {
		reasons = append(reasons, Reason{Code: CodeFirstReading, State: Unknown, Action: ActionNone,
			Message: fmt.Sprintf("the first reading of %s is under way", listGPUs(s.Unread))})
	}

	if len(reasons) == 0 && len(s.GPUs) == 0 && len(s.UnlistedXIDs) == 0 {
		reasons = append(reasons, Reason{Code: CodeNoGPUs, State: Unknown, Action: ActionNone,
			Message: "the driver lists no GPU; whether the node should have some is not known"})
	}

	return append(reasons, judgeUnlisted(s.UnlistedXIDs)...)
}

// judgeUnlisted judges XIDs in the kernel's log of GPUs that the driver does not list. A GPU may
// have fallen off the bus before we began.
func judgeUnlisted(lines []gpu.LoggedXID) (reasons []Reason) {
	for _, x := range lines {
		class := ClassOf(x.XID)
		if class != ClassNode && class != ClassHardware {
			continue
		}

		action := ActionReset
		if class == ClassNode {
			action = ActionReboot
		}

		reasons = append(reasons, Reason{Code: CodeUnlistedXID, State: Unhealthy, Action: action,
			Since: x.Time, XID: gpu.Some(x.XID),
			Message: fmt.Sprintf("%s of a GPU at %s, which the driver does not list",
				describeXID(x.XID), x.PCI)})
	}

	return reasons
}

// judgeGPU returns the reasons of a GPU. kernelLogRead is whether we read the kernel's log. allHang
// is set if the driver's calls hang for every GPU of a node that has several.
func judgeGPU(g *gpu.GPU, before past, now time.Time, kernelLogRead, allHang bool) []Reason {
	if r, ok := g.Released.Get(); ok {
		return append(judgeXIDs(g, before, now), Reason{Code: CodeReleased, State: Unknown,
			Action: ActionNone, Since: r.Since,
			Message: fmt.Sprintf("this process has released the GPU (by %s) and reads nothing of it", r.Cause)})
	}

	reasons := judgeXIDs(g, before, now)
	if before.unavailable.After(before.recovered) {
		reasons = append(reasons, Reason{Code: CodeUnavailable, State: Unhealthy, Action: ActionReset,
			Since:   before.unavailable,
			Message: "the driver has reported that it cannot use the GPU any more"})
	}

	if !g.Up {
		return append(reasons, judgeDown(g, allHang))
	}

	reasons = append(reasons, judgeMemory(g)...)
	reasons = append(reasons, judgeDriver(g)...)
	reasons = append(reasons, judgeHeat(g)...)

	return append(reasons, judgeUnread(g, kernelLogRead)...)
}

// judgeDown judges a GPU whose last reading failed as a whole.
func judgeDown(g *gpu.GPU, allHang bool) Reason {
	var err error
	if len(g.Errors) > 0 {
		err = g.Errors[0].Err
	}

	r := Reason{State: Unhealthy, Since: g.LastRead}

	switch {
	case errors.Is(err, gpu.ErrTimeout) && allHang:
		r.Code = CodeHung
		r.Action = ActionReboot
		r.Message = "driver calls hang for every GPU: it is the driver, not this GPU"
	case errors.Is(err, gpu.ErrTimeout):
		r.Code = CodeHung
		r.Action = ActionReset
		r.Message = "driver calls for the GPU do not return"
	case errors.Is(err, gpu.ErrLost):
		r.Code = CodeLost
		r.Action = ActionReboot
		r.Message = "the GPU is lost: it has fallen off the bus, or cannot be reached"
	case errors.Is(err, gpu.ErrResetRequired):
		r.Code = CodeResetRequired
		r.Action = ActionReset
		r.Message = "the GPU answers nothing before it is reset"
	case g.UUID == "" && errors.Is(err, gpu.ErrDriver):
		r.Code = CodeNoHandle
		r.Action = ActionReboot
		r.Message = "the driver counts the GPU and gives no access to it" + causeText(err)
	default:
		r.Code = CodeUnreadable
		r.State = Unknown
		r.Action = ActionNone
		r.Message = "the GPU cannot be read" + causeText(err)
	}

	return r
}

// judgeXIDs judges the XIDs of a GPU that are not over, including the XIDs of its instances.
func judgeXIDs(g *gpu.GPU, before past, now time.Time) (reasons []Reason) {
	for _, x := range withPast(g.Totals.XIDErrors, before) {
		r, ok := judgeXID(x, g, before, now)
		if !ok {
			continue
		}

		// An XID that names instances concerns only them, unless it makes the GPU unhealthy: then
		// the whole GPU needs a reset. XIDs from an earlier process are not in XIDErrors: we do not
		// know which instances they named.
		isSame := func(c gpu.XIDCount) bool { return c.XID == x.XID }
		r.ofSomeInstances = r.State != Unhealthy &&
			!slices.ContainsFunc(g.Totals.GPUXIDs, isSame) && slices.ContainsFunc(g.Totals.XIDErrors, isSame)
		reasons = append(reasons, r)
	}

	return reasons
}

// judgeXID judges an XID of a GPU or of an instance of it; ok is false if it is over, or is no
// reason.
func judgeXID(x gpu.XIDCount, g *gpu.GPU, before past, now time.Time) (r Reason, ok bool) {
	class := ClassOf(x.XID)
	if class == ClassApplication || x.XID == announcesRecovery || !x.Last.After(before.recovered) {
		return Reason{}, false
	}

	r = Reason{XID: gpu.Some(x.XID), Since: x.Last, Message: describeXID(x.XID)}

	// The XID is only in a line of the kernel's log from before we first saw the GPU. Unless the
	// driver says that no action is needed, we cannot tell whether the GPU was reset since.
	if x.Value == 0 {
		if class == ClassOther || g.Readings.RecoveryAction == gpu.Some(gpu.RecoveryNone) {
			return Reason{}, false
		}

		r.Code = CodeXIDBefore
		r.State = Unknown
		r.Action = ActionNone
		r.Message += ", before this process first saw the GPU: whether it was reset since is not known"

		return r, true
	}

	switch class {
	case ClassNode:
		r.Code = CodeXIDNode
		r.State = Unhealthy
		r.Action = ActionReboot
		r.Message += ": the node needs a restart"
	case ClassHardware:
		r.Code = CodeXIDHardware
		r.State = Unhealthy
		r.Action = ActionReset
		r.Message += ": the GPU needs a reset"
	case ClassMemory:
		r.Code = CodeXIDMemory
		r.State = Degraded
		r.Action = ActionReset
		r.Message += ": the hardware dealt with it, until the GPU is reset"
	default:
		r.Code = CodeXIDOther
		r.State = Degraded
		r.Action = ActionNone
		r.Message += ": NVIDIA's catalog asks for nothing, or does not have it"

		return r, now.Sub(x.Last) < otherXIDFor
	}

	return r, true
}

// judgeMemory judges memory errors. Volatile counts begin when the driver is loaded (nvml.h,
// NVML_VOLATILE_ECC), so they are over after a reload. Until then DCGM, too, calls a GPU with an
// uncorrectable error failed (DCGM_FR_VOLATILE_DBE_DETECTED). Aggregate counts, over the life of
// the GPU, say nothing about its present state.
func judgeMemory(g *gpu.GPU) (reasons []Reason) {
	if n := countUncorrected(g.Readings.ECC); n > 0 {
		reasons = append(reasons, Reason{Code: CodeECC, State: Unhealthy, Action: ActionReset,
			Message: describeUncorrected(n), ofSomeInstances: isAttributed(g)})
	}

	// https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html: a pending remapping takes
	// effect with a reset; a GPU with a failed one is to be replaced.
	rows := g.Readings.RemappedRows.Or(gpu.RemappedRows{})
	if rows.Failure {
		reasons = append(reasons, Reason{Code: CodeRemapFailed, State: Unhealthy, Action: ActionReplace,
			Message: "a faulty row of memory could not be replaced: no spare is left"})
	}

	if rows.Pending {
		reasons = append(reasons, Reason{Code: CodeRemapPending, State: Degraded, Action: ActionReset,
			Message: "a faulty row of memory is replaced at the next reset"})
	}

	return reasons
}

// countUncorrected returns the number of uncorrectable errors since the driver was loaded. If the
// list has both a total and its parts, it counts them once.
func countUncorrected(list []gpu.ECCCount) (sum uint64) {
	var total uint64

	for _, c := range list {
		if c.Severity != "uncorrected" || c.Lifetime != "volatile" {
			continue
		}

		if c.Location == "total" {
			total = c.Count
			continue
		}

		sum += c.Count
	}

	return max(sum, total)
}

func describeUncorrected(n uint64) string {
	return "uncorrectable memory errors since the driver was loaded: " + formatNumber(n)
}

// isAttributed reports whether we know which instances had the memory errors of the GPU: then the
// other instances have not had them.
func isAttributed(g *gpu.GPU) bool {
	for i := range g.Instances {
		gi := &g.Instances[i]
		if slices.ContainsFunc(gi.XIDErrors, isContained) || countUncorrectedOf(gi) > 0 {
			return true
		}
	}

	return false
}

// isContained reports whether an XID says that a memory error hit its instance alone: 94.
func isContained(x gpu.XIDCount) bool { return x.XID == 94 && x.Value > 0 }

// countUncorrectedOf returns the number of uncorrectable errors that MIG devices of a GPU instance
// report.
func countUncorrectedOf(gi *gpu.GPUInstance) (sum uint64) {
	for c := range gi.ComputeInstances {
		sum += countUncorrected(gi.ComputeInstances[c].ECC)
	}

	return sum
}

// judgeDriver judges what the driver itself says about the GPU: the recovery action that it asks
// for, the state of the fabric, and a change of the MIG mode that waits for a reset.
func judgeDriver(g *gpu.GPU) (reasons []Reason) {
	if asked := g.Readings.RecoveryAction.Or(gpu.RecoveryNone); asked != gpu.RecoveryNone {
		reasons = append(reasons, Reason{Code: CodeRecovery, State: Unhealthy, Action: actionFor(asked),
			Message: "the driver asks for: " + strings.ReplaceAll(string(asked), "_", " ")})
	}

	if f, ok := g.Readings.Fabric.Get(); ok {
		reasons = append(reasons, judgeFabric(f)...)
	}

	enabled, known := g.MIG.Enabled.Get()
	if known && g.MIG.Pending.Or(enabled) != enabled {
		reasons = append(reasons, Reason{Code: CodeModePending, State: Degraded, Action: ActionReset,
			Message: "a change of the MIG mode waits for a reset"})
	}

	return reasons
}

// actionFor returns our action for a recovery action of the driver (nvml.h,
// nvmlDeviceGpuRecoveryAction_t). An action that a later driver may add is at least a reason to
// drain.
func actionFor(asked gpu.RecoveryAction) Action {
	switch asked {
	case gpu.RecoveryReset, gpu.RecoveryDrainAndReset:
		return ActionReset
	case gpu.RecoveryReboot:
		return ActionReboot
	default:
		return ActionDrain
	}
}

// judgeFabric judges the registration of a GPU in the NVLink fabric. CUDA does not start on a GPU
// with a fabric before the registration has ended.
func judgeFabric(f gpu.Fabric) []Reason {
	r := Reason{State: Unhealthy, Action: ActionReset}

	switch {
	case f.State == gpu.FabricCompleted && f.Status.Or(0) != 0:
		r.Code = CodeFabricFailed
		r.Message = fmt.Sprintf("the registration in the NVLink fabric failed (status %d)", f.Status.Or(0))
	case f.Health == gpu.FabricUnhealthy:
		r.Code = CodeFabricUnhealthy
		r.Message = "the NVLink fabric is unhealthy for this GPU"
	case f.Health == gpu.FabricLimitedCapacity:
		r.Code = CodeFabricLimited
		r.State = Degraded
		r.Action = ActionNone
		r.Message = "the NVLink fabric has limited capacity for this GPU"
	case f.State != gpu.FabricCompleted:
		r.Code = CodeFabricNotReady
		r.State = Degraded
		r.Action = ActionNone
		r.Message = "the registration in the NVLink fabric is not done: is the fabric manager running?"
	default:
		return nil
	}

	return []Reason{r}
}

// judgeHeat judges whether heat or the power brake slows the GPU down, or is about to. The power
// limit under full load, idle clocks and clocks that an operator set are normal operation.
func judgeHeat(g *gpu.GPU) (reasons []Reason) {
	r := Reason{State: Degraded, Action: ActionNone}

	for _, e := range g.Totals.ClockEvents {
		if !e.Active || !SlowsDown(e.Reason) {
			continue
		}

		r.Code = CodeThermal
		r.Message = "heat slows the GPU down (" + e.Reason + ")"

		if strings.Contains(e.Reason, "power_brake") {
			r.Code = CodePowerBrake
			r.Message = "the power brake of the server slows the GPU down"
		}

		reasons = append(reasons, r)
	}

	if margin, ok := slowdownMargin(&g.Readings); ok && margin < MarginSmall {
		r.Code = CodeNearSlowdown
		r.Message = fmt.Sprintf("the GPU is %.0f °C below the temperature at which it slows down", margin)

		if margin <= 0 {
			r.Message = "the GPU is at the temperature at which it slows down"
		}

		reasons = append(reasons, r)
	}

	return reasons
}

// SlowsDown reports whether a clock event reason needs attention: heat or the hardware's protection
// slows the GPU down.
func SlowsDown(reason string) bool {
	return strings.HasPrefix(reason, "hw_") || strings.Contains(reason, "thermal")
}

// slowdownMargin returns how many degrees Celsius the GPU is below the temperature at which it
// slows down; false if we don't know.
func slowdownMargin(r *gpu.Readings) (float64, bool) {
	if margin, ok := r.TemperatureMarginCelsius.Get(); ok {
		return margin, true
	}

	celsius, ok := r.TemperatureCelsius.Get()
	if !ok {
		return 0, false
	}

	for _, t := range r.TemperatureThresholds {
		if t.Kind == "slowdown" && t.Celsius > 0 {
			return t.Celsius - celsius, true
		}
	}

	return 0, false
}

// judgeUnread returns a reason for each failed reading that would show a fault. Readings that say
// nothing about health, such as processes, do not count. A reading that the hardware does not offer
// is absent without an error, so that it does not count, either.
func judgeUnread(g *gpu.GPU, kernelLogRead bool) (reasons []Reason) {
	unknown := Reason{State: Unknown, Action: ActionNone}

	for _, e := range g.Errors {
		switch e.Reading {
		case gpu.ReadingECC:
			unknown.Code = CodeECCUnread
			unknown.Message = "memory errors cannot be read" + causeText(e.Err)
		case gpu.ReadingRowRemap:
			unknown.Code = CodeRemapUnread
			unknown.Message = "remapped rows cannot be read" + causeText(e.Err)
		case gpu.ReadingRecovery:
			unknown.Code = CodeRecoveryUnread
			unknown.Message = "what the driver asks for cannot be read" + causeText(e.Err)
		case gpu.ReadingFabric:
			unknown.Code = CodeFabricUnread
			unknown.Message = "the state of the fabric cannot be read" + causeText(e.Err)
		case gpu.ReadingEvents:
			if kernelLogRead {
				continue // we have the XIDs from the kernel's log
			}

			unknown.Code = CodeNoXIDs
			unknown.Message = "XIDs are not received" + causeText(e.Err)
		default:
			continue
		}

		reasons = append(reasons, unknown)
	}

	hasReason := slices.ContainsFunc(reasons, func(r Reason) bool { return r.Code == CodeNoXIDs })
	if g.Totals.XIDs.Since.IsZero() && !hasReason {
		unknown.Code = CodeNoXIDs
		unknown.Message = "the driver does not report the XIDs of this GPU"
		reasons = append(reasons, unknown)
	}

	return reasons
}

// judgeInstance returns the reasons of a GPU instance: its own, and the reasons of its GPU that
// concern all instances.
func judgeInstance(g *gpu.GPU, gi *gpu.GPUInstance, ofGPU []Reason, before past, now time.Time) []Reason {
	var reasons []Reason

	for _, x := range gi.XIDErrors {
		if r, ok := judgeXID(x, g, before, now); ok {
			reasons = append(reasons, r)
		}
	}

	if n := countUncorrectedOf(gi); n > 0 {
		reasons = append(reasons, Reason{Code: CodeECC, State: Unhealthy, Action: ActionReset,
			Message: describeUncorrected(n)})
	}

	for _, r := range ofGPU {
		isSame := func(other Reason) bool { return other.Code == r.Code && other.XID == r.XID }
		if !r.ofSomeInstances && r.Code != CodeModePending && !slices.ContainsFunc(reasons, isSame) {
			reasons = append(reasons, r)
		}
	}

	if g.Up && !gi.Up {
		reasons = append(reasons, Reason{Code: CodeInstanceUnread, State: Unknown, Action: ActionNone,
			Message: "the GPU instance cannot be read"})
	}

	return reasons
}

// causeText returns ": " and the error, for the end of a message; empty for nil.
func causeText(err error) string {
	if err == nil {
		return ""
	}

	return ": " + err.Error()
}

func listGPUs(indexes []int) string {
	texts := make([]string, 0, len(indexes))
	for _, i := range indexes {
		texts = append(texts, "GPU "+strconv.Itoa(i))
	}

	return strings.Join(texts, ", ")
}

func formatNumber(n uint64) string { return strconv.FormatUint(n, 10) }
