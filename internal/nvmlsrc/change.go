package nvmlsrc

import (
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

func (c *changing) createInstance() (mig.Done, error) {
	want := GPUInstanceInfo{
		ProfileID: c.step.ProfileID,
		Placement: nvml.GpuInstancePlacement{Start: uint32(c.step.Placement.Start), Size: uint32(c.step.Placement.Size)},
	}
	var created MutableInstance
	err := c.call("nvmlDeviceCreateGpuInstanceWithPlacement", func() (ret nvml.Return) {
		created, ret = c.device.CreateGpuInstanceWithPlacement(want.ProfileID, want.Placement)
		return ret
	})
	if err != nil {
		return mig.Done{}, err
	}
	info, ret := created.GetInfo()
	err = c.source.check("nvmlGpuInstanceGetInfo", ret)
	if want.ID = info.ID; err == nil && info != want {
		at := instanceEntry{info: info}.placement()
		err = fmt.Errorf("%w: the driver has put it at %s, profile %d", gpu.ErrInsufficientResources, at, info.ProfileID)
	}
	if err != nil {
		return mig.Done{}, c.takeBack(err, "nvmlGpuInstanceDestroy", created.Destroy)
	}
	return mig.Done{Instance: gpu.InstanceID(info.ID)}, nil
}

func (c *changing) createCompute(t *tables, at *standing, gi MutableInstance) (mig.Done, error) {
	place, ok := c.step.Compute.Get()
	if !ok {
		return mig.Done{}, fmt.Errorf("%w: no place for a compute instance", gpu.ErrInvalidArgument)
	}
	var want ComputeInstanceInfo
	var err error
	if want.ProfileID, want.Placement, err = c.chooseProfile(t, gi, place); err != nil {
		return mig.Done{}, err
	}
	var created ComputeInstance
	err = c.call("nvmlGpuInstanceCreateComputeInstanceWithPlacement", func() (ret nvml.Return) {
		created, ret = gi.CreateComputeInstanceWithPlacement(want.ProfileID, want.Placement)
		return ret
	})
	if err != nil {
		return mig.Done{}, err
	}
	info, ret := created.GetInfo()
	err = c.source.check("nvmlComputeInstanceGetInfo", ret)
	if want.ID = info.ID; err == nil && info != want {
		err = fmt.Errorf("%w: the driver has put it at %d:%d, profile %d", gpu.ErrInsufficientResources,
			info.Placement.Start, info.Placement.Size, info.ProfileID)
	}
	done := mig.Done{Instance: at.ID, ComputeID: gpu.Some(gpu.ComputeID(info.ID))}
	if err == nil {
		done.UUID, err = c.uuidOf(t, unit{at.ID, gpu.ComputeID(info.ID)})
	}
	if err != nil {
		return mig.Done{}, c.takeBack(err, "nvmlComputeInstanceDestroy", created.Destroy)
	}
	return done, nil
}

// uuidOf finds the MIG device of a compute instance.
func (c *changing) uuidOf(t *tables, of unit) (gpu.MIGUUID, error) {
	found, err := c.devices(c.gpu, t.mostMIG, gpu.Some(of))
	if err != nil {
		return "", err
	}
	if found[of] == "" {
		return "", fmt.Errorf("%w: the compute instance has no MIG device", gpu.ErrDriver)
	}
	return found[of], nil
}

// chooseProfile chooses among the compute profiles with as many slices as are wanted, and that can be at the place, the
// one with the most SMs: newer drivers have several. The place is as the driver has it (standing.add).
func (c *changing) chooseProfile(t *tables, gi MutableInstance, at gpu.Placement) (id uint32, place nvml.ComputeInstancePlacement, err error) {
	profiles, err := c.computeProfiles(t, gi, c.step.ProfileID)
	if err != nil {
		return 0, place, err
	}
	most := uint32(0)
	for _, info := range profiles {
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

var errNotTakenBack = errors.New("what was created is left there: the GPU has another layout than the step alone would leave")

// takeBack destroys what was created otherwise than asked for, or cannot be looked at, if it is all that has changed. What was
// not found is not looked for again: its handle may be another's by now.
func (c *changing) takeBack(err error, op string, destroy func() nvml.Return) error {
	if losesEntity(err) {
		return err
	}
	now, lookErr := c.steady(c.gpu, c.expected)
	if lookErr != nil {
		return errors.Join(err, fmt.Errorf("what was created is left there: %w", lookErr))
	}
	if !oneMore(c.expected, now.instances()) {
		return errors.Join(err, errNotTakenBack)
	}
	return errors.Join(err, c.call(op, destroy))
}

// oneMore reports whether there is exactly one GPU instance or compute instance more than before, and all else is the same.
func oneMore(before, now []mig.NodeInstance) bool {
	more := 0
	var rest []mig.NodeInstance
	for _, i := range now {
		at := slices.IndexFunc(before, func(b mig.NodeInstance) bool {
			return b.ID == i.ID && b.ProfileID == i.ProfileID && b.Placement == i.Placement
		})
		if at < 0 {
			more += 1 + len(i.Computes)
			continue
		}
		all := len(i.Computes)
		i.Computes = slices.DeleteFunc(slices.Clone(i.Computes), func(c mig.NodeCompute) bool {
			return !slices.ContainsFunc(before[at].Computes, func(b mig.NodeCompute) bool { return b.ID == c.ID })
		})
		more += all - len(i.Computes)
		rest = append(rest, i)
	}
	return more == 1 && mig.SameInstances(rest, before)
}
