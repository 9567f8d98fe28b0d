package dashboards

import (
	"fmt"
	"maps"
	"strings"
)

// deviceColors are the colors of slices by placement, seven of them, and of whole GPUs by index.
// None is red or amber: those are for problems.
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

// lineColors returns the colors of a panel's lines, by the end of their legend: a slice has that of
// its placement, and a whole GPU that of its index, in every panel. Slices that are known by their
// id alone (1g.5gb#9) have that of the id. Panels of problems are colored by their values.
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

	// The GPU with the longest axis has placements at 0, 3, 6 and 9.
	for i, color := range deviceColors()[:placements] {
		next := i + placements
		colors[fmt.Sprintf(`(@(%d|%d):\d+|#(%[1]d|%[2]d|%d))`, i, next, next+placements)] = color
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
