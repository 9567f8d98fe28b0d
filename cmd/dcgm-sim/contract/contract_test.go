package contract

import (
	"debug/elf"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/clibrary"
	"github.com/mig-exporter/mig-exporter/internal/sim/simdcgm"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

// builtVariable is the environment variable with which a child process finds the built library is.
const builtVariable = "DCGM_SIM_TEST_BUILT"

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	if os.Getenv(builtVariable) != "" {
		return m.Run()
	}

	dir, err := testbuild.Library(testbuild.DCGM)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	if err := os.Setenv(builtVariable, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return m.Run()
}

func library() string { return filepath.Join(os.Getenv(builtVariable), "libdcgm.so.4") }

// childVariable names the test that a child process runs.
const childVariable = "DCGM_SIM_TEST_CHILD"

// inChild runs the calling test again in a process of its own, in which the dynamic linker finds
// the library. It returns true in the child, where the test goes on, and false when the child has
// ended well.
func inChild(t *testing.T, env ...string) bool {
	t.Helper()

	if os.Getenv(childVariable) == t.Name() {
		return true
	}

	child := exec.Command(os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")

	child.Env = append(append(os.Environ(), childVariable+"="+t.Name(), "LD_LIBRARY_PATH="+os.Getenv(builtVariable)),
		env...)
	if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}

	return false
}

// headers is the folder of DCGM's headers, which go-dcgm brings.
func headers(t *testing.T) string {
	t.Helper()

	path, err := clibrary.FindHeader("dcgm_agent.h")
	if err != nil {
		t.Fatal(err)
	}

	return filepath.Dir(path)
}

func read(t *testing.T, path string) string {
	t.Helper()

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// Sizes, offsets and values of abi.h are those of DCGM's headers, checked by the compiler.
func TestABI(t *testing.T) {
	abi := read(t, "../abi.h")
	var code strings.Builder
	code.WriteString("#include <stddef.h>\n#include \"dcgm_agent.h\"\n#include \"dcgm_structs.h\"\n#include " +
		"\"../abi.h\"\n")
	check := func(format string, args ...any) { fmt.Fprintf(&code, "_Static_assert("+format+", \"\");\n", args...) }

	structs := regexp.MustCompile(`(?s)typedef struct \{(.*?)\} sim_(\w+);`).FindAllStringSubmatch(abi, -1)
	for _, s := range structs {
		check("sizeof(sim_%s) == sizeof(%s)", s[2], s[2])

		for _, field := range regexp.MustCompile(`(?m)^\t(?:\w+ )+(\w+)(?:\[\w+\])?[,;]`).FindAllStringSubmatch(s[1], -1) {
			check("offsetof(sim_%s, %s) == offsetof(%s, %s)", s[2], field[1], s[2], field[1])
			check("sizeof(((sim_%s *)0)->%s) == sizeof(((%s *)0)->%s)", s[2], field[1], s[2], field[1])
		}
	}

	values := regexp.MustCompile(`(?m)^(?:\t|#define )SIM_(dcgm\w+|DCGM_\w+)\b`).FindAllStringSubmatch(abi, -1)
	for _, v := range values {
		check("(long long)SIM_%s == (long long)%s", v[1], v[1])
	}

	if len(structs) < 6 || len(values) < 5 {
		t.Fatalf("only %d structs and %d values found in abi.h", len(structs), len(values))
	}

	code.WriteString("int main(void) { return 0; }\n")

	source := filepath.Join(t.TempDir(), "abi.c")
	if err := os.WriteFile(source, []byte(code.String()), 0o600); err != nil {
		t.Fatal(err)
	}

	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}

	gcc := exec.Command("gcc", "-fsyntax-only", "-I", headers(t), "-I", here, source)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Every function of dcgm_agent.h is exported, with those of fields and of texts of errors, and
// nothing else: neither helpers of the library nor what cgo makes for itself.
func TestSymbols(t *testing.T) {
	f, err := elf.Open(library())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}

	exported := map[string]bool{}

	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			exported[s.Name] = true
		}
	}

	agent := regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(read(t, filepath.Join(headers(t), "dcgm_agent.h")), "")
	declared := regexp.MustCompile(`DCGM_PUBLIC_API\s+(?:dcgmReturn_t\s+)?(dcgm\w+)\s*\(`).FindAllStringSubmatch(agent, -1)

	names := []string{"errorString", "DcgmFieldsInit", "DcgmFieldsTerm", "DcgmFieldGetById", "DcgmFieldGetByTag"}
	for _, d := range declared {
		names = append(names, d[1])
	}

	for _, name := range names {
		if !exported[name] {
			t.Errorf("%s is not exported", name)
		}

		delete(exported, name)
	}

	if len(declared) < 90 || len(exported) > 0 {
		t.Errorf("%d functions declared; exported beside them: %v", len(declared), exported)
	}

	if names, err := f.DynString(elf.DT_SONAME); err != nil || !slices.Equal(names, []string{"libdcgm.so.4"}) {
		t.Errorf("SONAME %v, %v", names, err)
	}
}

