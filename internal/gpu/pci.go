package gpu

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// PCIAddress is the address of a GPU on its bus, without the number of the function.
type PCIAddress struct {
	Domain      uint32
	Bus, Device uint8
}

// ParsePCIAddress parses an address as the kernel or the driver writes it: "0000:1b:00",
// "00000000:1B:00.0".
func ParsePCIAddress(text string) (PCIAddress, bool) {
	text, _, _ = strings.Cut(text, ".")

	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return PCIAddress{}, false
	}

	domain, err1 := strconv.ParseUint(parts[0], 16, 32)
	bus, err2 := strconv.ParseUint(parts[1], 16, 8)
	device, err3 := strconv.ParseUint(parts[2], 16, 8)
	ok := err1 == nil && err2 == nil && err3 == nil

	return PCIAddress{Domain: uint32(domain), Bus: uint8(bus), Device: uint8(device)}, ok
}

// Compare orders addresses by domain, bus and device.
func (a PCIAddress) Compare(b PCIAddress) int {
	return cmp.Or(
		cmp.Compare(a.Domain, b.Domain),
		cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device),
	)
}

// String returns the address as the kernel writes it.
func (a PCIAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x", a.Domain, a.Bus, a.Device)
}
