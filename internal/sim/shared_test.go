package sim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const sharedScenario = `
version: 1
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@4"]}, {model: H100-80GB}]
workloads: [{name: serve, memory: 2GiB, sm: {sine: {min: 5, max: 60, period: 40s}}}]
pods:
- {name: one, resource: nvidia.com/mig-3g.20gb, workload: serve, at: 1s}
- {name: two, resource: nvidia.com/mig-3g.20gb, workload: serve, at: 30s}
faults: [{kind: external-reconfigure, at: 200s, gpu: 0, layout: ["7g.40gb@0"]}]
`

// join starts a node on a state file.
func join(t *testing.T, path string) *Node {
	t.Helper()

	s, err := Parse("shared.yaml", []byte(sharedScenario))
	if err != nil {
		t.Fatal(err)
	}

	n, err := Join(s, ClockStep, path)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})

	return n
}

func statePath(t *testing.T) string { return filepath.Join(t.TempDir(), "state.json") }

func TestSharedNodesAreOne(t *testing.T) {
	path := statePath(t)
	a := join(t, path)
	b := join(t, path)
	advance(t, a, 2500*time.Millisecond)
	same(t, a, b)

	// Both partition the GPU; each sees what the other has done, and ids are given out once.
	first, err := a.CreateGPUInstance(0, 9, gpu.Opt[int]{})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := b.CreateGPUInstance(0, 9, gpu.Opt[int]{}); !errors.Is(err, gpu.ErrInsufficientResources) {
		t.Errorf("a third 3g.20gb: %v", err)
	}

	ci, err := b.CreateComputeInstance(0, first, 3)
	if err != nil {
		t.Fatal(err)
	}

	same(t, a, b)
	advance(t, b, 700*time.Millisecond)

	if err := a.SetMIGMode(1, true); err != nil {
		t.Fatal(err)
	}

	advance(t, a, 30*time.Second) // the second pod gets what was made
	same(t, a, b)

	if err := b.DestroyComputeInstance(0, first, ci); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("destroying what a pod of the other process uses: %v", err)
	}

	if s := state(t, b, 1); !s.MIGEnabled {
		t.Error("MIG mode of the other GPU is not seen")
	}

	late := join(t, path)
	same(t, a, late)
	advance(t, late, 180*time.Second) // after the scenario's change by another client
	same(t, a, b)
	same(t, a, late)

	if s := state(t, a, 0); len(s.Instances) != 1 || s.Instances[0].Profile.Name != "7g.40gb" {
		t.Errorf("instances %+v", s.Instances)
	}
}

// same holds that two nodes give the same answers, at the same time.
func same(t *testing.T, a, b *Node) {
	t.Helper()

	if !a.Now().Equal(b.Now()) {
		t.Fatalf("it is %s and %s", a.Now(), b.Now())
	}

	if x, y := everything(t, a), everything(t, b); x != y {
		t.Fatalf("two nodes on one state:\n%s\n%s", x, y)
	}
}

func TestOperationThatFailsLeavesNoTrace(t *testing.T) {
	path := statePath(t)

	a := join(t, path)

	b := start(t, sharedScenario)
	for _, n := range []*Node{a, b} {
		advance(t, n, 1700*time.Millisecond)
	}

	for range 3 {
		if err := a.DestroyGPUInstance(0, 2); !errors.Is(err, gpu.ErrInUse) {
			t.Fatal(err)
		}

		for _, n := range []*Node{a, b} {
			advance(t, n, 1100*time.Millisecond)
		}
	}

	same(t, a, b)

	if content, err := os.ReadFile(path); err != nil || strings.Contains(string(content), "destroy") {
		t.Errorf("%v\n%s", err, content)
	}
}

func TestEventsOfOtherNodes(t *testing.T) {
	path := statePath(t)
	a := join(t, path)
	b := join(t, path)
	queue := b.Subscribe()
	defer queue.Close()

	if err := queue.Watch(0, gpu.EventMIGChange); err != nil {
		t.Fatal(err)
	}

	got := make(chan Event)
	go func() {
		e, err := queue.Next(time.Minute)
		if err != nil {
			t.Error(err)
		}

		got <- e
	}()

	id, err := a.CreateGPUInstance(0, 19, gpu.Opt[int]{})
	if err != nil {
		t.Fatal(err)
	}

	if e := <-got; e.Kind != gpu.EventMIGChange || e.Instance != gpu.Some(id) {
		t.Errorf("event %+v", e)
	}
}

