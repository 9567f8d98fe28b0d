package sim

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// uuidOf derives a UUID in the form of version 5 from the parts of a thing's identity.
func uuidOf(parts ...any) string {
	sum := sha1.Sum([]byte(fmt.Sprintln(parts...)))
	sum[6] = sum[6]&0x0f | 0x50
	sum[8] = sum[8]&0x3f | 0x80
	h := hex.EncodeToString(sum[:16])

	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// hash returns a number that depends only on its arguments.
func hash(parts ...any) uint64 {
	sum := sha256.Sum256([]byte(fmt.Sprintln(parts...)))

	return uint64(sum[0]) | uint64(sum[1])<<8 | uint64(sum[2])<<16 | uint64(sum[3])<<24 |
		uint64(sum[4])<<32 | uint64(sum[5])<<40 | uint64(sum[6])<<48
}

// noise returns a random-looking number from -1 to 1 that depends only on key and step (splitmix64).
func noise(key uint64, step int64) float64 {
	x := key + uint64(step)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31

	return float64(x>>11)/(1<<52) - 1
}

// migUUID returns the UUID of a MIG device. The driver derives it from the chip, the id of the GPU
// instance and the first graphics engine of the compute instance (open-gpu-kernel-modules
// 595.45.04: kmigmgrGenerateComputeInstanceUuid, nvGenerateSmcUuid). So a device that is created
// again with the same instance id and first engine gets the same UUID, whatever its size.
func (n *Node) migUUID(g *simGPU, i *Instance, c *Compute) gpu.MIGUUID {
	if n.scenario.Node.MIGUUIDs == "legacy" {
		return gpu.MIGUUID(fmt.Sprintf("MIG-%s/%d/%d", g.uuid, i.ID, c.ID))
	}

	return gpu.MIGUUID("MIG-" + uuidOf(g.uuid, i.ID, c.Placement.Start))
}

// pciBus returns where a GPU is plugged in, with the bus numbers of NVIDIA's own eight-GPU systems.
// The ninth GPU begins the next PCI domain.
func pciBus(index int, arch Architecture) (domain, bus uint32) {
	buses := [8]uint32{0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD}
	if arch != Ampere {
		buses = [8]uint32{0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF}
	}

	return uint32(index / 8), buses[index%8]
}

// newPID returns a process id for a process, derived from the parts of its identity. Ids are
// scattered like those of a busy host, and never reused.
func (n *Node) newPID(identity ...any) uint32 {
	pid := uint32(2000 + hash(append(identity, n.scenario.Seed)...)%4_000_000)
	for n.pids[pid] {
		pid++
	}

	n.pids[pid] = true

	return pid
}

// phaseOf returns where in a sine the workload of a process begins, 0-1: see Signal.At.
func phaseOf(pid uint32) float64 { return float64(hash("phase", pid)%1000) / 1000 }
