package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// State is how a device is.
type State string

// The states. Degraded: the device works, and needs attention when its work allows it. Unhealthy:
// what runs on the device has failed or will. Unknown: we cannot tell.
const (
	Healthy   State = "healthy"
	Degraded  State = "degraded"
	Unknown   State = "unknown"
	Unhealthy State = "unhealthy"
)

// Action is what an operator should do.
type Action string

// The actions. Drain the device before you reset, reboot or replace.
const (
	ActionNone    Action = "none"
	ActionDrain   Action = "drain"
	ActionReset   Action = "reset"
	ActionReboot  Action = "reboot"
	ActionReplace Action = "replace"
)

// Code names a reason. Codes are stable, and valid as the reason of a Kubernetes condition.
type Code string

// The codes of reasons why a node, a GPU or an instance is not healthy.
const (
	CodeNoSnapshot      Code = "NoReadingYet"
	CodeStale           Code = "ReadingsStale"
	CodeDriver          Code = "DriverUnavailable"
	CodeNoGPUs          Code = "NoGPUs"
	CodeFirstReading    Code = "FirstReading"
	CodeUnlistedXID     Code = "XIDOfUnlistedGPU"
	CodeMissing         Code = "GPUMissing"
	CodeReleased        Code = "GPUReleased"
	CodeHung            Code = "GPUHung"
	CodeLost            Code = "GPULost"
	CodeResetRequired   Code = "GPUResetRequired"
	CodeNoHandle        Code = "GPUNoHandle"
	CodeUnreadable      Code = "GPUUnreadable"
	CodeUnavailable     Code = "GPUUnavailable"
	CodeXIDNode         Code = "XIDNode"
	CodeXIDHardware     Code = "XIDHardware"
	CodeXIDMemory       Code = "XIDMemory"
	CodeXIDOther        Code = "XIDOther"
	CodeXIDBefore       Code = "XIDBeforeStart"
	CodeNoXIDs          Code = "XIDsNotReceived"
	CodeECC             Code = "ECCUncorrectable"
	CodeECCUnread       Code = "ECCUnreadable"
	CodeRemapFailed     Code = "RowRemapFailed"
	CodeRemapPending    Code = "RowRemapPending"
	CodeRemapUnread     Code = "RowRemapUnreadable"
	CodeRecovery        Code = "RecoveryAction"
	CodeRecoveryUnread  Code = "RecoveryActionUnreadable"
	CodeFabricFailed    Code = "FabricFailed"
	CodeFabricUnhealthy Code = "FabricUnhealthy"
	CodeFabricLimited   Code = "FabricLimited"
	CodeFabricNotReady  Code = "FabricNotReady"
	CodeFabricUnread    Code = "FabricUnreadable"
	CodeThermal         Code = "ThermalSlowdown"
	CodePowerBrake      Code = "PowerBrake"
	CodeNearSlowdown    Code = "TemperatureHigh"
	CodeModePending     Code = "MIGModePending"
	CodeInstanceUnread  Code = "InstanceUnreadable"
)

// Reason is one thing that is wrong, or not known.
type Reason struct {
	Code    Code            `json:"code"`
	State   State           `json:"state"` // of a device that has no other reason
	Action  Action          `json:"action"`
	Message string          `json:"message"`
	Since   time.Time       `json:"since"`
	XID     gpu.Opt[uint64] `json:"xid,omitzero"`

	// ofSomeInstances is set if the GPU has the reason because some of its instances have it. The
	// other instances do not inherit it.
	ofSomeInstances bool
}

// Verdict is the judgement on a device: the worst of its reasons decides.
type Verdict struct {
	State   State     `json:"state"`
	Action  Action    `json:"action"`  // the furthest-reaching action of all reasons
	Message string    `json:"message"` // of the worst reason, or that there is none
	Since   time.Time `json:"since"`   // when State last changed, as far as this process has seen it
	Reasons []Reason  `json:"reasons"` // the worst first
}

const healthyMessage = "nothing is known to be wrong, and all that the hardware reports is read"

// newVerdict orders the reasons. It leaves Since to the caller.
func newVerdict(reasons []Reason) Verdict {
	v := Verdict{State: Healthy, Action: ActionNone, Message: healthyMessage, Reasons: reasons}
	if v.Reasons == nil {
		v.Reasons = []Reason{}
	}

	slices.SortStableFunc(v.Reasons, func(a, b Reason) int {
		return cmp.Or(cmp.Compare(rank(b.State), rank(a.State)), cmp.Compare(reach(b.Action), reach(a.Action)))
	})

	for i := range v.Reasons {
		if reach(v.Reasons[i].Action) > reach(v.Action) {
			v.Action = v.Reasons[i].Action
		}
	}

	if len(v.Reasons) > 0 {
		v.State = v.Reasons[0].State
		v.Message = v.Reasons[0].Message
	}

	return v
}

// rank orders states, the worst last. Unknown is worse than degraded: it may be anything.
func rank(s State) int {
	return slices.Index([]State{Healthy, Degraded, Unknown, Unhealthy}, s)
}

// reach orders actions by how much they disturb, drain before reset.
func reach(a Action) int {
	return slices.Index(
		[]Action{ActionNone, ActionDrain, ActionReset, ActionReboot, ActionReplace}, a,
	)
}
