package kernellog

import (
	"strconv"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// prefix begins each line of an XID (open-gpu-kernel-modules 595.45.04,
// src/nvidia/src/kernel/gpu/rc/kernel_rc.c, krcReportXid_IMPL).
const prefix = "NVRM: Xid (PCI:"

// header is what the kernel says about a record (Documentation/ABI/testing/dev-kmsg).
type header struct {
	facility     uint64        // 0 is the kernel
	sequence     uint64        // grows by one with each record
	uptime       time.Duration // of the kernel when it printed the record
	continuation bool          // the record begins in the middle of a line that another has begun
}

// line is what a line of the kernel's log says about an XID.
type line struct {
	pci      gpu.PCIAddress
	instance gpu.Opt[gpu.InstanceID]
	compute  gpu.Opt[gpu.ComputeID]
	xid      uint64
	process  uint64 // 0 if the driver does not name it
}

// splitRecord splits a record such as "4,1234,5678901,-;text\n SUBSYSTEM=pci\n" into its header and
// its text, without the properties that may follow. The fields of the header are priority, sequence
// number, uptime in microseconds, and flags.
func splitRecord(record string) (h header, text string, ok bool) {
	headerText, text, ok := strings.Cut(record, ";")

	fields := strings.Split(headerText, ",")
	if !ok || len(fields) < 4 { // later kernels have more fields
		return header{}, "", false
	}

	priority, err1 := strconv.ParseUint(fields[0], 10, 32)
	sequence, err2 := strconv.ParseUint(fields[1], 10, 64)

	micros, err3 := strconv.ParseUint(fields[2], 10, 53) // as nanoseconds these fit a Duration
	if err1 != nil || err2 != nil || err3 != nil {
		return header{}, "", false
	}

	text, _, _ = strings.Cut(text, "\n")
	h = header{
		facility:     priority >> 3, // the lower three bits are the log level
		sequence:     sequence,
		uptime:       time.Duration(micros) * time.Microsecond,
		continuation: strings.HasPrefix(fields[3], "+"),
	}

	return h, text, true
}

// parseXID returns the XID of a record, such as
//
//	NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.
//	NVRM: Xid (PCI:0000:1b:00 GPU-I:07 GPU-CI:00): 13, pid=1234, name=python3, Graphics SM Warp Exception ...
//
// It refuses records that the kernel has not printed itself: root in a container that has /dev/kmsg
// can write such lines, but the kernel gives them another facility. It ignores what follows the
// process id, which programs can influence.
func (h *header) parseXID(text string) (line, bool) {
	if h.facility != 0 || h.continuation {
		return line{}, false
	}

	rest, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return line{}, false
	}

	device, rest, ok := strings.Cut(rest, "): ")
	number, rest, more := strings.Cut(rest, ", ")

	xid, err := strconv.ParseUint(number, 10, 32)
	if !ok || !more || err != nil || xid == 0 {
		return line{}, false
	}

	l := line{xid: xid, process: parseProcess(rest)}
	ok = l.parseDevice(device)

	return l, ok
}

// parseProcess returns the number in "pid=1234, name=...". Drivers that do not know the process
// write "pid='<unknown>'", or neither pid nor name.
func parseProcess(text string) uint64 {
	text, _, _ = strings.Cut(text, ",")
	digits, ok := strings.CutPrefix(text, "pid=")

	id, err := strconv.ParseUint(digits, 10, 32)
	if !ok || err != nil {
		return 0
	}

	return id
}

// parseDevice parses "0000:1b:00", "0000:1b:00 GPU-I:07" or "0000:1b:00 GPU-I:07 GPU-CI:00". The
// address is hexadecimal, and both ids are decimal (krcReportXid_IMPL: "PCI:%04x:%02x:%02x
// GPU-I:%02u GPU-CI:%02u").
func (l *line) parseDevice(text string) bool {
	words := strings.Split(text, " ")

	var ok bool
	if l.pci, ok = gpu.ParsePCIAddress(words[0]); !ok || len(words) > 3 {
		return false
	}

	if len(words) > 1 {
		id, ok := parseID(words[1], "GPU-I:")
		if !ok {
			return false
		}

		l.instance = gpu.Some(gpu.InstanceID(id))
	}

	if len(words) > 2 {
		id, ok := parseID(words[2], "GPU-CI:")
		if !ok {
			return false
		}

		l.compute = gpu.Some(gpu.ComputeID(id))
	}

	return true
}

// parseID parses the id in a word such as "GPU-I:07", of which label is the part before the id.
func parseID(word, label string) (uint64, bool) {
	digits, ok := strings.CutPrefix(word, label)
	id, err := strconv.ParseUint(digits, 10, 16)

	return id, ok && err == nil
}
