package migctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/fleet"
)

// dropUnprintable drops what would end a comment, or what a terminal could take for a command.
func dropUnprintable(text string) string {
	return strings.Map(func(c rune) rune {
		if isUnprintable(c) {
			return -1
		}

		return c
	}, text)
}

// writeFleetSpec writes the layouts of a report as a file for kubectl mig apply. It has the slices that
// are final, as the spec of recommend, and a comment that counts the others.
func writeFleetSpec(w io.Writer, r *fleet.Report) error {
	layouts, leftOut, err := r.Layouts()
	if err != nil {
		return fmt.Errorf("there is no fleet to write: %w", err)
	}

	document := spec.Fleet{APIVersion: api.Version, Kind: spec.FleetKind}

	freed := 0

	for i := range layouts {
		l := &layouts[i]
		freed += l.Freed
		entry := spec.FleetEntry{Node: l.Node}

		for _, uuid := range l.GPUs {
			entry.Spec.GPUs = append(entry.Spec.GPUs, api.Selector(uuid))
		}

		entry.Spec.Devices = map[string]api.DeviceRequest{}
		for profile, n := range l.Devices {
			entry.Spec.Devices[profile] = api.DeviceRequest{Count: n}
		}

		document.Entries = append(document.Entries, entry)
	}

	data, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("write the fleet: %w", err)
	}

	var out bytes.Buffer
	fmt.Fprintf(&out, "# Final slices at %s, for kubectl mig apply -f. MIG mode must be on for these\n"+
		"# GPUs, and the nodes must have these names in the cluster.\n", r.Time.UTC().Format(time.RFC3339))

	if freed != r.Fleet.FreedGPUs {
		fmt.Fprintf(&out, "# They free %d GPUs: each node's slices are on its own GPUs. All final ones, packed\n"+
			"# on whatever node as migctl fleet counts, free %d.\n", freed, r.Fleet.FreedGPUs)
	}

	for _, why := range leftOut {
		fmt.Fprintf(&out, "# Left out: %s.\n", dropUnprintable(why))
	}

	if left := r.LeftOut(); left != "" {
		fmt.Fprintf(&out, "# Left out, since not final: %s. migctl fleet -o csv lists them.\n", left)
	}

	if err := writeYAML(&out, data); err != nil {
		return fmt.Errorf("write the fleet: %w", err)
	}

	_, err = out.WriteTo(w)

	return err
}
