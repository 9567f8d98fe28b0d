package nvmlsrc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Do does one step and reads back that it is done. A creation gives exactly what was asked for, or
// gpu.ErrInsufficientResources and nothing: what the driver has made elsewhere is destroyed again. What is to be destroyed
// is gpu.ErrNotFound where it does not stand any more, and gpu.ErrReplaced where something else has its place, its id or
// its UUID. A destruction after which the instance is still there is gpu.ErrDriver.
func (a *Actuator) Do(ctx context.Context, s mig.Step) (mig.Done, error) {
	done, err := run(ctx, a, laneKey{id: s.GPU, changes: true}, func() (mig.Done, error) {
		c := &changing{Actuator: a, ctx: ctx, step: s}
		return c.do()
	})
	if err != nil {
		return mig.Done{}, fmt.Errorf("%s %s at %s of GPU %s: %w", s.Op, s.Profile, s.Placement, s.GPU, err)
	}
	return done, nil
}

// changing is one step under way.
type changing struct {
	*Actuator
	ctx  context.Context
	step mig.Step
}

// call makes a call that changes the GPU, unless nobody waits for it any more.
func (c *changing) call(op string, do func() nvml.Return) error {
	if c.ctx.Err() != nil {
		return givenUp(c.ctx)
	}
	defer c.touch(c.step.GPU)
	return c.source.check(op, do())
}

var errReadOnly = errors.New("this driver can only be read")

func (c *changing) createInstance() (mig.Done, error) {
	b, err := c.board(c.step.GPU)
	if err != nil {
		return mig.Done{}, err
	}
	d, ok := b.handle.(MutableDevice)
	if !ok {
		return mig.Done{}, fmt.Errorf("%w: %w", gpu.ErrNotSupported, errReadOnly)
	}
	want := GPUInstanceInfo{
		ProfileID: c.step.ProfileID,
		Placement: nvml.GpuInstancePlacement{Start: uint32(c.step.Placement.Start), Size: uint32(c.step.Placement.Size)},
	}
	var made MutableInstance
	err = c.call("nvmlDeviceCreateGpuInstanceWithPlacement", func() (ret nvml.Return) {
		made, ret = d.CreateGpuInstanceWithPlacement(want.ProfileID, want.Placement)
		return ret
	})
	if err != nil {
		return mig.Done{}, err
	}
	info, ret := made.GetInfo()
	err = c.source.check("nvmlGpuInstanceGetInfo", ret)
	if want.ID = info.ID; err == nil && info != want {
		at := instanceEntry{info: info}.placement()
		err = fmt.Errorf("%w: the driver has put it at %s, profile %d", gpu.ErrInsufficientResources, at, info.ProfileID)
	}
	if err != nil {
		return mig.Done{}, c.takeBack(err, "nvmlGpuInstanceDestroy", made.Destroy)
	}
	return mig.Done{Instance: gpu.InstanceID(info.ID)}, nil
}

// takeBack destroys what was made otherwise than asked for, or cannot be looked at. What was not to be found is not looked
// for again: its handle may be another's by now.
func (c *changing) takeBack(err error, op string, destroy func() nvml.Return) error {
	if losesEntity(err) {
		return err
	}
	return errors.Join(err, c.call(op, destroy))
}

func (c *changing) createCompute() (mig.Done, error) {
	r, n, err := c.instance()
	if err != nil {
		return mig.Done{}, err
	}
	gi, err := r.mutable(n.ID)
	if err != nil {
		return mig.Done{}, err
	}
	place, ok := c.step.Compute.Get()
	if !ok {
		return mig.Done{}, fmt.Errorf("%w: no place for a compute instance", gpu.ErrInvalidArgument)
	}
	var want ComputeInstanceInfo
	if want.ProfileID, want.Placement, err = c.computeProfile(gi, place); err != nil {
		return mig.Done{}, err
	}
	var made ComputeInstance
	err = c.call("nvmlGpuInstanceCreateComputeInstanceWithPlacement", func() (ret nvml.Return) {
		made, ret = gi.CreateComputeInstanceWithPlacement(want.ProfileID, want.Placement)
		return ret
	})
	if err != nil {
		return mig.Done{}, err
	}
	info, ret := made.GetInfo()
	err = c.source.check("nvmlComputeInstanceGetInfo", ret)
	if want.ID = info.ID; err == nil && info != want {
		err = fmt.Errorf("%w: the driver has put it at %d:%d, profile %d", gpu.ErrInsufficientResources,
			info.Placement.Start, info.Placement.Size, info.ProfileID)
	}
	done := mig.Done{Instance: n.ID, ComputeID: gpu.Some(gpu.ComputeID(info.ID))}
	if err == nil {
		done.UUID, err = c.uuidOf(done.Instance, gpu.ComputeID(info.ID))
	}
	if err != nil {
		return mig.Done{}, c.takeBack(err, "nvmlComputeInstanceDestroy", made.Destroy)
	}
	return done, nil
}

