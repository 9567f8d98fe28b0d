package nvmlsource_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// openNode is a node of three GPUs whose Source can let go of them.
type openNode struct {
	*node
	pauses  []string // what was paused and resumed
	refuses error    // why other uses of the GPUs do not end
	mayOpen error
	rights  string
	minors  func() ([]int, error) // if not nil, what this process has open instead of the truth
	foreign string                // the PCI bus id of a bound GPU that NVML does not list
	lingers chan struct{}         // if not nil, other uses of the GPUs end once it is closed
	awaits  <-chan struct{}       // closed once a call hangs
}

func startOpenNode(t *testing.T, options, faults string) *openNode {
	t.Helper()

	s, err := sim.Parse("test.yaml", []byte("version: 1\nnode: {hostname: n1"+options+"}\ngpus:\n"+
		"  - {model: H100-80GB, count: 3}\n"+faults))
	if err != nil {
		t.Fatal(err)
	}

	simulated, err := sim.New(s, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { simulated.Close() })

	n := &openNode{}
	logged := &bytes.Buffer{}
	lib := newSpy(simnvml.New(simulated))
	source := nvmlsource.New(lib, nvmlsource.Options{
		Now: simulated.Now, Logger: log.NewLogfmtLogger(log.NewSyncWriter(logged)), GPM: true,
		MayOpen: func(gpu.Opt[bool]) error { return n.mayOpen },
		Opening: nvmlsource.Opening{
			BoundGPUs: func() ([]string, error) {
				var list []string
				if n.foreign != "" {
					list = append(list, n.foreign)
				}

				for _, index := range simulated.BoundGPUs() {
					list = append(list, simulated.BusID(index))
				}

				return list, nil
			},
			Rights: func() string { return n.rights },
			OpenMinors: func() ([]int, error) {
				if n.minors != nil {
					return n.minors()
				}

				return simulated.OpenGPUs(), nil
			},
			Pause: func(context.Context) (func(bool), error) {
				n.pauses = append(n.pauses, "pause")
				if n.lingers != nil {
					<-n.lingers
				}

				return func(all bool) {
					n.pauses = append(n.pauses, map[bool]string{true: "resume", false: "resume all but DCGM"}[all])
				}, n.refuses
			},
		},
	})
	n.node = &node{Node: simulated, t: t, spy: lib, source: source, logged: logged}
	t.Cleanup(n.close)

	return n
}

// close closes the Source, which closes all GPUs.
func (n *openNode) close() {
	if err := n.source.Close(context.Background()); err != nil {
		n.t.Error(err)
	}

	if open := n.OpenGPUs(); len(open) > 0 {
		n.t.Errorf("GPUs %v are still open after Close", open)
	}
}

// readAll is what a poll reads.
func (n *openNode) readAll() []gpu.UUID {
	n.t.Helper()

	ids := n.discover()
	for _, id := range ids {
		n.read(id)
	}

	return ids
}

// result carries a request out and returns what became of it.
func (n *openNode) result(request <-chan nvmlsource.Released) nvmlsource.Released {
	n.t.Helper()

	for range 10 { // one Discover waits for at most a second
		n.source.Discover() // the answer says what became of it

		select {
		case r := <-request:
			return r
		default:
		}
	}

	n.t.Fatal("no Discover has answered the request")

	return nvmlsource.Released{}
}

func (n *openNode) release(id gpu.UUID) nvmlsource.Released {
	n.t.Helper()
	return n.result(n.source.Release(id, gpu.ReleasedByOperator))
}

// TestRelease: of a released GPU no handle is left, the others are read at their indexes, and it
// comes back.
func TestRelease(t *testing.T) {
	n := startOpenNode(t, "", "")
	ids := n.readAll()
	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 1, 2})

	if r := n.release(ids[1]); r.Err != nil || r.Closed != nil || r.Took <= 0 {
		t.Fatalf("release: %+v", r)
	}

	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})

	inventory, err := n.source.Discover()
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "GPUs", inventory.GPUs, []gpu.FoundGPU{{Index: 0, UUID: ids[0]}, {Index: 2, UUID: ids[2]}})
	cmptest.Equal(t, "missing", len(inventory.Missing), 0)
	cmptest.Equal(t, "released", inventory.Released, []gpu.ReleasedGPU{{
		FoundGPU: gpu.FoundGPU{Index: 1, UUID: ids[1]},
		Release:  gpu.Release{Since: n.Now(), Cause: gpu.ReleasedByOperator},
	}})
	n.readAll()

	if _, err := n.source.Read(ids[1]); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("reading the released GPU: %v", err)
	}

	if _, err := n.source.Actuator().Processes(t.Context(), ids[1]); !errors.Is(err, gpu.ErrReleased) {
		t.Errorf("partition control on the released GPU: %v", err)
	}

	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})

	if r := n.result(n.source.Reacquire(ids[1])); r.Err != nil || r.Closed != nil {
		t.Fatalf("reacquire: %+v", r)
	}

	cmptest.Equal(t, "GPUs", n.readAll(), ids)
	cmptest.Equal(t, "pauses", n.pauses, []string{"pause", "resume all but DCGM", "pause", "resume", "resume"})
}

