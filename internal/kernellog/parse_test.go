package kernellog

import (
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// parse parses a record, and returns false if it has no XID.
func parse(record string) (header, line, bool) {
	h, text, ok := splitRecord(record)
	if !ok {
		return h, line{}, false
	}

	l, ok := h.parseXID(text)

	return h, l, ok
}

func TestParseRecord(t *testing.T) {
	at := gpu.PCIAddress{Domain: 1, Bus: 0x1b, Device: 2}

	first := gpu.PCIAddress{Bus: 0xcb}
	for record, want := range map[string]line{
		"4,1234,5678901,-;NVRM: Xid (PCI:0001:1b:02): 79, pid=77, name=python3, GPU has fallen off.\n": {
			pci: at, xid: 79, process: 77},
		"4,1,0,-;NVRM: Xid (PCI:0001:1b:02): 79, GPU has fallen off the bus.": {
			pci: at, xid: 79},
		"3,1,0,-,caller=T12;NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics": {
			pci: first, xid: 13},
		"4,1,0,-;NVRM: Xid (PCI:0000:cb:00 GPU-I:07): 94, pid=8, name=x, Contained": {
			pci: first, xid: 94, process: 8, instance: gpu.Some(gpu.InstanceID(7))},
		"4,1,0,c;NVRM: Xid (PCI:0000:cb:00 GPU-I:11 GPU-CI:03): 31, pid=8, name=x, MMU\n SUBSYSTEM=pci": {
			pci: first, xid: 31, process: 8, instance: gpu.Some(gpu.InstanceID(11)),
			compute: gpu.Some(gpu.ComputeID(3))},
		// The program's text does not matter.
		`4,1,0,-;NVRM: Xid (PCI:0000:cb:00): 43, pid=8, name=a\x0aNVRM: Xid (PCI:0000:1b:00): 79, b`: {
			pci: first, xid: 43, process: 8},
		"4,1,0,-;NVRM: Xid (PCI:0000:cb:00): 43, pid=8, name=x): 79, y": {
			pci: first, xid: 43, process: 8},
	} {
		_, got, ok := parse(record)
		if !ok {
			t.Errorf("%q: no XID", record)
		}

		cmptest.Equal(t, record, got, want)
	}
}

func TestParseHeader(t *testing.T) {
	h, _, _ := parse("12,1234,5678901,-;text")
	cmptest.Equal(t, "header", h, header{facility: 1, sequence: 1234, uptime: 5678901 * time.Microsecond})
}

// TestForeignRecords are of no XID: other messages, what a user has written, and what is no record.
func TestForeignRecords(t *testing.T) {
	xid := "NVRM: Xid (PCI:0000:cb:00): 79, pid=8, name=x, GPU has fallen off the bus."
	for name, record := range map[string]string{
		"written by a user":          "12,1,0,-;" + xid,
		"of a daemon":                "30,1,0,-;" + xid,
		"the rest of another line":   "4,1,0,+;" + xid,
		"without a header":           xid,
		"a short header":             "4,1,0;" + xid,
		"a negative priority":        "-4,1,0,-;" + xid,
		"a priority that overflows":  "99999999999999999999,1,0,-;" + xid,
		"in the middle of a line":    "4,1,0,-;foo " + xid,
		"in the properties":          "4,1,0,-;foo\n" + xid,
		"another message":            "4,1,0,-;NVRM: GPU at PCI:0000:cb:00: GPU-2b",
		"the older form":             "4,1,0,-;NVRM: Xid (0000:cb:00): 79, x",
		"XID 0":                      "4,1,0,-;NVRM: Xid (PCI:0000:cb:00): 0, x",
		"a negative XID":             "4,1,0,-;NVRM: Xid (PCI:0000:cb:00): -79, x",
		"an XID that overflows":      "4,1,0,-;NVRM: Xid (PCI:0000:cb:00): 4294967296, x",
		"cut short":                  "4,1,0,-;NVRM: Xid (PCI:0000:cb:00): 79",
		"no address":                 "4,1,0,-;NVRM: Xid (PCI:): 79, x",
		"an address of two parts":    "4,1,0,-;NVRM: Xid (PCI:cb:00): 79, x",
		"a bus that overflows":       "4,1,0,-;NVRM: Xid (PCI:0000:1cb:00): 79, x",
		"an unknown word":            "4,1,0,-;NVRM: Xid (PCI:0000:cb:00 GPU-X:01): 79, x",
		"a word too many":            "4,1,0,-;NVRM: Xid (PCI:0000:cb:00 GPU-I:01 GPU-CI:00 GPU-I:02): 79, x",
		"CI without GI":              "4,1,0,-;NVRM: Xid (PCI:0000:cb:00 GPU-CI:00): 79, x",
		"an instance that overflows": "4,1,0,-;NVRM: Xid (PCI:0000:cb:00 GPU-I:65536): 79, x",
		"hexadecimal instance":       "4,1,0,-;NVRM: Xid (PCI:0000:cb:00 GPU-I:0a): 79, x",
		"nothing":                    "",
	} {
		if _, l, ok := parse(record); ok {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

// FuzzParseRecord: no record crashes the parser, and of what is no record of the kernel no XID is
// taken.
func FuzzParseRecord(f *testing.F) {
	f.Add("4,1234,5678901,-;NVRM: Xid (PCI:0000:1b:00 GPU-I:07 GPU-CI:00): 13, pid=1, name=x, y\n SUBSYSTEM=pci")
	f.Add("12,1,0,-;NVRM: Xid (PCI:0000:cb:00): 79, x")
	f.Add("4,1,0,+,caller=T1;NVRM: Xid (PCI:")
	f.Fuzz(func(t *testing.T, record string) {
		h, l, ok := parse(record)
		if !ok {
			return
		}

		if h.facility != 0 || l.xid == 0 || l.compute.Present() && !l.instance.Present() {
			t.Errorf("%q: %+v, %+v", record, h, l)
		}

		if _, text, _ := strings.Cut(record, ";"); !strings.HasPrefix(text, prefix) {
			t.Errorf("%q does not begin with %q", text, prefix)
		}
	})
}
