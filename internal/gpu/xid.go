package gpu

// XIDName returns the short name of an XID in NVIDIA's catalog of XID errors; empty for one that is not well known.
func XIDName(xid uint64) string { return xidNames()[xid] }

// WatchedXIDs returns the XIDs for which docs/faults.md says what to do, in order. Families by XID that begin at 0 have
// a counter for each of them.
func WatchedXIDs() []uint64 { return []uint64{13, 31, 43, 48, 63, 64, 74, 79, 94, 95, 119, 120} }

func xidNames() map[uint64]string {
	return map[uint64]string{
		8:   "GPU stopped processing",
		13:  "Graphics engine exception",
		31:  "GPU memory page fault",
		32:  "Invalid or corrupted push buffer stream",
		38:  "Driver firmware error",
		43:  "GPU stopped processing",
		45:  "Preemptive cleanup after earlier errors",
		48:  "Double bit ECC error",
		61:  "Internal micro-controller breakpoint or warning",
		62:  "Internal micro-controller halt",
		63:  "Row remapping or page retirement recorded",
		64:  "Row remapping or page retirement failed",
		68:  "Video processor exception",
		69:  "Graphics engine class error",
		74:  "NVLink error",
		79:  "GPU has fallen off the bus",
		92:  "High rate of single bit ECC errors",
		94:  "Contained memory error",
		95:  "Uncontained memory error",
		109: "Context switch timeout",
		119: "GSP RPC timeout",
		120: "GSP error",
		121: "C2C link error",
		136: "Link training failed",
		140: "Unrecovered ECC error",
		143: "GPU initialization failed",
		154: "GPU recovery action changed",
	}
}