// TestReleaseTwice: a second GPU is released beside the first, and asking again changes nothing.
func TestReleaseTwice(t *testing.T) {
	n := startOpenNode(t, "", "")
	ids := n.readAll()
	n.release(ids[1])
	n.readAll()
	n.release(ids[0])
	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{2})

	n.spy.taken()

	if r := n.release(ids[0]); r.Err != nil || n.spy.taken()["Shutdown"] != 0 {
		t.Errorf("released again: %+v", r)
	}

	n.result(n.source.Reacquire(ids[1]))
	cmptest.Equal(t, "GPUs", n.readAll(), ids[1:])
	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{1, 2})
}

// TestReleaseStaysClosed: if looking up the others opens the released GPU, NVML stays closed until
// the GPU may be opened again.
func TestReleaseStaysClosed(t *testing.T) {
	n := startOpenNode(t, ", lookupOpens: all", "")
	ids := n.readAll()

	r := n.release(ids[1])
	if r.Err != nil || !errors.Is(r.Closed, gpu.ErrLibraryClosed) || !strings.Contains(r.Closed.Error(), "/dev/nvidia1") {
		t.Fatalf("release: %+v", r)
	}

	cmptest.Equal(t, "open GPUs", len(n.OpenGPUs()), 0)

	for range 3 {
		inventory, err := n.source.Discover()
		if !errors.Is(err, gpu.ErrLibraryClosed) || len(inventory.Released) != 1 {
			t.Errorf("Discover: %+v, %v", inventory, err)
		}

		if _, err := n.source.Read(ids[0]); !errors.Is(err, gpu.ErrLibraryClosed) {
			t.Errorf("Read: %v", err)
		}
	}

	cmptest.Equal(t, "open GPUs", len(n.OpenGPUs()), 0)

	if r := n.result(n.source.Reacquire(ids[1])); r.Err != nil || r.Closed != nil {
		t.Fatalf("reacquire: %+v", r)
	}

	cmptest.Equal(t, "GPUs", n.readAll(), ids)
}

// TestReleaseUnverified: nothing says what this process has open, so NVML stays closed, and the GPU
// is not answered as released.
func TestReleaseUnverified(t *testing.T) {
	n := newNode(t, "", "  - {model: H100-80GB, count: 2}")
	ids := n.discover()
	n.read(ids[0])

	released := n.source.Release(ids[0], gpu.ReleasedByOperator)
	if _, err := n.source.Discover(); !errors.Is(err, gpu.ErrLibraryClosed) {
		t.Errorf("Discover: %v", err)
	}

	r := <-released
	expectStillOpen(t, r, "not known which GPUs")

	if r.Closed == nil {
		t.Errorf("release: %+v", r)
	}
}

// TestReleaseRefused: NVML is not shut down while that could harm, and everything goes on.
func TestReleaseRefused(t *testing.T) {
	why := errors.New("an operation is under way")

	tests := map[string]struct {
		arrange func(n *openNode)
		want    error
	}{
		"operation":              {func(n *openNode) { n.refuses = why }, why},
		"confidential computing": {func(n *openNode) { n.mayOpen = why }, why},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := startOpenNode(t, "", "")
			ids := n.readAll()
			test.arrange(n)

			if r := n.release(ids[1]); !errors.Is(r.Err, test.want) {
				t.Errorf("release: %+v", r)
			}

			cmptest.Equal(t, "GPUs", n.readAll(), ids)
		})
	}
}

