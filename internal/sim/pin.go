package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// DevicePin names a device by where it is: "2" is GPU 2, "2/3g.20gb@4" the compute instance 0 of
// its GPU instance at placement start 4, "2/3g.20gb@4/1" the compute instance 1. It serves
// scenarios, whose authors know no UUIDs.
type DevicePin struct {
	GPU     int
	Profile string // empty for the whole GPU
	Start   int
	Compute gpu.ComputeID
}

// UnmarshalText reads the place of a device. The error is what was expected.
func (d *DevicePin) UnmarshalText(text []byte) error {
	parts := strings.Split(string(text), "/")
	index, ok := gpu.ParseDecimal(parts[0])
	*d = DevicePin{GPU: int(index)}

	if len(parts) > 1 {
		var isPlace bool
		d.Profile, d.Start, isPlace = parsePlace(parts[1])
		ok = ok && isPlace && d.Profile != "" && d.Start <= 64
	}

	if len(parts) > 2 {
		id, isNumber := gpu.ParseDecimal(parts[2])
		d.Compute = gpu.ComputeID(id)
		ok = ok && isNumber
	}

	if !ok || len(parts) > 3 {
		return errors.New(
			"a GPU's index, alone or with a MIG device as in 2/3g.20gb@4 or 2/3g.20gb@4/1",
		)
	}

	return nil
}

// String is the pin as scenarios write it.
func (d DevicePin) String() string {
	if d.Profile == "" {
		return strconv.Itoa(d.GPU)
	}

	return fmt.Sprintf("%d/%s@%d/%d", d.GPU, d.Profile, d.Start, d.Compute)
}
