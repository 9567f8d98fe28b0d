package api

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// OperationRequest asks to execute a plan: by its id, and the hash that the operator has seen.
type OperationRequest struct {
	Plan string `json:"plan"`
	Hash string `json:"hash"`
}

// Verb is what an operation does.
type Verb string

// The verbs of operations.
const (
	VerbApply    Verb = "apply"
	VerbRollback Verb = "rollback"
	VerbMode     Verb = "mode"
	VerbRestore  Verb = "restore" // of a layout after a reboot
)

// OperationState is how far an operation is.
type OperationState string

// The states. Succeeded, rolled-back and failed are ends; degraded and stuck want an operator.
const (
	Pending     OperationState = "pending"      // accepted; nothing was done yet
	Running     OperationState = "running"      // steps are being done
	Settling    OperationState = "settling"     // all steps are done; the kubelet does not show the devices yet, hooks run
	RollingBack OperationState = "rolling-back" // a step failed; the layout before is being restored
	Succeeded   OperationState = "succeeded"
	RolledBack  OperationState = "rolled-back" // it failed; the layout is as it was before
	Failed      OperationState = "failed"      // it failed before anything was changed
	Degraded    OperationState = "degraded"    // the roll-back failed, too: it can be tried again
	Stuck       OperationState = "stuck"       // a driver call has not returned in time
)

// Operation is the execution of a plan, or of another verb.
type Operation struct {
	APIVersion string          `json:"apiVersion"`
	ID         string          `json:"id"`
	Verb       Verb            `json:"verb"`
	Plan       string          `json:"plan,omitempty"`
	By         string          `json:"by"` // who asked for it
	State      OperationState  `json:"state"`
	Started    time.Time       `json:"started"`
	Ended      time.Time       `json:"ended,omitzero"`
	Steps      []OperationStep `json:"steps"`
	// Error is why it failed or what it waits for.
	Error *Problem `json:"error,omitempty"`
	// Renamed maps the UUIDs of MIG devices before to those that stand in their place, after a roll-back.
	Renamed map[gpu.MIGUUID]gpu.MIGUUID `json:"renamed,omitempty"`
	// Hooks are the programs run afterwards. A failing hook is not a failing operation.
	Hooks    []HookResult `json:"hooks,omitempty"`
	Warnings []string     `json:"warnings,omitempty"`
	// Mode is present in operations of the verb mode.
	Mode *ModeResult `json:"mode,omitempty"`
}

// OperationStep is one step and what came of it.
type OperationStep struct {
	mig.Step
	// State is "pending", "running", "done", "failed" or "undone".
	State string    `json:"state"`
	Done  *mig.Done `json:"result,omitempty"`
	Error string    `json:"error,omitempty"`
}

// HookResult is how a hook ended.
type HookResult struct {
	Argv     []string `json:"argv"`
	OK       bool     `json:"ok"`
	Seconds  float64  `json:"seconds"`
	Error    string   `json:"error,omitempty"`
	ExitCode int      `json:"exitCode"`
}

// ModeRequest asks for a MIG mode of one GPU.
type ModeRequest struct {
	Enabled bool `json:"enabled"`
	// TakeOver as in a plan.
	TakeOver bool `json:"takeOver,omitempty"`
}

// ModeResult is what became of a mode change.
type ModeResult struct {
	GPU     gpu.UUID `json:"gpu"`
	Current bool     `json:"current"`
	Pending bool     `json:"pending"`
	// Waits is what a pending mode waits for: "reset", "reboot" or "in use"; empty where it is in force.
	Waits string `json:"waits,omitempty"`
	// Holders are those who hold the GPU open.
	Holders []Hold `json:"holders,omitempty"`
}

// Operations answers GET /api/v1/operations, the latest first.
type Operations struct {
	APIVersion string `json:"apiVersion"`
	// State of partition control as a whole: "idle", "running", "degraded", "stuck" or "read-only".
	State string `json:"state"`
	// Reason is why it is read-only.
	Reason     string      `json:"reason,omitempty"`
	Operations []Operation `json:"operations"`
}

// Event is one piece of news of an operation. Seq grows by one with each; it is the id of the server-sent event.
type Event struct {
	Seq  int       `json:"seq"`
	Time time.Time `json:"time"`
	// Kind is "state", "step", "hook" or "note".
	Kind  string         `json:"kind"`
	State OperationState `json:"state"` // of the operation, now
	// Step is the index of the step that it is about.
	Step gpu.Opt[int] `json:"step,omitzero"`
	Text string       `json:"text"`
}