// TestReleaseWhileCallHangs: unloading the library under a call would kill the process.
func TestReleaseWhileCallHangs(t *testing.T) {
	n := startOpenNode(t, "", "")
	ids := n.readAll()
	hangs := make(chan struct{})
	goOn := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(letGo)
	n.spy.do("GetPowerUsage", func() {
		close(hangs)
		<-goOn
	})
	read := make(chan error)
	go func() {
		_, err := n.source.Read(ids[2])
		read <- err
	}()
	<-hangs
	n.spy.taken()

	if r := n.release(ids[1]); r.Err == nil || !strings.Contains(r.Err.Error(), "have not returned") {
		t.Errorf("release: %+v", r)
	}

	cmptest.Equal(t, "shutdowns", n.spy.taken()["Shutdown"], 0)

	letGo()

	if err := <-read; err != nil {
		t.Error(err)
	}

	if r := n.release(ids[1]); r.Err != nil {
		t.Errorf("release: %+v", r)
	}
}

// TestEventsAfterRelease: the events of the other GPUs are received again.
func TestEventsAfterRelease(t *testing.T) {
	n := startOpenNode(t, "", "faults:\n  - {at: 1m, gpu: 2, kind: xid, xid: 74}\n")
	ids := n.readAll()
	n.release(ids[1])
	n.readAll()
	n.advance(time.Minute)
	var xids []uint64

	for {
		select {
		case e := <-n.source.Events():
			if e.Kind == gpu.EventXID {
				xids = append(xids, e.XID)
			}

			continue
		default:
		}

		break
	}

	cmptest.Equal(t, "XIDs", xids, []uint64{74})
}

// TestUnboundGPU: a released GPU that is unbound and bound again comes back, and so does one that
// we have not released. The library has no system events.
func TestUnboundGPU(t *testing.T) {
	n := startOpenNode(t, ", driver: 570.124.06", "faults:\n  - {at: 1m, for: 1m, gpu: 1, kind: unbind}\n")
	ids := n.readAll()
	n.advance(time.Minute)
	n.readAll()
	cmptest.Equal(t, "bound while it is open", n.BoundGPUs(), []int{0, 1, 2})

	n.release(ids[1])
	cmptest.Equal(t, "bound", n.BoundGPUs(), []int{0, 2})

	inventory, err := n.source.Discover()
	if err != nil || !inventory.Released[0].Unbound || len(inventory.GPUs) != 2 {
		t.Errorf("%+v, %v", inventory, err)
	}

	if last := n.pauses[len(n.pauses)-1]; last != "resume" {
		t.Errorf("%v: DCGM cannot open a GPU that is not bound", n.pauses)
	}

	if r := n.result(n.source.Reacquire(ids[1])); r.Err == nil || !strings.Contains(r.Err.Error(), "bind it") {
		t.Errorf("reacquire: %+v", r)
	}

	inventory, err = n.source.Discover()
	if err != nil || len(inventory.Released) != 1 {
		t.Errorf("%+v, %v", inventory, err)
	}

	n.advance(time.Minute)
	cmptest.Equal(t, "GPUs", n.readAll(), ids)
	inventory, err = n.source.Discover()
	cmptest.Equal(t, "released", len(inventory.Released), 0)

	if err != nil {
		t.Error(err)
	}
}

// TestGPUBoundLater: a GPU that was not bound when NVML was opened is found, by one nvmlInit.
func TestGPUBoundLater(t *testing.T) {
	n := startOpenNode(t, "", "faults:\n  - {at: 0s, for: 1m, gpu: 0, kind: unbind}\n")
	cmptest.Equal(t, "GPUs", len(n.readAll()), 2)
	n.advance(time.Minute)
	n.spy.taken()
	cmptest.Equal(t, "GPUs", len(n.readAll()), 3)
	n.readAll()
	cmptest.Equal(t, "nvmlInit", n.spy.taken()["Init"], 1)
}

// TestRightsThatAreGranted: MIG's capabilities are opened by nvmlInit, so that one is made once
// they have changed, and none again and again.
func TestRightsThatAreGranted(t *testing.T) {
	n := startOpenNode(t, ", privileged: false", "  - {model: H100-80GB, mig: true, layout: [7g.80gb@0]}\n")
	n.readAll()
	n.spy.taken()
	n.readAll()
	cmptest.Equal(t, "nvmlInit", n.spy.taken()["Init"], 0)

	n.rights = "monitor"
	n.readAll()
	n.readAll()
	cmptest.Equal(t, "nvmlInit", n.spy.taken()["Init"], 1)
}

