package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// holders are the holders of instances in the way of a change, by what we can do about them.
type holders struct {
	pods    []Pod        // we can evict them
	unknown []heldDevice // unknown or unconfirmed holders
	other   []heldDevice // holders that are no pods: processes, batch jobs
}

// heldDevice is an instance in the way and one of its holders.
type heldDevice struct {
	instance *api.Blocker
	hold     api.Hold
}

// gpuIndexes are the indexes of a node's GPUs by UUID, as far as they are known.
type gpuIndexes map[string]int

// indexesOf asks a node's exporter for the indexes of its GPUs, for a message. If it does not answer, the
// message has UUIDs.
func indexesOf(ctx context.Context, e Exporter, node string) gpuIndexes {
	v, err := e.Inventory(ctx, node)
	if err != nil {
		return nil
	}

	return v.Indexes
}

// name returns the name of an instance in the way, "GPU 0 3g.20gb@4", or of a GPU that is in the way as
// a whole. If the index of the GPU is not known, the name has the instance's UUID.
func (g gpuIndexes) name(b *api.Blocker) string {
	index, isKnown := g[string(b.GPU)]

	switch {
	case b.Profile == "" && isKnown && b.Instance == string(b.GPU):
		return fmt.Sprintf("GPU %d", index)
	case b.Profile == "":
		return b.Instance
	case isKnown:
		return fmt.Sprintf("GPU %d %s@%d", index, b.Profile, b.Placement.Start)
	}

	return fmt.Sprintf("%s@%d (%s)", b.Profile, b.Placement.Start, b.Instance)
}

// describe describes held devices.
func (g gpuIndexes) describe(list []heldDevice) string {
	texts := make([]string, len(list))
	for i, d := range list {
		texts[i] = fmt.Sprintf("%s: %s", g.name(d.instance), describeHold(d.hold))
	}

	return joinFirst(texts)
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
	var other []heldDevice

	for _, h := range instance.Holders {
		device := heldDevice{instance, h}

		switch h.Kind {
		case api.HoldPod:
			if p, ok := podOf(h.What); ok {
				pods = append(pods, p)
			} else {
				b.unknown = append(b.unknown, device)
			}
		case api.HoldProcess, api.HoldHandle, api.HoldActivity:
			other = append(other, device)
		case api.HoldJob:
			b.other = append(b.other, device)
		default:
			b.unknown = append(b.unknown, device)
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

// isEnough reports whether it would be enough to evict the pods.
func (b *holders) isEnough() bool { return b.obstacle(nil) == nil }

// obstacle returns why it would not be enough to evict the pods; nil if it would.
func (b *holders) obstacle(indexes gpuIndexes) error {
	switch {
	case len(b.unknown) > 0:
		return fmt.Errorf("it is not known who holds the devices: %s", indexes.describe(b.unknown))
	case len(b.other) > 0:
		return fmt.Errorf("devices are held, and not by pods: %s", indexes.describe(b.other))
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
