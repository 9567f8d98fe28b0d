package control

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestEndsAreReported: who follows operations learns of each end with the layouts before and after,
// and of the layouts that should stand. An unsettled operation ends once more when it has settled.
func TestEndsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hookFails = true

		var ends []Ended

		var wanted []WantedLayout

		e := w.engine(t, func(o *Options) {
			o.Ended = func(end Ended) { ends = append(ends, end) }
			o.Wanted = func(list []WantedLayout) { wanted = list }
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)

		go func() { done <- e.Run(ctx) }()

		op, err := e.start(t, mixed())
		if err != nil {
			t.Fatal(err)
		}

		time.Sleep(time.Minute)
		synctest.Wait()

		cmptest.Equal(t, "ends", len(ends), 1)
		cmptest.Equal(t, "id", ends[0].Operation.ID, op.ID)
		cmptest.Equal(t, "state", ends[0].Operation.State, api.Unsettled)
		cmptest.Equal(t, "GPU", ends[0].Changes[0].GPU, ends[0].Operation.GPUs[0].GPU)

		profiles := func(list []mig.Instance) (names []string) {
			for _, i := range list {
				names = append(names, i.Profile)
			}

			slices.Sort(names)

			return names
		}

		asked := []string{"1g.5gb", "2g.10gb", "3g.20gb"}
		cmptest.Equal(t, "after", profiles(ends[0].Changes[0].After), asked)
		cmptest.Equal(t, "wanted", profiles(wanted[0].Instances), asked)

		w.set(func() { w.hookFails = false })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		cmptest.Equal(t, "ends when the hook has succeeded", len(ends), 2)
		cmptest.Equal(t, "state then", ends[1].Operation.State, api.Succeeded)

		cancel()
		cmptest.Equal(t, "end", <-done, nil)
	})
}
