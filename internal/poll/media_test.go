package poll

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// What media engines do ends with the other readings of a GPU that has not answered for too long.
func TestStaleReadingsHaveNoMedia(t *testing.T) {
	busy := gpu.Media{Decoder: gpu.Some(0.5)}
	g := gpu.GPU{
		Readings:  gpu.Readings{Media: busy, PerformanceState: gpu.Some(0), Fans: []gpu.Fan{{Speed: 0.3}}},
		Instances: []gpu.GPUInstance{{Media: busy}},
	}
	dropReadings(&g)
	if g.Readings.Media != (gpu.Media{}) || g.Readings.PerformanceState.Present() || g.Readings.Fans != nil || g.Instances[0].Media != (gpu.Media{}) {
		t.Errorf("%+v, instances %+v", g.Readings, g.Instances)
	}
}
