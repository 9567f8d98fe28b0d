package nvmlsource_test

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

func loadError(t *testing.T, path string) string {
	t.Helper()

	l := nvmlsource.Open(path)
	if ret := l.Init(); ret != nvml.ERROR_LIBRARY_NOT_FOUND {
		t.Fatalf("Init returns %d", ret)
	}

	return l.(interface{ LoadError() error }).LoadError().Error()
}

func TestLibraryThatIsNotThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if err := loadError(t, path); !strings.Contains(err, path) {
		t.Errorf("the error does not name the library: %s", err)
	}

	if _, ret := nvmlsource.Open(path).DeviceGetCount(); ret != nvml.ERROR_FUNCTION_NOT_FOUND {
		t.Errorf("a call before Init returns %d", ret)
	}
}

func TestLibraryThatIsNoNVML(t *testing.T) {
	if err := loadError(t, "libc.so.6"); !strings.Contains(err, "libc.so.6: not an NVML library") {
		t.Errorf("error %s", err)
	}
}

// The real binding on a library that arrives late and lacks most functions. go-nvml binds symbols
// for the whole process and dies on a missing one, so the test runs in a process of its own.
func TestOldLibraryThatArrivesLate(t *testing.T) {
	const variable = "NVMLSRC_TEST_DIR"
	if dir := os.Getenv(variable); dir != "" {
		readOldLibrary(t, filepath.Join(dir, "libnvidia-ml.so.1"))
		return
	}

	test := exec.Command(os.Args[0], "-test.run=^TestOldLibraryThatArrivesLate$", "-test.v")

	test.Env = append(os.Environ(), variable+"="+t.TempDir())
	if out, err := test.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func readOldLibrary(t *testing.T, path string) {
	lib := nvmlsource.Open(path)

	s := nvmlsource.New(lib, nvmlsource.Options{Now: time.Now, Logger: log.NewNopLogger()})
	if _, err := s.Discover(); !errors.Is(err, gpu.ErrNoDriver) || !strings.Contains(err.Error(), path) {
		t.Fatalf("before there is a library: %v", err)
	}

	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", path, "testdata/oldnvml.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	inventory, err := s.Discover()
	if err != nil || len(inventory.GPUs) != 1 {
		t.Fatalf("inventory %+v, error %v", inventory, err)
	}

	cmptest.Equal(t, "driver", inventory.Driver, gpu.Driver{Version: "450.80.02", NVML: inventory.Driver.NVML})

	for range 2 {
		g, err := s.Read(inventory.GPUs[0].UUID)
		if err != nil || len(g.Errors) != 0 {
			t.Fatalf("error %v, errors %v", err, g.Errors)
		}

		checkOldGPU(t, g)
	}

	e := <-s.Events()
	cmptest.Equal(t, "event of the whole GPU", e, gpu.Event{Kind: gpu.EventXID, GPU: inventory.GPUs[0].UUID, XID: 31,
		Time: e.Time})
	checkInitialisationsAreCounted(t, lib)
	checkGoneInstance(t, lib)
	checkNothingIsChanged(t, s.Actuator(), inventory.GPUs[0].UUID)

	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A shutdown ends one initialisation: the library answers those who have not shut it down.
func checkInitialisationsAreCounted(t *testing.T, lib nvmlsource.Library) {
	t.Helper()

	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Fatalf("a second Init: %d", ret)
	}

	if ret := lib.Shutdown(); ret != nvml.SUCCESS {
		t.Fatalf("one Shutdown after two Inits: %d", ret)
	}

	if _, ret := lib.DeviceGetHandleByIndex(0); ret != nvml.SUCCESS {
		t.Errorf("a handle after one Shutdown of two Inits: %d", ret)
	}
}

// A GPU instance that is gone does not look like one without compute instances.
func checkGoneInstance(t *testing.T, lib nvmlsource.Library) {
	t.Helper()

	d, ret := lib.DeviceGetHandleByIndex(0)
	if ret != nvml.SUCCESS {
		t.Fatalf("handle: %d", ret)
	}

	list, ret := d.GetGpuInstances(99, 1)
	if ret != nvml.SUCCESS || len(list) != 1 {
		t.Fatalf("%d GPU instances, %d", len(list), ret)
	}

	if list, ret := d.GetGpuInstances(9, math.MaxInt32); ret != nvml.SUCCESS || len(list) != 1 {
		t.Errorf("with room for %d: %d GPU instances, %d", math.MaxInt32, len(list), ret)
	}

	if computeInstances, ret := list[0].GetComputeInstances(); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("compute instances %v, %d", computeInstances, ret)
	}
}

