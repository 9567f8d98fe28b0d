package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// holders are the holders of instances in the way of a change, by what we can do about them.
type holders struct {
	pods    []Pod    // we can evict them
	unknown []string // unknown or unconfirmed holders
	other   []string // holders that are no pods: processes, batch jobs
}

// sortHolders sorts the holders of the instances in the way.
func sortHolders(list []api.Blocker) holders {
	var b holders

	for i := range list {
		b.add(&list[i])
	}

	slices.SortFunc(b.pods, func(x, y Pod) int { return strings.Compare(x.String(), y.String()) })
	b.pods = slices.Compact(b.pods)

	return b
}

// add adds the holders of one instance. If a pod holds the instance, we take its processes and its
// activity for the pod's: they end with it.
func (b *holders) add(instance *api.Blocker) {
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

// podOf returns the pod that a hold names as "ml/train-0 (main)".
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

// obstacle returns why it would not be enough to evict the pods; nil if it would.
func (b *holders) obstacle() error {
	switch {
	case len(b.unknown) > 0:
		return fmt.Errorf("it is not known who holds the devices: %s", joinFirst(b.unknown))
	case len(b.other) > 0:
		return fmt.Errorf("devices are held, and not by pods: %s", joinFirst(b.other))
	case len(b.pods) > maxPods:
		return fmt.Errorf("%d pods hold the devices; expected at most %d", len(b.pods), maxPods)
	case len(b.pods) == 0:
		return errors.New("the exporter does not say who holds the devices")
	}

	return nil
}

// refusal returns the error for pods in the way that we may not evict.
func (b *holders) refusal() error {
	return fmt.Errorf("pods hold the devices: %s; --evict evicts them", joinPods(b.pods))
}

func joinPods(pods []Pod) string {
	names := make([]string, len(pods))
	for i, p := range pods {
		names[i] = p.String()
	}

	return joinFirst(names)
}

// joinFirst joins the first five texts, and says how many more there are.
func joinFirst(texts []string) string {
	const shown = 5

	if len(texts) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:shown], ", "), len(texts)-shown)
	}

	return strings.Join(texts, ", ")
}

// asBusy returns the problem if an error says that devices are in use: the exporter's problem is
// "busy" for an operation, "infeasible" with the instances in the way for a plan. Else it returns
// nil.
func asBusy(err error) *api.Problem {
	var p *api.Problem
	if errors.As(err, &p) && (p.Type == api.Busy || p.Type == api.Infeasible && len(p.Blocking) > 0) {
		return p
	}

	return nil
}
