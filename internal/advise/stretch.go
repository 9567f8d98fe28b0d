package advise

import (
	"encoding/json"
	"math"
)

// reachableBandwidth is the share of the memory's nominal bandwidth that kernels reach.
const reachableBandwidth = 0.9

// Kernels is what a workload uses of a GPU while any kernel of it runs, as shares of the whole GPU,
// 0-1.
type Kernels struct {
	Width     float64 `json:"widthRatio"`     // of its SMs
	Bandwidth float64 `json:"bandwidthRatio"` // of its memory bandwidth
}

// kernelsOf returns the kernels of a time in which a device was busy for a share, by the means of its
// activity in that time.
func kernelsOf(busy, sm, dram float64) Kernels {
	return Kernels{Width: min(sm/busy, 1), Bandwidth: min(dram/busy, 1)}
}

// Slice is the share of a GPU that a profile has, 0-1.
type Slice struct {
	SMs, Bandwidth float64
}

// Stretch is how many times as long kernels run in a slice as on the whole GPU. A mean width hides a
// mix of narrow and wide kernels: Low holds if all kernels are alike, High for the worst mix with
// this mean, Expected if widths spread exponentially around it. 1 <= Low <= Expected <= High.
//
// For example, kernels that fill 60 % of the SMs take 1.2 times as long on half of them if they are
// all alike. If they are a mix of kernels that fill the GPU and kernels that need one SM, those that
// fill it take twice as long: 1.6 times on average.
type Stretch struct {
	Low      float64 `json:"low"`
	Expected float64 `json:"expected"`
	High     float64 `json:"high"`
}

// StretchOf returns the stretch of kernels that ran on a whole GPU.
func StretchOf(k Kernels, s Slice) Stretch {
	// Both are shares of the bandwidth that kernels can reach.
	drawn := k.Bandwidth / reachableBandwidth
	share := s.Bandwidth

	low := max(1, k.Width/s.SMs, drawn/share)
	high := 1 + k.Width*(1/s.SMs-1) + drawn*(1/share-1)
	expected := max(low, 1+tail(k.Width, s.SMs)+tail(drawn, share))

	// A kernel that fills the GPU takes that much longer, and none takes more.
	limit := max(1, 1/s.SMs, 1/share)
	low = min(low, limit)
	expected = min(expected, limit)

	return Stretch{Low: low, Expected: expected, High: min(max(high, expected), limit)}
}

// tail returns by how much values that spread exponentially around a mean exceed what a slice has on
// average, in units of what it has.
func tail(mean, have float64) float64 {
	if mean <= 0 || have >= 1 {
		return 0
	}

	return mean / have * math.Exp(-have/mean)
}

// deciding returns the stretch that decisions use.
func (s Stretch) deciding(strict bool) float64 {
	if strict {
		return s.High
	}

	return s.Expected
}

// likely returns a stretch between kernels that are all alike and widths that spread exponentially,
// as most mixes have it.
func (s Stretch) likely() float64 { return math.Sqrt(s.Low * s.Expected) }

// MarshalJSON rounds to three decimals: more would suggest a precision that no evidence has.
func (s Stretch) MarshalJSON() ([]byte, error) {
	type plain Stretch

	return json.Marshal(
		plain{Low: round3(s.Low), Expected: round3(s.Expected), High: round3(s.High)},
	)
}

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }
