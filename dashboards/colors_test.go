package dashboards

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// lab returns a color in CIE Lab, in which distances are about what people see.
func lab(t *testing.T, color string) [3]float64 {
	t.Helper()

	var r, g, b int
	if _, err := fmt.Sscanf(color, "#%02x%02x%02x", &r, &g, &b); err != nil {
		t.Fatalf("%s: %v", color, err)
	}

	linear := func(c int) float64 {
		v := float64(c) / 255
		if v <= 0.04045 {
			return v / 12.92
		}

		return math.Pow((v+0.055)/1.055, 2.4)
	}
	f := func(v float64) float64 {
		if v > 0.008856 {
			return math.Cbrt(v)
		}

		return 7.787*v + 16./116
	}

	lr := linear(r)
	lg := linear(g)
	lb := linear(b)
	x := f((0.4124*lr + 0.3576*lg + 0.1805*lb) / 0.9505)
	y := f(0.2126*lr + 0.7152*lg + 0.0722*lb)
	z := f((0.0193*lr + 0.1192*lg + 0.9505*lb) / 1.089)

	return [3]float64{116*y - 16, 500 * (x - y), 200 * (y - z)}
}

// TestColorsCanBeTold: those of devices differ from each other, and from those of problems.
func TestColorsCanBeTold(t *testing.T) {
	all := append(deviceColors(), red, amber)
	for i, a := range all {
		for _, b := range all[:i] {
			p := lab(t, a)

			q := lab(t, b)
			if d := math.Hypot(math.Hypot(p[0]-q[0], p[1]-q[1]), p[2]-q[2]); d < 25 {
				t.Errorf("%s and %s are %.0f apart", a, b, d)
			}
		}
	}
}

// colorOf returns the color of a line by the overrides of a panel; the last one that matches
// decides, as in Grafana.
func (p panel) colorOf(legend string) string {
	color := ""

	for _, end := range slices.Sorted(maps.Keys(p.lineColors())) {
		if regexp.MustCompile(end + "$").MatchString(legend) {
			color = p.lineColors()[end]
		}
	}

	return color
}

// TestSlicesHaveTheirColors: the seven slices of a GPU have seven colors, the same ones in all
// panels with a line for each slice.
func TestSlicesHaveTheirColors(t *testing.T) {
	found := 0

	for _, d := range allDashboards() {
		for _, r := range d.rows {
			for _, p := range r.panels {
				if p.kind != timeSeries || p.hue == red || p.hue == amber ||
					!slices.ContainsFunc(p.queries, func(q query) bool { return strings.HasSuffix(q.legend, "{{slice}}") }) {
					continue
				}

				found++
				seen := map[string]bool{}

				for i := range placements {
					color := p.colorOf(fmt.Sprintf("GPU 0 1g.10gb@%d:1", i))
					if color != deviceColors()[i] || seen[color] || p.colorOf(fmt.Sprintf("GPU 3 1g.10gb#%d", i+7)) != color {
						t.Errorf("%s, %s: the slice at %d is %q", d.uid, p.title, i, color)
					}

					seen[color] = true
				}
			}
		}
	}

	if found < 8 {
		t.Errorf("%d panels with a line for each slice", found)
	}
}
