package api

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// RestoreRequest asks to give one GPU the layout again that operations have made.
type RestoreRequest struct {
	// TakeOver as in a plan.
	TakeOver bool `json:"takeOver,omitempty"`
}

// RestoreReason is why the layout of a GPU is not restored.
type RestoreReason string

// The reasons.
const (
	NotTried    RestoreReason = "pending"    // it was not tried yet in this boot
	NotReadable RestoreReason = "unreadable" // the GPU is lost, or the driver does not answer for it
	NotInMode   RestoreReason = "mig-mode"   // its MIG mode is off
	NotEmpty    RestoreReason = "instances"  // it has instances of another client, which are never destroyed
	// another controller manages it, or we do not know whether one does
	NotOwner     RestoreReason = "owner"
	NotUnblocked RestoreReason = "blocked" // an operation blocks it
	NotDone      RestoreReason = "failed"  // the operation failed
)

// RestoreReasons lists all of them.
func RestoreReasons() []RestoreReason {
	return []RestoreReason{
		NotTried,
		NotReadable,
		NotInMode,
		NotEmpty,
		NotOwner,
		NotUnblocked,
		NotDone,
	}
}

// Unrestored is a GPU whose layout --control.restore was to restore in this boot and has not.
type Unrestored struct {
	GPU    gpu.UUID      `json:"gpu"`
	Reason RestoreReason `json:"reason"`
	Detail string        `json:"detail"`
	// Operation is the last one that tried it, if one did.
	Operation string `json:"operation,omitempty"`
	// Next is when it is tried again. It is absent if it is tried again only when an operator asks
	// for it.
	Next time.Time `json:"next,omitzero"`
	// Wanted is the layout.
	Wanted []Instance `json:"wanted,omitempty"`
}

// ForgottenLayout answers a request to forget the layout of a GPU.
type ForgottenLayout struct {
	APIVersion string   `json:"apiVersion"`
	GPU        gpu.UUID `json:"gpu"`
	// Forgotten are the GPU instances that the layout had.
	Forgotten []Instance `json:"forgotten"`
}
