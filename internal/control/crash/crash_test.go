package crash

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// callTimeout bounds what a child process may take; nothing depends on how fast it is.
const callTimeout = 2 * time.Minute

// node is a simulated node that outlives the processes which use it: its scenario, its state file,
// a journal.
type node struct {
	t    *testing.T
	dir  string
	boot string // its boot id
}

const (
	scenarioFile = "scenario.yaml"
	stateFile    = "node.json"
)

func newNode(t *testing.T, scenario string, todo task) *node {
	t.Helper()
	n := &node{t: t, dir: memoryDir(t), boot: "boot-1"}

	text, err := json.Marshal(todo)
	if err != nil {
		t.Fatal(err)
	}

	for name, content := range map[string][]byte{scenarioFile: []byte(scenario), "operation.json": text} {
		if err := os.WriteFile(filepath.Join(n.dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.Symlink(libraryPath, filepath.Join(n.dir, "libnvidia-ml.so.1")); err != nil {
		t.Fatal(err)
	}

	return n
}

// memoryDir is a directory in memory if there is such a thing: what a process has written before it
// is killed is there after it, on any file system, and syncing takes no time.
func memoryDir(t *testing.T) string {
	t.Helper()

	dir, err := os.MkdirTemp("/dev/shm", "crash-") //nolint:usetesting // t.TempDir is on a disk
	if err != nil {
		return t.TempDir()
	}

	t.Cleanup(func() { os.RemoveAll(dir) })

	return dir
}

// run runs a child process; killed says whether it was at its point.
func (n *node) run(role string, point int) (r report, killed bool) {
	n.t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), roleVariable+"="+role, bootVariable+"="+n.boot, dirVariable+"="+n.dir,
		pointVariable+"="+strconv.Itoa(point),
		"MIG_SIM_SCENARIO="+filepath.Join(n.dir, scenarioFile), "MIG_SIM_STATE="+filepath.Join(n.dir, stateFile),
		"MIG_SIM_CLOCK=step")
	var out, log bytes.Buffer
	child.Stdout = &out
	child.Stderr = &log
	err := child.Run()

	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return report{}, true
	}

	if err != nil {
		n.t.Fatalf("%s, point %d: %v\n%s", role, point, err, log.String())
	}

	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		n.t.Fatalf("%s, point %d: %v\n%s\n%s", role, point, err, out.String(), log.String())
	}

	return r, false
}

// join is the node itself.
func (n *node) join() *sim.Node {
	n.t.Helper()

	scenario, err := sim.Load(filepath.Join(n.dir, scenarioFile))
	if err != nil {
		n.t.Fatal(err)
	}

	shared, err := sim.Join(scenario, sim.ClockStep, filepath.Join(n.dir, stateFile))
	if err != nil {
		n.t.Fatal(err)
	}

	return shared
}

// layout is the layout of the node, by placement: ids and UUIDs are not part of it.
func (n *node) layout() []string {
	n.t.Helper()
	shared := n.join()
	defer shared.Close()
	list := []string{}

	for i := range shared.Count() {
		s, err := shared.Read(i, gpu.ReadingMIG)
		if err != nil {
			n.t.Fatal(err)
		}

		list = append(list, fmt.Sprintf("GPU %d MIG %v pending %v, %d processes", i, s.MIGEnabled, s.MIGPending,
			len(s.Processes)))
		for _, gi := range s.Instances {
			line := fmt.Sprintf("GPU %d %s@%s:", i, gi.Profile.Name, gi.Placement)

			computeInstances := slices.SortedFunc(slices.Values(gi.ComputeInstances),
				func(a, b *sim.Compute) int { return a.Placement.Start - b.Placement.Start })
			for _, ci := range computeInstances {
				line += fmt.Sprintf(" %s@%s", ci.Profile, ci.Placement)
			}

			list = append(list, line)
		}
	}

	return list
}

// committed is the point from which on an operation must not be rolled back any more.
const committed = "after the save of an operation that is settling"

// TestEveryCrash kills partition control before and after every save and every driver call of every
// operation. The next start must find the layout before or the one after, of what was committed the
// one after; and the start after that nothing to do.
func TestEveryCrash(t *testing.T) {
	for _, op := range operations() {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()

			before, after, points := op.whole(t)
			for point := 1; point <= len(points); point++ {
				if points[point-1] == committed {
					before = after
				}

				n := op.killed(t, point)
				n.expectWhole(fmt.Sprintf("killed %s (point %d)", points[point-1], point), before, after)
			}
		})
	}
}

