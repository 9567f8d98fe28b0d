package dcgmsource

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// refusing is a node on which no engine starts, for a reason.
func refusing(t *testing.T, opts Options, reason error) (h *harness, starts *int) {
	h = mixed(t)
	h.use(opts)
	starts = new(int)
	h.engine.fail = func(op string, _ []Entity) error {
		if op == "connect" {
			*starts++
			return reason
		}

		return nil
	}

	return h, starts
}

// refused lets minutes pass and returns the last error.
func (h *harness) refused(minutes int) error {
	h.Helper()
	var err error

	for range 60 * minutes {
		h.engine.now = h.engine.now.Add(time.Second)
		if _, err = h.ask(); !errors.Is(err, gpu.ErrUnavailable) {
			h.Fatal(err)
		}
	}

	return err
}

func initFailed() error {
	return Translate("start DCGM", 0, "error starting nv-hostengine: DCGM initialization error")
}

// TestFailedStartsAreFew: each leaves a thread behind. An engine in this process is started three
// times, and again when something has changed that may help.
func TestFailedStartsAreFew(t *testing.T) {
	h, starts := refusing(t, Options{Mode: ModeEmbedded}, initFailed())
	h.user = 65534
	expect := func(when string, want int) {
		t.Helper()
		err := h.refused(15)

		if *starts != want {
			t.Errorf("%s: %d starts, want %d", when, *starts, want)
		}

		const next = "the next one is after a change of a MIG mode or layout, a GPU that answers again, or a reload (SIGHUP)"
		if !strings.Contains(err.Error(), "3 starts have failed: "+next) {
			t.Errorf("%s: %v", when, err)
		}
	}
	expect("at first", 3)
	h.node.GPUs[1].Up = false
	h.node.GPUs[1].MIG.Enabled = gpu.None[bool]()
	expect("with a GPU that does not answer", 3)
	h.node.GPUs[1].Up, h.node.GPUs[1].MIG.Enabled = true, gpu.None[bool]()
	expect("with a GPU that answers again", 6)
	h.node.GPUs[0].MIG.LayoutGeneration++
	expect("with another layout", 9)
	h.node.GPUs[0].MIG.Enabled = gpu.Some(false)
	expect("with another MIG mode", 12)
	h.source.Retry()
	expect("after a reload", 15)
	h.engine.fail = nil
	h.source.Retry()

	if got := h.after(5); len(got) != 2 {
		t.Errorf("when it starts: %v", got)
	}
}

func TestStartsThatAreNotLimited(t *testing.T) {
	h, starts := refusing(t, Options{Mode: ModeRemote, Address: "localhost:5555"}, Translate("connect", -21, ""))
	if h.refused(15); *starts < 15 {
		t.Errorf("%d attempts to connect to an engine that runs elsewhere", *starts)
	}

	h, starts = refusing(t, Options{Mode: ModeEmbedded}, fmt.Errorf("%w: %w", ErrNoLibrary, gpu.ErrUnavailable))
	if h.refused(15); *starts < 15 {
		t.Errorf("%d attempts to load a library that may be installed meanwhile", *starts)
	}
}