// TestReleaseNeedsNoAttach: a library without nvmlInitWithFlags cannot be opened without the GPU.
func TestReleaseNeedsNoAttach(t *testing.T) {
	n := startOpenNode(t, "", "")
	ids := n.readAll()
	n.spy.set("InitNoAttach", nvml.ERROR_FUNCTION_NOT_FOUND)
	n.release(ids[1])
	cmptest.Equal(t, "open GPUs", len(n.OpenGPUs()), 0)

	if _, err := n.source.Discover(); err == nil {
		t.Error("expected an error")
	}

	n.result(n.source.Reacquire(ids[1]))

	if got := n.readAll(); !slices.Equal(got, ids) {
		t.Errorf("GPUs %v", got)
	}
}

// TestReleaseWhenInitFails: the answer says that NVML stays closed, nothing is concluded of the
// other GPUs, and the nvmlInit is tried again, but not with every poll.
func TestReleaseWhenInitFails(t *testing.T) {
	n := startOpenNode(t, "", "")
	ids := n.readAll()
	n.spy.set("InitNoAttach", nvml.ERROR_UNKNOWN)

	if r := n.release(ids[1]); r.Err != nil || !errors.Is(r.Closed, gpu.ErrLibraryClosed) {
		t.Fatalf("release: %+v", r)
	}

	if !strings.Contains(n.logged.String(), "NVML stays closed") {
		t.Errorf("log: %s", n.logged)
	}

	n.spy.taken()

	for range 5 {
		inventory, err := n.source.Discover()
		if !errors.Is(err, gpu.ErrLibraryClosed) || len(inventory.Released) != 1 {
			t.Errorf("Discover: %+v, %v", inventory, err)
		}

		if _, err := n.source.Read(ids[0]); !errors.Is(err, gpu.ErrLibraryClosed) {
			t.Errorf("Read: %v", err)
		}
	}

	cmptest.Equal(t, "calls of nvmlInit", n.spy.taken()["InitNoAttach"], 0)

	n.spy.set("InitNoAttach", nvml.SUCCESS)
	n.advance(time.Minute)
	cmptest.Equal(t, "GPUs", n.readAll(), []gpu.UUID{ids[0], ids[2]})
	cmptest.Equal(t, "pauses", n.pauses, []string{"pause", "resume all but DCGM", "resume all but DCGM"})
	n.result(n.source.Reacquire(ids[1]))
	cmptest.Equal(t, "GPUs", n.readAll(), ids)
}

// TestReleasedWithEveryError: which GPUs are released is known whatever fails.
func TestReleasedWithEveryError(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_UNKNOWN, nvml.ERROR_UNINITIALIZED} {
		n := startOpenNode(t, "", "")
		ids := n.readAll()
		n.release(ids[1])
		n.spy.set("DeviceGetCount", ret)
		n.spy.set("InitNoAttach", ret)

		for range 2 { // the second after a driver that is gone
			inventory, err := n.source.Discover()
			if err == nil || len(inventory.Released) != 1 {
				t.Errorf("Discover: %+v, %v", inventory, err)
			}
		}
	}
}

// TestReleaseAfterDriverWasAway: NVML counts its initialisations, and is shut down as often.
func TestReleaseAfterDriverWasAway(t *testing.T) {
	n := startOpenNode(t, "", "")
	ids := n.readAll()
	n.spy.set("DeviceGetCount", nvml.ERROR_UNINITIALIZED)

	if _, err := n.source.Discover(); !errors.Is(err, gpu.ErrNoDriver) {
		t.Fatal(err)
	}

	n.spy.set("DeviceGetCount", nvml.SUCCESS)
	cmptest.Equal(t, "GPUs", n.readAll(), ids)

	if calls := n.spy.taken()["Init"]; calls != 2 {
		t.Fatalf("nvmlInit was called %d times", calls)
	}

	if r := n.release(ids[1]); r.Err != nil || r.Closed != nil {
		t.Errorf("release: %+v", r)
	}

	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})
}

// TestReleaseWhenShutdownFails: NVML is still open, so that another nvmlInit would only be counted.
func TestReleaseWhenShutdownFails(t *testing.T) {
	n := startOpenNode(t, "", "")
	ids := n.readAll()
	n.spy.taken()
	n.spy.set("Shutdown", nvml.ERROR_UNKNOWN)

	if r := n.release(ids[1]); !errors.Is(r.Err, gpu.ErrDriver) {
		t.Errorf("release: %+v", r)
	}

	cmptest.Equal(t, "GPUs", n.readAll(), ids)

	calls := n.spy.taken()
	if calls["Init"] != 0 || calls["InitNoAttach"] != 0 {
		t.Errorf("calls: %v", calls)
	}

	n.spy.set("Shutdown", nvml.SUCCESS)

	if r := n.release(ids[1]); r.Err != nil || r.Closed != nil {
		t.Errorf("release: %+v", r)
	}

	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})
}

