package nodelabels

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// How long the pods of paused clients have to end, as mig-manager has it, and how often we look.
const (
	clientsWait  = 5 * time.Minute
	firstLook    = time.Second
	longestLook  = 15 * time.Second
	restoreTries = 5
)

// pauseClients sets the labels of the clients that are deployed on the node to paused, with the
// state pending, and waits until their pods have ended. The values before are written to the node
// in the same request, so that they can be restored whatever happens to this process. A label with
// another value than true is left alone: nothing runs by it, or another program has paused it. So
// is one that the pod of this process is scheduled by.
func (f *Follower) pauseClients(ctx context.Context, r record) error {
	pods, err := f.o.Cluster.Pods(ctx)
	if err != nil {
		return fmt.Errorf("clients of the GPUs: %w", err)
	}

	keep := ownKeys(pods)
	if f.o.KeepsPlugin {
		keep = append(keep, devicePluginLabel)
	}

	var keys []string

	err = f.o.Cluster.ChangeNode(ctx, func(n Node) Change {
		before := map[string]string{}
		keys = nil

		c := Change{
			Labels:      map[string]string{stateLabel: string(Pending)},
			Annotations: map[string]string{attemptAnnotation: r.text(), reasonAnnotation: ""},
		}

		for _, key := range clientLabels() {
			if n.Labels[key] == deployed && !slices.Contains(keep, key) {
				before[key] = deployed
				c.Labels[key] = paused
				keys = append(keys, key)
			}
		}

		if len(before) > 0 {
			text, _ := json.Marshal(before)
			c.Annotations[pausedAnnotation] = string(text)
		}

		return c
	})
	if err != nil {
		return fmt.Errorf("pause clients of the GPUs: %w", err)
	}

	f.state = Pending
	// The next reading of the node comes after the change.
	f.o.Report(Status{Read: true, Config: r.Config, State: Pending, Applied: gpu.Some(false), Paused: keys})

	if len(keys) == 0 {
		return nil
	}

	level.Info(f.o.Logger).Log("msg", "paused clients of the GPUs", "labels", strings.Join(keys, ","))

	return f.awaitEnd(ctx, keys)
}

// awaitEnd waits until no pod of a DaemonSet that is scheduled by one of the labels is left.
func (f *Follower) awaitEnd(ctx context.Context, keys []string) error {
	ctx, cancel := context.WithTimeout(ctx, clientsWait)
	defer cancel()

	for look := f.firstLook; ; look = min(2*look, longestLook) {
		pods, err := f.o.Cluster.Pods(ctx)
		left := podsBy(pods, keys)

		if err == nil && len(left) == 0 {
			return nil
		}

		if retry.Sleep(ctx, look) == nil {
			continue
		}

		if err != nil {
			return fmt.Errorf("whether the paused clients have ended is not known: %w", err)
		}

		return fmt.Errorf("pods of paused clients have not ended: %s", strings.Join(left, ", "))
	}
}

// podsBy returns the names of the pods that DaemonSets have scheduled by one of the labels.
func podsBy(pods []Pod, keys []string) []string {
	var names []string

	for _, p := range pods {
		has := func(key string) bool { return slices.Contains(p.NodeKeys, key) }
		if p.DaemonSet && !p.Own && slices.ContainsFunc(keys, has) {
			names = append(names, p.Name)
		}
	}

	return names
}

// pausedClients returns the labels of the clients that are paused.
func pausedClients(n Node) (keys []string) {
	for _, key := range clientLabels() {
		if n.Labels[key] == paused {
			keys = append(keys, key)
		}
	}

	return keys
}

// pausedBefore returns the values that the labels which we have paused had before; false if the node
// says of none.
func pausedBefore(n Node) (map[string]string, bool) {
	text := n.Annotations[pausedAnnotation]
	before := map[string]string{}

	// Text that we did not write restores what we can have paused: only what is deployed is.
	if json.Unmarshal([]byte(text), &before) != nil {
		for _, key := range clientLabels() {
			before[key] = deployed
		}
	}

	return before, text != ""
}

