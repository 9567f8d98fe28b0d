package api

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// RestoreRequest asks to give one GPU its committed layout again.
type RestoreRequest struct {
	// TakeOver: see PlanRequest.
	TakeOver bool `json:"takeOver,omitempty"`
}

// RestoreReason is why the layout of a GPU is not restored.
type RestoreReason string

// The reasons.
const (
	NotTried       RestoreReason = "pending"    // we have not tried yet in this boot
	NotReadable    RestoreReason = "unreadable" // the GPU is lost, or the driver does not answer
	NotInMode      RestoreReason = "mig-mode"   // its MIG mode is off
	NotEmpty       RestoreReason = "instances"  // it has instances of another client
	NotOwner       RestoreReason = "owner"      // another controller manages it, or may
	RestoreBlocked RestoreReason = "blocked"    // an operation blocks it
	RestoreFailed  RestoreReason = "failed"     // the operation failed
)

// RestoreReasons lists all reasons.
func RestoreReasons() []RestoreReason {
	return []RestoreReason{
		NotTried,
		NotReadable,
		NotInMode,
		NotEmpty,
		NotOwner,
		RestoreBlocked,
		RestoreFailed,
	}
}

// Unrestored is a GPU whose layout --control.restore has not restored yet in this boot.
type Unrestored struct {
	GPU    gpu.UUID      `json:"gpu"`
	Reason RestoreReason `json:"reason"`
	Detail string        `json:"detail"`
	// Operation is the id of the last operation that tried it; empty if none did.
	Operation string `json:"operation,omitempty"`
	// Next is when we try again; absent if we try again only when an operator asks for it.
	Next time.Time `json:"next,omitzero"`
	// Wanted is the layout to restore.
	Wanted []Instance `json:"wanted,omitempty"`
}

// ForgottenLayout answers a request to forget the layout of a GPU.
type ForgottenLayout struct {
	APIVersion string   `json:"apiVersion"`
	GPU        gpu.UUID `json:"gpu"`
	// Forgotten are the GPU instances that the layout had.
	Forgotten []Instance `json:"forgotten"`
}
