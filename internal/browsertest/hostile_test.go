package browsertest

import (
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/web"
)

// snapshots serves Snapshots that a test makes. Scenarios of a simulated node allow no such names of
// pods.
type snapshots struct {
	mu   sync.Mutex
	snap *gpu.Snapshot
	next chan struct{}
}

func (s *snapshots) Current() *gpu.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.snap
}

func (s *snapshots) Next(after *gpu.Snapshot) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.snap != after {
		now := make(chan struct{})
		close(now)

		return now
	}

	return s.next
}

func (s *snapshots) store(snap *gpu.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.snap = snap
	close(s.next)
	s.next = make(chan struct{})
}

// hostileSnapshot has one name for all that other people name: the pod, its container and the
// process of a whole GPU and of a slice.
func hostileSnapshot(generation uint64, name string) *gpu.Snapshot {
	container := gpu.Container{Namespace: name, Pod: name, Name: name}
	process := gpu.Process{PID: 7, Name: name, User: name, Container: container}
	device := gpu.Device{
		Up:        true,
		Allocated: gpu.Some(true),
		Holders:   []gpu.Holder{{Container: container, Unconfirmed: name, Sharing: gpu.SharingExclusive}},
	}

	whole := gpu.GPU{Facts: gpu.Facts{UUID: "GPU-0", Name: name}, Device: device}
	whole.Readings.Processes = gpu.Some([]gpu.Process{process})

	sliced := gpu.GPU{Facts: gpu.Facts{UUID: "GPU-1", Index: 1, Name: name}, Device: device}
	sliced.Holders = nil
	sliced.MIG.Enabled = gpu.Some(true)
	sliced.Instances = []gpu.GPUInstance{{
		ID: 1, Generation: 1, Profile: name, Device: device,
		ComputeInstances: []gpu.ComputeInstance{{Generation: 1, UUID: gpu.MIGUUID(name), Profile: name, Device: device}},
	}}

	return &gpu.Snapshot{
		Generation: generation,
		Time:       time.Now(),
		Hostname:   name,
		Driver:     gpu.Some(gpu.Driver{Version: name}),
		Sources:    []gpu.SourceState{{Name: gpu.SourceNVML, Up: true}, {Name: gpu.SourceKubelet, Up: true}},
		Processes:  gpu.ProcessUsers,
		GPUs:       []gpu.GPU{whole, sliced},
	}
}

// TestHostilePodsAndProcesses: the names of pods, containers and processes are text, at first and as
// they come by the stream.
func TestHostilePodsAndProcesses(t *testing.T) {
	const (
		first  = `"><script>alert(1)</script><img src=x onerror=alert(2)>`
		second = `'"><svg onload=alert(3)></svg></main><script>alert(4)</script>`
	)

	snaps := &snapshots{snap: hostileSnapshot(1, first), next: make(chan struct{})}
	report := func() *health.Report { return health.New(0, time.Now()).Report(time.Now()) }
	node := web.NewNode(snaps, history.New(time.Minute), report, log.NewNopLogger())
	t.Cleanup(node.Close)

	server := httptest.NewServer(web.NewHandler(web.Options{State: true, Node: node}, snaps, nil, nil, log.NewNopLogger()))
	t.Cleanup(server.Close)

	b := openBrowser(t, 1440, 900)
	b.open(server.URL)

	want := func(name string) {
		b.await(`document.querySelector("h1").textContent`, name)

		for _, shows := range []struct{ where, text string }{
			{".strip .block .pod", name},
			{".card .holder .pod", name + "/" + name},
			{".instances .pod", name + "/" + name},
			{".instances .uuid", name},
			{".xids tbody td", name}, // the process
			{".xids tbody td:last-child", name + "/" + name},
		} {
			b.await(`document.querySelector(`+"`"+shows.where+"`"+`)?.textContent`, shows.text)
		}

		b.await(`document.querySelectorAll("main img, main script, main svg:not(.spark svg)").length`, "0")
		b.await(`document.querySelectorAll("main").length`, "1")
	}

	want(first)
	snaps.store(hostileSnapshot(2, second))
	want(second)

	b.eval(`document.getElementById("query").value = "alert(3)"`)
	b.eval(`document.getElementById("query").dispatchEvent(new Event("input", { bubbles: true }))`)
	b.await(`document.querySelectorAll(".gpu:not([hidden])").length`, "2")
	b.wantSilence()
}
