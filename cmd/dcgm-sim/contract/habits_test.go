package contract

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/mig-exporter/mig-exporter/cmd/dcgm-sim/damaged"
)

// Habits of DCGM that its clients must live with. Each says where it was seen.

// scenario writes a scenario, in the parent of a child process.
func scenario(t *testing.T, text string) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(path, []byte("version: 1\nnode: {kubernetes: false}\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

// says checks that an error has DCGM's text.
func says(t *testing.T, what string, err error, text string) {
	t.Helper()

	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want %q", what, err, text)
	}
}

func live(gpu uint, fields ...dcgm.Short) ([]dcgm.FieldValue_v2, error) {
	return dcgm.EntitiesGetLatestValues([]dcgm.GroupEntityPair{{EntityGroupId: dcgm.FE_GPU, EntityId: gpu}}, fields, 1)
}

func threads(t *testing.T) int {
	t.Helper()

	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}

	return len(list)
}

// Without root on a node with a GPU in MIG mode an embedded engine does not start: "DCGM
// initialization error", "CacheManager Init Failed. Error: -29" on stderr, and a thread is left
// each time. A remote one refuses profiling alone. (DCGM 4.5.3; DcgmCacheManager.cpp checks for it)
func TestEmbeddedRequiresRootForMIG(t *testing.T) {
	path := scenario(t, "gpus: [{model: A100-40GB}, {model: A100-40GB, mig: true, layout: [\"3g.20gb@4\"]}]\nfaults: "+
		"[{kind: dcgm-requires-root}]\n")
	if !inChild(t, environment(t, path)...) {
		return
	}

	var err error
	printed := onStderr(t, func() { _, err = dcgm.Init(dcgm.Embedded) })
	says(t, "first start", err, "error starting nv-hostengine: DCGM initialization error")

	if printed != "CacheManager Init Failed. Error: -29\n" {
		t.Errorf("on stderr: %q", printed)
	}

	before := threads(t)

	const starts = 20
	for range starts {
		_, err := dcgm.Init(dcgm.Embedded)
		says(t, "start", err, "DCGM initialization error")
	}

	if now := threads(t); now < before+starts {
		t.Errorf("%d threads after %d failed starts, %d before", now, starts, before)
	}

	stop, err := dcgm.Init(dcgm.Standalone, "localhost:5555", "0")
	if err != nil {
		t.Fatalf("a remote engine: %v", err)
	}
	defer stop()

	if h, err := dcgm.GetGPUInstanceHierarchy(); err != nil || h.Count != 2 {
		t.Errorf("hierarchy of %d, %v", h.Count, err)
	}

	says(t, "profiling", watchOne(t, dcgm.FE_GPU, 0, 1002), "non-root")
}

// onStderr returns what is written to the process' standard error, by whichever library.
func onStderr(t *testing.T, do func()) string {
	t.Helper()

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}

	kept, err := syscall.Dup(2)
	if err != nil {
		t.Fatal(err)
	}

	if err := syscall.Dup3(int(w.Fd()), 2, 0); err != nil {
		t.Fatal(err)
	}

	do()

	if err := errors.Join(syscall.Dup3(kept, 2, 0), syscall.Close(kept), w.Close()); err != nil {
		t.Fatal(err)
	}

	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// watchOne watches a field of an entity.
func watchOne(t *testing.T, level dcgm.Field_Entity_Group, id uint, fields ...dcgm.Short) error {
	t.Helper()

	group, err := dcgm.CreateGroup(t.Name())
	if err != nil {
		t.Fatal(err)
	}

	fieldGroup, err := dcgm.FieldGroupCreate(t.Name(), fields)
	if err != nil {
		t.Fatal(err)
	}

	if err := dcgm.AddEntityToGroup(group, level, id); err != nil {
		t.Fatal(err)
	}

	return dcgm.WatchFieldsWithGroupEx(fieldGroup, group, 1_000_000, 0, 1)
}

