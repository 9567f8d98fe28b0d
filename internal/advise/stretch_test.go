package advise

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestStretchOfTheContract holds the figures against those of published and derived cases.
func TestStretchOfTheContract(t *testing.T) {
	for _, c := range []struct {
		name           string
		kernels        Kernels
		slice          Slice
		low, exp, high float64
	}{
		{"narrow", Kernels{Width: 9. / 132}, Slice{SMs: 60. / 132, Bandwidth: 0.5}, 1, 1, 1.083},
		// Half of the busy time at 132 SMs and half at 4: the mean says 1.13, the truth is 1.60.
		{"two widths", Kernels{Width: 68. / 132}, Slice{SMs: 60. / 132, Bandwidth: 0.5}, 1.133, 1.469, 1.618},
		{"whole GPU wide", Kernels{Width: 1}, Slice{SMs: 0.25, Bandwidth: 0.25}, 4, 4, 4},
		// A published run: 41.8 to 20.4 inferences/s from a whole A100 to half of its memory.
		{"bandwidth", Kernels{Width: 0.3, Bandwidth: 0.9}, Slice{SMs: 42. / 108, Bandwidth: 0.5}, 2, 2.424, 2.471},
	} {
		s := StretchOf(c.kernels, c.slice)
		for name, v := range map[string][2]float64{"low": {s.Low, c.low}, "expected": {s.Expected, c.exp},
			"high": {s.High, c.high}} {
			if math.Abs(v[0]-v[1]) > 0.0015 {
				t.Errorf("%s: %s is %.4f, want %.3f", c.name, name, v[0], v[1])
			}
		}
	}
}

// TestStretchKeepsItsOrder: for all kernels and slices, 1 <= low <= expected <= high <= the stretch
// of a kernel that fills the GPU.
func TestStretchKeepsItsOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		k := Kernels{Width: random.Float64(), Bandwidth: random.Float64()}
		s := Slice{SMs: 0.05 + 0.95*random.Float64(), Bandwidth: 0.05 + 0.95*random.Float64()}

		f := StretchOf(k, s)
		if limit := max(1, 1/s.SMs, 1/s.Bandwidth); !(1 <= f.Low && f.Low <= f.Expected && f.Expected <= f.High &&
			f.High <= limit) {
			t.Fatalf("%+v on %+v: %+v, want 1 <= low <= expected <= high <= %v", k, s, f, limit)
		}
	}
}

// TestHighBoundsEveryMix: no mix of kernels with the same means is stretched further than high
// says. The stretch of a kernel is the larger of its SMs and its bandwidth over those of the slice.
func TestHighBoundsEveryMix(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		s := Slice{SMs: 0.05 + 0.9*random.Float64(), Bandwidth: 0.05 + 0.9*random.Float64()}
		var mean Kernels
		var stretch, weights float64

		for range 1 + random.IntN(4) {
			w := random.Float64()
			width := random.Float64()
			drawn := reachableBandwidth * random.Float64()
			mean.Width = mean.Width + w*width
			mean.Bandwidth = mean.Bandwidth + w*drawn
			stretch += w * max(1, width/s.SMs, drawn/reachableBandwidth/s.Bandwidth)
			weights += w
		}

		mean.Width = mean.Width / weights
		mean.Bandwidth = mean.Bandwidth / weights

		stretch = stretch / weights
		if f := StretchOf(mean, s); stretch > f.High+1e-9 || stretch < f.Low-1e-9 {
			t.Fatalf("means %+v on %+v: %+v, a mix has %v", mean, s, f, stretch)
		}
	}
}
