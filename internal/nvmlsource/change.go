package nvmlsource

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// createInstance creates a GPU instance at the step's placement. If the driver says that it has
// created something else, the error is mig.ErrNotAsAsked. We do not destroy that instance: it may
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
	want.ID = info.ID // the driver chooses it

	err = checkReturn("nvmlGpuInstanceGetInfo", ret)
	if err == nil && info != want {
		at := info.placement()
		err = fmt.Errorf("%w: it is at %s, profile %d", gpu.ErrReplaced, at, info.ProfileID)
	}

	if err != nil {
		return mig.Done{}, fmt.Errorf("%w: %w", mig.ErrNotAsAsked, err)
	}

	return mig.Done{Instance: gpu.InstanceID(info.ID)}, nil
}

// createCompute creates a compute instance at the step's placement in a GPU instance. It fails like
// createInstance.
func (c *stepCall) createCompute(
	t *tables,
	parent gpu.InstanceID,
	gi MutableInstance,
) (mig.Done, error) {
	placement, ok := c.step.Compute.Get()
	if !ok {
		return mig.Done{}, fmt.Errorf("%w: no place for a compute instance", gpu.ErrInvalidArgument)
	}

	var want ComputeInstanceInfo

	var err error
	if want.ProfileID, want.Placement, err = c.chooseProfile(t, gi, placement); err != nil {
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
	want.ID = info.ID // the driver chooses it

	err = checkReturn("nvmlComputeInstanceGetInfo", ret)
	if err == nil && info != want {
		err = fmt.Errorf(
			"%w: it is at %d:%d, profile %d",
			gpu.ErrReplaced,
			info.Placement.Start,
			info.Placement.Size,
			info.ProfileID,
		)
	}

	done := mig.Done{Instance: parent, ComputeID: gpu.Some(gpu.ComputeID(info.ID))}
	if err == nil {
		done.UUID, err = c.readUUID(t, computeKey{parent, gpu.ComputeID(info.ID)})
	}

	if err != nil {
		return mig.Done{}, fmt.Errorf("%w: %w", mig.ErrNotAsAsked, err)
	}

	return done, nil
}

// readUUID reads the UUID of the MIG device of a compute instance.
func (c *stepCall) readUUID(t *tables, key computeKey) (gpu.MIGUUID, error) {
	uuids, err := c.readDevices(c.gpu, t.maxDevices, gpu.Some(key))
	if err != nil {
		return "", err
	}

	if uuids[key] == "" {
		return "", fmt.Errorf("%w: the compute instance has no MIG device", gpu.ErrDriver)
	}

	return uuids[key], nil
}

// chooseProfile chooses a compute profile that has the wanted number of slices and can be placed at
// the start of wanted. Newer drivers have several; we take the one with the most SMs. The placement
// that it returns is the driver's, which may be longer than the slices (see addCompute).
func (c *stepCall) chooseProfile(t *tables, gi MutableInstance,
	wanted gpu.Placement) (id uint32, placement nvml.ComputeInstancePlacement, err error) {
	profiles, err := c.listComputeProfiles(t, gi, c.step.ProfileID)
	if err != nil {
		return 0, placement, err
	}

	mostSMs := uint32(0)
	for _, info := range profiles {
		if int(info.SliceCount) != wanted.Size || info.MultiprocessorCount <= mostSMs {
			continue
		}

		possible, ret := gi.GetComputeInstancePossiblePlacements(info.Id)

		err := checkReturn("nvmlGpuInstanceGetComputeInstancePossiblePlacements", ret)
		if err != nil {
			return 0, placement, err
		}

		k := slices.IndexFunc(
			possible,
			func(p nvml.ComputeInstancePlacement) bool { return int(p.Start) == wanted.Start },
		)
		if k >= 0 {
			id = info.Id
			placement = possible[k]
			mostSMs = info.MultiprocessorCount
		}
	}

	if mostSMs == 0 {
		return 0, placement, fmt.Errorf(
			"%w: no compute profile has %d slices at %d",
			gpu.ErrInvalidArgument,
			wanted.Size,
			wanted.Start,
		)
	}

	return id, placement, nil
}