// A GPU that hangs in NVML blocks the whole engine: reading values of another GPU hangs with it, as
// do the hierarchy and dcgmUpdateAllFields, and all return when it is over. (DCGM 4.5.3)
func TestHungGPUBlocksTheEngine(t *testing.T) {
	path := scenario(t, "gpus: [{model: A100-40GB, count: 2}]\nfaults: [{kind: hang, gpu: 0, at: 10s, for: 20s}]\n")
	hangs(t, path, map[string]func() error{
		"latest": func() error {
			_, err := dcgm.EntitiesGetLatestValues([]dcgm.GroupEntityPair{{EntityGroupId: dcgm.FE_GPU, EntityId: 1}},
				[]dcgm.Short{1002}, 0)

			return err
		},
		"live":      func() error { _, err := live(1, 150); return err },
		"hierarchy": func() error { _, err := dcgm.GetGPUInstanceHierarchy(); return err },
		"update":    dcgm.UpdateAllFields,
	})
}

// An engine that is stopped (SIGSTOP) lets all calls hang, and goes on with what it had. (DCGM
// 4.5.3)
func TestStoppedEngine(t *testing.T) {
	path := scenario(t, "gpus: [{model: A100-40GB}]\nfaults: [{kind: dcgm-hang, at: 10s, for: 20s}]\n")
	hangs(t, path, map[string]func() error{
		"entities": func() error { _, err := dcgm.GetEntityGroupEntities(dcgm.FE_GPU); return err },
		"update":   dcgm.UpdateAllFields,
	})
}

// hangs checks that calls hang from 10 s to 30 s, and only then.
func hangs(t *testing.T, path string, calls map[string]func() error) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			if !inChild(t, environment(t, path)...) {
				return
			}

			n := node(t)
			defer embedded(t)()

			if err := call(); err != nil {
				t.Fatal(err)
			}

			advance := func(by time.Duration) {
				if err := n.Advance(by); err != nil {
					t.Fatal(err)
				}
			}
			advance(11 * time.Second)
			begun := make(chan bool)
			done := make(chan error)
			go func() {
				close(begun)
				done <- call()
			}()
			<-begun

			select {
			case err := <-done:
				t.Fatalf("it does not hang: %v", err)
			case <-time.After(200 * time.Millisecond): // in which a call that does not hang would have come back
			}

			advance(20 * time.Second)

			if err := <-done; err != nil {
				t.Errorf("when it is over: %v", err)
			}
		})
	}
}

// A host engine of another version is connected to all the same, and then refuses what has a
// version: DCGM_ST_VER_MISMATCH. Both versions can be asked for. (reports of dcgm-exporter's users:
// "Error retrieving DCGM MIG hierarchy: API version mismatch", "Error getting device busid: API
// version mismatch"; dcgmHostengineVersionInfo: dcgm_agent.h)
func TestVersionMismatch(t *testing.T) {
	path := scenario(t, "gpus: [{model: A100-40GB}]\nfaults: [{kind: dcgm-version-mismatch, for: 10s}]\n")
	if !inChild(t, environment(t, path)...) {
		return
	}

	n := node(t)

	stop, err := dcgm.Init(dcgm.Standalone, "localhost:5555", "0")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	calls := map[string]func() error{
		"hierarchy": func() error { _, err := dcgm.GetGPUInstanceHierarchy(); return err },
		"devices":   func() error { _, err := dcgm.GetEntityGroupEntities(dcgm.FE_GPU); return err },
		"device":    func() error { _, err := dcgm.GetDeviceInfo(0); return err },
		"values":    func() error { _, err := live(0, 150); return err },
	}
	for name, call := range calls {
		says(t, name, call(), "API version mismatch")
	}

	if err := n.Advance(11 * time.Second); err != nil {
		t.Fatal(err)
	}

	for name, call := range calls {
		if err := call(); err != nil {
			t.Errorf("%s with the right version: %v", name, err)
		}
	}
}

