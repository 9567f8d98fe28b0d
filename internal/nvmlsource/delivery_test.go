package nvmlsource_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// deniedScenario is xidScenario, where rights are missing for 5 minutes, from the first minute on.
const deniedScenario = xidScenario + `
  - {at: 1m, for: 5m, kind: no-permission}
  - {at: 3m, gpu: 0, kind: xid, xid: 31}
  - {at: 3m, gpu: 1, kind: xid, xid: 31, gi: 1, ci: 1}
  - {at: 7m, gpu: 1, kind: xid, xid: 43, gi: 1, ci: 1}
`

// TestEventsWithoutRights: under MIG a process without rights registers for events and gets none.
// Then neither their count nor the watch of the layout holds.
func TestEventsWithoutRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, deniedScenario)
		log := &layoutLog{ids: n.discover()}
		n.source.Actuator().WatchLayouts(log)
		readBoth := func() (whole, split gpu.GPU) { return n.read(log.ids[0]), n.read(log.ids[1]) }

		readBoth()
		cmptest.Equal(t, "watched with rights", log.taken(), bothWatched)

		n.advance(time.Minute)

		for range 3 {
			whole, split := readBoth()
			if whole.NoXIDs || errorOf(whole.Errors, gpu.ReadingEvents) != nil {
				t.Errorf("without MIG: no XIDs %v, errors %v", whole.NoXIDs, whole.Errors)
			}

			if err := errorOf(split.Errors, gpu.ReadingEvents); !split.NoXIDs || !errors.Is(err, gpu.ErrNoPermission) {
				t.Errorf("with MIG: no XIDs %v, error %v", split.NoXIDs, err)
			}

			n.advance(time.Second)
		}

		cmptest.Equal(t, "watched without rights", log.taken(), []string{"GPU 1 watched false"})

		if lines := strings.Count(n.logged.String(), "XIDs of MIG GPUs"); lines != 1 {
			t.Errorf("logged %d times, want once:\n%s", lines, n.logged)
		}

		n.advance(6 * time.Minute)

		_, split := readBoth()
		if split.NoXIDs || errorOf(split.Errors, gpu.ReadingEvents) != nil {
			t.Errorf("with rights again: no XIDs %v, errors %v", split.NoXIDs, split.Errors)
		}

		cmptest.Equal(t, "watched with rights again", log.taken(), []string{"GPU 1 watched true"})
		n.source.Close(t.Context())
	})
}

// TestDeniedEventsAreCountedOnce: a right that stays away is one error.
func TestDeniedEventsAreCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, strings.Replace(xidScenario, "node: {", "node: {privileged: false, ", 1))
		id := n.discover()[1]
		counted := 0

		for range 5 {
			for _, e := range n.read(id).Errors {
				if e.Reading == gpu.ReadingEvents && !e.Remembered {
					counted++
				}
			}

			n.advance(20 * time.Second)
		}

		cmptest.Equal(t, "errors counted", counted, 1)
		n.source.Close(t.Context())
	})
}

// TestRightsToEventsAreNotGuessed: what fails for another reason than a missing right shows
// nothing, neither when no reading has shown the rights yet nor later.
func TestRightsToEventsAreNotGuessed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, xidScenario)
		log := &layoutLog{ids: n.discover()}
		n.source.Actuator().WatchLayouts(log)
		n.spy.set("GetMemoryInfo", nvml.ERROR_UNKNOWN)

		g := n.read(log.ids[1])
		if !g.NoXIDs || errorOf(g.Errors, gpu.ReadingEvents) != nil {
			t.Errorf("rights unknown: no XIDs %v, errors %v", g.NoXIDs, g.Errors)
		}

		cmptest.Equal(t, "watched while rights are unknown", log.taken(), nil)

		n.spy.set("GetMemoryInfo", nvml.SUCCESS)
		n.advance(time.Second)
		n.read(log.ids[1])
		n.spy.set("GetMemoryInfo", nvml.ERROR_UNKNOWN)
		n.advance(time.Second)

		if g := n.read(log.ids[1]); g.NoXIDs {
			t.Error("a failure of another kind took the rights away")
		}

		cmptest.Equal(t, "watched since the rights are known", log.taken(), []string{"GPU 1 watched true"})
		n.source.Close(t.Context())
	})
}
