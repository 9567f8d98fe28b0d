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
	ReasonRequest
}

// ReasonRequest is the body of a request that may say why the caller makes it.
type ReasonRequest struct {
	// StatedReason is one line in the caller's own words. We write it to the audit log and to the
	// operation.
	StatedReason string `json:"statedReason,omitempty"`
}

// Verb is what an operation does.
type Verb string

// The verbs of operations.
const (
	VerbApply    Verb = "apply"
	VerbRollback Verb = "rollback"
	VerbMode     Verb = "mode"
	VerbRestore  Verb = "restore" // of a layout after a reboot
	// VerbRecovery is the verb of an operation that stands for one whose document on disk cannot be
	// read. It is degraded until an operator accepts it.
	VerbRecovery Verb = "recovery"
)

// OperationState is how far an operation is.
type OperationState string

// The states. Succeeded, unsettled, rolled-back, failed, interrupted and accepted are final;
// degraded and stuck need an operator.
const (
	// Pending: accepted; nothing was done yet.
	Pending OperationState = "pending"
	// Running: steps are being done.
	Running OperationState = "running"
	// Settling: all steps are done; hooks run, or the kubelet does not offer the devices yet.
	Settling OperationState = "settling"
	// RollingBack: a step failed; the previous layout is being restored.
	RollingBack OperationState = "rolling-back"
	Succeeded   OperationState = "succeeded"
	// Unsettled: the layout is the planned one, but the kubelet does not offer exactly its devices,
	// or a hook has failed. Once both is in order, the operation becomes succeeded by itself.
	Unsettled OperationState = "unsettled"
	// RolledBack: it failed; the layout is as it was before.
	RolledBack OperationState = "rolled-back"
	// Failed: it failed and has changed nothing.
	Failed OperationState = "failed"
	// Interrupted: another client has changed a GPU, or may have; we left the GPU as it is.
	Interrupted OperationState = "interrupted"
	// Accepted: it was degraded or stuck, and the operator has accepted the current layout.
	Accepted OperationState = "accepted"
	// Degraded: the rollback failed too; it can be retried or accepted.
	Degraded OperationState = "degraded"
	// Stuck: a driver call has not returned in time.
	Stuck OperationState = "stuck"
)

// Final reports whether an operation in this state changes nothing any more.
func (s OperationState) Final() bool {
	switch s {
	case Succeeded, Unsettled, RolledBack, Failed, Interrupted, Accepted:
		return true
	default:
		return false
	}
}

// Committed reports whether an operation in this state has ended with the planned layout.
func (s OperationState) Committed() bool { return s == Succeeded || s == Unsettled }

// Operation is the execution of a plan, or of another verb.
type Operation struct {
	APIVersion string `json:"apiVersion"`
	ID         string `json:"id"`
	Verb       Verb   `json:"verb"`
	Plan       string `json:"plan,omitempty"` // id
	// RollbackOf is the id of the operation that this one, of the verb rollback, undoes. If a client
	// has lost the answer to its request, this is how it finds the rollback that it has started.
	RollbackOf string `json:"rollbackOf,omitempty"`
	By         string `json:"by"` // the actor that asked for it
	// StatedReason is why the actor asked for it, in its own words, which nothing has checked.
	StatedReason string          `json:"statedReason,omitempty"`
	State        OperationState  `json:"state"`
	Started      time.Time       `json:"started"`
	Ended        time.Time       `json:"ended,omitzero"`
	Steps        []OperationStep `json:"steps"`
	// Rollback lists the steps of the rollback that were begun so far.
	Rollback []OperationStep `json:"rollback,omitempty"`
	// GPUs says what became of each GPU that the operation is about, by index.
	GPUs []OperationGPU `json:"gpus,omitempty"`
	// Error is why it failed, or why it cannot go on.
	Error *Problem `json:"error,omitempty"`
	// Renamed maps the former UUIDs of MIG devices to the current ones, if a rollback has created
	// the devices again under other UUIDs.
	Renamed map[gpu.MIGUUID]gpu.MIGUUID `json:"renamed,omitempty"`
	// Hooks are the last results of the hooks. A hook that fails makes the operation unsettled.
	Hooks    []HookResult `json:"hooks,omitempty"`
	Warnings []string     `json:"warnings,omitempty"`
	// WaitsFor says what a settling, stuck or unsettled operation waits for: each item completes the
	// sentence "it waits for ...".
	WaitsFor []string `json:"waitsFor,omitempty"`
	// Cordoned says that the node is kept cordoned for this operation, unless another client has
	// cordoned it.
	Cordoned bool `json:"cordoned,omitempty"`
	// Mode is present in operations of the verb mode.
	Mode *ModeResult `json:"mode,omitempty"`
}

