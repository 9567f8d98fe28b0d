package capture

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// pseudonyms stand for identities. Those of UUIDs are hashes of them, which nobody can guess; serial numbers and host
// names are short enough to be guessed, so theirs are made of UUIDs. Process ids are numbered in their order.
type pseudonyms struct {
	pids map[uint32]uint32
}

// firstPID is the lowest pseudonym of a process.
const firstPID = 1001

// Pseudonymize returns the recording with pseudonyms for UUIDs, serial numbers, process ids and the host's name: the same
// for the same node, whenever it is captured (processes excepted).
func (r *Recording) Pseudonymize() *Recording {
	p := pseudonyms{pids: map[uint32]uint32{}}
	var pids []uint32
	for _, g := range r.gpus {
		pids = g.answers.pids(pids)
		for _, d := range g.devices {
			pids = d.pids(pids)
		}
	}
	slices.Sort(pids)
	for _, pid := range slices.Compact(pids) {
		p.pids[pid] = firstPID + uint32(len(p.pids))
	}
	p.pids[0] = 0 // no identity: the driver cannot tell
	out := *r
	out.Pseudonyms = true
	out.Hostname = "node-" + digest("host", strings.Join(r.uuids(), " "))[:8]
	out.gpus = make([]gpuRecord, len(r.gpus))
	for i, g := range r.gpus {
		uuid := g.name
		if list := g.answers.texts("nvmlDeviceGetUUID"); len(list) > 0 {
			uuid = list[0]
		}
		out.gpus[i] = gpuRecord{name: g.name, answers: p.replace(g.answers, uuid), devices: map[int]answers{}, instances: g.instances}
		for index, d := range g.devices {
			out.gpus[i].devices[index] = p.replace(d, uuid)
		}
	}
	return &out
}

// uuids lists those of all GPUs.
func (r *Recording) uuids() []string {
	var list []string
	for _, g := range r.gpus {
		list = append(list, g.answers.texts("nvmlDeviceGetUUID")...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// texts lists the answers of a question whose answer is text.
func (a answers) texts(question string) []string {
	var list []string
	for _, e := range a[question] {
		if s, ok := e.value.(string); ok {
			list = append(list, s)
		}
	}
	return list
}

// pids appends those of all processes.
func (a answers) pids(list []uint32) []uint32 {
	for _, entries := range a {
		for _, e := range entries {
			used, _ := e.value.([]nvml.ProcessUtilizationSample)
			for _, p := range used {
				if p.Pid != 0 {
					list = append(list, p.Pid)
				}
			}
			processes, _ := e.value.([]nvml.ProcessInfo)
			for _, p := range processes {
				if p.Pid != 0 {
					list = append(list, p.Pid)
				}
			}
		}
	}
	return list
}

// replace copies what an entity of a GPU said.
func (p pseudonyms) replace(a answers, uuid string) answers {
	out := make(answers, len(a))
	for _, question := range slices.Collect(maps.Keys(a)) {
		entries := slices.Clone(a[question])
		for i := range entries {
			entries[i].value = p.value(question, entries[i].value, uuid)
		}
		out[question] = entries
	}
	return out
}

func (p pseudonyms) value(question string, value any, uuid string) any {
	switch v := value.(type) {
	case string:
		switch {
		case v == "":
		case question == "nvmlDeviceGetUUID":
			return pseudonymOfUUID(v)
		case question == "nvmlDeviceGetSerial":
			return "S" + digest("serial", uuid)[:12]
		}
	case []nvml.ProcessInfo:
		list := slices.Clone(v)
		for i := range list {
			list[i].Pid = p.pids[list[i].Pid]
		}
		return list
	case []nvml.ProcessUtilizationSample:
		list := slices.Clone(v)
		for i := range list {
			list[i].Pid = p.pids[list[i].Pid]
		}
		return list
	}
	return value
}

// pseudonymOfUUID keeps the form of a UUID: of a GPU, of a MIG device, or the old one of a MIG device, which contains its
// GPU's.
func pseudonymOfUUID(s string) string {
	if _, old, err := gpu.ParseMIGUUID(s); err == nil {
		if of, ok := old.Get(); ok {
			return fmt.Sprintf("MIG-%s/%d/%d", pseudonymOfUUID(string(of.GPU)), of.Instance, of.Compute)
		}
		return "MIG-" + uuidOf(digest("uuid", s))
	}
	return "GPU-" + uuidOf(digest("uuid", s))
}

// uuidOf puts hexadecimal digits in the form of a UUID.
func uuidOf(hexDigits string) string {
	h := hexDigits
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:32]
}

func digest(kind, s string) string {
	sum := sha256.Sum256([]byte("mig-exporter capture " + kind + "\x00" + s))
	return hex.EncodeToString(sum[:])
}
