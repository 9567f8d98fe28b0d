package migctl

import (
	"fmt"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// warning says what a node's document lacks, or what in it is old.
type warning struct {
	text  string
	color color
}

// allWarnings returns what is wrong with a node's readings and with the devices of its pods.
func allWarnings(doc *nodedoc.Document) []warning {
	all := readingWarnings(doc)

	if why := unreadText(doc); why != "" {
		all = append(all, warning{why, yellow})
	}

	for i := range doc.Node.UnmatchedDevices {
		all = append(all, warning{unmatchedText(&doc.Node.UnmatchedDevices[i]), yellow})
	}

	return all
}

// readingWarnings warns of sources that do not answer, of driver calls that hang, and of holders
// that are not known.
func readingWarnings(doc *nodedoc.Document) []warning {
	var all []warning

	for i := range doc.Node.Sources {
		// The warning about unknown holders says which sources are not configured.
		if src := &doc.Node.Sources[i]; (!src.Up || src.Stale) && !src.NotConfigured {
			all = append(all, warning{sourceErrorText(src), red})
		}
	}

	if n := doc.Node.HungCalls; n > 0 {
		hung := nodedoc.Count(n, "driver call hangs", "driver calls hang")
		all = append(all, warning{hung + ": readings of a GPU may be old", red})
	}

	if why := doc.Node.HoldersIncomplete; why != "" {
		all = append(all, warning{"not all holders of devices are known: " + why, yellow})
	}

	return all
}

func sourceErrorText(src *nodedoc.SourceState) string {
	t := src.Name + " is not available"
	if src.Error != "" {
		t += ": " + src.Error
	}

	if src.Stale {
		t += "; its last answer is shown"
	}

	if !src.LastSuccess.IsZero() {
		t += "; last success " + src.LastSuccess.UTC().Format(time.RFC3339)
	}

	return t
}

// unreadText says which GPUs of the node are not in the document yet; it is empty if all are.
func unreadText(doc *nodedoc.Document) string {
	if why := doc.Node.GPUsUnknown; why != "" {
		return gpu.DescribeUnknownGPUs(why)
	}

	if unread := doc.Node.GPUsUnread; len(unread) > 0 {
		const one = "GPU has not been read yet and is"
		const several = "GPUs have not been read yet and are"

		return nodedoc.Count(len(unread), one, several) + " missing here: index " + joinNumbers(unread)
	}

	return ""
}

// unmatchedText names a device that a pod holds and the node does not have.
func unmatchedText(d *nodedoc.Unmatched) string {
	return fmt.Sprintf(
		"device %s of %s, held by %s, does not exist on this node: restart the device plugin, then delete "+
			"the pod",
		d.ID,
		orUnknown(d.Resource),
		containerName(d.Namespace, d.Pod, d.Container),
	)
}