func TestStateFilesThatAreWrong(t *testing.T) {
	s, err := Parse("shared.yaml", []byte(sharedScenario))
	if err != nil {
		t.Fatal(err)
	}

	path := statePath(t)
	join(t, path)

	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	change := func(c string) string { return strings.Replace(string(whole), "[]", "["+c+"]", 1) }
	for _, c := range []struct{ about, content, want string }{
		{"empty", "", "not whole"},
		{"half", string(whole[:len(whole)/2]), "not whole"},
		{"more behind it", string(whole) + "x", "behind its end"},
		{"another version", strings.Replace(string(whole), `"version": 1`, `"version": 2`, 1), "version 2; expected 1"},
		{"another scenario", strings.Replace(string(whole), s.digest, "0", 1), "another scenario"},
		{"another clock", strings.Replace(strings.Replace(string(whole), `"step"`, `"real"`, 1), `"now"`, `"xyz"`, 1),
			"not whole"},
		{"clock before its start", strings.Replace(string(whole), `"now": "2026`, `"now": "2025`, 1),
			"its clock is at 2025"},
		{"clock long after its start", strings.Replace(string(whole), `"now": "2026`, `"now": "9999`, 1),
			"its clock is at 9999"},
		{"unknown key", change(`{"what": 1}`), "what"},
		{"GPU that is not there", change(`{"at": "2026-01-01T00:00:00Z", "gpu": 2, "op": "reset"}`), "change 0"},
		{"unknown change", change(`{"at": "2026-01-01T00:00:00Z", "gpu": 1, "op": "melt"}`), `"melt"`},
		{"overlap", change(`{"at": "2026-01-01T00:00:00Z", "gpu": 0, "op": "create-gi", "profile": 9, "gi": 2, "start": 4}`),
			"insufficient resources"},
		{"instance of none", change(`{"at": "2026-01-01T00:00:00Z", "gpu": 0, "op": "destroy-ci", "gi": 7}`), "not there"},
		{"clock is missing", strings.Replace(string(whole), `"now"`, `"ever"`, 1), "ever"},
	} {
		bad := statePath(t)
		if err := os.WriteFile(bad, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}

		_, err := Join(s, ClockStep, bad)
		if !errors.Is(err, ErrState) || !strings.Contains(fmt.Sprint(err), c.want) ||
			!strings.Contains(fmt.Sprint(err), bad) {
			t.Errorf("%s: error %v, want %v with %q and %s", c.about, err, ErrState, c.want, bad)
		}

		if after, err := os.ReadFile(bad); err != nil || string(after) != c.content {
			t.Errorf("%s: the file was changed: %q, %v", c.about, after, err)
		}
	}

	if _, err := Join(s, ClockX60, path); !errors.Is(err, ErrState) ||
		!strings.Contains(err.Error(), "clock mode step, not x60") {
		t.Errorf("another clock: %v", err)
	}

	if _, err := Join(s, ClockStep, filepath.Join(t.TempDir(), "no", "state.json")); !errors.Is(err, ErrState) ||
		!errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such folder: %v", err)
	}
}

// What is no file is reported at once: opening a pipe would wait for its writer for ever.
func TestStateThatIsNoFile(t *testing.T) {
	s, err := Parse("shared.yaml", []byte(sharedScenario))
	if err != nil {
		t.Fatal(err)
	}

	pipe := statePath(t)
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}

	for _, path := range []string{pipe, t.TempDir()} {
		joined := make(chan error, 1)
		go func() {
			_, err := Join(s, ClockStep, path)
			joined <- err
		}()

		select {
		case err := <-joined:
			if !errors.Is(err, ErrState) || !strings.Contains(err.Error(), path+": is no regular file") {
				t.Errorf("%s: %v", path, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: Join waits", path)
		}
	}
}

func TestStateFileThatBreaksAndMends(t *testing.T) {
	path := statePath(t)
	a := join(t, path)
	b := join(t, path)

	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	replace := func(content []byte) {
		t.Helper()

		if err := errors.Join(os.WriteFile(path+".new", content, 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	replace(whole[:20])

	for _, n := range []*Node{a, b} {
		if _, err := n.Read(0, gpu.ReadingMIG); !errors.Is(err, ErrState) {
			t.Errorf("reading with half a file: %v", err)
		}

		if _, err := n.CreateGPUInstance(0, 19, gpu.Opt[int]{}); !errors.Is(err, ErrState) {
			t.Errorf("creating with half a file: %v", err)
		}

		if err := n.Advance(time.Second); !errors.Is(err, ErrState) {
			t.Errorf("advancing with half a file: %v", err)
		}
	}

	replace(whole)
	same(t, a, b)

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}

	if err := a.Driver(); !errors.Is(err, ErrState) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}

	join(t, path)

	if err := a.Driver(); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "created anew") {
		t.Errorf("with another beginning: %v", err)
	}
}

func TestFullDisk(t *testing.T) {
	path := statePath(t)
	a := join(t, path)
	b := join(t, path)
	advance(t, a, 1500*time.Millisecond)
	before := everything(t, a)

	for _, do := range []func() error{
		func() error { _, err := a.CreateGPUInstance(0, 19, gpu.Opt[int]{}); return err },
		func() error { _, err := b.CreateGPUInstance(0, 9, gpu.Some(0)); return err },
		func() error { return a.SetMIGMode(1, true) },
		func() error { return a.Reset(1) },
		func() error { return a.Advance(time.Second) },
	} {
		if err := os.Symlink("/dev/full", path+".next"); err != nil {
			t.Fatal(err)
		}

		if err := do(); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("with a full disk: %v", err)
		}
	}

	if after := everything(t, a); after != before {
		t.Errorf("changed by what has failed:\n%s\n%s", before, after)
	}

	same(t, a, b)

	if _, err := b.CreateGPUInstance(0, 9, gpu.Some(0)); err != nil {
		t.Errorf("with room again: %v", err)
	}

	same(t, a, b)
}

