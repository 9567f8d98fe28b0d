package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// xidText returns the label err_msg of an XID; 0 means no XID.
func xidText(xid uint64) string {
	if xid == 0 {
		return "No Error"
	}

	if name := gpu.XIDName(xid); name != "" {
		return name
	}

	return "Unknown Error"
}
