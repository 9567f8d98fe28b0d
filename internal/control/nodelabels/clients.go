package nodelabels

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-kit/log/level"

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

// restoreClients gives the labels that we have paused their values before, unless another program
// has set them since.
func (f *Follower) restoreClients(ctx context.Context) error {
	var restored int

	err := f.o.Cluster.ChangeNode(ctx, func(n Node) Change {
		restored = 0

		if n.Annotations[pausedAnnotation] == "" {
			return Change{}
		}

		c := Change{
			Labels:      map[string]string{},
			Annotations: map[string]string{pausedAnnotation: ""},
		}

		before := map[string]string{}
		// Text that we did not write restores what we can have paused: only what is deployed is.
		if json.Unmarshal([]byte(n.Annotations[pausedAnnotation]), &before) != nil {
			for _, key := range clientLabels() {
				before[key] = deployed
			}
		}

		for _, key := range clientLabels() {
			if value, ok := before[key]; ok && n.Labels[key] == paused {
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

// mustRestoreClients is restoreClients for the end of a change: it tries for a while, also while
// the program stops. If all attempts fail, the next reading of the node tries again.
func (f *Follower) mustRestoreClients(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	wait := f.firstLook

	for try := 1; ; try++ {
		err := f.restoreClients(ctx)
		if err == nil {
			return
		}

		if try == restoreTries {
			level.Error(f.o.Logger).Log("msg", "clients of the GPUs are still paused; trying again", "err", err)
			return
		}

		_ = retry.Sleep(ctx, wait)
		wait = min(2*wait, longestLook)
	}
}
