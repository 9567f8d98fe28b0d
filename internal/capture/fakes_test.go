package capture

import (
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

const (
	realHost   = "prod-gpu-17"
	realUUID   = "GPU-5c0e2f3a-1111-2222-3333-444455556666"
	realMIG    = "MIG-9f8e7d6c-aaaa-bbbb-cccc-ddddeeeeffff"
	realLegacy = "MIG-" + realUUID + "/2/0"
	realSerial = "1324621098765"
	realPID    = 3456789
)

// fakeDriver is one GPU with one MIG device. Its embedded interfaces are nil: what is not
// overridden is never to be asked.
type fakeDriver struct {
	nvmlsource.Library
	device *fakeDevice
	init   nvml.Return
	events chan nvmlsource.Event
	failed chan nvml.Return
}

type fakeDevice struct {
	nvmlsource.Device
	lib *fakeDriver

	mu      sync.Mutex
	watts   uint32
	answers map[string]nvml.Return // of functions that fail
	hang    chan struct{}          // if not nil, GetPowerUsage waits for it
	asked   chan struct{}          // gets one before each such wait
}

func newFake() *fakeDriver {
	d := &fakeDriver{events: make(chan nvmlsource.Event, 9), failed: make(chan nvml.Return, 9)}
	d.device = &fakeDevice{lib: d, watts: 100, answers: map[string]nvml.Return{}, asked: make(chan struct{}, 9)}

	return d
}

func (d *fakeDriver) Init() nvml.Return { return d.init }

func (d *fakeDriver) Shutdown() nvml.Return { return nvml.SUCCESS }

func (d *fakeDriver) SystemGetDriverVersion() (string, nvml.Return) { return "580.10", nvml.SUCCESS }

func (d *fakeDriver) DeviceGetCount() (int, nvml.Return) { return 1, nvml.SUCCESS }

func (d *fakeDriver) DeviceGetHandleByIndex(int) (nvmlsource.Device, nvml.Return) {
	return d.device, nvml.SUCCESS
}

func (d *fakeDriver) EventSetCreate() (nvmlsource.EventSet, nvml.Return) {
	return fakeSet{d}, nvml.SUCCESS
}

type fakeSet struct{ d *fakeDriver }

func (s fakeSet) Wait(millis uint32) (nvmlsource.Event, nvml.Return) {
	select {
	case e := <-s.d.events:
		return e, nvml.SUCCESS
	case ret := <-s.d.failed:
		return nvmlsource.Event{}, ret
	case <-time.After(time.Duration(millis) * time.Millisecond):
		return nvmlsource.Event{}, nvml.ERROR_TIMEOUT
	}
}

func (fakeSet) Free() nvml.Return { return nvml.SUCCESS }

func (d *fakeDevice) code(function string) nvml.Return {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.answers[function]
}

func (d *fakeDevice) set(function string, ret nvml.Return) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[function] = ret
}

func (d *fakeDevice) GetUUID() (string, nvml.Return) { return realUUID, d.code("GetUUID") }

func (d *fakeDevice) GetName() (string, nvml.Return) { return "NVIDIA \xff \"Ünit\"\n", nvml.SUCCESS }

func (d *fakeDevice) GetSerial() (string, nvml.Return) { return realSerial, nvml.SUCCESS }

func (d *fakeDevice) GetPowerUsage() (uint32, nvml.Return) {
	d.mu.Lock()
	watts := d.watts
	hang := d.hang
	d.mu.Unlock()

	if hang != nil {
		d.asked <- struct{}{}
		<-hang
	}

	return watts, d.code("GetPowerUsage")
}

func (d *fakeDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return []nvml.ProcessInfo{{Pid: realPID, UsedGpuMemory: 1 << 30}, {Pid: 0, UsedGpuMemory: 1<<64 - 1}}, nvml.SUCCESS
}

func (d *fakeDevice) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	for i := range values {
		values[i].Timestamp = 123456
		values[i].ValueType = values[i].FieldId

		values[i].Value = [8]byte{1, 2, 3, 4, 5, 6, 7, 0x88}
		if values[i].FieldId == nvml.FI_DEV_MEMORY_TEMP {
			values[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
		}
	}

	return d.code("GetFieldValues")
}

func (d *fakeDevice) RegisterEvents(_ uint64, set nvmlsource.EventSet) nvml.Return {
	if _, ok := set.(fakeSet); !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	return nvml.SUCCESS
}

func (d *fakeDevice) GetMigDeviceHandleByIndex(index int) (nvmlsource.MIGDevice, nvml.Return) {
	switch index {
	case 0:
		return fakeMIG{uuid: realMIG}, nvml.SUCCESS
	case 1:
		return fakeMIG{uuid: realLegacy}, nvml.SUCCESS
	}

	return nil, nvml.ERROR_NOT_FOUND
}

func (d *fakeDevice) GetGpuInstances(profile uint32, _ int) ([]nvmlsource.GPUInstance, nvml.Return) {
	if profile != 9 {
		return nil, nvml.ERROR_NO_PERMISSION
	}

	return []nvmlsource.GPUInstance{fakeInstance{1}, fakeInstance{2}}, nvml.SUCCESS
}

type fakeMIG struct {
	nvmlsource.MIGDevice
	uuid string
}

func (m fakeMIG) GetUUID() (string, nvml.Return) { return m.uuid, nvml.SUCCESS }

func (m fakeMIG) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	return nvml.DeviceAttributes{MultiprocessorCount: 42, MemorySizeMB: 20096}, nvml.SUCCESS
}

type fakeInstance struct{ id uint32 }

func (i fakeInstance) GetInfo() (nvmlsource.GPUInstanceInfo, nvml.Return) {
	return nvmlsource.GPUInstanceInfo{ID: i.id, ProfileID: 9, Placement: nvml.GpuInstancePlacement{Start: 4, Size: 4}},
		nvml.SUCCESS
}

func (i fakeInstance) GetComputeInstances() ([]nvmlsource.ComputeInstanceInfo, nvml.Return) {
	return []nvmlsource.ComputeInstanceInfo{{ID: 0, ProfileID: 2, Placement: nvml.ComputeInstancePlacement{Size: 3}}},
		nvml.SUCCESS
}

func start() time.Time { return time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC) }

// rewritten writes a recording to a file and reads it back.
func rewritten(t *testing.T, rec *Recording) *Recording {
	t.Helper()

	data, err := rec.Bytes()
	if err != nil {
		t.Fatal(err)
	}

	again, err := Parse("recording.yaml", data)
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}

	second, err := again.Bytes()
	if err != nil {
		t.Fatal(err)
	}

	if string(second) != string(data) {
		t.Fatalf("written again it is another file:\n%s\nwas\n%s", second, data)
	}

	return again
}

// firstGPU is the GPU of a driver, recorded or not.
func firstGPU(t *testing.T, lib nvmlsource.Library) nvmlsource.Device {
	t.Helper()

	d, ret := lib.DeviceGetHandleByIndex(0)
	if ret != nvml.SUCCESS {
		t.Fatalf("no GPU: %d", ret)
	}

	return d
}
