package nvmlsource_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"reflect"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// noise is a driver that says whatever its bytes are: any numbers, strings and return codes, in any
// order. When they have run out it is quiet: zeros and successes.
type noise struct{ rest *[]byte }

func (n noise) take(into []byte) {
	*n.rest = (*n.rest)[copy(into, *n.rest):]
}

func (n noise) u8() byte {
	var b [1]byte
	n.take(b[:])

	return b[0]
}

func (n noise) u32() uint32 {
	var b [4]byte
	n.take(b[:])

	return binary.LittleEndian.Uint32(b[:])
}

func (n noise) u64() uint64 { return uint64(n.u32()) | uint64(n.u32())<<32 }

func (n noise) text() string {
	b := make([]byte, n.u8()%100)
	n.take(b)

	return string(b)
}

// ret succeeds more often than not; else it is any of the codes that NVML has, and some that it has
// not.
func (n noise) ret() nvml.Return {
	if b := n.u8(); b&1 != 0 {
		return nvml.Return(b >> 1)
	}

	return nvml.SUCCESS
}

// Before answers calls whose values have no limits; for the others noise has methods.
func (n noise) Before(c nvmlsource.Call) nvmlsource.Verdict {
	t := unlimited()[c.Function]
	if t == nil {
		return nvmlsource.Verdict{}
	}

	return nvmlsource.Verdict{Answered: true, Answer: n.random(t), Return: n.ret()}
}

func (noise) Object(nvmlsource.Call, int, any) (object any, known bool) { return nil, true }

// unlimited are the types of what functions return that noise has no method for.
var unlimited = sync.OnceValue(func() map[string]reflect.Type {
	all := map[string]reflect.Type{}

	for prefix, seam := range map[string][]reflect.Type{
		"nvml":       {reflect.TypeFor[nvmlsource.Library]()},
		"nvmlDevice": {reflect.TypeFor[nvmlsource.Device](), reflect.TypeFor[nvmlsource.MIGDevice]()},
	} {
		for _, t := range seam {
			for i := range t.NumMethod() {
				m := t.Method(i)
				if _, has := reflect.TypeFor[noise]().MethodByName(m.Name); !has {
					all[prefix+m.Name] = m.Type.Out(0)
				}
			}
		}
	}

	return all
})

func (n noise) random(t reflect.Type) any {
	v := reflect.New(t).Elem()

	switch v.Kind() {
	case reflect.String:
		v.SetString(n.text())
	case reflect.Int, reflect.Int32:
		v.SetInt(int64(int32(n.u32())))
	case reflect.Uint32:
		v.SetUint(uint64(n.u32()))
	case reflect.Uint64:
		v.SetUint(n.u64())
	default:
		panic("a method of noise that is missing: it returns a " + t.String())
	}

	return v.Interface()
}

// noiseLibrary, noiseDevice and noiseMIG have the methods of noise; those that it lacks are never
// called.
type (
	noiseLibrary struct {
		noise
		restOfLibrary
	}
	noiseDevice struct {
		noise
		restOfDevice
	}
	noiseMIG struct {
		noise
		restOfMIG
	}
	restOfLibrary struct{ nvmlsource.Library }
	restOfDevice  struct{ nvmlsource.Device }
	restOfMIG     struct{ nvmlsource.MIGDevice }
)

// GetMigMode returns no error: it would end the reading before it has begun.
func (n noise) GetMigMode() (current, pending int, ret nvml.Return) {
	return int(n.u8() % 3), int(n.u8() % 3), nvml.SUCCESS
}

func (n noise) Init() nvml.Return                             { return nvml.SUCCESS }
func (n noise) InitNoAttach() nvml.Return                     { return nvml.SUCCESS }
func (n noise) Shutdown() nvml.Return                         { return nvml.SUCCESS }
func (n noise) SystemGetDriverVersion() (string, nvml.Return) { return n.text(), nvml.SUCCESS }
func (n noise) DeviceGetCount() (int, nvml.Return)            { return 1, nvml.SUCCESS }
func (n noise) EventSetCreate() (nvmlsource.EventSet, nvml.Return) {
	return nil, nvml.ERROR_NOT_SUPPORTED
}
func (n noise) GetUUID() (string, nvml.Return)           { return n.text(), nvml.SUCCESS }
func (n noise) GetMaxMigDeviceCount() (int, nvml.Return) { return int(n.u8() % 16), n.ret() }
func (n noise) GetGpuInstanceId() (int, nvml.Return)     { return int(n.u8() % 4), n.ret() }
func (n noise) GetComputeInstanceId() (int, nvml.Return) { return int(n.u8() % 4), n.ret() }

