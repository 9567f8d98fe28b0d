package dashboards

import (
	"fmt"
	"maps"
	"strings"
)

// deviceColors returns the colors of whole GPUs by index. The first 7 are those of slices by
// placement, too. None is red or amber: those are for problems.
func deviceColors() []string {
	return []string{
		"#3274d9",
		"#37a64b",
		"#9a5fd6",
		"#00a9c0",
		"#d65fa5",
		"#8c6239",
		"#9fc131",
		"#aab4be",
	}
}

// placements is how many slices a GPU has at most.
const placements = 7

// lineColors returns the colors of a panel's lines, by a pattern of how their legend ends. In every
// panel a slice has the color of its placement, or of its id if only that is known (1g.5gb#9), and a
// whole GPU the color of its index. Panels of problems have none of these: Grafana colors them by
// their values.
func (p panel) lineColors() map[string]string {
	colors := map[string]string{}
	if p.kind != timeSeries || p.hue == red || p.hue == amber {
		return p.colors
	}

	for _, q := range p.queries {
		if strings.HasSuffix(q.legend, "{{slice}}") {
			maps.Copy(colors, colorsByPlacement())
		}

		if strings.HasSuffix(q.legend, deviceLegend) || strings.HasSuffix(q.legend, gpuLegend) {
			maps.Copy(colors, colorsByGPU())
		}
	}

	maps.Copy(colors, p.colors)

	return colors
}

func colorsByPlacement() map[string]string {
	colors := map[string]string{}

	// "3g.20gb@4:4" starts at 4 of the axis, "3g.20gb#1" has the id 1. The longest axis has starts up
	// to 9, and ids can be larger: after 7 the colors are used again.
	for i, color := range deviceColors()[:placements] {
		second := i + placements
		third := second + placements
		colors[fmt.Sprintf(`(@(%d|%d):\d+|#(%[1]d|%[2]d|%d))`, i, second, third)] = color
	}

	return colors
}

func colorsByGPU() map[string]string {
	colors := map[string]string{}

	for i, color := range deviceColors() {
		colors[fmt.Sprintf("GPU %d( whole)?", i)] = color
	}

	return colors
}
