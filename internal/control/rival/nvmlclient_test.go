package rival

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// The two faces of the driver.

func isInUse(err error) bool {
	return errors.Is(err, gpu.ErrInUse) || errors.Is(err, nvml.ERROR_IN_USE)
}

// nodeFace is the simulated node, in the same process.
type nodeFace struct{ node *sim.Node }

func (f nodeFace) list(index int) (tree, error) {
	s, err := f.node.Read(index, gpu.ReadingMIG)
	return treeOfState(&s), err
}

func (f nodeFace) createGI(index int, profile uint32, start, _ int) (uint32, error) {
	id, err := f.node.CreateGPUInstance(index, profile, gpu.Some(start))
	return uint32(id), err
}

func (f nodeFace) createCI(index int, of uint32, slices int) (uint32, error) {
	id, err := f.node.CreateComputeInstance(index, gpu.InstanceID(of), slices)
	return uint32(id), err
}

func (f nodeFace) destroyGI(index int, id uint32) error {
	return f.node.DestroyGPUInstance(index, gpu.InstanceID(id))
}

func (f nodeFace) destroyCI(index int, of, id uint32) error {
	return f.node.DestroyComputeInstance(index, gpu.InstanceID(of), gpu.ComputeID(id))
}

// nvmlClient is the simulated driver's C library.
type nvmlClient struct{ lib nvml.Interface }

func newNVMLClient(path string) (nvmlClient, error) {
	f := nvmlClient{nvml.New(nvml.WithLibraryPath(path))}
	return f, failed("nvmlInit", f.lib.Init())
}

func failed(call string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}

	return fmt.Errorf("%s: %w", call, ret)
}

func (f nvmlClient) list(index int) (tree, error) {
	d, ret := f.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, failed("device", ret)
	}

	list := tree{}

	for profile := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := d.GetGpuInstanceProfileInfo(profile)
		if ret != nvml.SUCCESS {
			continue
		}

		instances, ret := d.GetGpuInstances(&info)
		if ret != nvml.SUCCESS {
			return nil, failed("list GPU instances", ret)
		}

		for _, handle := range instances {
			at, ret := handle.GetInfo()
			if ret != nvml.SUCCESS {
				return nil, failed("info of a GPU instance", ret)
			}

			g := gi{ID: at.Id, Profile: at.ProfileId, Start: int(at.Placement.Start), Size: int(at.Placement.Size)}
			if g.CIs, ret = listComputes(handle); ret != nvml.SUCCESS {
				return nil, failed("list compute instances", ret)
			}

			list = append(list, g)
		}
	}

	return list, nil
}

func listComputes(of nvml.GpuInstance) ([]ci, nvml.Return) {
	var list []ci

	for profile := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := of.GetComputeInstanceProfileInfo(profile, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret != nvml.SUCCESS {
			continue
		}

		handles, ret := of.GetComputeInstances(&info)
		if ret != nvml.SUCCESS {
			return nil, ret
		}

		for _, h := range handles {
			at, ret := h.GetInfo()
			if ret != nvml.SUCCESS {
				return nil, ret
			}

			list = append(list, ci{ID: at.Id, Start: int(at.Placement.Start), Slices: int(info.SliceCount)})
		}
	}

	return list, nvml.SUCCESS
}

func (f nvmlClient) instance(index int, id uint32) (nvml.GpuInstance, error) {
	d, ret := f.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, failed("device", ret)
	}

	g, ret := d.GetGpuInstanceById(int(id))

	return g, failed("GPU instance", ret)
}

func (f nvmlClient) createGI(index int, profile uint32, start, size int) (uint32, error) {
	d, ret := f.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return 0, failed("device", ret)
	}

	info := nvml.GpuInstanceProfileInfo{Id: profile}

	g, ret := d.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(size)})
	if ret != nvml.SUCCESS {
		return 0, failed("create GPU instance", ret)
	}

	at, ret := g.GetInfo()

	return at.Id, failed("info of a GPU instance", ret)
}

func (f nvmlClient) createCI(index int, of uint32, slices int) (uint32, error) {
	g, err := f.instance(index, of)
	if err != nil {
		return 0, err
	}

	profile := map[int]uint32{1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[slices]

	c, ret := g.CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{Id: profile})
	if ret != nvml.SUCCESS {
		return 0, failed("create compute instance", ret)
	}

	at, ret := c.GetInfo()

	return at.Id, failed("info of a compute instance", ret)
}

func (f nvmlClient) destroyGI(index int, id uint32) error {
	g, err := f.instance(index, id)
	if err != nil {
		return err
	}

	return failed("destroy GPU instance", g.Destroy())
}

func (f nvmlClient) destroyCI(index int, of, id uint32) error {
	g, err := f.instance(index, of)
	if err != nil {
		return err
	}

	c, ret := g.GetComputeInstanceById(int(id))
	if ret != nvml.SUCCESS {
		return failed("compute instance", ret)
	}

	return failed("destroy compute instance", c.Destroy())
}
