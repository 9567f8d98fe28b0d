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

const (
	// clientsWait is how long we wait for the pods of paused clients to end, as mig-manager does.
	clientsWait = 5 * time.Minute
	// firstLook is the time before we look again whether they have ended, or try again to restore
	// clients. It doubles up to longestLook.
	firstLook   = time.Second
	longestLook = 15 * time.Second
	// restoreTries is how often we try to restore clients at the end of a change.
	restoreTries = 5
)

// pauseClients sets the labels of the clients that are deployed on the node to paused, and the state
// to pending, and waits until the clients' pods have ended. It writes the labels' former values to
// the node in the same request, so that they can be restored whatever happens to this process. It
// leaves labels with another value alone: then no client runs, or another program has paused it. It
// also leaves labels alone that the pod of this process requires.
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
	// We report it here, since we read the node again only after the change.
	f.o.Report(Status{Read: true, Config: r.Config, State: Pending, Applied: gpu.Some(false), Paused: keys})

	if len(keys) == 0 {
		return nil
	}

	level.Info(f.o.Logger).Log("msg", "paused clients of the GPUs", "labels", strings.Join(keys, ","))

	return f.awaitEnd(ctx, keys)
}

// awaitEnd blocks until there is no pod of a DaemonSet left that requires one of the labels.
func (f *Follower) awaitEnd(ctx context.Context, keys []string) error {
	ctx, cancel := context.WithTimeout(ctx, clientsWait)
	defer cancel()

	for wait := f.firstLook; ; wait = min(2*wait, longestLook) {
		pods, err := f.o.Cluster.Pods(ctx)
		left := podsRequiring(pods, keys)

		if err == nil && len(left) == 0 {
			return nil
		}

		if retry.Sleep(ctx, wait) == nil {
			continue
		}

		if err != nil {
			return fmt.Errorf("whether the paused clients have ended is not known: %w", err)
		}

		return fmt.Errorf("pods of paused clients have not ended: %s", strings.Join(left, ", "))
	}
}

// podsRequiring returns the names of the pods of DaemonSets that require one of the labels.
func podsRequiring(pods []Pod, keys []string) []string {
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

// pausedByUs returns the labels that we have paused, with their former values. ours is false if the
// node has no annotation about them: it may then be mig-manager that has paused them.
func pausedByUs(n Node) (before map[string]string, ours bool) {
	text := n.Annotations[pausedAnnotation]
	before = map[string]string{}

	// If there is no text or we cannot read it, we take all clients for paused: they were deployed
	// before, since we pause no others.
	if json.Unmarshal([]byte(text), &before) != nil {
		for _, key := range clientLabels() {
			before[key] = deployed
		}
	}

	return before, text != ""
}

// restoreLeft restores clients that are paused although no change is under way. Another process of
// this program has paused them, or a mig-manager that was removed in the middle of a change. While
// mig-manager runs, it restores them itself. With --control.mode=plan we report them alone, as notes
// do.
func (f *Follower) restoreLeft(ctx context.Context, n Node) error {
	if !f.o.Apply {
		return nil
	}

	if len(pausedClients(n)) == 0 {
		if _, ours := pausedByUs(n); ours { // another program has restored them: only the annotation is left
			return f.restoreClients(ctx, false)
		}

		return nil
	}

	pods, err := f.o.Cluster.MIGManager(ctx)
	if err != nil || len(pods) > 0 {
		return err
	}

	return f.restoreClients(ctx, true)
}

// restoreClients gives the labels that we have paused their former values, unless another program
// has set them since. With all set, it also deploys clients that others have paused.
func (f *Follower) restoreClients(ctx context.Context, all bool) error {
	var restored int

	err := f.o.Cluster.ChangeNode(ctx, func(n Node) Change {
		before, ours := pausedByUs(n)
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

// mustRestoreClients is restoreClients for the end of a change: it tries restoreTries times. When the
// program stops, it tries once more. If all attempts fail, restoreLeft tries again after the next
// reading of the node.
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

// leftPaused says, for people, which clients are still paused because an exporter that followed the
// label has ended, and what to do. It returns "" if there are none.
func leftPaused(n Node) string {
	before, ours := pausedByUs(n)
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

// WatchPaused is for an exporter that does not follow the label. If an earlier one did, and has left
// clients paused, WatchPaused calls say with a note about them and what to do, until they are
// restored; then with "". It returns when ctx ends.
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
