package contract

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// The contract: one table of checks, held against the simulated node in this process, against the C
// library by go-nvml, and against a real driver if there is one. So each check is what nvml.h
// promises or what drivers are known to do, never a number of a scenario. Those that change
// something do so on simulated drivers alone.

// checkOf is one check of the contract.
type checkOf struct {
	name    string   // of the function or the behaviour
	seen    string   // where what it holds is known from
	methods []string // of the driver seam, beyond the one that name may be
	check   func(*subject)
}

// contractTable is every check.
func contractTable() []checkOf {
	driver := slices.Concat(systemChecks(), deviceChecks(), readingChecks(), countedChecks(), migChecks(),
		profilingChecks(), rawChecks(), changeChecks())

	return slices.Concat(known(inHeader, driver), known(inReading, sourceChecks()))
}

// known says where those checks are known from that do not say so themselves.
func known(from string, checks []checkOf) []checkOf {
	for i := range checks {
		checks[i].seen = cmp.Or(checks[i].seen, from)
	}

	return checks
}

// subject is a driver that the checks are held against.
type subject struct {
	lib  nvmlsource.Library
	open func() nvmlsource.Library // the same driver again
	raw  nvml.Interface            // go-nvml, for functions that the seam does not have; nil in process
	pass func()                    // lets a second pass, if the clock is ours
	// mutable says that its partitions may be changed: it is simulated.
	mutable bool
	now     func() time.Time

	current  string          // the check that runs
	seen     string          // where that is known from
	broken   []string        // what was found wrong
	answered map[string]bool // the functions that have succeeded
}

func (s *subject) errorf(format string, args ...any) {
	s.broken = append(s.broken, fmt.Sprintf("%s: %s (see %s)", s.current, fmt.Sprintf(format, args...), s.seen))
}

// has takes the return code of a function of the seam, "Type.Method". It reports whether there is
// an answer. That a reading is not offered or not allowed is no break of the contract; any other
// code is.
func (s *subject) has(function string, ret nvml.Return) bool {
	switch ret {
	case nvml.SUCCESS:
		s.answered[function] = true
		return true
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_PERMISSION:
		return false
	}

	s.errorf("%s: return code %d", function, ret)

	return false
}

// must is has for what every driver answers.
func (s *subject) must(function string, ret nvml.Return) bool {
	if ret != nvml.SUCCESS {
		s.errorf("%s: return code %d, where every driver answers", function, ret)
	}

	s.answered[function] = s.answered[function] || ret == nvml.SUCCESS

	return ret == nvml.SUCCESS
}

// want holds that something is as it must be.
func (s *subject) want(fine bool, format string, args ...any) {
	if !fine {
		s.errorf(format, args...)
	}
}

// devices are the GPUs that give a handle.
func (s *subject) devices() []nvmlsource.Device {
	count, ret := s.lib.DeviceGetCount()
	s.must("Library.DeviceGetCount", ret)
	var list []nvmlsource.Device

	for i := range count {
		if d, ret := s.lib.DeviceGetHandleByIndex(i); s.must("Library.DeviceGetHandleByIndex", ret) {
			list = append(list, d)
		}
	}

	return list
}

// hold runs the table.
func (s *subject) hold(table []checkOf) {
	s.answered = map[string]bool{}
	if ret := s.lib.Init(); ret != nvml.SUCCESS {
		s.errorf("nvmlInit: %d", ret)
		return
	}

	for _, c := range table {
		s.current = c.name
		s.seen = c.seen
		c.check(s)
	}

	s.current = "end"
	s.seen = inHeader
	s.must("Library.Shutdown", s.lib.Shutdown())
}

// report holds the whole contract against a driver.
func report(t *testing.T, s *subject) {
	t.Helper()
	table := contractTable()
	s.hold(table)

	for _, b := range s.broken {
		t.Error(b)
	}

	t.Logf("%d checks, %d functions of the seam answered", len(table), len(s.answered))
}

// simulated starts a shipped scenario and makes a subject of it, in process.
func simulated(t *testing.T, path, state string) *subject {
	t.Helper()

	scenario, err := sim.Load(path)
	if err != nil {
		t.Fatal(err)
	}

	node, err := sim.Join(scenario, sim.ClockStep, state)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	open := func() nvmlsource.Library { return simnvml.New(node) }

	return &subject{lib: open(), open: open, now: node.Now, mutable: true, pass: func() {
		if err := node.Advance(time.Second); err != nil {
			t.Fatal(err)
		}
	}}
}

// eachScenario runs a test on every shipped scenario, and on a node without rights and with an old
// driver.
func eachScenario(t *testing.T, test func(t *testing.T, path string)) {
	t.Helper()

	paths, err := filepath.Glob(scenarios + "*.yaml")
	if err != nil || len(paths) < 7 {
		t.Fatalf("scenarios %v, %v", paths, err)
	}

	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) { test(t, path) })
	}

	t.Run("old-driver", func(t *testing.T) { test(t, scenarioFile(t, oldDriver)) })
}