// Another process partitions the GPU until its input ends; this one does so at the same time.
func TestTwoProcesses(t *testing.T) {
	const variable = "SIM_TEST_STATE"
	if path := os.Getenv(variable); path != "" {
		n := join(t, path)
		fmt.Println("joined")

		if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
			t.Fatal(err)
		}

		cutAndMend(t, n)
		fmt.Println("\n" + everything(t, n))

		return
	}

	path := statePath(t)
	n := join(t, path)
	other := exec.Command(os.Args[0], "-test.run=^TestTwoProcesses$")
	other.Env = append(os.Environ(), variable+"="+path)

	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}

	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := other.Start(); err != nil {
		t.Fatal(err)
	}

	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || line != "joined\n" {
		t.Fatalf("%q, %v", line, err)
	}

	if err := in.Close(); err != nil {
		t.Fatal(err)
	}

	cutAndMend(t, n)

	rest, err := io.ReadAll(lines)
	if err := errors.Join(err, other.Wait()); err != nil {
		t.Fatalf("%v\n%s", err, rest)
	}

	if s := state(t, n, 0); len(s.Instances) != 1 {
		t.Errorf("instances left: %+v", s.Instances)
	}

	f, file, err := readState(path, n.scenario)
	if err != nil {
		t.Fatal(err)
	}

	if err := file.Close(); err != nil || len(f.Changes) != 2*4*rounds {
		t.Errorf("%d changes, %v", len(f.Changes), err)
	}
}

const rounds = 25

// cutAndMend makes an instance as soon as there is room, and destroys it.
func cutAndMend(t *testing.T, n *Node) {
	t.Helper()

	for range rounds {
		id, err := n.CreateGPUInstance(0, 19, gpu.Opt[int]{})
		if err != nil {
			t.Fatal(err)
		}

		ci, err := n.CreateComputeInstance(0, id, 1)
		if err != nil {
			t.Fatal(err)
		}

		if err := errors.Join(n.DestroyComputeInstance(0, id, ci), n.DestroyGPUInstance(0, id)); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever is in a state file, reading it ends in an error or in a state that can be written and
// read again.
func FuzzState(f *testing.F) {
	s, err := Parse("shared.yaml", []byte(sharedScenario))
	if err != nil {
		f.Fatal(err)
	}

	const clock = `"clock": {"mode": "step", "start": "2026-01-01T00:00:00Z", "now": "2026-01-01T00:00:10Z"}`
	for _, changes := range []string{
		"", `{"at": "2026-01-01T00:00:05Z", "gpu": 0, "op": "create-gi", "profile": 9, "gi": 1}`,
		`{"at": "2026-01-01T00:00:05Z", "gpu": 1, "op": "mig-mode", "on": true}, {"at": "2026-01-01T00:00:05Z", "gpu": 1, "op": "reset"}`,
		`{"at": "2026-01-01T00:00:05Z", "gpu": 0, "op": "create-ci", "gi": 2, "slices": 99, "start": -1}`,
		`{"at": "0001-01-01T00:00:05Z", "gpu": 0, "op": "fault", "fault": 0}`,
	} {
		f.Add([]byte(`{"version": 1, "id": "x", "scenario": "shared", "digest": "` + s.digest + `", ` + clock +
			`, "changes": [` + changes + `]}`))
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		if state, err := decodeState(data, s); err != nil || state.Clock.Mode != ClockStep ||
			state.Clock.Now.Sub(state.Clock.Start) > time.Hour {
			return // what is long ago takes long to go through
		}

		path := statePath(t)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}

		n, err := Join(s, ClockStep, path)
		if err != nil {
			return
		}
		defer n.Close()

		before := everything(t, n)
		if err := n.Advance(0); err != nil {
			t.Fatal(err)
		}

		same(t, n, join(t, path))

		if after := everything(t, n); after != before {
			t.Errorf("%s\n%s", before, after)
		}
	})
}