// TestLayoutsWhileReleasing: partition control, which reads the node's layouts while a request
// waits for the next poll, does not carry the request out, and names the released GPU afterwards.
func TestLayoutsWhileReleasing(t *testing.T) {
	n := startOpenNode(t, "", "")
	ids := n.readAll()
	request := n.source.Release(ids[1], gpu.ReleasedByOperator)

	list, failed, err := n.source.Actuator().Layouts(t.Context())
	if err != nil || len(list) != 3 || len(failed) > 0 {
		t.Errorf("before the release: %d layouts, %v, %v", len(list), failed, err)
	}

	cmptest.Equal(t, "shutdowns", n.spy.taken()["Shutdown"], 0)

	if r := n.result(request); r.Err != nil {
		t.Fatalf("release: %+v", r)
	}

	list, failed, err = n.source.Actuator().Layouts(t.Context())
	if err != nil || len(list) != 2 || !errors.Is(failed[ids[1]], gpu.ErrReleased) {
		t.Errorf("after the release: %d layouts, %v, %v", len(list), failed, err)
	}
}

// TestReleaseWithForeignGPU: a GPU that the kernel driver has bound and this container does not
// have is not missing while another one is released.
func TestReleaseWithForeignGPU(t *testing.T) {
	n := startOpenNode(t, "", "")
	n.foreign = "0000:fe:00.0"

	ids := n.readAll()
	if r := n.release(ids[1]); r.Err != nil || r.Closed != nil {
		t.Fatalf("release: %+v", r)
	}

	inventory, err := n.source.Discover()
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "missing", inventory.Missing, nil)

	// One that is bound meanwhile may be foreign, too.
	n.foreign = "0000:ff:00.0"
	if r := n.release(ids[2]); r.Err != nil || r.Closed != nil {
		t.Fatalf("release: %+v", r)
	}

	if inventory, err = n.source.Discover(); err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "missing", inventory.Missing, nil)
	cmptest.Equal(t, "GPUs", inventory.GPUs, []gpu.FoundGPU{{Index: 0, UUID: ids[0]}})
}

// TestReadingsWhileOthersEnd: while other uses of the GPUs end, all GPUs are read.
func TestReadingsWhileOthersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startOpenNode(t, "", "")
		ids := n.readAll()
		n.lingers = make(chan struct{})

		request := n.source.Release(ids[1], gpu.ReleasedByOperator)
		for range 3 {
			cmptest.Equal(t, "GPUs", n.readAll(), ids)
		}

		cmptest.Equal(t, "shutdowns", n.spy.taken()["Shutdown"], 0)

		close(n.lingers)
		synctest.Wait()

		if r := n.result(request); r.Err != nil || r.Closed != nil {
			t.Errorf("release: %+v", r)
		}

		cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})
		n.close()
	})
}

// TestCloseWhileOthersEnd: Close waits for no Discover, and no GPU is left open.
func TestCloseWhileOthersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startOpenNode(t, "", "")
		ids := n.readAll()
		n.lingers = make(chan struct{})
		n.source.Release(ids[1], gpu.ReleasedByOperator)
		n.discover()

		closed := make(chan error)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			closed <- n.source.Close(ctx)
		}()
		synctest.Wait()
		close(n.lingers)

		if err := <-closed; err != nil {
			t.Error(err)
		}

		cmptest.Equal(t, "open GPUs", n.OpenGPUs(), nil)
	})
}

// TestReadingEndsForRelease: a reading under way ends with its present call when a GPU is to be
// released.
func TestReadingEndsForRelease(t *testing.T) {
	n := startOpenNode(t, "", "")
	ids := n.readAll()
	letGo := n.hang("GetPowerUsage")
	read := make(chan error)
	go func() {
		_, err := n.source.Read(ids[2])
		read <- err
	}()
	<-n.awaits
	n.spy.taken()
	released := make(chan nvmlsource.Released)
	go func() { released <- n.release(ids[1]) }()

	for !n.source.IsPausing() {
		runtime.Gosched()
	}

	letGo()

	if err := <-read; !errors.Is(err, gpu.ErrLibraryClosed) {
		t.Errorf("read: %v", err)
	}

	if r := <-released; r.Err != nil || r.Closed != nil {
		t.Errorf("release: %+v", r)
	}

	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})
}
