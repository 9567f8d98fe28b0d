package mig

import (
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// InfeasibleError is returned if a node cannot have the instances that a spec wants.
type InfeasibleError struct {
	// GPU is the index, in PlanNode's list, of the GPU that cannot have them; -1 for a demand, for
	// which no GPU of the node has room.
	GPU    int
	Reason string
	// Blocking are the busy instances that would have to be destroyed.
	Blocking []Blocking
	// FitsEmpty is set if the instances would fit on empty GPUs.
	FitsEmpty bool
}

// Blocking is a busy instance that is in the way: a GPU instance as a whole, or one compute
// instance of it.
type Blocking struct {
	GPU, Instance int          // indexes in PlanNode's list and in GPULayout.Instances
	Compute       gpu.Opt[int] // index in the instance's ComputeInstances; absent for the whole
}

func (e *InfeasibleError) Error() string { return e.Reason }

// ModeError says that GPUs are not in the MIG mode that a rule wants. Plans never change the mode.
// All fields but Indexes and All are about the first such GPU.
type ModeError struct {
	GPU     int // index in PlanNode's list
	UUID    gpu.UUID
	Index   int
	Current gpu.Opt[bool] // absent if the GPU has no MIG
	Pending gpu.Opt[bool] // after the next reset
	Wanted  bool
	Indexes []int // of all GPUs with the same Current, Pending and Wanted
	All     int   // number of the node's GPUs
}

func (e *ModeError) Error() string {
	current, ok := e.Current.Get()
	pending, _ := e.Pending.Get()

	who := fmt.Sprintf("GPU %d (%s) has", e.Index, e.UUID)
	if n := len(e.Indexes); n > 1 && n == e.All {
		who = fmt.Sprintf("all %d GPUs have", n)
	} else if n > 1 {
		who = listIndexes(e.Indexes) + " have"
	}

	const layout = "and the layout is for GPUs"

	switch {
	case !ok:
		return fmt.Sprintf("%s no MIG mode, %s with MIG", who, layout)
	case current == e.Wanted:
		return fmt.Sprintf("%s MIG %s until the next reset, %s where it stays %s",
			who, OnOff(current), layout, OnOff(e.Wanted))
	case e.Pending.Present() && pending == e.Wanted:
		return fmt.Sprintf(
			"%s MIG %s, and %s is pending until the next reset: the layout can be planned after that",
			who,
			OnOff(current),
			OnOff(e.Wanted),
		)
	}

	return fmt.Sprintf("%s MIG %s, %s with MIG %s: change the mode first",
		who, OnOff(current), layout, OnOff(e.Wanted))
}

// OnOff returns "on" or "off", as the MIG mode is shown.
func OnOff(on bool) string {
	if on {
		return "on"
	}

	return "off"
}

// SelectorError says that a selector names no GPU, or that no rule selects one.
type SelectorError struct {
	Selector string // as it was given; empty if no rule selects a GPU
	Has      []int  // the indexes of the node's GPUs
}

func (e *SelectorError) Error() string {
	has := "it has none"
	if len(e.Has) > 0 {
		has = "it has " + listIndexes(e.Has)
	}

	if e.Selector == "" {
		return "the layout is for no GPU of this node: " + has
	}

	return fmt.Sprintf("no GPU of this node is %q: %s", e.Selector, has)
}

// listIndexes names GPUs by their indexes: "GPU 3", "GPUs 0 to 7", "GPUs 0, 2, 5".
func listIndexes(indexes []int) string {
	if len(indexes) == 1 {
		return fmt.Sprintf("GPU %d", indexes[0])
	}

	first := indexes[0]

	last := indexes[len(indexes)-1]
	if len(indexes) > 2 && last-first == len(indexes)-1 {
		return fmt.Sprintf("GPUs %d to %d", first, last)
	}

	return "GPUs " + strings.ReplaceAll(strings.Trim(fmt.Sprint(indexes), "[]"), " ", ", ")
}

// ProfileError says that a GPU does not offer a profile.
type ProfileError struct {
	GPU     int // index in PlanNode's list
	Index   int // the GPU's, as the driver numbers it
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

// SpecError says that no node could meet a spec: it has a negative count, say, or compute instances
// that are larger together than their GPU instance.
type SpecError struct{ Reason string }

func (e *SpecError) Error() string { return e.Reason }