// pictures are what a node's GPUs look like by the engine in process and by the library through
// go-dcgm.
type pictures struct {
	t                  *testing.T
	node               *sim.Node
	inventory          *nvmlsource.Source
	inProcess, library *dcgmsource.Source
	generation         uint64
	last               map[gpu.UUID]string
}

// look lets a second pass and asks both.
func (p *pictures) look() (own, other map[gpu.UUID]gpu.Profiling, ownErr, otherErr error) {
	p.t.Helper()

	if err := p.node.Advance(time.Second); err != nil {
		p.t.Fatal(err)
	}

	s := p.snapshot()
	own, ownErr = p.inProcess.Profile(s)
	other, otherErr = p.library.Profile(s)

	return own, other, ownErr, otherErr
}

// snapshot makes a Snapshot of the node as the loop would.
func (p *pictures) snapshot() *gpu.Snapshot {
	p.t.Helper()

	found, err := p.inventory.Discover()
	if err != nil {
		p.t.Fatal(err)
	}

	s := &gpu.Snapshot{Time: p.node.Now()}
	for _, f := range found.GPUs {
		g, err := p.inventory.Read(f.UUID)
		if err != nil {
			p.t.Fatal(err)
		}

		layout := fmt.Sprint(g.MIG.Enabled)
		for _, gi := range g.Instances {
			layout += fmt.Sprint(gi.ID, gi.Profile, gi.Placement, len(gi.ComputeInstances))
		}

		if p.last[g.UUID] != layout {
			p.generation++
			p.last[g.UUID] = layout
		}

		g.MIG.LayoutGeneration = p.generation
		g.LastRead = s.Time
		s.GPUs = append(s.GPUs, g)
	}

	return s
}

// node joins the node that the environment shares with the library.
func node(t *testing.T) *sim.Node {
	t.Helper()

	scenario, err := sim.Load(os.Getenv("MIG_SIM_SCENARIO"))
	if err != nil {
		t.Fatal(err)
	}

	n, err := sim.Join(scenario, sim.ClockStep, os.Getenv("MIG_SIM_STATE"))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { n.Close() })

	return n
}

func newPictures(t *testing.T, engine dcgmsource.Connector) *pictures {
	n := node(t)
	options := dcgmsource.Options{Now: n.Now, Logger: log.NewNopLogger()}
	p := &pictures{
		t: t, node: n, last: map[gpu.UUID]string{},
		inventory: nvmlsource.New(simnvml.New(n), nvmlsource.Options{Now: n.Now, Logger: log.NewNopLogger()}),
		inProcess: dcgmsource.New(simdcgm.New(n), options), library: dcgmsource.New(engine, options),
	}
	t.Cleanup(func() {
		if err := p.library.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})

	return p
}

func environment(t *testing.T, scenario string) []string {
	return []string{
		"MIG_SIM_SCENARIO=" + scenario, "MIG_SIM_CLOCK=step", "MIG_SIM_STATE=" + filepath.Join(t.TempDir(), "state.json"),
	}
}

