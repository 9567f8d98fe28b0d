package migctl

import (
	"net/http"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

const (
	gpu2    = gpu.UUID("GPU-00811850-bd8c-5ae1-96ad-c6abb1e0f5e7")
	trainer = gpu.MIGUUID("MIG-2ded0f32-64f7-5d1d-b324-d8f3fe1ee0e2")
	kept    = gpu.MIGUUID("MIG-01f84261-1c7a-5c0e-8f0a-0d1f2a3b4c5d")
	created = gpu.MIGUUID("MIG-aaaa0001-64f7-5d1d-b324-d8f3fe1ee0e2")
)

var began = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func at(start, size int) gpu.Placement { return gpu.Placement{Start: start, Size: size} }

func holds() []api.Hold {
	return []api.Hold{{Kind: api.HoldPod, What: "ml/train-0 (main)"}, {Kind: api.HoldProcess, PID: 4711, What: "python3"}}
}

// repartition is a plan that destroys a busy instance, keeps one whose compute instances it
// replaces, and creates two.
func repartition() *api.Plan {
	whole := func(uuid gpu.MIGUUID, slices int, fate api.Fate, holders ...api.Hold) []api.ComputeInstance {
		return []api.ComputeInstance{{ID: gpu.Some(gpu.ComputeID(0)), UUID: uuid, Placement: at(0, slices), Fate: fate,
			Holders: holders}}
	}
	one := gpu.Some(gpu.InstanceID(1))
	two := gpu.Some(gpu.InstanceID(2))
	step := func(op mig.StepOp, profile string, place gpu.Placement) mig.Step {
		return mig.Step{Op: op, GPU: gpu2, Profile: profile, Placement: place}
	}
	half := []api.ComputeInstance{{Placement: at(0, 1), Fate: api.Create}, {Placement: at(1, 2), Fate: api.Create}}

	return &api.Plan{
		APIVersion: api.Version, ID: "plan-7c31e0",
		Hash:    "sha256:6f1d9c55d0f7b1a4e0c8a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f6",
		Created: began, Node: "dgx-a100",
		GPUs: []api.PlanGPU{{
			UUID: gpu2, Index: 2, Name: "NVIDIA A100-SXM4-40GB", AxisUnits: 8,
			Before: []api.Instance{
				{ID: one, Profile: "3g.20gb", ProfileID: 9, Placement: at(0, 4),
					Compute: whole(trainer, 3, api.Destroy, holds()...), Fate: api.Destroy},
				{ID: two, Profile: "3g.20gb", ProfileID: 9, Placement: at(4, 4), Compute: whole(kept, 3, api.Destroy),
					Fate: api.Keep},
			},
			After: []api.Instance{
				{Profile: "2g.10gb", ProfileID: 14, Placement: at(0, 2), Compute: whole("", 2, api.Create), Fate: api.Create},
				{Profile: "1g.5gb", ProfileID: 19, Placement: at(2, 1), Compute: whole("", 1, api.Create), Fate: api.Create,
					Need: gpu.Some(0)},
				{ID: two, Profile: "3g.20gb", ProfileID: 9, Placement: at(4, 4), Compute: half, Fate: api.Keep},
			},
			Left: "1g.5gb",
		}},
		Steps: []mig.Step{
			step(mig.DestroyCompute, "3g.20gb", at(0, 4)), step(mig.DestroyInstance, "3g.20gb", at(0, 4)),
			step(mig.DestroyCompute, "3g.20gb", at(4, 4)), step(mig.CreateInstance, "2g.10gb", at(0, 2)),
			step(mig.CreateCompute, "2g.10gb", at(0, 2)), step(mig.CreateInstance, "1g.5gb", at(2, 1)),
			step(mig.CreateCompute, "1g.5gb", at(2, 1)), step(mig.CreateCompute, "3g.20gb", at(4, 4)),
			step(mig.CreateCompute, "3g.20gb", at(4, 4)),
		},
		Forced:   []string{string(trainer)},
		Owners:   []string{"mig-manager (label nvidia.com/mig.config)"},
		TakeOver: true,
		Warnings: []string{"The kubelet did not answer: whether pods hold these instances could not be checked there."},
	}
}

// nothingToDo is the plan for a layout that exists already.
func nothingToDo() *api.Plan {
	p := repartition()
	g := &p.GPUs[0]
	g.Before[0].Fate, g.Before[0].Compute[0].Fate, g.Before[1].Compute[0].Fate = api.Keep, api.Keep, api.Keep
	g.After = g.Before
	p.Steps = nil
	p.Forced = nil
	p.Owners = nil
	p.Warnings = nil
	g.Left = ""

	return p
}

// operation is that plan's execution in a state.
func operation(state api.OperationState) *api.Operation {
	op := &api.Operation{
		APIVersion: api.Version, ID: "op-20260304-1", Verb: api.VerbApply, Plan: "plan-7c31e0", By: "root (uid 0)",
		State: state, Started: began,
	}
	for _, s := range repartition().Steps {
		op.Steps = append(op.Steps, api.OperationStep{Step: s, State: "pending"})
	}

	op.Steps[0].UUID, op.Steps[0].Compute = trainer, gpu.Some(at(0, 3))
	if !hasStopped(state) {
		return op
	}

	op.Ended = began.Add(2300 * time.Millisecond)
	for i := range op.Steps {
		op.Steps[i].State = "done"
	}

	op.Steps[4].Done = &mig.Done{Instance: 3, ComputeID: gpu.Some(gpu.ComputeID(0)), UUID: created}

	op.Hooks = []api.HookResult{
		{Argv: []string{"systemctl", "restart", "device-plugin"}, OK: true, Seconds: 0.42},
		{Argv: []string{"/etc/mig/notify"}, Error: "no route to host", ExitCode: 7, Seconds: 10},
	}
	if state.Committed() {
		return op
	}

	op.Hooks = nil
	op.Steps[4].Done, op.Steps[4].State, op.Steps[4].Error = nil, api.StepFailed, "create compute instance: "+
		"INSUFFICIENT_RESOURCES"

	op.Steps[0].State = api.StepUndone
	for i := range op.Steps[5:] {
		op.Steps[5+i].State = api.StepPending
	}

	op.Renamed = map[gpu.MIGUUID]gpu.MIGUUID{trainer: created}
	op.Error = &api.Problem{Type: api.DriverFailed, Title: "The driver refused", Status: 502, Operation: op.ID,
		Detail: "Creating a compute instance in 2g.10gb at 0:2 failed: INSUFFICIENT_RESOURCES."}

	return op
}

// partial is that operation with results of two GPUs, of which the other was rolled back.
func partial(state api.OperationState) *api.Operation {
	op := operation(state)
	op.Renamed = nil
	step := op.Steps[3]
	step.Op = mig.DestroyInstance
	step.State = api.StepDone
	op.Rollback = []api.OperationStep{step}

	op.GPUs = []api.OperationGPU{
		{GPU: gpu2, State: state, Error: "create compute instance: INSUFFICIENT_RESOURCES", Current: []api.Instance{
			{ID: gpu.Some(gpu.InstanceID(2)), Profile: "3g.20gb", ProfileID: 9, Placement: at(4, 4), Fate: api.Keep,
				Compute: []api.ComputeInstance{{ID: gpu.Some(gpu.ComputeID(0)), UUID: kept, Placement: at(0, 3), Fate: api.Keep}}},
		}},
		{GPU: "GPU-00911850-bd8c-5ae1-96ad-c6abb1e0f5e7", State: api.RolledBack},
	}
	if state == api.Interrupted {
		op.GPUs[0].Error = ""
		op.GPUs[0].Current[0].Profile, op.GPUs[0].Current[0].Placement = "1g.5gb", at(6, 1)
		op.Error = &api.Problem{Type: api.LayoutChanged, Title: "The layout was changed", Status: 409, Operation: op.ID,
			Detail: "After step 4 another client has created 1g.5gb at 6:1 on " + string(gpu2) + "."}
	}

	return op
}

// stepEvent is the event of a step in a state.
func stepEvent(index int, rollback bool, state api.StepState, failure string) api.Event {
	step := operation(api.Running).Steps[index]
	step.State = state
	step.Error = failure

	return api.Event{Kind: api.EventStep, State: api.Running, Step: &step, Index: gpu.Some(index), Rollback: rollback}
}

// news are the events of an operation that succeeds.
func news() []api.Event {
	all := []api.Event{
		{Kind: api.EventState, State: api.Running},
		stepEvent(0, false, api.StepRunning, ""),
		stepEvent(0, false, api.StepDone, ""),
		{Kind: api.EventNote, State: api.Settling, Text: "waiting for the kubelet to show the new devices"},
		{Kind: api.EventState, State: api.Succeeded, Text: "succeeded"},
	}
	for i, ms := range []int{0, 210, 400, 900, 2300} {
		all[i].Seq, all[i].Time = i+1, began.Add(time.Duration(ms)*time.Millisecond)
	}

	return all
}

// applied are the routes of a change that succeeds.
func applied() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"POST /plans":            answer(repartition()),
		"GET /plans/plan-7c31e0": answer(repartition()),
		"POST /operations":       answer(operation(api.Pending)),
		"GET /operations": answer(api.Operations{APIVersion: api.Version,
			Operations: []api.Operation{*operation(api.Running), *operation(api.Degraded)}}),
		"GET /operations/op-20260304-1":           answer(operation(api.Succeeded)),
		"GET /operations/op-20260304-1/events":    stream(false, news()...),
		"POST /operations/op-20260304-1/rollback": answer(operation(api.Pending)),
	}
}