func TestVersions(t *testing.T) {
	program := compile(t, `
#include <dlfcn.h>
#include <stdio.h>
#include "dcgm_agent.h"
#include "dcgm_structs.h"
int main(int n, char **args)
{
	void *lib = dlopen(args[1], RTLD_NOW);
	dcgmReturn_t (*init)(void) = dlsym(lib, "dcgmInit");
	dcgmReturn_t (*start)(dcgmOperationMode_t, dcgmHandle_t *) = dlsym(lib, "dcgmStartEmbedded");
	dcgmReturn_t (*connect)(const char *, dcgmHandle_t *) = dlsym(lib, "dcgmConnect");
	dcgmReturn_t (*own)(dcgmVersionInfo_t *) = dlsym(lib, "dcgmVersionInfo");
	dcgmReturn_t (*engine)(dcgmHandle_t, dcgmVersionInfo_t *) = dlsym(lib, "dcgmHostengineVersionInfo");
	dcgmVersionInfo_t v = {.version = 1};
	dcgmHandle_t embedded, remote;
	init();
	start(DCGM_OPERATION_MODE_AUTO, &embedded);
	connect("localhost", &remote);
	printf("%d\n", own(&v));
	v.version = dcgmVersionInfo_version;
	printf("%d %s\n", own(&v), v.rawBuildInfoString);
	printf("%d %s\n", engine(embedded, &v), v.rawBuildInfoString);
	printf("%d %s\n", engine(remote, &v), v.rawBuildInfoString);
	return 0;
}`, "-I"+headers(t), "-ldl")
	run := exec.Command(program, library())
	run.Env = append(os.Environ(),
		"MIG_SIM_SCENARIO="+scenario(t, "gpus: [{model: A100-40GB}]\nfaults: [{kind: dcgm-version-mismatch}]\n"))

	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	rest := ";arch:x86_64;buildtype:Simulated\n"
	if want := "-12\n0 version:4.5.3" + rest + "0 version:4.5.3" + rest + "0 version:4.2.3" + rest; string(out) != want {
		t.Errorf("%s, want %s", out, want)
	}
}

// A library that lacks a function loads, since clients bind lazily, and ends the process of one
// that calls it; a damaged one does not load, of which go-dcgm says the same as of one that is not
// there. (ld.so, go-dcgm's admin.go)
func TestIncompleteLibrary(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "libdcgm.so.4")

	path := scenario(t, "gpus: [{model: A100-40GB}]\n")
	for _, tt := range []struct{ name, init, output string }{
		{"incomplete", "", "undefined symbol: dcgmGetGpuInstanceHierarchy"},
		{"truncated", "libdcgm.so.4 not found", "--- PASS"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if os.Getenv(childVariable) == t.Name() {
				_, err := dcgm.Init(dcgm.Embedded)
				if tt.init != "" {
					says(t, "init", err, tt.init)
					return
				}

				if ids, err := dcgm.GetEntityGroupEntities(dcgm.FE_GPU); err != nil || len(ids) != 1 {
					t.Errorf("%v, %v", ids, err)
				}

				_, _ = dcgm.GetGPUInstanceHierarchy()

				return
			}

			err := damaged.Truncated(library(), file)
			if tt.name == "incomplete" {
				err = damaged.WithoutSymbols(library(), file, "dcgmGetGpuInstanceHierarchy")
			}

			if err != nil {
				t.Fatal(err)
			}

			child := exec.Command(os.Args[0], "-test.run=^TestIncompleteLibrary$/^"+tt.name+"$", "-test.v")
			child.Env = append(os.Environ(), childVariable+"="+t.Name(), "LD_LIBRARY_PATH="+dir, "MIG_SIM_SCENARIO="+path)

			out, err := child.CombinedOutput()
			if (err == nil) != (tt.init != "") || !strings.Contains(string(out), tt.output) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