func (n noise) DeviceGetHandleByIndex(int) (nvmlsource.Device, nvml.Return) {
	return noiseDevice{noise: n}, nvml.SUCCESS
}

func (n noise) DeviceGetHandleByPciBusId(string) (nvmlsource.Device, nvml.Return) {
	return noiseDevice{noise: n}, nvml.SUCCESS
}

func (n noise) RegisterEvents(uint64, nvmlsource.EventSet) nvml.Return { return n.ret() }

func (n noise) GetMigDeviceHandleByIndex(int) (nvmlsource.MIGDevice, nvml.Return) {
	return noiseMIG{noise: n}, n.ret()
}

func (n noise) GetCudaComputeCapability() (major, minor int, ret nvml.Return) {
	return int(n.u8()), int(n.u8()), n.ret()
}

func (n noise) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return nvml.Utilization{Gpu: n.u32(), Memory: n.u32()}, n.ret()
}

func (n noise) GetRemappedRows() (correctable, uncorrectable int, pending, failure bool, ret nvml.Return) {
	return int(int32(n.u32())), int(int32(n.u32())), n.u8()&1 != 0, n.u8()&1 != 0, n.ret()
}

func (n noise) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	return nvml.Memory_v2{Version: n.u32(), Total: n.u64(), Reserved: n.u64(), Free: n.u64(), Used: n.u64()}, n.ret()
}

func (n noise) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	pci := nvml.PciInfo{Domain: n.u32(), Bus: n.u32(), Device: n.u32()}
	n.chars(pci.BusId[:])

	return pci, n.ret()
}

func (n noise) chars(into []int8) {
	for i, c := range []byte(n.text()) {
		if i < len(into) {
			into[i] = int8(c)
		}
	}
}

func (n noise) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	for i := range values {
		v := &values[i]
		v.NvmlReturn, v.ValueType = uint32(n.ret()), uint32(n.u8()%9)
		n.take(v.Value[:])
	}

	return n.ret()
}

func (n noise) processes() ([]nvml.ProcessInfo, nvml.Return) {
	list := make([]nvml.ProcessInfo, n.u8()%8)
	for i := range list {
		list[i] = nvml.ProcessInfo{Pid: n.u32(), UsedGpuMemory: n.u64(), GpuInstanceId: n.id(), ComputeInstanceId: n.id()}
	}

	return list, n.ret()
}

// id is a small one, or none.
func (n noise) id() uint32 {
	if b := n.u8(); b < 128 {
		return uint32(b % 4)
	}

	return nvmlsource.NoInstance
}

func (n noise) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return)  { return n.processes() }
func (n noise) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) { return n.processes() }
func (n noise) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return n.processes()
}

func (n noise) GetGpuInstanceProfileInfo(int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
	info := nvml.GpuInstanceProfileInfo_v3{
		Id: uint32(n.u8()), SliceCount: n.u32(), InstanceCount: n.u32(), MultiprocessorCount: n.u32(), MemorySizeMB: n.u64(),
	}
	n.chars(info.Name[:])

	return info, n.ret()
}

func (n noise) GetGpuInstancePossiblePlacements(uint32) ([]nvml.GpuInstancePlacement, nvml.Return) {
	list := make([]nvml.GpuInstancePlacement, n.u8()%8)
	for i := range list {
		list[i] = n.placement()
	}

	return list, n.ret()
}

func (n noise) placement() nvml.GpuInstancePlacement {
	if n.u8()&1 != 0 {
		return nvml.GpuInstancePlacement{Start: n.u32(), Size: n.u32()}
	}

	return nvml.GpuInstancePlacement{Start: uint32(n.u8() % 8), Size: uint32(n.u8() % 9)}
}

func (n noise) GetGpuInstances(uint32, int) ([]nvmlsource.GPUInstance, nvml.Return) {
	list := make([]nvmlsource.GPUInstance, n.u8()%4)
	for i := range list {
		list[i] = noiseInstance{n}
	}

	return list, n.ret()
}

func (n noise) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	return nvml.DeviceAttributes{
		MultiprocessorCount: n.u32(), GpuInstanceSliceCount: n.u32(), ComputeInstanceSliceCount: n.u32(),
		MemorySizeMB: n.u64(),
	}, n.ret()
}

// noiseSample is a sample of GPM.
type noiseSample struct{}

func (noiseSample) Free() nvml.Return { return nvml.SUCCESS }