// The same activity through go-dcgm and the library as from the engine in process: also after a
// layout change, and without ever a value that only one of them has.
func TestTheSameThroughTheLibrary(t *testing.T) {
	for _, name := range []string{"dgx-a100-mixed", "a30", "gke-h100-3g"} {
		t.Run(name, func(t *testing.T) {
			path, err := filepath.Abs("../../../testdata/scenarios/" + name + ".yaml")
			if err != nil {
				t.Fatal(err)
			}

			if !inChild(t, environment(t, path)...) {
				return
			}

			p := newPictures(t, dcgmsource.Open(dcgmsource.ModeEmbedded, ""))
			compared := 0

			for round := range 14 {
				if round == 7 {
					repartition(t, p.node)
				}

				own, other, ownErr, otherErr := p.look()
				if ownErr != nil || otherErr != nil {
					t.Fatalf("in process: %v; by the library: %v", ownErr, otherErr)
				}

				compared += compare(t, own, other)
			}

			if compared < 50 {
				t.Errorf("only %d values compared", compared)
			}
		})
	}
}

// repartition makes the first free GPU instance that fits somewhere, with a compute instance.
func repartition(t *testing.T, n *sim.Node) {
	t.Helper()

	for i := range n.Count() {
		s, err := n.Read(i, gpu.ReadingMIG)
		if err != nil || !s.MIGEnabled {
			continue
		}

		for _, f := range s.Profiles {
			if id, err := n.CreateGPUInstance(i, f.ID, gpu.None[int]()); err == nil {
				if _, err := n.CreateComputeInstance(i, id, f.ComputeSlices); err != nil {
					t.Fatal(err)
				}

				return
			}
		}
	}
}

func compare(t *testing.T, own, other map[gpu.UUID]gpu.Profiling) int {
	t.Helper()

	if len(own) != len(other) {
		t.Errorf("%d GPUs in process, %d by the library", len(own), len(other))
	}

	count := 0

	for id, a := range own {
		b := other[id]
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s in process %+v,\nby the library %+v", id, a, b)
		}

		for _, activity := range a.Instances {
			if v, ok := activity.SM.Get(); ok && !math.IsNaN(v) {
				count++
			}
		}

		if a.Rates.PCIeReceive.Present() {
			count++
		}
	}

	return count
}

// An address without a listener is refused with DCGM's words, a right one is not; and what a fault
// does to the engine comes through go-dcgm's texts as the same errors.
func TestConnectionsAndFaults(t *testing.T) {
	scenario := filepath.Join(t.TempDir(), "scenario.yaml")

	if os.Getenv(childVariable) == "" {
		text := `version: 1
node: {kubernetes: false}
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@4"]}]
workloads: [{name: w, memory: 1GiB, sm: 21}]
processes: [{device: 0/3g.20gb@4, workload: w}]
faults:
- {kind: dcgm-down, at: 10s, for: 5s}
- {kind: dcgm-restart, at: 30s}
- {kind: dcgm-paused, at: 50s, for: 5s}
- {kind: dcgm-requires-root, at: 60s}
`
		if err := os.WriteFile(scenario, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	if !inChild(t, append(environment(t, scenario), "MIG_SIM_DCGM_ADDRESS=127.0.0.1:5555")...) {
		return
	}

	if _, err := dcgmsource.Open(dcgmsource.ModeRemote, "127.0.0.1:5556").Connect(); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("an address without a listener: %v", err)
	}

	p := newPictures(t, dcgmsource.Open(dcgmsource.ModeRemote, "127.0.0.1:5555"))
	failures := 0

	for range 90 {
		own, other, ownErr, otherErr := p.look()
		if (ownErr == nil) != (otherErr == nil) ||
			errors.Is(ownErr, gpu.ErrUnavailable) != errors.Is(otherErr, gpu.ErrUnavailable) {
			t.Fatalf("%v: in process %v; by the library %v", p.node.Now(), ownErr, otherErr)
		}

		if ownErr != nil {
			failures++
			continue
		}

		compare(t, own, other)
	}

	if failures == 0 {
		t.Error("no fault was seen")
	}
}