// What such a driver could destroy it could not make again: it is left alone, and so is the MIG
// mode.
func checkNothingIsChanged(t *testing.T, a *nvmlsource.Actuator, id gpu.UUID) {
	t.Helper()

	list, failed, err := a.Layouts(t.Context())
	if err != nil || len(list) != 1 || len(list[0].Instances) != 1 {
		t.Fatalf("layouts %+v, %v, %v, want those of one GPU with one instance", list, failed, err)
	}

	cmptest.Equal(t, "failed layouts", failed, map[gpu.UUID]error{})
	cmptest.Equal(t, "compute instances", len(list[0].Instances[0].ComputeInstances), 1)
	gi := mig.Step{Op: mig.DestroyInstance, GPU: id, ProfileID: 9, Placement: gpu.Placement{Start: 4, Size: 4},
		Instance: gpu.Some(gpu.InstanceID(2))}
	ci := gi
	ci.Op, ci.Compute, ci.ComputeID = mig.DestroyCompute, gpu.Some(gpu.Placement{Start: 0, Size: 3}),
		gpu.Some(gpu.ComputeID(0))
	another := mig.Step{Op: mig.CreateInstance, GPU: id, ProfileID: 9, Placement: gpu.Placement{Start: 0, Size: 4}}
	inIt := ci

	inIt.Op, inIt.Compute = mig.CreateCompute, gpu.Some(gpu.Placement{Start: 0, Size: 3})
	for _, s := range []mig.Step{ci, gi, another, inIt} {
		if _, err := a.Do(t.Context(), s); !errors.Is(err, gpu.ErrNotSupported) {
			t.Errorf("%s: %v", s.Op, err)
		}
	}

	if _, err := a.SetMIGMode(t.Context(), id, false); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("MIG mode: %v", err)
	}
}

func checkOldGPU(t *testing.T, g gpu.GPU) {
	t.Helper()
	r := g.Readings
	cmptest.Equal(t, "PCI bus id", g.PCIBusID, "00000000:07:00.0")
	cmptest.Equal(t, "name", g.Name, "A100-SXM4-40GB")
	cmptest.Equal(t, "memory", r.Memory.Total, gpu.Some(uint64(40536<<20)))
	cmptest.Equal(t, "reserved memory", r.Memory.Reserved, gpu.None[uint64]())
	cmptest.Equal(t, "clock events", r.ClockEvents, gpu.Some(gpu.ClockEvents(1)))
	cmptest.Equal(t, "power", r.PowerWatts, gpu.None[float64]())
	cmptest.Equal(t, "temperature", r.TemperatureCelsius, gpu.None[float64]())
	cmptest.Equal(t, "processes", r.Processes, gpu.None[[]gpu.Process]())

	if len(g.Profiles) != 2 {
		t.Fatalf("profiles %+v", g.Profiles)
	}

	cmptest.Equal(t, "first profile", g.Profiles[0].Name, "3g.20gb")
	cmptest.Equal(t, "instances of the first profile", g.Profiles[0].MaxInstances, 2)
	cmptest.Equal(t, "second profile", g.Profiles[1].Name, "7g.40gb")

	if len(g.Instances) != 1 || len(g.Instances[0].ComputeInstances) != 1 {
		t.Fatalf("instances %+v", g.Instances)
	}

	gi := g.Instances[0]
	ci := g.Instances[0].ComputeInstances[0]
	cmptest.Equal(t, "GPU instance", gi.ID, 2)
	cmptest.Equal(t, "its profile", gi.Profile, "3g.20gb")
	cmptest.Equal(t, "its placement", gi.Placement, gpu.Some(gpu.Placement{Start: 4, Size: 4}))
	cmptest.Equal(t, "its memory in use is known", gi.Memory.Used.Present(), true)
	cmptest.Equal(t, "compute instance", ci.UUID, "MIG-GPU-11111111-2222-3333-4444-555555555555/2/0")
	cmptest.Equal(t, "its profile", ci.Profile, "3g.20gb")
	cmptest.Equal(t, "its SMs", ci.SMs, gpu.None[int]())
	cmptest.Equal(t, "its placement", ci.Placement, gpu.None[gpu.Placement]())
}
