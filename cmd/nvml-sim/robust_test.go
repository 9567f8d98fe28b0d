package main

import (
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// params reads how each exported function takes its arguments: P for a pointer, U and L for
// numbers.
func params(t *testing.T) map[string]string {
	t.Helper()

	text, err := os.ReadFile("exports.c")
	if err != nil {
		t.Fatal(err)
	}

	all := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^CALL\d\(\d+, (\w+)((?:, [PUL])*)\)$`).FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = strings.ReplaceAll(m[2], ", ", "")
	}

	if len(all) != len(functionNames()) {
		t.Fatalf("%d of %d functions found in exports.c", len(all), len(functionNames()))
	}

	return all
}

func onScenario(t *testing.T) *library {
	t.Helper()

	return newLibrary(func(name string) string {
		return map[string]string{"MIG_SIM_SCENARIO": "../../testdata/scenarios/dgx-a100-mixed.yaml", "MIG_SIM_CLOCK": "step"}[name]
	})
}

func (l *library) do(name string, raw ...uintptr) result {
	var a [len(args{}.raw)]uintptr
	copy(a[:], raw)

	return l.calls[slices.Index(functionNames(), name)](l, args{&a})
}

// A function that is not answered says so, and reads and writes nothing: its pointers lead nowhere
// here.
func TestUnansweredFunctionsTouchNothing(t *testing.T) {
	l := onScenario(t)
	nowhere := slices.Repeat([]uintptr{1}, len(args{}.raw))

	for _, name := range functionNames() {
		if initCalls()[name] == nil {
			if ret := l.do(name, nowhere...); ret != uninitialized {
				t.Errorf("%s before nvmlInit: %d", name, ret)
			}
		}
	}

	if ret := l.do("nvmlInit_v2"); ret != success {
		t.Fatal(ret)
	}

	answered := tables()
	for _, name := range functionNames() {
		if answered[name] == nil && initCalls()[name] == nil {
			if ret := l.do(name, nowhere...); ret != notSupported {
				t.Errorf("%s: %d", name, ret)
			}
		}
	}

	// Init counts: as many shutdowns as inits, and one more is too many.
	for _, c := range []struct {
		name string
		want result
	}{
		{"nvmlInit", success}, {"nvmlInitWithFlags", success}, {"nvmlShutdown", success}, {"nvmlShutdown", success},
		{"nvmlUnitGetPsuInfo", notSupported}, {"nvmlShutdown", success}, {"nvmlShutdown", uninitialized}, {"nvmlUnitGetPsuInfo", uninitialized},
	} {
		if ret := l.do(c.name, 0, 0); ret != c.want {
			t.Errorf("%s: %d, want %d", c.name, ret, c.want)
		}
	}
}

// GPUs that nvmlInit has attached stay open until the last nvmlShutdown; nvmlInitWithFlags can
// leave them closed.
func TestLastShutdownClosesGPUs(t *testing.T) {
	for _, c := range []struct {
		first, second string
		open          int
	}{
		{"nvmlInit_v2", "nvmlInitWithFlags", 8},
		{"nvmlInitWithFlags", "nvmlInit_v2", 0},
		{"nvmlInitWithFlags", "nvmlInitWithFlags", 0},
	} {
		l := onScenario(t)
		for _, init := range []string{c.first, c.second} {
			if ret := l.do(init, initFlagNoAttach); ret != success {
				t.Fatalf("%s: %d", init, ret)
			}
		}

		for range 2 {
			if open := l.node.OpenGPUs(); len(open) != c.open {
				t.Errorf("%s, then %s: GPUs %v are open, want %d", c.first, c.second, open, c.open)
			}

			if ret := l.do("nvmlShutdown"); ret != success {
				t.Fatalf("nvmlShutdown: %d", ret)
			}
		}

		if open := l.node.OpenGPUs(); len(open) != 0 {
			t.Errorf("%s, then %s: GPUs %v are open after the last nvmlShutdown", c.first, c.second, open)
		}
	}
}

// takesHandle reports whether a function's first argument is a handle.
func takesHandle(name string) bool {
	return !regexp.MustCompile(`^nvml(System|Unit|GetEx|EventSetCreate|DeviceGetHandleBy|DeviceGetCount|GpmSampleAlloc|GpmMetricsGet)`).MatchString(name)
}

// Whatever handle and numbers a client passes, right or wrong, an answered function comes back with
// a code of NVML's; and none takes NULL for a pointer, with whatever else it comes.
func TestAnsweredFunctionsTakeAnything(t *testing.T) {
	const room = 1 << 16
	handles := []uintptr{
		0, 1, ^uintptr(0), handle{gpu: 0}.raw(), handle{gpu: 4}.raw(), handle{gpu: 7}.raw(), handle{gpu: 8}.raw(), handle{gpu: maxGPUs - 1}.raw(),
		handle{aMIGDevice, 4, 1, 0}.raw(), handle{aMIGDevice, 4, 1, 1}.raw(), handle{aMIGDevice, 4, 31, 7}.raw(), handle{aMIGDevice, 8, 1, 0}.raw(),
		handle{aGPUInstance, 4, 1, 0}.raw(), handle{aGPUInstance, 4, 31, 0}.raw(), handle{aGPUInstance, 4095, 1, 0}.raw(),
		handle{aComputeInstance, 4, 1, 0}.raw(), handle{aComputeInstance, 4, 1, 7}.raw(), handle{aComputeInstance, 9, 1, 7}.raw(),
		handle{kind: anEventSet}.raw(), handle{kind: anEventSet, gpu: 4095}.raw(),
	}
	numbers := []uintptr{0, 1, 4, 14, 0xFFFFFFFF}
	known := []result{
		success, invalidArgument, notSupported, noPermission, notFound, insufficientSize, timedOut, resultOf(gpu.ErrInUse), insufficientResources, structMismatch,
	}

	buffers := make([][]byte, len(args{}.raw))
	for i := range buffers {
		buffers[i] = make([]byte, room)
	}

	kinds := params(t)
	for name := range tables() {
		l := onScenario(t)
		if ret := l.do("nvmlInit_v2"); ret != success {
			t.Fatal(ret)
		}

		for _, first := range handles {
			for _, number := range numbers {
				raw := make([]uintptr, len(kinds[name]))
				for i, kind := range kinds[name] {
					raw[i] = number
					if kind == 'P' {
						clear(buffers[i])
						raw[i] = uintptr(unsafe.Pointer(&buffers[i][0]))
					}
				}

				if name == "nvmlDeviceGetFieldValues" && number == 0xFFFFFFFF {
					continue // a count of -1 is refused; as many fields as 14 are asked for
				}

				if takesHandle(name) {
					raw[0] = first
				}

				if strings.HasPrefix(name, "nvmlEventSetWait") {
					raw[2] = 0
				}

				nulls := slices.Clone(raw)
				for i := range nulls {
					if kinds[name][i] == 'P' && (i > 0 || !takesHandle(name)) {
						nulls[i] = 0
					}
				}

				if ret := l.do(name, nulls...); ret == success && !slices.Equal(nulls, raw) {
					t.Errorf("%s(%#x) takes NULL", name, first)
				}

				if ret := l.do(name, raw...); !slices.Contains(known, ret) {
					t.Errorf("%s(%#x) with %#x: %d", name, first, number, ret)
				}
			}
		}

		runtime.KeepAlive(buffers)
	}
}
