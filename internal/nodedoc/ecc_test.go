package nodedoc

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestECCErrors: no error that the driver counts is left out, and none is there twice.
func TestECCErrors(t *testing.T) {
	count := func(severity, location string, n uint64) gpu.ECCCount {
		return gpu.ECCCount{Severity: severity, Lifetime: "volatile", Location: location, Count: n}
	}
	memory := count("corrected", "device_memory", 3)
	cache := count("corrected", "l2_cache", 2)
	other := count("uncorrected", "sram", 9)

	for _, tt := range []struct {
		name         string
		counts, want []gpu.ECCCount
	}{
		{"none", []gpu.ECCCount{count("corrected", "sram", 0), count("corrected", "total", 0)}, nil},
		{"a total alone", []gpu.ECCCount{count("corrected", "total", 5)}, []gpu.ECCCount{count("corrected", "total", 5)}},
		{"all located", []gpu.ECCCount{count("corrected", "total", 5), memory, cache}, []gpu.ECCCount{memory, cache}},
		{"some located", []gpu.ECCCount{memory, count("corrected", "total", 5)},
			[]gpu.ECCCount{memory, count("corrected", "total", 5)}},
		{"others located", []gpu.ECCCount{other, count("corrected", "total", 5)},
			[]gpu.ECCCount{other, count("corrected", "total", 5)}},
	} {
		cmptest.Equal(t, tt.name, ECCErrors(tt.counts), tt.want)
	}
}
