package simdcgm

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestFaults: what the simulated engine can suffer, and that all values come back when it is over.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		fault string
		down  error // of Profile while it lasts; nil: there is an answer
	}{
		{"{at: 10s, for: 10s, kind: dcgm-down}", gpu.ErrUnavailable},
		{"{at: 10s, kind: dcgm-restart}", gpu.ErrUnavailable},
		{"{at: 10s, for: 10s, kind: dcgm-paused}", nil},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			r := newRig(t, loads(1, 60)+"faults:\n  - "+tt.fault+"\n", false)
			r.swapInstance(0)
			r.look()
			failed := 0
			without := 0
			last := gpu.Profiling{}

			for second := range 40 {
				answer, err := r.source.Profile(r.snapshot)

				last = answer[r.snapshot.GPUs[0].UUID]
				switch {
				case err != nil && !errors.Is(err, tt.down):
					t.Fatalf("second %d: %v", second, err)
				case err != nil:
					failed++
				case second >= 5 && !last.Rates.PCIeReceive.Present():
					without++
				}

				if err := r.node.Advance(time.Second); err != nil {
					t.Fatal(err)
				}
			}

			if (failed > 0) != (tt.down != nil) || tt.down == nil && without < 9 {
				t.Errorf("%d times no answer, want some: %v; %d times none for the GPU, want 9 if there always is an answer",
					failed, tt.down != nil, without)
			}

			cmptest.Equal(t, "PCIe rates when it is over", last.Rates.PCIeReceive.Present(), true)
			cmptest.Equal(t, "GPU and compute instances when it is over",
				[2]int{len(last.Instances), len(last.ComputeInstances)}, [2]int{1, 1})
		})
	}
}

// TestNoRights: an engine that may not profile is reported once, and leaves nothing behind.
func TestNoRights(t *testing.T) {
	r := newRig(t, loads(2, 60)+"faults: [{at: 0s, for: 20s, kind: dcgm-requires-root}]\n", false)
	var lines strings.Builder
	r.engine = NewRemote(r.node)
	r.source = dcgmsource.New(r.engine, dcgmsource.Options{Mode: dcgmsource.ModeRemote, Address: "gpu-node:5555",
		Now: r.node.Now, Logger: log.NewLogfmtLogger(&lines)})
	var answer map[gpu.UUID]gpu.Profiling

	for second := range 60 {
		var err error
		if answer, err = r.source.Profile(r.snapshot); err != nil {
			t.Fatal(err)
		}

		if second == 15 && (len(answer) != 0 || !strings.HasPrefix(r.engine.Counts(), "0 groups")) {
			t.Errorf("answer %v, engine with %s; want no answer, and 0 groups", answer, r.engine.Counts())
		}

		if err := r.node.Advance(time.Second); err != nil {
			t.Fatal(err)
		}
	}

	if len(answer) != 2 || strings.Count(lines.String(), "run the nv-hostengine at gpu-node:5555 as root") != 1 {
		t.Errorf("%v\n%s", answer, lines.String())
	}
}
