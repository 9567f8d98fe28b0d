package mig

import (
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// InfeasibleError is returned if a node cannot have the instances that a spec wants.
type InfeasibleError struct {
	// GPU is the index, in the list planned for, of the GPU that cannot; -1 if no GPU of the node has room.
	GPU    int
	Reason string
	// Blocking are the busy instances that would have to go.
	Blocking []Blocking
	// FitsEmpty is set if it would fit on empty GPUs.
	FitsEmpty bool
}

// Blocking is a busy instance that is in the way: a GPU instance as a whole, or one compute instance of it.
type Blocking struct {
	GPU, Instance int          // indexes in the list planned for and in the GPU's instances
	Compute       gpu.Opt[int] // index in the instance's computes
}

func (e *InfeasibleError) Error() string { return e.Reason }

// ModeError says that a GPU is not in the MIG mode that a rule wants. A plan never changes it.
type ModeError struct {
	GPU     int // index in the list planned for
	UUID    gpu.UUID
	Index   int
	Current gpu.Opt[bool] // absent if the GPU has no MIG
	Pending gpu.Opt[bool]
	Wanted  bool
}

func (e *ModeError) Error() string {
	current, ok := e.Current.Get()
	pending, _ := e.Pending.Get()

	switch {
	case !ok:
		return fmt.Sprintf(
			"GPU %d (%s) has no MIG mode, and the layout is for one with MIG",
			e.Index,
			e.UUID,
		)
	case current == e.Wanted:
		return fmt.Sprintf(
			"GPU %d (%s) has MIG %s until its next reset, and the layout is for one where it stays %s",
			e.Index,
			e.UUID,
			OnOff(current),
			OnOff(e.Wanted),
		)
	case e.Pending.Present() && pending == e.Wanted:
		return fmt.Sprintf(
			"GPU %d (%s) has MIG %s, and %s is pending until its next reset: the layout can be planned "+
				"after that",
			e.Index,
			e.UUID,
			OnOff(current),
			OnOff(e.Wanted),
		)
	}

	return fmt.Sprintf(
		"GPU %d (%s) has MIG %s, and the layout is for one with MIG %s: change the mode first",
		e.Index,
		e.UUID,
		OnOff(current),
		OnOff(e.Wanted),
	)
}

// OnOff returns "on" or "off", as the MIG mode is shown.
func OnOff(on bool) string {
	if on {
		return "on"
	}

	return "off"
}

// SelectorError says that a selector names no GPU, or a rule's none at all.
type SelectorError struct {
	Selector string   // as it was given; empty if no rule selects a GPU
	Has      []string // the GPUs of the node, as "0 (GPU-..., 00000000:07:00.0)"
}

func (e *SelectorError) Error() string {
	has := "it has none"
	if len(e.Has) > 0 {
		has = "it has " + strings.Join(e.Has, ", ")
	}

	if e.Selector == "" {
		return "the layout is for no GPU of this node: " + has
	}

	return fmt.Sprintf("no GPU of this node is %q: %s", e.Selector, has)
}

// ProfileError says that a GPU does not offer a profile.
type ProfileError struct {
	GPU     int // index in the list planned for
	Index   int // of the GPU
	Model   string
	Profile string   // as it was given
	Offers  []string // names and ids, "1g.5gb (19)"
}

func (e *ProfileError) Error() string {
	return fmt.Sprintf(
		"profile %q: GPU %d (%s) offers %s",
		e.Profile,
		e.Index,
		e.Model,
		strings.Join(e.Offers, ", "),
	)
}

// SpecError says that a spec asks for what cannot be on any node: a negative count, compute instances that are larger
// together than their GPU instance.
type SpecError struct{ Reason string }

func (e *SpecError) Error() string { return e.Reason }
