package nvmlsource_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// layoutLog notes what a watcher of layouts learns.
type layoutLog struct {
	ids []gpu.UUID

	mu   sync.Mutex
	told []string
}

func (l *layoutLog) Watching(id gpu.UUID, on bool) {
	l.add(fmt.Sprintf("GPU %d watched %t", slices.Index(l.ids, id), on))
}

func (l *layoutLog) LayoutChanged(id gpu.UUID) {
	l.add(fmt.Sprintf("GPU %d changed", slices.Index(l.ids, id)))
}

func (l *layoutLog) add(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, text)
}

// taken returns what was noted since the last call, by GPU.
func (l *layoutLog) taken() []string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	told := l.told
	l.told = nil
	slices.Sort(told)

	return told
}

var (
	bothWatched   = []string{"GPU 0 watched true", "GPU 1 watched true"}
	bothUnwatched = []string{"GPU 0 watched false", "GPU 1 watched false"}
)

// TestWatchedLayouts: the watcher learns of every change at once, although the events are not read,
// and when changes may have been missed.
func TestWatchedLayouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, xidScenario)
		log := &layoutLog{ids: n.discover()}
		n.source.Actuator().WatchLayouts(log)
		cmptest.Equal(t, "before a reading has shown that events are delivered", log.taken(), nil)
		n.read(log.ids[0])
		first := n.read(log.ids[1]).Instances[1].ID
		cmptest.Equal(t, "after the first readings", log.taken(), bothWatched)

		for range 300 { // more than are kept
			if err := n.DestroyGPUInstance(1, first); err != nil {
				t.Fatal(err)
			}

			id, err := n.CreateGPUInstance(1, 19, gpu.None[int]())
			if err != nil {
				t.Fatal(err)
			}

			first = id
		}

		told := log.taken()

		changes := slices.DeleteFunc(slices.Clone(told), func(s string) bool { return s != "GPU 1 changed" })
		if len(changes) != len(told) || len(told) < 600 {
			t.Errorf("of 600 changes of GPU 1, %d were told of, and %d others", len(changes), len(told)-len(changes))
		}

		n.spy.set("Wait", nvml.ERROR_UNKNOWN)
		time.Sleep(time.Minute)
		n.spy.set("Wait", nvml.SUCCESS)
		time.Sleep(time.Minute)

		told = log.taken()
		if len(told) < 4 || told[0] != bothUnwatched[0] || told[len(told)-1] != bothWatched[1] {
			t.Errorf("over a failure of the queue: %v", told)
		}

		n.source.Close(t.Context())
		cmptest.Equal(t, "at the end", log.taken(), bothUnwatched)
	})
}

// TestGPUsThatAreNotWatched: a GPU whose changes the driver does not report is not called watched.
func TestGPUsThatAreNotWatched(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_UNKNOWN} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, xidScenario)
			log := &layoutLog{}
			n.source.Actuator().WatchLayouts(log)
			n.spy.set("RegisterEvents(MIG)", ret)
			log.ids = n.discover()
			n.read(log.ids[0])
			n.read(log.ids[1])
			time.Sleep(time.Second)

			if told := log.taken(); len(told) > 0 {
				t.Errorf("%v: told %v", ret, told)
			}

			n.source.Close(t.Context())
		})
	}
}

// TestModeChangeEndsTheWatch: for a change of its mode a GPU is taken out of the queue, which takes
// another queue for all GPUs. Until they are in that, changes are missed.
func TestModeChangeEndsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, "version: 1\nnode: {hostname: n1, driver: \"580.95.05\"}\ngpus:\n"+
			"  - {model: H100-80GB}\n  - {model: H100-80GB, mig: true}\n")
		log := &layoutLog{ids: n.discover()}
		n.source.Actuator().WatchLayouts(log)
		n.read(log.ids[0])
		n.read(log.ids[1])
		cmptest.Equal(t, "before the change", log.taken(), bothWatched)

		if _, err := n.source.Actuator().SetMIGMode(t.Context(), log.ids[0], true); err != nil {
			t.Fatal(err)
		}

		n.read(log.ids[0])
		cmptest.Equal(t, "told by the next reading", log.taken(),
			[]string{"GPU 0 watched false", "GPU 0 watched true", "GPU 1 watched false", "GPU 1 watched true"})
		n.source.Close(t.Context())
	})
}
