package health

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Class is what an XID says about the GPU.
type Class int

// The classes, by the action that NVIDIA's catalog asks for
// (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). The alerts GpuXid* use
// the same classes.
const (
	// ClassOther: the catalog asks for nothing, or does not have the XID.
	ClassOther Class = iota
	// ClassApplication: the program has to be restarted, mostly by its own fault. The GPU is
	// healthy.
	ClassApplication
	// ClassMemory: the hardware has dealt with a memory error. A reset makes the repair permanent.
	ClassMemory
	// ClassHardware: the GPU has to be reset.
	ClassHardware
	// ClassNode: the machine has to be restarted, or its cabling looked at.
	ClassNode
)

// ClassOf returns the class of an XID.
func ClassOf(xid uint64) Class {
	for _, c := range xidClasses() {
		if slices.Contains(c.xids, xid) {
			return c.class
		}
	}

	return ClassOther
}

type xidClass struct {
	class Class
	xids  []uint64
}

func xidClasses() []xidClass {
	return []xidClass{
		{ClassNode, []uint64{54, 79, 151}},
		{ClassHardware, []uint64{
			46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 144, 145, 146, 147, 148, 149,
			150, 155, 156, 158,
		}},
		{ClassMemory, []uint64{63, 92, 94, 157}},
		{ClassApplication, []uint64{
			8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 45, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82,
			83, 84, 85, 86, 88, 89, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 126, 127, 128,
			129, 130, 131, 132, 133, 134, 135, 137, 139,
		}},
	}
}

// announcesRecovery is the XID "GPU recovery action changed". It is no reason of its own: we read
// the recovery action itself.
const announcesRecovery = 154

// describeXID names an XID for a message.
func describeXID(xid uint64) string {
	text := "XID " + formatNumber(xid)
	if name := gpu.XIDName(xid); name != "" {
		text += " (" + name + ")"
	}

	return text
}
