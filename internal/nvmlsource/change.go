package nvmlsource

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// createInstance creates a GPU instance at the step's placement. If the driver reports to have
// created another one, the error is mig.ErrNotAsAsked. Nothing is destroyed then: the instance may
// be another client's by now.
func (c *stepCall) createInstance() (mig.Done, error) {
	want := GPUInstanceInfo{
		ProfileID: c.step.ProfileID,
		Placement: nvml.GpuInstancePlacement{
			Start: uint32(c.step.Placement.Start),
			Size:  uint32(c.step.Placement.Size),
		},
	}
	var created MutableInstance

	err := c.callDriver("nvmlDeviceCreateGpuInstanceWithPlacement", func() (ret nvml.Return) {
		created, ret = c.device.CreateGpuInstanceWithPlacement(want.ProfileID, want.Placement)
		return ret
	})
	if err != nil {
		return mig.Done{}, err
	}

	info, ret := created.GetInfo()

	err = c.source.checkReturn("nvmlGpuInstanceGetInfo", ret)
	if want.ID = info.ID; err == nil && info != want {
		at := info.placement()
		err = fmt.Errorf("%w: it is at %s, profile %d", gpu.ErrReplaced, at, info.ProfileID)
	}

	if err != nil {
		return mig.Done{}, fmt.Errorf("%w: %w", mig.ErrNotAsAsked, err)
	}

	return mig.Done{Instance: gpu.InstanceID(info.ID)}, nil
}

// createCompute creates a compute instance at the step's placement in a GPU instance, with the same
// errors.
func (c *stepCall) createCompute(
	t *tables,
	at gpu.InstanceID,
	gi MutableInstance,
) (mig.Done, error) {
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

	err = c.callDriver(
		"nvmlGpuInstanceCreateComputeInstanceWithPlacement",
		func() (ret nvml.Return) {
			created, ret = gi.CreateComputeInstanceWithPlacement(want.ProfileID, want.Placement)
			return ret
		},
	)
	if err != nil {
		return mig.Done{}, err
	}

	info, ret := created.GetInfo()

	err = c.source.checkReturn("nvmlComputeInstanceGetInfo", ret)
	if want.ID = info.ID; err == nil && info != want {
		err = fmt.Errorf(
			"%w: it is at %d:%d, profile %d",
			gpu.ErrReplaced,
			info.Placement.Start,
			info.Placement.Size,
			info.ProfileID,
		)
	}

	done := mig.Done{Instance: at, ComputeID: gpu.Some(gpu.ComputeID(info.ID))}
	if err == nil {
		done.UUID, err = c.uuidOf(t, computeKey{at, gpu.ComputeID(info.ID)})
	}

	if err != nil {
		return mig.Done{}, fmt.Errorf("%w: %w", mig.ErrNotAsAsked, err)
	}

	return done, nil
}

// uuidOf returns the UUID of the MIG device of a compute instance.
func (c *stepCall) uuidOf(t *tables, of computeKey) (gpu.MIGUUID, error) {
	found, err := c.readDevices(c.gpu, t.mostMIG, gpu.Some(of))
	if err != nil {
		return "", err
	}

	if found[of] == "" {
		return "", fmt.Errorf("%w: the compute instance has no MIG device", gpu.ErrDriver)
	}

	return found[of], nil
}

// chooseProfile returns, of the compute profiles that have the wanted number of slices and can be
// at the placement, the one with the most SMs: newer drivers have several. The placement is the
// driver's, which may be longer than the slices (addCompute).
func (c *stepCall) chooseProfile(t *tables, gi MutableInstance,
	at gpu.Placement) (id uint32, place nvml.ComputeInstancePlacement, err error) {
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

		err := c.source.checkReturn("nvmlGpuInstanceGetComputeInstancePossiblePlacements", ret)
		if err != nil {
			return 0, place, err
		}

		k := slices.IndexFunc(
			places,
			func(p nvml.ComputeInstancePlacement) bool { return int(p.Start) == at.Start },
		)
		if k >= 0 {
			id = info.Id
			place = places[k]
			most = info.MultiprocessorCount
		}
	}

	if most == 0 {
		return 0, place, fmt.Errorf(
			"%w: no compute profile has %d slices at %d",
			gpu.ErrInvalidArgument,
			at.Size,
			at.Start,
		)
	}

	return id, place, nil
}