func (n noise) GpmSampleAlloc() (nvmlsource.GPMSample, nvml.Return)    { return &noiseSample{}, n.ret() }
func (n noise) GpmSampleGet(nvmlsource.GPMSample) nvml.Return          { return n.ret() }
func (n noise) GpmMigSampleGet(int, nvmlsource.GPMSample) nvml.Return  { return n.ret() }
func (n noise) GpmQueryDeviceSupport() (supported bool, _ nvml.Return) { return n.u8()&1 == 0, n.ret() }

func (n noise) GpmMetricsGet(_, _ nvmlsource.GPMSample, metrics []nvmlsource.GPMMetric) nvml.Return {
	for i := range metrics {
		metrics[i].Value, metrics[i].Return = math.Float64frombits(n.u64()), n.ret()
	}

	return n.ret()
}

func (n noise) GetProcessUtilization(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	list := make([]nvml.ProcessUtilizationSample, n.u8()%8)
	for i := range list {
		list[i] = nvml.ProcessUtilizationSample{Pid: n.u32(), TimeStamp: n.u64(), SmUtil: n.u32()}
	}

	return list, n.ret()
}

type noiseInstance struct{ noise }

func (n noiseInstance) GetInfo() (nvmlsource.GPUInstanceInfo, nvml.Return) {
	return nvmlsource.GPUInstanceInfo{ID: uint32(n.u8() % 4), ProfileID: uint32(n.u8()), Placement: n.placement()}, n.ret()
}

func (n noiseInstance) GetComputeInstances() ([]nvmlsource.ComputeInstanceInfo, nvml.Return) {
	list := make([]nvmlsource.ComputeInstanceInfo, n.u8()%4)
	for i := range list {
		list[i] = nvmlsource.ComputeInstanceInfo{
			ID: uint32(n.u8() % 4), ProfileID: n.u32(), Placement: nvml.ComputeInstancePlacement{Start: n.u32(), Size: n.u32()},
		}
	}

	return list, n.ret()
}

// FuzzRead reads a GPU from a driver that says anything, three times: every decoder of what comes
// out of C, in every order of failures.
func FuzzRead(f *testing.F) {
	f.Add([]byte{})

	for _, step := range []int{1, 2, 7, 13, 31} {
		b := make([]byte, 4096)
		for i := range b {
			b[i] = byte(i * step)
		}

		f.Add(b)
	}

	f.Fuzz(func(t *testing.T, said []byte) {
		now := time.Unix(1e9, 0)
		n := noise{&said}
		driver := nvmlsource.Intercept(noiseLibrary{noise: n}, n)
		source := nvmlsource.New(driver, nvmlsource.Options{
			Now: func() time.Time { return now }, GPM: true, ProcessUtilization: true,
			Logger: log.NewNopLogger(),
		})

		for range 3 {
			now = now.Add(10 * time.Second)

			inventory, err := source.Discover()
			if err != nil {
				continue
			}

			for _, found := range inventory.GPUs {
				if g, err := source.ReadWith(found.UUID, gpu.ReadCues{FollowMemory: true, Extras: allExtras()}); err == nil {
					checkSane(t, &g)
				}
			}
		}

		if err := source.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// checkSane holds what everything behind a Source relies upon.
func checkSane(t *testing.T, g *gpu.GPU) {
	t.Helper()

	for _, readings := range []any{g.Readings, g.Activity, g.Rates} {
		if _, err := json.Marshal(readings); err != nil { // NaN and infinity
			t.Error(err)
		}
	}

	for _, s := range []string{string(g.UUID), g.Name, g.Serial, g.VBIOS, g.PCIBusID} {
		if !utf8.ValidString(s) {
			t.Errorf("%q", s)
		}
	}

	if sms := g.SMs.Or(1); sms <= 0 || sms > math.MaxInt32 {
		t.Errorf("%d SMs", sms)
	}

	if state := g.Readings.PerformanceState.Or(0); state < 0 || state > 15 {
		t.Errorf("performance state %d", state)
	}

	seen := map[gpu.InstanceID]bool{}
	for _, gi := range g.Instances {
		if seen[gi.ID] {
			t.Errorf("GPU instance %d is there twice", gi.ID)
		}

		seen[gi.ID] = true
		if _, err := json.Marshal(gi.Media); err != nil {
			t.Error(err)
		}

		computeInstances := map[gpu.ComputeID]bool{}
		for _, ci := range gi.ComputeInstances {
			if computeInstances[ci.ID] || !utf8.ValidString(string(ci.UUID)+ci.Profile) {
				t.Errorf("compute instance %d %q %q of GPU instance %d", ci.ID, ci.UUID, ci.Profile, gi.ID)
			}

			computeInstances[ci.ID] = true
		}
	}

	for i := range g.Errors {
		if g.Errors[i].Err == nil {
			t.Errorf("error %+v", g.Errors[i])
		}
	}
}
