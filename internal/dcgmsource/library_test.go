package dcgmsource

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// buildEngine compiles testdata/engine.c to a file.
func buildEngine(tb testing.TB, file string, flags ...string) {
	tb.Helper()

	headers, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-dcgm").Output()
	if err != nil {
		tb.Fatal(err)
	}

	args := append([]string{"-shared", "-fPIC", "-O2", "-Wl,-soname,libdcgm.so.4", "-I",
		filepath.Join(strings.TrimSpace(string(headers)), "pkg/dcgm"),
		"-o", file, filepath.Join("testdata", "engine.c")}, flags...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		tb.Fatalf("gcc: %v\n%s", err, out)
	}
}

// childVariable names the test that a child process runs.
const childVariable = "DCGMSRC_TEST_CHILD"

// inChild runs the calling test again in a process of its own, whose dynamic linker looks for
// libraries in a folder. It returns true in the child, where the test goes on, and false when the
// child has ended.
func inChild(t *testing.T, folder string, env ...string) bool {
	t.Helper()

	if os.Getenv(childVariable) == t.Name() {
		return true
	}

	child := exec.Command(os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")

	child.Env = append(append(os.Environ(), childVariable+"="+t.Name(), "LD_LIBRARY_PATH="+folder), env...)
	if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}

	return false
}

// TestIncompleteLibrary: a library that lacks a function, is damaged, or needs what is not there is
// refused by name, does not end the process, and is found once it is replaced.
func TestIncompleteLibrary(t *testing.T) {
	folder := os.Getenv("LD_LIBRARY_PATH")
	lacked := []string{"errorString", "dcgmInit", "dcgmUpdateAllFields"}

	if os.Getenv(childVariable) == "" {
		folder = t.TempDir()
		for _, f := range lacked {
			buildEngine(t, filepath.Join(folder, f), "-DWITHOUT_"+f)
		}

		buildEngine(t, filepath.Join(folder, "whole"))
		absent := filepath.Join(folder, "libabsent.so.1")
		buildEngine(t, absent, "-Wl,-soname,libabsent.so.1")
		buildEngine(t, filepath.Join(folder, "needy"), "-Wl,--no-as-needed", absent)
		write(t, filepath.Join(folder, "damaged"), "no library")

		if err := os.Remove(absent); err != nil {
			t.Fatal(err)
		}
	}

	if !inChild(t, folder) {
		return
	}

	engine := Open(ModeEmbedded, "")
	refuses := func(name string, want error, texts ...string) {
		t.Helper()

		_, err := engine.Connect()
		if !errors.Is(err, want) || !errors.Is(err, gpu.ErrUnavailable) {
			t.Fatalf("%s: %v, want %v", name, err, want)
		}

		for _, text := range append(texts, "leave --dcgm.address out") {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, want %q", name, err, text)
			}
		}
	}
	refuses("no library", ErrNoLibrary, "libdcgm.so.4 not found")
	put := func(name string) {
		data, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}

		write(t, filepath.Join(folder, "new"), string(data))

		if err := os.Rename(filepath.Join(folder, "new"), filepath.Join(folder, libraryName)); err != nil {
			t.Fatal(err)
		}
	}
	put("damaged")
	refuses("damaged", ErrLibrary, "cannot be loaded", libraryName, "DCGM 4.5")
	put("needy")
	refuses("needy", ErrLibrary, "cannot be loaded", "libabsent.so.1")

	for _, f := range lacked {
		put(f)
		refuses("without "+f, ErrLibrary, filepath.Join(folder, libraryName)+" lacks "+f, "DCGM 4.5")
	}

	put("whole")

	session, err := engine.Connect()
	if err != nil {
		t.Fatal(err)
	}

	if err := session.Close(); err != nil {
		t.Error(err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()

	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestFunctionsThatAreCalled: all that a Source does, with a library that has the functions that
// are looked up and no others. The call of another one would end the child.
func TestFunctionsThatAreCalled(t *testing.T) {
	folder := os.Getenv("LD_LIBRARY_PATH")
	if os.Getenv(childVariable) == "" {
		folder = t.TempDir()
		buildEngine(t, filepath.Join(folder, libraryName))
	}

	if !inChild(t, folder, "STUB_INSTANCES=2", "STUB_COMPUTES=2") {
		return
	}

	file, err := elf.Open(filepath.Join(folder, libraryName))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}

	for _, s := range symbols {
		of := strings.HasPrefix(s.Name, "dcgm") && s.Section != elf.SHN_UNDEF && s.Name != "dcgmVersionInfo"
		if of && !slices.Contains(calledFunctions(), s.Name) {
			t.Errorf("the library has %s, which is not looked up", s.Name)
		}
	}

	for _, mode := range []Mode{ModeEmbedded, ModeRemote} {
		h := harnessOf(t, newFake("GPU-00000000-0000-0000-0000-000000000000"), false)
		for id := range 2 {
			h.partition(0, gpu.InstanceID(id+1), 2, 1)
			gi := &h.node.GPUs[0].Instances[id]
			gi.ComputeInstances = append(gi.ComputeInstances, gpu.ComputeInstance{ID: 1, ComputeSlices: gpu.Some(1)})
		}

		h.use(Options{Mode: mode, Address: "127.0.0.1:5555"})

		h.source.connector = Open(mode, "127.0.0.1:5555")
		if got := h.after(8)["GPU-00000000-0000-0000-0000-000000000000"]; len(got.Instances) != 2 ||
			len(got.ComputeInstances) != 4 {
			t.Errorf("%s: %+v\n%s", mode, got, h.lines.String())
		}

		h.node.GPUs[0].MIG.LayoutGeneration++
		h.after(1)

		if err := h.source.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestVersionMismatch: both versions are named, and what to do.
func TestVersionMismatch(t *testing.T) {
	folder := os.Getenv("LD_LIBRARY_PATH")
	if os.Getenv(childVariable) == "" {
		folder = t.TempDir()
		buildEngine(t, filepath.Join(folder, libraryName))
	}

	if !inChild(t, folder, "STUB_START=-12", "STUB_CONNECT=-12") {
		return
	}

	for mode, remedy := range map[Mode]string{
		ModeEmbedded: "install DCGM 4.5 or later, then restart this program",
		ModeRemote: "the host engine at 127.0.0.1:5555 is DCGM of an unknown version, libdcgm.so.4 here is DCGM 4.2.3, " +
			"this program is made for DCGM 4.5: install one version, DCGM 4.5 or later, in both places; a new libdcgm.so.4 " +
			"here takes a restart of this program",
	} {
		_, err := Open(mode, "127.0.0.1:5555").Connect()
		if !errors.Is(err, ErrVersion) || !errors.Is(err, gpu.ErrUnavailable) {
			t.Fatalf("%s: %v", mode, err)
		}

		for _, text := range []string{"libdcgm.so.4 here is DCGM 4.2.3", "this program is made for DCGM 4.5", remedy} {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, want %q", mode, err, text)
			}
		}
	}
}
