package mig

import (
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// AllGPUs is the selector of every GPU.
const AllGPUs = "all"

// ruleFor returns the last rule that selects a GPU, nil if none does. As in mig-parted, a rule for
// "all" does not select GPUs without MIG if it wants MIG on.
func ruleFor(g *GPULayout, rules []Rule) *Rule {
	for i := len(rules) - 1; i >= 0; i-- {
		r := &rules[i]
		if len(r.PCIDevices) > 0 &&
			(g.PCIDevice == 0 || !slices.Contains(r.PCIDevices, g.PCIDevice)) {
			continue
		}

		named := slices.ContainsFunc(
			r.GPUs,
			func(name string) bool { return Names(name, &g.Facts) },
		)

		all := slices.Contains(r.GPUs, AllGPUs) && (g.MIG.Present() || !r.Enabled)
		if named || all {
			return r
		}
	}

	return nil
}

// Names reports whether a selector names a GPU: by its index, UUID or PCI bus id. Case does not
// matter, and the domain of a bus id may have four or eight digits.
func Names(selector string, g *gpu.Facts) bool {
	if selector == strconv.Itoa(g.Index) || strings.EqualFold(selector, string(g.UUID)) {
		return true
	}

	// A spec may have many thousands of selectors, so we compare the ends before we parse them.
	const tail = len("07:00.0")

	gpuTail := len(g.PCIBusID) - tail
	selectorTail := len(selector) - tail

	if gpuTail < 0 || selectorTail < 0 ||
		!strings.EqualFold(g.PCIBusID[gpuTail:], selector[selectorTail:]) {
		return false
	}

	selected, ok := parseBusID(selector)
	own, known := parseBusID(g.PCIBusID)

	return ok && known && selected == own
}

// busID is a PCI bus id taken apart: NVML writes its domain with eight digits, sysfs and older
// drivers with four.
type busID struct{ domain, bus, device, function uint64 }

func parseBusID(s string) (busID, bool) {
	parts := strings.FieldsFunc(s, func(r rune) bool { return r == ':' || r == '.' })
	if len(parts) != 4 || strings.Count(s, ":") != 2 || strings.LastIndex(s, ".") != len(s)-2 {
		return busID{}, false
	}

	if n := len(parts[0]); n != 4 && n != 8 || len(parts[1]) != 2 || len(parts[2]) != 2 {
		return busID{}, false
	}

	var numbers [4]uint64

	for i, part := range parts {
		n, err := strconv.ParseUint(part, 16, 32)
		if err != nil {
			return busID{}, false
		}

		numbers[i] = n
	}

	return busID{numbers[0], numbers[1], numbers[2], numbers[3]}, true
}

// indexesOf returns the indexes of GPUs, in order.
func indexesOf(gpus []GPULayout) []int {
	var list []int
	for _, g := range gpus {
		list = append(list, g.Index)
	}

	slices.Sort(list)

	return list
}
