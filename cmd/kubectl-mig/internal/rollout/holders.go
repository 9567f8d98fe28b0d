package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// blocked is what is in the way of a change, by what we can do about it.
type blocked struct {
	pods    []Pod
	unknown []string // holders that are not known, or not confirmed
	other   []string // holders without a pod: processes, batch jobs
}

// sortBlockers sorts the holders of the instances in the way.
func sortBlockers(list []api.Blocker) blocked {
	var b blocked

	for i := range list {
		b.add(&list[i])
	}

	slices.SortFunc(b.pods, func(x, y Pod) int { return strings.Compare(x.String(), y.String()) })
	b.pods = slices.Compact(b.pods)

	return b
}

// add sorts the holders of one instance. The processes and the activity of an instance that a pod
// has are that pod's: they end with it.
func (b *blocked) add(instance *api.Blocker) {
	var pods []Pod
	var other []string

	for _, h := range instance.Holders {
		text := fmt.Sprintf("%s: %s", instance.Instance, describeHold(h))

		switch h.Kind {
		case api.HoldPod:
			if p, ok := podOf(h.What); ok {
				pods = append(pods, p)
			} else {
				b.unknown = append(b.unknown, text)
			}
		case api.HoldProcess, api.HoldHandle, api.HoldActivity:
			other = append(other, text)
		case api.HoldJob:
			b.other = append(b.other, text)
		default:
			b.unknown = append(b.unknown, text)
		}
	}

	if len(pods) == 0 {
		b.other = append(b.other, other...)
	}

	b.pods = append(b.pods, pods...)
}

// podOf reads a holder such as "ml/train-0 (main)".
func podOf(what string) (Pod, bool) {
	name, _, _ := strings.Cut(what, " ")
	namespace, name, ok := strings.Cut(name, "/")

	return Pod{namespace, name}, ok && namespace != "" && name != ""
}

func describeHold(h api.Hold) string {
	if h.PID != 0 {
		return fmt.Sprintf("%s %d (%s)", h.Kind, h.PID, h.What)
	}

	return fmt.Sprintf("%s %s", h.Kind, h.What)
}

// obstacle returns why the pods may not be evicted, or why that would not be enough; nil if it
// would.
func (b *blocked) obstacle() error {
	switch {
	case len(b.unknown) > 0:
		return fmt.Errorf("it is not known who holds the devices: %s", listed(b.unknown))
	case len(b.other) > 0:
		return fmt.Errorf("devices are held, and not by pods: %s", listed(b.other))
	case len(b.pods) > maxPods:
		return fmt.Errorf("%d pods hold the devices; expected at most %d", len(b.pods), maxPods)
	case len(b.pods) == 0:
		return errors.New("the exporter does not say who holds the devices")
	}

	return nil
}

// refusal says that pods are in the way and are not evicted.
func (b *blocked) refusal() error {
	return fmt.Errorf("pods hold the devices: %s; --evict evicts them", joinPods(b.pods))
}

func joinPods(pods []Pod) string {
	names := make([]string, len(pods))
	for i, p := range pods {
		names[i] = p.String()
	}

	return listed(names)
}

// listed joins the first of some texts.
func listed(texts []string) string {
	const shown = 5

	if len(texts) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:shown], ", "), len(texts)-shown)
	}

	return strings.Join(texts, ", ")
}

// busy returns the problem if an error says that devices are in use: an operation finds them busy, a
// plan is infeasible as long as they are.
func busy(err error) *api.Problem {
	var p *api.Problem
	if errors.As(err, &p) && (p.Type == api.Busy || p.Type == api.Infeasible && len(p.Blocking) > 0) {
		return p
	}

	return nil
}
