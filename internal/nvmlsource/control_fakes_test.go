package nvmlsource_test

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// What the spy has between the Actuator and the node.

func (d spyDevice) mutable() nvmlsource.MutableDevice { return d.Device.(nvmlsource.MutableDevice) }

func (d spyDevice) SetMigMode(mode int) (activation, ret nvml.Return) {
	return d.mutable().SetMigMode(mode)
}

func (d spyDevice) CreateGpuInstanceWithPlacement(id uint32,
	at nvml.GpuInstancePlacement) (nvmlsource.MutableInstance, nvml.Return) {
	made, ret := d.mutable().CreateGpuInstanceWithPlacement(id, at)
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	return spyInstance{made, d.spy}, ret
}

func (i spyInstance) Destroy() nvml.Return { return i.mutable().Destroy() }

func (i spyInstance) mutable() nvmlsource.MutableInstance {
	return i.GPUInstance.(nvmlsource.MutableInstance)
}

// GetComputeInstancesOf knows of no compute instance of the profile that only the spy has.
func (i spyInstance) GetComputeInstancesOf(id uint32, capacity int) ([]nvmlsource.ComputeInstance, nvml.Return) {
	if id == nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1 {
		return nil, nvml.SUCCESS
	}

	list, ret := via(i.spy, "GetComputeInstancesOf", func() ([]nvmlsource.ComputeInstance, nvml.Return) {
		return i.mutable().GetComputeInstancesOf(id, capacity)
	})
	for k := range list {
		list[k] = spyCompute{list[k], i.spy}
	}

	return list, ret
}

// GetComputeInstanceProfileInfo knows one more profile of a slice, with the SMs that the spy says,
// after one that it does not know at all.
func (i spyInstance) GetComputeInstanceProfileInfo(profile int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	if profile == nvml.COMPUTE_INSTANCE_PROFILE_8_SLICE && i.spy.rev1SMs > 0 {
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}

	if profile == nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1 && i.spy.rev1SMs > 0 {
		info, ret := i.mutable().GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE)
		info.Id = uint32(profile)
		info.MultiprocessorCount = i.spy.rev1SMs

		return info, ret
	}

	return i.mutable().GetComputeInstanceProfileInfo(profile)
}

func (i spyInstance) GetComputeInstancePossiblePlacements(id uint32) ([]nvml.ComputeInstancePlacement, nvml.Return) {
	if id == nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1 {
		id = nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE
	}

	list, ret := i.mutable().GetComputeInstancePossiblePlacements(id)
	for k := range list {
		list[k] = i.spy.widen(list[k])
	}

	return list, ret
}

// widen is a place as the spy's driver reports it.
func (s *spy) widen(at nvml.ComputeInstancePlacement) nvml.ComputeInstancePlacement {
	if s.wideSeven && at.Size == 7 {
		at.Size = 8
	}

	return at
}

func (i spyInstance) GetComputeInstances() ([]nvmlsource.ComputeInstanceInfo, nvml.Return) {
	list, ret := via(i.spy, "Instance.GetComputeInstances", i.GPUInstance.GetComputeInstances)
	for k := range list {
		list[k].Placement = i.spy.widen(list[k].Placement)
	}

	return list, ret
}

func (c spyCompute) GetInfo() (nvmlsource.ComputeInstanceInfo, nvml.Return) {
	info, ret := c.ComputeInstance.GetInfo()

	info.Placement = c.spy.widen(info.Placement)
	if c.spy.noPlacements {
		info.Placement = nvml.ComputeInstancePlacement{}
	}

	return info, ret
}

func (i spyInstance) CreateComputeInstanceWithPlacement(id uint32,
	at nvml.ComputeInstancePlacement) (nvmlsource.ComputeInstance, nvml.Return) {
	if i.spy.wideSeven && at.Size == 8 {
		at.Size = 7
	}

	c, ret := i.mutable().CreateComputeInstanceWithPlacement(id, at)

	return spyCompute{c, i.spy}, ret
}

type spyCompute struct {
	nvmlsource.ComputeInstance
	spy *spy
}

// steps make the steps of tests: of one GPU, an A100-40GB.
type steps struct{ gpu gpu.UUID }

func (s steps) createGI(profile uint32, start, size int) mig.Step {
	return mig.Step{Op: mig.CreateInstance, GPU: s.gpu, ProfileID: profile, Profile: "profile",
		Placement: gpu.Placement{Start: start, Size: size}}
}

func (s steps) createCI(of mig.Step, start, size int) mig.Step {
	of.Op, of.Compute = mig.CreateCompute, gpu.Some(gpu.Placement{Start: start, Size: size})
	return of
}

// destroy makes the steps that undo others, with what came of those.
func (s steps) destroy(of mig.Step, done mig.Done) mig.Step {
	of.Op, of.Instance, of.ComputeID, of.UUID = mig.DestroyInstance, gpu.Some(done.Instance), done.ComputeID, done.UUID
	if of.Compute.Present() {
		of.Op = mig.DestroyCompute
	}

	return of
}

// do does a step that must succeed.
func (n *node) do(s mig.Step) mig.Done {
	n.t.Helper()

	done, err := n.source.Actuator().Do(n.t.Context(), s)
	if err != nil {
		n.t.Fatal(err)
	}

	return done
}

// layout is one GPU's, from the driver.
func (n *node) layout(index int) mig.GPULayout {
	n.t.Helper()

	list, errs, err := n.source.Actuator().Layouts(n.t.Context())
	if err != nil || len(errs) > 0 {
		n.t.Fatal(err, errs)
	}

	return list[index]
}

// noChange holds that a test's calls have changed nothing.
func noChange(t *testing.T, n *node) {
	t.Helper()

	for call, count := range n.spy.taken() {
		switch call {
		case "SetMigMode", "CreateGpuInstance", "CreateComputeInstance", "Instance.Destroy", "Compute.Destroy":
			t.Errorf("%d calls of %s", count, call)
		}
	}
}

// readOnly is a driver that cannot change anything.
type readOnly struct{ nvmlsource.Library }

func (l readOnly) DeviceGetHandleByIndex(index int) (nvmlsource.Device, nvml.Return) {
	d, ret := l.Library.DeviceGetHandleByIndex(index)
	return struct{ nvmlsource.Device }{d}, ret
}

func (l readOnly) EventSetCreate() (nvmlsource.EventSet, nvml.Return) {
	return nil, nvml.ERROR_NOT_SUPPORTED
}

func discard() log.Logger { return log.NewNopLogger() }
