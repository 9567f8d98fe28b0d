package gpu

// XIDScope is what an XID is about.
type XIDScope int

// The scopes.
const (
	// XIDUnlisted: the table lacks the XID. We count it for the device that the driver names.
	XIDUnlisted XIDScope = iota
	// XIDOfApplication: a program has done something wrong, and has to be restarted.
	XIDOfApplication
	// XIDOfChannel: the driver reports it for channels, of one GPU instance or of all, and it is
	// not the program's fault.
	XIDOfChannel
	// XIDOfGPU: it concerns the whole GPU, whatever instance an event names. For errors without an
	// instance the driver sends the ids 0 and 0, which look like the instance of a 7g profile.
	XIDOfGPU
)

// XID is an entry of the table of XIDs.
type XID struct {
	Name  string // in NVIDIA's catalog; empty for one that is not well known
	Scope XIDScope
	// PerChannel is set if the driver reports one incident once for each channel.
	PerChannel bool
}

// XIDByNumber returns what we know of an XID.
func XIDByNumber(xid uint64) XID { return xidTable()[xid] }

// XIDName returns the short name of an XID in NVIDIA's catalog of XID errors; empty for one that is
// not well known.
func XIDName(xid uint64) string { return XIDByNumber(xid).Name }

// WatchedXIDs returns the XIDs for which docs/faults.md says what to do, in order. Metrics with an
// XID as label that begin at 0 do so for each of these.
func WatchedXIDs() []uint64 { return []uint64{13, 31, 43, 48, 63, 64, 74, 79, 94, 95, 119, 120} }

// xidTable is the table of docs/faults.md.
//
// Names and XIDOfApplication come from NVIDIA's catalog: an XID is an application's if the catalog
// says to restart the application
// (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).
//
// PerChannel is set for XIDs that open-gpu-kernel-modules 595.45.04 passes to
// krcRcAndNotifyAllChannels or to the error notifier of a channel: 79 in
// src/nvidia/arch/nvalloc/unix/src/osinit.c; 119 and 120 in
// src/nvidia/src/kernel/gpu/gsp/kernel_gsp.c; 48 and 94 where memory or GSP has an uncorrectable
// error. We found no such call for 95 and 109: we conclude from their meaning that the driver
// reports them for all channels.
func xidTable() map[uint64]XID {
	return map[uint64]XID{
		8:   {"GPU stopped processing", XIDOfApplication, false},
		13:  {"Graphics engine exception", XIDOfApplication, false},
		31:  {"GPU memory page fault", XIDOfApplication, false},
		32:  {"Invalid or corrupted push buffer stream", XIDOfApplication, false},
		38:  {"Driver firmware error", XIDOfGPU, false},
		43:  {"GPU stopped processing", XIDOfApplication, false},
		45:  {"Preemptive cleanup after earlier errors", XIDOfApplication, false},
		48:  {"Double bit ECC error", XIDOfChannel, true},
		61:  {"Internal micro-controller breakpoint or warning", XIDOfGPU, false},
		62:  {"Internal micro-controller halt", XIDOfGPU, false},
		63:  {"Row remapping or page retirement recorded", XIDOfGPU, false},
		64:  {"Row remapping or page retirement failed", XIDOfGPU, false},
		68:  {"Video processor exception", XIDOfApplication, false},
		69:  {"Graphics engine class error", XIDOfApplication, false},
		74:  {"NVLink error", XIDOfGPU, false},
		79:  {"GPU has fallen off the bus", XIDOfGPU, true},
		92:  {"High rate of single bit ECC errors", XIDOfGPU, false},
		94:  {"Contained memory error", XIDOfChannel, true},
		95:  {"Uncontained memory error", XIDOfChannel, true},
		109: {"Context switch timeout", XIDOfChannel, true},
		119: {"GSP RPC timeout", XIDOfGPU, true},
		120: {"GSP error", XIDOfGPU, true},
		121: {"C2C link error", XIDOfGPU, false},
		136: {"Link training failed", XIDOfGPU, false},
		140: {"Unrecovered ECC error", XIDOfGPU, false},
		143: {"GPU initialization failed", XIDOfGPU, false},
		154: {"GPU recovery action changed", XIDOfGPU, false},
	}
}