// restoreLeft restores clients that are paused though no change is under way: those that another
// process of this program has paused, and those of a mig-manager that was removed in the middle of a
// change. mig-manager itself would restore them with its next one, and does while it runs.
func (f *Follower) restoreLeft(ctx context.Context, n Node) error {
	_, ours := pausedBefore(n)

	if len(pausedClients(n)) == 0 {
		if ours { // another program has restored them
			return f.restoreClients(ctx, false)
		}

		return nil
	}

	if !ours && !f.o.Apply {
		return nil
	}

	pods, err := f.o.Cluster.MIGManager(ctx)
	if err != nil || len(pods) > 0 {
		return err
	}

	return f.restoreClients(ctx, f.o.Apply)
}

// restoreClients gives the labels that we have paused their values before, unless another program
// has set them since. With all set, the others that are paused become deployed, too.
func (f *Follower) restoreClients(ctx context.Context, all bool) error {
	var restored int

	err := f.o.Cluster.ChangeNode(ctx, func(n Node) Change {
		before, ours := pausedBefore(n)
		restored = 0

		if !ours && !all {
			return Change{}
		}

		c := Change{
			Labels:      map[string]string{},
			Annotations: map[string]string{pausedAnnotation: ""},
		}

		for _, key := range pausedClients(n) {
			value, ok := before[key]
			if !ok && all {
				value = deployed
			}

			if value != "" {
				c.Labels[key] = value
				restored++
			}
		}

		return c
	})
	if err != nil {
		return fmt.Errorf("restore the clients of the GPUs: %w", err)
	}

	if restored > 0 {
		level.Info(f.o.Logger).Log("msg", "restored clients of the GPUs", "labels", restored)
	}

	return nil
}

// mustRestoreClients is restoreClients for the end of a change: it tries for a while, and once more
// for a moment when the program stops. If all attempts fail, the next reading of the node tries
// again.
func (f *Follower) mustRestoreClients(ctx context.Context) {
	wait := f.firstLook

	last, cancel := outlive(ctx, lastWrite)
	defer cancel()

	for try := 1; ; try++ {
		err := f.restoreClients(last, false)
		if err == nil {
			return
		}

		if try == restoreTries || ctx.Err() != nil {
			level.Error(f.o.Logger).Log("msg", "clients of the GPUs are still paused; trying again", "err", err)
			return
		}

		_ = retry.Sleep(ctx, wait)
		wait = min(2*wait, longestLook)
	}
}

// leftPaused returns, for people, which clients an exporter that has followed the label has left
// paused, and what to do; empty if there are none.
func leftPaused(n Node) string {
	before, ours := pausedBefore(n)
	var labels []string

	for _, key := range pausedClients(n) {
		if value := before[key]; value != "" {
			labels = append(labels, key+"="+value)
		}
	}

	if !ours || len(labels) == 0 {
		return ""
	}

	return fmt.Sprintf("clients of the GPUs are paused since an exporter with "+
		"--kubernetes.node-labels=follow has ended in the middle of a change: "+
		"set the node's labels %s and remove its annotation %s",
		strings.Join(labels, " "), pausedAnnotation)
}

// WatchPaused says which clients an exporter that has followed the label has left paused, until they
// are restored, and what to do. It is for an exporter that does not follow the label. It returns when
// ctx ends.
func WatchPaused(ctx context.Context, c Cluster, say func(note string)) error {
	wait := DefaultInterval

	for {
		n, err := c.Node(ctx, false)
		if err == nil {
			note := leftPaused(n)
			say(note)

			if note == "" {
				<-ctx.Done()
				return nil
			}
		}

		if retry.Sleep(ctx, wait) != nil {
			return nil //nolint:nilerr // the program stops
		}

		wait = min(2*wait, longestInterval)
	}
}
