package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// UUID names a physical GPU as the driver does, "GPU-" and a UUID. It is the only identity of a
// GPU: its index and its minor number are labels that may change.
type UUID string

// MIGUUID names a MIG device (a compute instance): "MIG-" and a UUID since driver R470,
// "MIG-GPU-<uuid>/<gi>/<ci>" before. It is derived from chip and placement, so it is reused after a
// layout change.
type MIGUUID string

// InstanceID is the driver's id of a GPU instance, unique within its GPU at a time and reused after
// a layout change.
type InstanceID uint32

// ComputeID is the driver's id of a compute instance within its GPU instance.
type ComputeID uint32

// ParseUUID parses a GPU's UUID in the driver's form.
func ParseUUID(s string) (UUID, error) {
	rest, ok := strings.CutPrefix(s, "GPU-")
	if !ok || !isUUID(rest) {
		return "", fmt.Errorf("GPU UUID %q: expected GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", s)
	}

	return UUID(s), nil
}

// LegacyMIG is what a legacy MIG UUID names: a compute instance by its GPU and the driver's ids.
type LegacyMIG struct {
	GPU      UUID
	Instance InstanceID
	Compute  ComputeID
}

// ParseMIGUUID parses a MIG device's UUID in either form. The LegacyMIG is present for the legacy
// form.
func ParseMIGUUID(s string) (MIGUUID, Opt[LegacyMIG], error) {
	invalid := func() (MIGUUID, Opt[LegacyMIG], error) {
		return "", None[LegacyMIG](), fmt.Errorf(
			"MIG UUID %q: expected MIG-<uuid> or MIG-GPU-<uuid>/<GPU instance>/<compute instance>",
			s,
		)
	}

	rest, ok := strings.CutPrefix(s, "MIG-")
	if !ok {
		return invalid()
	}

	if isUUID(rest) {
		return MIGUUID(s), None[LegacyMIG](), nil
	}

	parts := strings.Split(rest, "/")
	if len(parts) != 3 {
		return invalid()
	}

	parent, err := ParseUUID(parts[0])
	if err != nil {
		return invalid()
	}

	gi, giOK := ParseDecimal(parts[1])

	ci, ciOK := ParseDecimal(parts[2])
	if !giOK || !ciOK {
		return invalid()
	}

	return MIGUUID(s), Some(LegacyMIG{GPU: parent, Instance: InstanceID(gi), Compute: ComputeID(ci)}), nil
}

// ParseDecimal parses an unsigned 32-bit number in plain decimal digits without sign or leading
// zeros, the only form in which drivers and device plugins write ids.
func ParseDecimal(s string) (uint32, bool) {
	if s == "" || (len(s) > 1 && s[0] == '0') || s[0] < '0' || s[0] > '9' {
		return 0, false
	}

	n, err := strconv.ParseUint(s, 10, 32)

	return uint32(n), err == nil
}

// isUUID reports whether s has groups of 8, 4, 4, 4 and 12 hexadecimal digits, joined by dashes.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}

	for i := range len(s) {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
				return false
			}
		}
	}

	return true
}
