package web

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// bytesText formats bytes in GiB, or in MiB below 1 GiB.
func bytesText(b uint64) string {
	const mib, gib = 1 << 20, 1 << 30
	switch g := float64(b) / gib; {
	case g >= 100:
		return fmt.Sprintf("%.0f GiB", g)
	case g >= 1:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", g), ".0") + " GiB"
	default:
		return fmt.Sprintf("%.0f MiB", float64(b)/mib)
	}
}

func wattsText(w float64) string {
	if w >= 10_000 {
		return fmt.Sprintf("%.1f kW", w/1000)
	}

	return fmt.Sprintf("%.0f W", w)
}

func percentText(ratio float64) string { return fmt.Sprintf("%.0f %%", 100*ratio) }

// percent returns the length of a ratio's bar, from 0 to 100.
func percent(ratio float64) int { return int(math.Round(100 * min(max(ratio, 0), 1))) }

// ageText formats a duration in a single unit: "90 s", "5 min", "30 h".
func ageText(d time.Duration) string {
	switch {
	case d < time.Second:
		return "less than 1 s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	default:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
}