// TestWithoutRoot: with MIG on an engine in this process starts as root alone. What to do is said
// where that is the reason.
func TestWithoutRoot(t *testing.T) {
	const advice = "run this program as root, or connect it to an nv-hostengine that runs as root by --dcgm.address=HOST:PORT"
	for _, tt := range []struct {
		name   string
		user   int
		mig    bool
		reason error
		advice bool
	}{
		{"not root, MIG", 65534, true, initFailed(), true},
		{"root, MIG", 0, true, initFailed(), false},
		{"not root, no MIG", 65534, false, initFailed(), false},
		{"not root, and the engine says so", 65534, false, Translate("start DCGM", -29, "running as non-root"), true},
		{"not root, another reason", 65534, true, Translate("start DCGM", -3, "Generic unspecified error"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, _ := refusing(t, Options{Mode: ModeEmbedded}, tt.reason)
			h.user = tt.user
			h.node.GPUs[0].MIG.Enabled = gpu.Some(tt.mig)

			err := h.refused(1)
			if strings.Contains(err.Error(), advice) != tt.advice || errors.Is(err, ErrRequiresRoot) != tt.advice {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestStartedAgainAfterAChange: an engine in this process that goes on to list the instances of a
// passed layout is started again, once; a running one is left to the operator.
func TestStartedAgainAfterAChange(t *testing.T) {
	for _, mode := range []Mode{ModeEmbedded, ModeRemote} {
		h := mixed(t)
		h.use(Options{Mode: mode, Address: "localhost:5555"})
		h.after(5)
		old := h.engine.tree
		h.engine.tree = nil
		h.engine.add(0, 3, 5, 7, 7)
		next := h.engine.tree
		h.engine.tree = old
		h.engine.fail = func(op string, _ []Entity) error {
			if op == "connect" {
				h.engine.tree = next
			}

			return nil
		}
		g := &h.node.GPUs[0]
		g.Instances = nil
		g.MIG.LayoutGeneration = 2
		h.partition(0, 5, 7, 7)
		got := h.after(20)[uuidA]

		sessions := map[Mode]int{ModeEmbedded: 2, ModeRemote: 1}[mode]
		if h.engine.sessions != sessions || (len(got.Instances) == 1) != (mode == ModeEmbedded) {
			t.Errorf("%s: %d sessions, %d instances\n%s", mode, h.engine.sessions, len(got.Instances), h.lines.String())
		}

		next = old // does not follow ever
		g.MIG.LayoutGeneration++
		h.engine.tree = old
		h.after(120)

		if n := strings.Count(h.lines.String(), "other instances than the driver:"); n != 1 ||
			h.engine.sessions > sessions+1 {
			t.Errorf("%s: said %d times, %d sessions\n%s", mode, n, h.engine.sessions, h.lines.String())
		}
	}
}

// TestNotStartedAgainWithoutRoot: another client turns MIG on while an engine in this process runs,
// which is not root. No other would start (DCGM 4.5.3), and this one still serves the other GPUs.
// When MIG is off again it is started again if it needs to be.
func TestNotStartedAgainWithoutRoot(t *testing.T) {
	h := harnessOf(t, newFake(uuidA, uuidB, "GPU-c"), false)
	h.use(Options{Mode: ModeEmbedded})
	h.user = 65534
	h.after(5)

	for i := range 2 {
		h.partition(i, 1, 3, 3)
		h.node.GPUs[i].MIG.LayoutGeneration++
	}

	got := h.after(60)
	cmptest.Equal(t, "sessions", h.engine.sessions, 1)
	cmptest.Equal(t, "closed sessions", h.engine.closed, 0)
	cmptest.Equal(t, "the third GPU is present", got["GPU-c"].GPU.SM.Present(), true)
	cmptest.Equal(t, "GPU instances", len(got[uuidA].Instances), 0)

	if n := strings.Count(h.lines.String(), "run this program as root"); n != 1 {
		t.Errorf("said %d times:\n%s", n, h.lines.String())
	}

	for i := range 2 {
		h.node.GPUs[i].MIG, h.node.GPUs[i].Instances = gpu.MIGState{LayoutGeneration: 3, Enabled: gpu.Some(false)}, nil
	}

	h.engine.add(0, 7, 1, 3, 3)

	if h.after(15); h.engine.sessions != 2 {
		t.Errorf("without MIG: %d sessions", h.engine.sessions)
	}
}

// TestVersionIsFinal: the library stays loaded, so that no start in this process helps.
func TestVersionIsFinal(t *testing.T) {
	h, starts := refusing(t, Options{Mode: ModeEmbedded}, Translate("start DCGM", -12, ""))
	for range 2 {
		err := h.refused(15)
		if text := err.Error(); *starts != 3 ||
			!strings.Contains(text, "3 starts have failed: the next one is after a restart of this program") {
			t.Errorf("%d starts: %s", *starts, text)
		}

		h.source.Retry()
		h.node.GPUs[0].MIG.LayoutGeneration++
	}
}

// TestConnectedIsSaidOfAnEngineThatAnswers: a connection whose first cycle fails is none.
func TestConnectedIsSaidOfAnEngineThatAnswers(t *testing.T) {
	h, _ := refusing(t, Options{Mode: ModeRemote, Address: "localhost:5555"}, nil)
	h.engine.fail = func(op string, _ []Entity) error {
		if op == "hierarchy" {
			return Translate("read the MIG hierarchy", -12, "")
		}

		return nil
	}

	said := func() int { return strings.Count(h.lines.String(), "connected to DCGM") }
	if h.refused(5); said() != 0 || h.engine.sessions < 5 {
		t.Errorf("said %d times of %d connections", said(), h.engine.sessions)
	}

	h.engine.fail = nil
	h.source.Retry()

	if h.after(5); said() != 1 {
		t.Errorf("said %d times", said())
	}
}

// TestLastingErrorsAreSaidOnce: what lasts has one line, also where other calls for the GPU
// succeed; one that comes back has another.
func TestLastingErrorsAreSaidOnce(t *testing.T) {
	h := mixed(t)
	failing := true
	h.engine.fail = func(op string, _ []Entity) error {
		if op == "hierarchy" && failing {
			return Translate("read the MIG hierarchy", -3, "Generic unspecified error")
		}

		return nil
	}

	said := func() int { return strings.Count(h.lines.String(), "read the MIG hierarchy") }
	if h.after(60); said() != 1 {
		t.Errorf("said %d times:\n%s", said(), h.lines.String())
	}

	failing = false

	if got := h.after(5)[uuidA]; len(got.Instances) != 2 {
		t.Errorf("when it is over: %+v", got)
	}

	failing = true

	if h.after(60); said() != 2 {
		t.Errorf("said %d times:\n%s", said(), h.lines.String())
	}
}

// TestProfilingModuleIsMissing: the line names the package, and is one for all GPUs.
func TestProfilingModuleIsMissing(t *testing.T) {
	h := mixed(t)
	h.engine.fail = func(op string, _ []Entity) error {
		if op == "watch" {
			return Translate("watch", 0, "This request is serviced by a module of DCGM that is not currently loaded")
		}

		return nil
	}
	h.after(60)

	if n := strings.Count(h.lines.String(),
		"install the package datacenter-gpu-manager-4-proprietary where the nv-hostengine at localhost:5555 runs"); n != 1 {
		t.Errorf("said %d times:\n%s", n, h.lines.String())
	}
}