// OperationStep is one step, its state and its result.
type OperationStep struct {
	mig.Step
	State StepState `json:"state"`
	Done  *mig.Done `json:"result,omitempty"` // if it is done
	Error string    `json:"error,omitempty"`  // if it failed
}

// StepState is how far a step is.
type StepState string

// The states of steps.
const (
	StepPending StepState = "pending"
	StepRunning StepState = "running"
	StepDone    StepState = "done"
	StepFailed  StepState = "failed" // it has changed nothing, unless the error says otherwise
	StepUndone  StepState = "undone" // it was done, and rolled back
)

// OperationGPU is what became of one GPU in an operation.
type OperationGPU struct {
	GPU gpu.UUID `json:"gpu"`
	// State is the operation's state as far as this GPU is concerned: pending, running, settling,
	// rolling-back, succeeded, unsettled, rolled-back, failed (nothing was changed), interrupted,
	// accepted, degraded or stuck.
	State OperationState `json:"state"`
	// Error is why the GPU is not as planned.
	Error string `json:"error,omitempty"`
	// Current are the GPU instances that were read last, if the GPU was interrupted, is degraded or
	// was accepted; nil if they could not be read.
	Current []Instance `json:"current,omitzero"`
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
	// TakeOver: see PlanRequest.
	TakeOver bool `json:"takeOver,omitempty"`
}

// ModeResult is the result of a change of the MIG mode.
type ModeResult struct {
	GPU     gpu.UUID `json:"gpu"`
	Wanted  bool     `json:"wanted"`
	Current bool     `json:"current"`
	Pending bool     `json:"pending"` // the mode after the next reset
	// Waits says what a pending mode waits for: "reset", "reboot", or "in use" for the end of the
	// GPU's use; empty if the wanted mode is in force.
	Waits string `json:"waits,omitempty"`
	// Holders are the processes that have the GPU open.
	Holders []Hold `json:"holders,omitempty"`
}

// Operations answers GET /api/v1/operations, the latest first.
type Operations struct {
	APIVersion string `json:"apiVersion"`
	// State of partition control as a whole: "idle", "running", "degraded", "stuck", "read-only" or
	// "off".
	State string `json:"state"`
	// Recovering says that the exporter is reading, and finishing, what its last run has left. The
	// list may lack the operations of that run.
	Recovering bool `json:"recovering,omitempty"`
	// Reason is why it is read-only or off.
	Reason string `json:"reason,omitempty"`
	// Blocked has, for each GPU that cannot be changed now, the id of the settling, degraded or
	// stuck operation that blocks it.
	Blocked map[gpu.UUID]string `json:"blocked,omitempty"`
	// Unrestored are the GPUs whose layout was not restored yet after the reboot.
	Unrestored []Unrestored `json:"unrestored,omitempty"`
	Operations []Operation  `json:"operations"`
}

// EventKind is what an event is about.
type EventKind string

// The kinds of events.
const (
	EventState EventKind = "state" // the operation has another state
	EventStep  EventKind = "step"  // a step has begun or ended
	EventHook  EventKind = "hook"  // a hook has ended
	EventNote  EventKind = "note"  // anything else that the operator should know
)

// Event is one piece of news of an operation. Seq grows by one with each; it is the id of the
// server-sent event.
type Event struct {
	Seq  int       `json:"seq"`
	Time time.Time `json:"time"`
	Kind EventKind `json:"kind"`
	// State is the operation's, at the time of the event.
	State OperationState `json:"state"`
	// Step is what a step event is about: the step with its state, result and error. Index is its
	// place in the operation's steps, or in those of its rollback if Rollback is set.
	Step     *OperationStep `json:"step,omitempty"`
	Index    gpu.Opt[int]   `json:"index,omitzero"`
	Rollback bool           `json:"rollback,omitempty"`
	// Hook is what a hook event is about.
	Hook *HookResult `json:"hook,omitempty"`
	// Text is a sentence for people. Step and hook events have none.
	Text string `json:"text,omitempty"`
}
