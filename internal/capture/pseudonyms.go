package capture

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// firstPID is the lowest pseudonym of a process id.
const firstPID = 1001

// Pseudonymize returns the recording with pseudonyms for UUIDs, serial numbers, process ids and the
// host's name: the same for the same node, whenever it is captured (processes excepted). Those of
// UUIDs are hashes of them, which cannot be guessed; serial numbers and host names are short enough
// to be guessed, so theirs are hashes of UUIDs. Process ids are numbered in their order.
func (r *Recording) Pseudonymize() *Recording {
	out := r.clone()
	var uuids []string
	pids := map[uint32]uint32{} // pseudonyms by process id

	for _, g := range out.Recorded.GPUs {
		uuids = append(uuids, g.Answers.texts("nvmlDeviceGetUUID")...)
		for _, a := range g.answers() {
			for _, pid := range a.copyPIDs() {
				pids[*pid] = 0
			}
		}
	}

	delete(pids, 0) // not a process: the driver does not know its id

	for i, pid := range slices.Sorted(maps.Keys(pids)) {
		pids[pid] = firstPID + uint32(i)
	}

	slices.Sort(uuids)
	out.Recorded.Pseudonyms = true
	out.Node.Hostname = "node-" + digest("host", strings.Join(slices.Compact(uuids), " "))[:8]

	for name, g := range out.Recorded.GPUs {
		uuid := string(name)
		if list := g.Answers.texts("nvmlDeviceGetUUID"); len(list) > 0 {
			uuid = list[0]
		}

		for call, a := range g.answers() {
			for _, pid := range a.copyPIDs() {
				*pid = pids[*pid]
			}

			switch s, _ := a.value.(string); {
			case s == "":
			case call == "nvmlDeviceGetUUID":
				a.value = pseudonymOfUUID(s)
			case call == "nvmlDeviceGetSerial":
				a.value = "S" + digest("serial", uuid)[:12]
			}
		}
	}

	return out
}

// answers iterates over the answers of the GPU and its MIG devices, by their calls. Those of GPU
// instances contain no identity.
func (g *gpuRecord) answers() iter.Seq2[string, *answer] {
	return func(yield func(string, *answer) bool) {
		all := []answers{answers(g.Answers)}
		for _, a := range g.MIGDevices {
			all = append(all, answers(a))
		}

		for _, a := range all {
			for call, s := range a {
				for i := range s.entries {
					if !yield(call, &s.entries[i].answer) {
						return
					}
				}
			}
		}
	}
}

// texts returns the answers of a call whose answers are text.
func (a gpuAnswers) texts(call string) []string {
	var list []string

	if s := a[call]; s != nil {
		for _, e := range s.entries {
			if text, ok := e.value.(string); ok {
				list = append(list, text)
			}
		}
	}

	return list
}

// copyPIDs replaces an answer that is a list of structs by a copy, and returns pointers to the
// process ids in it.
func (a *answer) copyPIDs() []*uint32 {
	list := reflect.ValueOf(a.value)
	if list.Kind() != reflect.Slice || list.Type().Elem().Kind() != reflect.Struct {
		return nil
	}

	list = reflect.AppendSlice(reflect.MakeSlice(list.Type(), 0, list.Len()), list)
	a.value = list.Interface()
	var pids []*uint32

	for i := range list.Len() {
		if pid := list.Index(i).FieldByName("Pid"); pid.IsValid() {
			pids = append(pids, pid.Addr().Interface().(*uint32))
		}
	}

	return pids
}

// pseudonymOfUUID returns a UUID of the same form: of a GPU, of a MIG device, or the legacy one of
// a MIG device, which contains the UUID of its GPU.
func pseudonymOfUUID(s string) string {
	if _, old, err := gpu.ParseMIGUUID(s); err == nil {
		if of, ok := old.Get(); ok {
			return fmt.Sprintf(
				"MIG-%s/%d/%d",
				pseudonymOfUUID(string(of.GPU)),
				of.Instance,
				of.Compute,
			)
		}

		return "MIG-" + formatUUID(digest("uuid", s))
	}

	return "GPU-" + formatUUID(digest("uuid", s))
}

// formatUUID formats hexadecimal digits as a UUID.
func formatUUID(hexDigits string) string {
	h := hexDigits
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:32]
}

func digest(kind, s string) string {
	sum := sha256.Sum256([]byte("mig-exporter capture " + kind + "\x00" + s))
	return hex.EncodeToString(sum[:])
}
