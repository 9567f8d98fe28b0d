package nvmlsource

import (
	"errors"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestLinkCounters: the totals of the links only grow, whatever single links do.
func TestLinkCounters(t *testing.T) {
	c := linkCounters{count: 2}
	// answer sets what the links have sent; the other fields are not supported.
	answer := func(links ...nvml.FieldValue) error {
		for i := range c.fields() {
			v := &c.values[i]
			if i%linkFieldCount != linkTransmit {
				v.NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
				continue
			}

			from := links[i/linkFieldCount]
			v.NvmlReturn = from.NvmlReturn
			v.ValueType = from.ValueType
			v.Value = from.Value
		}

		return c.add("call")
	}
	sent := func(bytes uint64) nvml.FieldValue { return *fieldValue(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, bytes) }
	down := nvml.FieldValue{NvmlReturn: uint32(nvml.ERROR_NOT_SUPPORTED)}
	failed := nvml.FieldValue{NvmlReturn: uint32(nvml.ERROR_UNKNOWN)}

	for _, step := range []struct {
		name  string
		links [2]nvml.FieldValue
		want  gpu.Opt[uint64]
		err   error
	}{
		{"both are down", [2]nvml.FieldValue{down, down}, gpu.None[uint64](), nil},
		{"one comes up", [2]nvml.FieldValue{sent(100), down}, gpu.Some[uint64](100), nil},
		{"the other, too", [2]nvml.FieldValue{sent(150), sent(1000)}, gpu.Some[uint64](1150), nil},
		{"one goes down", [2]nvml.FieldValue{sent(170), down}, gpu.Some[uint64](1170), nil},
		{"it begins again at 0", [2]nvml.FieldValue{sent(180), sent(30)}, gpu.Some[uint64](1210), nil},
		{"one fails", [2]nvml.FieldValue{sent(190), failed}, gpu.Some[uint64](1220), gpu.ErrDriver},
		{"a value that is none", [2]nvml.FieldValue{sent(190), {ValueType: 99}}, gpu.Some[uint64](1220), nil},
		{"all is well", [2]nvml.FieldValue{sent(190), sent(40)}, gpu.Some[uint64](1230), nil},
	} {
		if err := answer(step.links[:]...); !errors.Is(err, step.err) {
			t.Errorf("%s: error %v, want %v", step.name, err, step.err)
		}

		cmptest.Equal(t, step.name, c.sums().TransmitBytes, step.want)
	}

	cmptest.Equal(t, "what no link counts", c.sums().ReceiveBytes, gpu.None[uint64]())
	cmptest.Equal(t, "errors", len(c.sums().Errors), 0)
}

// TestLinkCountIsBounded: a driver's number of links is not trusted with our memory.
func TestLinkCountIsBounded(t *testing.T) {
	var c linkCounters
	c.storeCount(fieldValue(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, 1<<40))
	cmptest.Equal(t, "links", c.count, nvml.NVLINK_MAX_LINKS)
}
