package nvmlsource

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// SetMIGMode sets the pending MIG mode and then reads both modes. First it releases what the Source
// holds of the GPU: its events and its profiling samples, which the next Reads start again. It
// never resets a GPU; the driver may.
func (a *Actuator) SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (mig.ModeChange, error) {
	m, err := runQueued(ctx, a, queueKey{id: id, changes: true}, func() (mig.ModeChange, error) {
		return a.setMode(ctx, id, on)
	})
	if err != nil {
		return mig.ModeChange{}, fmt.Errorf("set MIG mode of GPU %s: %w", id, err)
	}

	return m, nil
}

func (a *Actuator) setMode(ctx context.Context, id gpu.UUID, on bool) (mig.ModeChange, error) {
	g, err := a.findGPU(id)
	if err != nil {
		return mig.ModeChange{}, err
	}

	d, ok := g.handle.(MutableDevice)
	if !ok {
		return mig.ModeChange{}, fmt.Errorf("%w: %w", gpu.ErrNotSupported, errReadOnly)
	}

	_, _, ret := g.handle.GetMigMode()
	if err := checkReturn("nvmlDeviceGetMigMode", ret); err != nil {
		return mig.ModeChange{}, err // the GPU has no MIG, or does not answer: nothing is released
	}

	g.tables.Store(nil)
	restore := a.source.queue.withholdGPU(g.handle)
	defer func() {
		restore()
		a.markChanged(id) // a Read under way did not register the GPU's events: the next one does
	}()
	g.reading.Lock() // waits for a Read of the GPU that is under way
	a.source.emptyWindows(g)
	g.reading.Unlock()

	if ctx.Err() != nil {
		return mig.ModeChange{}, abandonedError(ctx)
	}

	mode := nvml.DEVICE_MIG_DISABLE
	if on {
		mode = nvml.DEVICE_MIG_ENABLE
	}

	activation, ret := d.SetMigMode(mode)
	a.markChanged(id)

	if err := checkReturn("nvmlDeviceSetMigMode", ret); err != nil {
		return mig.ModeChange{}, err
	}

	var m mig.ModeChange
	if activation != nvml.SUCCESS {
		m.Activation = driverError("activation", activation)
	}

	if m.Current, m.Pending, err = a.readMode(id); err != nil {
		return mig.ModeChange{}, fmt.Errorf("read it back: %w", err)
	}

	return m, nil
}

// readMode reads the MIG mode after a change, in which the driver may have unbound the GPU. If the
// handle is no longer valid, it looks the GPU up again, once.
func (a *Actuator) readMode(id gpu.UUID) (current, pending bool, err error) {
	for range 2 {
		var g *gpuState
		if g, err = a.findGPU(id); err == nil {
			now, next, ret := g.handle.GetMigMode()
			if err = checkReturn("nvmlDeviceGetMigMode", ret); err == nil {
				return now == nvml.DEVICE_MIG_ENABLE, next == nvml.DEVICE_MIG_ENABLE, nil
			}
		}

		if !losesDevice(err) && !errors.Is(err, gpu.ErrInvalidArgument) {
			break
		}

		if g = a.source.stateOf(id); g != nil {
			g.advanceTo(phaseLost)
		}
	}

	return false, false, err
}
