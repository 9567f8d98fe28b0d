package migctl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// uuidLength is the length of GPU-<uuid> and MIG-<uuid>.
const uuidLength = len("GPU-") + 36

// isShortUUID reports whether a word begins with what may be a shortened UUID: GPU-5f65f8d5, as get
// prints it, or GPU-5f65f8d5/<GPU instance>.
func isShortUUID(word string) bool {
	head, _, _ := strings.Cut(word, "/")
	kind, _, _ := strings.Cut(head, "-")

	return len(head) < uuidLength && (strings.EqualFold(kind, "GPU") || strings.EqualFold(kind, "MIG"))
}

// completeUUID replaces a shortened UUID at the beginning of a word by the full one of uuids. Other
// words stay as they are: the caller finds what they name. If several UUIDs begin like that, the
// error lists them.
func completeUUID[T ~string](word string, uuids []T) (string, error) {
	if !isShortUUID(word) {
		return word, nil
	}

	head, instance, hasInstance := strings.Cut(word, "/")
	var found []string

	for _, uuid := range uuids {
		full := string(uuid)
		if len(full) >= len(head) && strings.EqualFold(full[:len(head)], head) && !slices.Contains(found, full) {
			found = append(found, full)
		}
	}

	if len(found) > 1 {
		return "", usageError{fmt.Sprintf("%q is the beginning of %d UUIDs, give more of it: %s",
			word, len(found), beginningsOf(found))}
	}

	if len(found) == 0 {
		return word, nil
	}

	if hasInstance {
		return found[0] + "/" + instance, nil
	}

	return found[0], nil
}

// beginningsOf lists the UUIDs, cut to the shortest beginnings that still differ; of many only the
// first 8.
func beginningsOf(uuids []string) string {
	const maxShown = 8
	length := shortLength(uuids)
	shown := make([]string, 0, len(uuids))

	for _, uuid := range uuids {
		shown = append(shown, uuid[:min(length, len(uuid))])
	}

	slices.Sort(shown)

	if more := len(shown) - maxShown; more > 0 {
		shown = append(shown[:maxShown], fmt.Sprintf("and %d more", more))
	}

	return strings.Join(shown, ", ")
}

// shortNames returns the names of instances, MIG UUIDs or GPU-<uuid>/<GPU instance>, with UUIDs cut to
// beginnings that still differ from each other, as --force takes them.
func shortNames(names []string) []string {
	heads := make([]string, len(names))
	tails := make([]string, len(names))

	for i, name := range names {
		heads[i] = name
		if head, instance, ok := strings.Cut(name, "/"); ok && len(head) == uuidLength {
			heads[i] = head
			tails[i] = "/" + instance
		}
	}

	length := shortLength(heads)
	short := make([]string, len(names))

	for i, head := range heads {
		if len(head) == uuidLength { // UUIDs of old drivers, MIG-GPU-<uuid>/1/0, have no short form
			head = head[:min(length, uuidLength)]
		}

		short[i] = head + tails[i]
	}

	return short
}

// shortLength returns the shortest length, of shortID or more, at which different UUIDs still
// differ.
func shortLength(uuids []string) int {
	whole := slices.Sorted(slices.Values(uuids))
	different := len(slices.Compact(whole))

	for length := shortID; length < fullMIGID; length += 4 {
		cut := make([]string, len(uuids))
		for i, uuid := range uuids {
			cut[i] = uuid[:min(length, len(uuid))]
		}

		slices.Sort(cut)

		if len(slices.Compact(cut)) == different {
			return length
		}
	}

	return fullMIGID
}

// completeUUIDs completes the shortened UUIDs of several words, as completeUUID does.
func completeUUIDs[T ~string](words []string, uuids []T) ([]string, error) {
	all := make([]string, len(words))

	for i, word := range words {
		var err error
		if all[i], err = completeUUID(word, uuids); err != nil {
			return nil, err
		}
	}

	return all, nil
}

// uuidsOf returns the UUIDs of the node's GPUs and MIG devices.
func uuidsOf(gpus []nodedoc.GPU) []string {
	var all []string

	for i := range gpus {
		all = append(all, string(gpus[i].UUID))

		for _, inst := range gpus[i].GPUInstances {
			for _, ci := range inst.ComputeInstances {
				all = append(all, string(ci.UUID))
			}
		}
	}

	return slices.DeleteFunc(all, func(uuid string) bool { return uuid == "" })
}

// completeSpec completes the shortened UUIDs among the flags of a spec, for which it asks the server
// what GPUs there are. If the server does not say, the words stay as they are: the server refuses
// the spec then.
func (s *session) completeSpec(ctx context.Context) error {
	o := &s.opts.Spec
	o.GPUs = splitCommas(o.GPUs)
	o.Force = splitCommas(o.Force)

	if !slices.ContainsFunc(o.GPUs, isShortUUID) && !slices.ContainsFunc(o.Force, isShortUUID) {
		return nil
	}

	var node nodedoc.Document
	if err := s.client.fetch(ctx, "/node", &node); err != nil {
		return nil //nolint:nilerr // the words stay as they are
	}

	uuids := uuidsOf(node.GPUs)

	var err error
	if o.GPUs, err = completeUUIDs(o.GPUs, uuids); err != nil {
		return err
	}

	o.Force, err = completeUUIDs(o.Force, uuids)

	return err
}