// whole does the operation without a crash: the layouts before and after, and its points.
func (op operation) whole(t *testing.T) (before, after, points []string) {
	t.Helper()
	n := newNode(t, op.scenario, op.todo)
	before = n.layout()
	r, _ := n.run(roleOperate, 0)
	after = n.layout()

	if len(r.Operations) != 1 || r.Operations[0].State != op.end {
		t.Fatalf("without a crash: got %+v, want one operation that is %s", r.Operations, op.end)
	}

	if len(r.Points) < op.points {
		t.Fatalf("without a crash: %d points, want %d at least", len(r.Points), op.points)
	}

	if (op.end == api.Succeeded) == slices.Equal(before, after) {
		t.Fatalf("the operation is %s, and the layout %q", op.end, after)
	}

	if (op.end == api.Succeeded && op.todo.Mode == nil) != slices.Contains(r.Points, committed) {
		t.Fatalf("the operation is %s, with the points %q", op.end, r.Points)
	}

	return before, after, r.Points
}

// killed is a node on which the operation was killed at a point.
func (op operation) killed(t *testing.T, point int) *node {
	t.Helper()

	n := newNode(t, op.scenario, op.todo)
	if _, killed := n.run(roleOperate, point); !killed {
		t.Fatalf("point %d: not reached", point)
	}

	return n
}

// expectWhole starts partition control again after a crash.
func (n *node) expectWhole(when string, before, after []string) {
	n.t.Helper()
	r, _ := n.run(roleRecover, 0)

	got := n.layout()
	if !slices.Equal(got, before) && !slices.Equal(got, after) {
		n.t.Errorf("%s: the layout is neither the one before nor the one after:\n%q\nbefore %q\nafter  %q", when, got,
			before, after)
	}

	if r.State != "idle" {
		n.t.Errorf("%s: state %s", when, r.State)
	}

	for _, op := range r.Operations {
		if op.State != api.Succeeded && op.State != api.RolledBack && op.State != api.Failed {
			n.t.Errorf("%s: operation %s is %s", when, op.ID, op.State)
		}

		want := before
		if op.State == api.Succeeded {
			want = after
		}

		cmptest.Equal(n.t, fmt.Sprintf("%s: layout with operation %s %s", when, op.ID, op.State), got, want)
	}

	again, _ := n.run(roleRecover, 0)
	if again.Changes != 0 || again.State != "idle" {
		n.t.Errorf("%s: the start after it made %d changes and is %s, want none and idle", when, again.Changes, again.State)
	}

	cmptest.Equal(n.t, when+": the layout after another start", n.layout(), got)
}

// stride is the distance of the points at which crashes are followed by another one: all pairs
// would take too long.
const stride = 7

// TestCrashInRecovery kills the start after a crash too, before and after everything that it does.
func TestCrashInRecovery(t *testing.T) {
	op := operations()[1]

	before, after, points := op.whole(t)
	for first := 3; first <= len(points); first += stride {
		t.Run(fmt.Sprintf("point %d", first), func(t *testing.T) {
			t.Parallel()

			for second := 1; ; second++ {
				n := op.killed(t, first)
				if _, killed := n.run(roleRecover, second); !killed {
					if second == 1 {
						t.Error("the start after has no point to be killed at")
					}

					return
				}

				n.expectWhole(fmt.Sprintf("killed %s (point %d), then at point %d", points[first-1], first, second), before, after)
			}
		})
	}
}

// TestRebootAfterCrash: instances do not outlive a reboot. There is nothing to roll back, nor to
// commit.
func TestRebootAfterCrash(t *testing.T) {
	op := operations()[1]

	_, _, points := op.whole(t)
	for point := 1; point <= len(points); point += stride {
		n := op.killed(t, point)
		n.reboot()
		empty := n.layout()

		r, _ := n.run(roleRecover, 0)
		if r.Changes != 0 || r.State != "idle" {
			t.Errorf("point %d: got %d changes and state %s, want none and idle", point, r.Changes, r.State)
		}

		cmptest.Equal(t, fmt.Sprintf("point %d: the layout", point), n.layout(), empty)

		for _, o := range r.Operations {
			if !o.State.Final() {
				t.Errorf("point %d: %s", point, o.State)
			}
		}
	}
}

// reboot boots the node anew.
func (n *node) reboot() {
	n.t.Helper()
	shared := n.join()
	defer shared.Close()

	if err := shared.Reboot(); err != nil {
		n.t.Fatal(err)
	}

	n.boot = "boot-2"
}
