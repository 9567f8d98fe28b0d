package nodedoc

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// eccTotal is the location of the count of all locations.
const eccTotal = "total"

// ECCErrors returns the counts of errors that have occurred. It leaves out a total that its locations
// add up to. They may add up to less: the driver counts errors without a location, and reports no
// locations of some GPUs.
func ECCErrors(counts []gpu.ECCCount) []gpu.ECCCount {
	type kind struct{ severity, lifetime string }

	located := map[kind]uint64{}

	for _, c := range counts {
		if c.Location != eccTotal {
			located[kind{c.Severity, c.Lifetime}] += c.Count
		}
	}

	var errors []gpu.ECCCount

	for _, c := range counts {
		isExplained := c.Location == eccTotal && located[kind{c.Severity, c.Lifetime}] >= c.Count
		if c.Count > 0 && !isExplained {
			errors = append(errors, c)
		}
	}

	return errors
}
