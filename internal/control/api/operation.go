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

// ReasonRequest is the body of a request that may say why.
type ReasonRequest struct {
	// StatedReason is in the caller's own words, one line. The audit log and the operation have it.
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
	// VerbRecovery is the verb of an operation whose document on disk cannot be read. It is
	// degraded until it is accepted.
	VerbRecovery Verb = "recovery"
)

// OperationState is how far an operation is.
type OperationState string

// The states. Succeeded, unsettled, rolled-back, failed, interrupted and accepted are final;
// degraded and stuck need an operator.
const (
	Pending OperationState = "pending" // accepted; nothing was done yet
	Running OperationState = "running" // steps are being done
	// all steps are done; the kubelet does not show the devices yet, hooks run
	Settling    OperationState = "settling"
	RollingBack OperationState = "rolling-back" // a step failed; the previous layout is being restored
	Succeeded   OperationState = "succeeded"
	// Unsettled is an operation whose layout is the planned one, while the kubelet does not offer
	// exactly its devices, or a hook has failed. It becomes succeeded by itself once that is cured.
	Unsettled  OperationState = "unsettled"
	RolledBack OperationState = "rolled-back" // it failed; the layout is as it was before
	Failed     OperationState = "failed"      // it failed and has changed nothing
	// another client has, or may have, changed a GPU, which was left as it is
	Interrupted OperationState = "interrupted"
	// it was degraded, and the operator has accepted the current layout
	Accepted OperationState = "accepted"
	Degraded OperationState = "degraded" // the rollback failed too: it can be retried or accepted
	Stuck    OperationState = "stuck"    // a driver call has not returned in time
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

// Committed reports whether an operation in this state has ended with the layout that it was to
// make.
func (s OperationState) Committed() bool { return s == Succeeded || s == Unsettled }

// Operation is the execution of a plan, or of another verb.
type Operation struct {
	APIVersion string `json:"apiVersion"`
	ID         string `json:"id"`
	Verb       Verb   `json:"verb"`
	Plan       string `json:"plan,omitempty"`
	// RollbackOf is the operation that one of the verb rollback undoes. By it, a client that has
	// lost the answer finds the rollback that it has started.
	RollbackOf string `json:"rollbackOf,omitempty"`
	By         string `json:"by"` // the actor that asked for it
	// StatedReason is why, in the words of the actor. Nothing has checked it.
	StatedReason string          `json:"statedReason,omitempty"`
	State        OperationState  `json:"state"`
	Started      time.Time       `json:"started"`
	Ended        time.Time       `json:"ended,omitzero"`
	Steps        []OperationStep `json:"steps"`
	// Rollback lists the steps of the rollback that were begun so far.
	Rollback []OperationStep `json:"rollback,omitempty"`
	// GPUs says what became of each GPU that the operation is about, by index.
	GPUs []OperationGPU `json:"gpus,omitempty"`
	// Error is why it failed or what it waits for.
	Error *Problem `json:"error,omitempty"`
	// Renamed maps the UUIDs of MIG devices before to those in their place after a rollback.
	Renamed map[gpu.MIGUUID]gpu.MIGUUID `json:"renamed,omitempty"`
	// Hooks are the programs run afterwards, each with its last run. One that fails makes the
	// operation unsettled.
	Hooks    []HookResult `json:"hooks,omitempty"`
	Warnings []string     `json:"warnings,omitempty"`
	// WaitsFor is what an operation that settles, is stuck or is unsettled waits for: each
	// completes the sentence "it waits for ...".
	WaitsFor []string `json:"waitsFor,omitempty"`
	// Cordoned says that the node is kept cordoned for this operation, unless another client has
	// cordoned it.
	Cordoned bool `json:"cordoned,omitempty"`
	// Mode is present in operations of the verb mode.
	Mode *ModeResult `json:"mode,omitempty"`
}

// OperationStep is one step and what came of it.
type OperationStep struct {
	mig.Step
	State StepState `json:"state"`
	Done  *mig.Done `json:"result,omitempty"`
	Error string    `json:"error,omitempty"`
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
	// TakeOver as in a plan.
	TakeOver bool `json:"takeOver,omitempty"`
}

// ModeResult is what became of a mode change.
type ModeResult struct {
	GPU     gpu.UUID `json:"gpu"`
	Wanted  bool     `json:"wanted"`
	Current bool     `json:"current"`
	Pending bool     `json:"pending"`
	// Waits is what a pending mode waits for: "reset", "reboot" or "in use"; empty if it is in
	// force.
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
	// Recovering says that what the last run of the exporter left is being finished: until its
	// operations were read, they are missing here.
	Recovering bool `json:"recovering,omitempty"`
	// Reason is why it is read-only or off.
	Reason string `json:"reason,omitempty"`
	// Blocked names the operation that keeps a GPU from being changed: one that settles, is
	// degraded or is stuck.
	Blocked map[gpu.UUID]string `json:"blocked,omitempty"`
	// Unrestored are the GPUs whose layout was to be restored after the reboot, and is not.
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