// uuidOf finds the MIG device of a compute instance.
func (c *changing) uuidOf(instance gpu.InstanceID, compute gpu.ComputeID) (gpu.MIGUUID, error) {
	r, err := c.layout(c.step.GPU)
	if err != nil {
		return "", err
	}
	for _, d := range r.board.tree.scan.devices {
		if d.instance == instance && d.compute == compute {
			return d.uuid, nil
		}
	}
	return "", fmt.Errorf("%w: the compute instance has no MIG device", gpu.ErrDriver)
}

// computeProfile chooses among the compute profiles with as many slices as are wanted, and that can be at the place, the
// one with the most SMs: newer drivers have several. The place is as the driver has it (computeNode.place).
func (c *changing) computeProfile(gi MutableInstance, at gpu.Placement) (id uint32, place nvml.ComputeInstancePlacement, err error) {
	most := uint32(0)
	for profile := range maxProfiles {
		info, ret := gi.GetComputeInstanceProfileInfo(profile)
		err := c.source.check("nvmlGpuInstanceGetComputeInstanceProfileInfo", ret)
		if errors.Is(err, gpu.ErrInvalidArgument) && profile >= nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
			break
		}
		if errors.Is(err, gpu.ErrNotSupported) || errors.Is(err, gpu.ErrInvalidArgument) && profile > 0 {
			continue
		}
		if err != nil {
			return 0, place, err
		}
		if int(info.SliceCount) != at.Size || info.MultiprocessorCount <= most {
			continue
		}
		places, ret := gi.GetComputeInstancePossiblePlacements(info.Id)
		if err := c.source.check("nvmlGpuInstanceGetComputeInstancePossiblePlacements", ret); err != nil {
			return 0, place, err
		}
		if k := slices.IndexFunc(places, func(p nvml.ComputeInstancePlacement) bool { return int(p.Start) == at.Start }); k >= 0 {
			id, place, most = info.Id, places[k], info.MultiprocessorCount
		}
	}
	if most == 0 {
		return 0, place, fmt.Errorf("%w: no compute profile has %d slices at %d", gpu.ErrInvalidArgument, at.Size, at.Start)
	}
	return id, place, nil
}

func (c *changing) destroyInstance() (mig.Done, error) {
	r, n, err := c.instance()
	if err != nil {
		return mig.Done{}, err
	}
	gi, err := r.mutable(n.ID)
	if err != nil {
		return mig.Done{}, err
	}
	if err := c.call("nvmlGpuInstanceDestroy", gi.Destroy); err != nil {
		return mig.Done{}, err
	}
	after, err := c.layout(c.step.GPU)
	if err != nil {
		return mig.Done{}, fmt.Errorf("destroyed, as the driver says; to look whether it is so: %w", err)
	}
	if after.node(c.stands) != nil {
		return mig.Done{}, fmt.Errorf("%w: %w", gpu.ErrDriver, errStillThere)
	}
	return mig.Done{Instance: n.ID}, nil
}

var errStillThere = errors.New("the driver said that it was destroyed, but it is still there")

func (c *changing) destroyCompute() (mig.Done, error) {
	r, n, err := c.instance()
	if err != nil {
		return mig.Done{}, err
	}
	compute, err := c.compute(n)
	if err != nil {
		return mig.Done{}, err
	}
	gi, err := r.mutable(n.ID)
	if err != nil {
		return mig.Done{}, err
	}
	ci, ret := gi.GetComputeInstanceById(uint32(compute.ID))
	if err := c.source.check("nvmlGpuInstanceGetComputeInstanceById", ret); err != nil {
		return mig.Done{}, err
	}
	if err := c.call("nvmlComputeInstanceDestroy", ci.Destroy); err != nil {
		return mig.Done{}, err
	}
	after, err := c.layout(c.step.GPU)
	if err != nil {
		return mig.Done{}, fmt.Errorf("destroyed, as the driver says; to look whether it is so: %w", err)
	}
	if n := after.node(c.stands); n != nil {
		if _, err := c.compute(n); err == nil {
			return mig.Done{}, fmt.Errorf("%w: %w", gpu.ErrDriver, errStillThere)
		}
	}
	return mig.Done{Instance: n.ID, ComputeID: gpu.Some(compute.ID), UUID: compute.UUID}, nil
}
