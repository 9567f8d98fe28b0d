package poll

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// What media engines do ends with the other readings of a GPU that has not answered for too long.
func TestStaleReadingsHaveNoMedia(t *testing.T) {
	busy := gpu.Media{Decoder: gpu.Some(0.5)}
	g := gpu.GPU{
		Readings:  gpu.Readings{SlowReadings: gpu.SlowReadings{Fans: []gpu.Fan{{Speed: 0.3}}}, Media: busy, PerformanceState: gpu.Some(0)},
		Instances: []gpu.GPUInstance{{Media: busy}},
	}
	dropReadings(&g)
	cmptest.Equal(t, "readings", g.Readings, gpu.Readings{})
	cmptest.Equal(t, "media of an instance", g.Instances[0].Media, gpu.Media{})
}
