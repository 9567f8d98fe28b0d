package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// DevicePin names a device by its place, for scenarios, whose authors do not know UUIDs: "2" is GPU
// 2, "2/3g.20gb@4" is compute instance 0 of GPU 2's instance 3g.20gb that starts at 4, and
// "2/3g.20gb@4/1" is compute instance 1 of that.
type DevicePin struct {
	GPU     int
	Profile string // empty for the whole GPU
	Start   int
	Compute gpu.ComputeID
}

// UnmarshalText reads a pin. The error says what was expected.
func (p *DevicePin) UnmarshalText(text []byte) error {
	parts := strings.Split(string(text), "/")
	index, ok := gpu.ParseDecimal(parts[0])
	*p = DevicePin{GPU: int(index)}

	if len(parts) > 1 {
		var isPlace bool
		p.Profile, p.Start, isPlace = parsePlace(parts[1])
		ok = ok && isPlace && p.Profile != "" && p.Start <= 64
	}

	if len(parts) > 2 {
		id, isNumber := gpu.ParseDecimal(parts[2])
		p.Compute = gpu.ComputeID(id)
		ok = ok && isNumber
	}

	if !ok || len(parts) > 3 {
		return errors.New(
			"a GPU's index, alone or with a MIG device as in 2/3g.20gb@4 or 2/3g.20gb@4/1",
		)
	}

	return nil
}

// String returns the pin as scenarios write it.
func (p DevicePin) String() string {
	if p.Profile == "" {
		return strconv.Itoa(p.GPU)
	}

	return fmt.Sprintf("%d/%s@%d/%d", p.GPU, p.Profile, p.Start, p.Compute)
}