// Every check runs, and every function of the seam answers on one scenario or another: no check is
// empty.
func TestContractInProcess(t *testing.T) {
	answered := map[string]bool{}
	eachScenario(t, func(t *testing.T, path string) {
		s := simulated(t, path, filepath.Join(t.TempDir(), "state"))
		report(t, s)

		for function := range s.answered {
			answered[function] = true
		}
	})

	for _, function := range seamFunctions() {
		if !answered[function] {
			t.Errorf("no check has got an answer of %s", function)
		}
	}
}

func TestContractOfTheCLibrary(t *testing.T) {
	eachScenario(t, func(t *testing.T, path string) {
		state := filepath.Join(t.TempDir(), "state")
		if inChild(t, "MIG_SIM_SCENARIO="+path, "MIG_SIM_CLOCK=step", "MIG_SIM_STATE="+state) {
			s := simulated(t, os.Getenv("MIG_SIM_SCENARIO"), os.Getenv("MIG_SIM_STATE")) // its clock is the library's
			s.through(t, built("libnvidia-ml.so.1"))
			report(t, s)
		}
	})
}

// through makes go-nvml the way to a driver.
func (s *subject) through(t *testing.T, library string) {
	t.Helper()
	s.open = func() nvmlsource.Library { return nvmlsource.Open(library) }
	s.lib = s.open()

	s.raw = nvml.New(nvml.WithLibraryPath(library))
	if ret := s.raw.Init(); ret != nvml.SUCCESS {
		t.Fatalf("nvmlInit: %d", ret)
	}

	t.Cleanup(func() { want(t, "nvmlShutdown", s.raw.Shutdown(), nvml.SUCCESS) })
}

// hardwareVariable makes it an error that there is no GPU: make test-hardware sets it.
const hardwareVariable = "NVML_CONTRACT_HARDWARE"

// The same table on this machine's own driver, if it has one. Nothing is changed: the checks only
// read, and registering for events is the process's own.
func TestContractOfTheHardware(t *testing.T) {
	const library = "libnvidia-ml.so.1"
	probe := nvmlsource.Open(library)
	ret := probe.Init()

	count := 0
	if ret == nvml.SUCCESS {
		count, ret = probe.DeviceGetCount()
		want(t, "nvmlShutdown", probe.Shutdown(), nvml.SUCCESS)
	}

	if ret != nvml.SUCCESS || count == 0 {
		const none = "no GPU here (return code %d, %d GPUs): the same table is held against the simulation, in process and " +
			"as a C library"
		if os.Getenv(hardwareVariable) != "" {
			t.Fatalf(none, ret, count)
		}

		t.Skipf("NOT TESTED: "+none, ret, count)
	}

	s := &subject{now: time.Now, pass: func() {}}
	s.through(t, library)
	report(t, s)
	t.Logf("held against %d GPUs; answered: %s", count, strings.Join(sorted(s.answered), " "))
}

func sorted(set map[string]bool) []string {
	var list []string
	for k := range set {
		list = append(list, k)
	}

	slices.Sort(list)

	return list
}

// seamFunctions are the methods of the driver seam, by reflection, "Type.Method".
func seamFunctions() []string {
	var list []string

	for _, seam := range []reflect.Type{
		reflect.TypeFor[nvmlsource.Library](), reflect.TypeFor[nvmlsource.EventSet](), reflect.TypeFor[nvmlsource.Device](),
		reflect.TypeFor[nvmlsource.MIGDevice](), reflect.TypeFor[nvmlsource.GPUInstance](),
		reflect.TypeFor[nvmlsource.GPMSample](),
		reflect.TypeFor[nvmlsource.MutableDevice](), reflect.TypeFor[nvmlsource.MutableInstance](),
		reflect.TypeFor[nvmlsource.ComputeInstance](),
	} {
		for i := range seam.NumMethod() {
			read := strings.Replace(seam.Name(), "Mutable", "", 1)

			name := seam.Method(i).Name
			if read != seam.Name() && slices.Contains(list, strings.Replace(read, "Instance", "GPUInstance", 1)+"."+name) {
				continue // it is the one of the interface that is extended
			}

			list = append(list, seam.Name()+"."+name)
		}
	}

	return list
}

// A function of the seam without a check is not held by any contract; a check of a function that is
// gone is none.
func TestContractHasEveryFunction(t *testing.T) {
	seam := seamFunctions()
	checked := map[string]bool{}

	names := map[string]bool{}
	for _, c := range contractTable() {
		if names[c.name] {
			t.Errorf("%s is in the table twice", c.name)
		}

		if c.check == nil {
			t.Errorf("%s has no check", c.name)
		}

		if !slices.Contains(sources(), c.seen) {
			t.Errorf("%s: known from %q, want one of %q", c.name, c.seen, sources())
		}

		names[c.name] = true
		for _, m := range append(c.methods, c.name) {
			checked[m] = true
			if typ, _, isMethod := strings.Cut(m, "."); isMethod && !slices.Contains(seam, m) && typ != "nvml" {
				t.Errorf("%s is no function of the seam", m)
			}
		}
	}

	for _, function := range seam {
		if !checked[function] {
			t.Errorf("no check of %s", function)
		}
	}
}

// uuidOf names a GPU in messages.
func uuidOf(d nvmlsource.Entity) gpu.UUID {
	uuid, _ := d.GetUUID()
	return gpu.UUID(uuid)
}
