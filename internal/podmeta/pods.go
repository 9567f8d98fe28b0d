package podmeta

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

const (
	// keepMissing is how long we keep a pod after the API server stopped listing it: the kubelet
	// lists an ended pod for a moment longer.
	keepMissing = 10 * time.Second
	// forgetAfter is how long we remember a lookup after a caller last asked for it.
	forgetAfter = 5 * time.Minute
	// recentlyAsked is how long we list again for an unanswered lookup after a caller last asked
	// for it.
	recentlyAsked = time.Minute
	// maxListAge is how long PodByUID and BoundPods use a list.
	maxListAge = 3 * interval
	// boundEvery is how often we list the pods while a caller keeps calling BoundPods: the caller
	// waits for one of the pods to end.
	boundEvery = 5 * time.Second
)

// podID identifies a pod by its UID and its name; either may be empty.
type podID struct {
	podName
	uid string
}

// podEntry is a pod of the last list, or of an earlier one. Each of its times is when we started a
// list.
type podEntry struct {
	gpu.PodMetadata
	seenAt       time.Time // the last list that had it
	confirmedAt  time.Time // the last consistent list that had it
	missingSince time.Time // the first list without it; zero if the last list has it
}

// lookup is what callers ask about a pod or a claim, and when we ask the API server for it.
type lookup struct {
	since      time.Time     // only an answer that we asked for then or later counts
	firstAsked time.Time     // when a caller first asked with this since
	lastAsked  time.Time     // when a caller last asked
	due        time.Time     // when we ask the API server next; zero if there is no need
	retry      retry.Backoff // spaces the requests that do not answer it
	// lastUID is what PodMetadata returned last; formerUID is what it returned last for an earlier
	// since.
	lastUID, formerUID string
}

// earlierDue returns due or, if it is earlier, the time when a list is due for l.
func (l *lookup) earlierDue(due time.Time) time.Time {
	if !l.due.IsZero() && l.due.Before(due) {
		return l.due
	}

	return due
}

// renew records that a caller asked, and reports whether it did so with a later since than before.
// Then earlier answers no longer count.
func (l *lookup) renew(since, now time.Time) bool {
	l.lastAsked = now
	if !l.firstAsked.IsZero() && !since.After(l.since) {
		return false
	}

	l.since = since
	l.firstAsked = now
	l.due = time.Time{}
	l.retry = retry.Backoff{}

	return true
}

// schedule makes a list due soon, unless one is due already.
func (p *Poller) schedule(l *lookup, now time.Time) {
	if l.due.IsZero() {
		l.due = now.Add(batchDelay)
		wakeUp(p.wake)
	}
}

// wakeUp wakes the goroutine that receives from c. It does not block: one message in c is enough.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// PodMetadata implements podresources.Metadata. If since is later than in earlier calls, it returns
// nothing until a new list has answered. If that list came from the cache and still has the pod
// that we returned before, a consistent list must confirm it: the cache may lag behind.
func (p *Poller) PodMetadata(namespace, pod string, since time.Time) (gpu.PodMetadata, bool) {
	name := podName{namespace, pod}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()

	l := p.lookups[name]
	if l == nil {
		l = &lookup{}
		p.lookups[name] = l
	}

	if l.renew(since, now) {
		l.formerUID = l.lastUID
	}

	known, ok := p.findPod(name, l, since)
	if !ok {
		p.schedule(l, now)
		return gpu.PodMetadata{}, false
	}

	p.foundByName = true

	if !since.Before(l.since) {
		l.due = time.Time{}
		l.lastUID = known.UID
	}

	return known.PodMetadata, true
}

// findPod returns the pod if we started the last list that had it at since or later. A possible
// predecessor counts only for a since before l.since: then it is the pod that the caller means.
func (p *Poller) findPod(name podName, l *lookup, since time.Time) (podEntry, bool) {
	e, ok := p.pods[name]
	if !ok || e.seenAt.Before(since) || !since.Before(l.since) && l.mayBePredecessor(e) {
		return podEntry{}, false
	}

	return e, true
}

// mayBePredecessor reports whether e may be an earlier pod of the same name, which the cache still
// has.
func (l *lookup) mayBePredecessor(e podEntry) bool {
	return e.UID != "" && e.UID == l.formerUID && e.confirmedAt.Before(l.since)
}

// isSuccessor reports whether we know that e has replaced the pod with a UID.
func (l *lookup) isSuccessor(e podEntry, uid string) bool {
	return uid != "" && uid == l.formerUID && e.UID != "" && e.UID != uid &&
		!e.seenAt.Before(l.since)
}

// PodByUID implements podresources.Metadata.
func (p *Poller) PodByUID(uid string) (namespace, pod string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.lastList == nil || time.Since(p.lastList.started) > maxListAge {
		return "", "", false
	}

	name, ok := p.lastList.uids[uid]
	p.foundByUID = p.foundByUID || ok

	return name.namespace, name.name, ok
}

// PodGone implements podresources.Metadata. Only a consistent list proves that a pod is gone: a
// cache may lag behind. With a wrong node name every pod would be missing: lists prove nothing
// until one has had a pod that is certainly on this node.
func (p *Poller) PodGone(namespace, pod, uid string, since time.Time) bool {
	id := podID{podName: podName{namespace, pod}, uid: uid}
	now := time.Now()

	if uid == "" && pod == "" {
		return false
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	l := p.goneLookups[id]
	if l == nil {
		l = &lookup{}
		p.goneLookups[id] = l
	}

	l.renew(since, now)

	if p.isProvedGone(id, since) {
		return true
	}

	p.schedule(l, now)

	return false
}

// BoundPods implements podresources.Metadata. As with PodGone, only a consistent list counts as
// current. It returns no pods until we know that the node name is right: they may be another
// node's.
func (p *Poller) BoundPods(since time.Time) (pods []gpu.PodName, current bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()

	p.boundLookup.renew(since, now)
	current = p.hasCurrentPods(since)

	if !current || now.Sub(p.lastList.started) >= boundEvery {
		p.schedule(&p.boundLookup, now)
	}

	if p.lastList == nil || !p.isNodeNameProved() ||
		!current && now.Sub(p.lastList.started) > maxListAge {
		return nil, false
	}

	for name := range p.lastList.pods {
		pods = append(pods, gpu.PodName{Namespace: name.namespace, Name: name.name})
	}

	slices.SortFunc(pods, func(a, b gpu.PodName) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})

	return pods, current
}

// hasConsistentList reports whether we started the last consistent list at since or later.
func (p *Poller) hasConsistentList(since time.Time) bool {
	return p.lastConsistent != nil && !p.lastConsistent.started.Before(since)
}

// hasCurrentPods reports whether a consistent list of the right node was started at since or later.
func (p *Poller) hasCurrentPods(since time.Time) bool {
	return p.hasConsistentList(since) && p.isNodeNameProved()
}

// isProvedGone reports whether a consistent list that was started at since or later proves that the
// pod is gone.
func (p *Poller) isProvedGone(id podID, since time.Time) bool {
	return p.hasCurrentPods(since) && !p.lastConsistent.hasPod(id)
}

// isNodeNameProved reports whether a list has had a pod that is certainly on this node. A pod that
// we found by name alone may be another node's; it counts only if we do not know the UID of our own
// pod.
func (p *Poller) isNodeNameProved() bool {
	return p.foundByUID || p.foundByName && p.lastList.ownUIDUnknown
}

// needsConsistentList reports whether the next list must be consistent for a lookup that is due. We
// avoid that otherwise: it costs the API server more.
func (p *Poller) needsConsistentList() bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if time.Now().Before(p.noConsistentBefore) {
		return false
	}

	if l := &p.boundLookup; !l.due.IsZero() && !p.hasConsistentList(l.since) {
		return true
	}

	// Once a consistent list has had the pod, we need another only if a later list lacks it.
	for id, l := range p.goneLookups {
		if !l.due.IsZero() &&
			(!p.hasConsistentList(l.since) ||
				p.lastConsistent.hasPod(id) && !p.lastList.hasPod(id)) {
			return true
		}
	}

	for name, l := range p.lookups {
		if e, ok := p.pods[name]; ok && !l.due.IsZero() && l.mayBePredecessor(e) {
			return true
		}
	}

	return false
}

// mergeList replaces the known pods by those of a list, and keeps missing ones for keepMissing.
func (p *Poller) mergeList(got *podList) {
	pods := make(map[podName]podEntry, len(got.pods))

	for name, e := range p.pods {
		if e.missingSince.IsZero() {
			e.missingSince = got.started
		}

		if got.started.Sub(e.missingSince) < keepMissing {
			pods[name] = e
		}
	}

	for name, m := range got.pods {
		before := p.pods[name]
		if l := p.lookups[name]; l != nil && l.isSuccessor(before, m.UID) {
			pods[name] = before // the list is from a cache that lags behind and has the predecessor
			continue
		}

		e := podEntry{PodMetadata: m, seenAt: got.started}
		if before.UID == m.UID {
			e.confirmedAt = before.confirmedAt
		}

		if got.consistent {
			e.confirmedAt = got.started
		}

		pods[name] = e
	}

	p.pods = pods
	p.lastList = got
	p.foundByUID = p.foundByUID || got.hasOwnPod

	if got.consistent {
		p.lastConsistent = got
	}
}

// rescheduleLookups decides, after a list, when to list again for the lookups that it did not
// answer, and forgets old lookups.
func (p *Poller) rescheduleLookups(now time.Time) {
	for name, l := range p.lookups {
		if now.Sub(l.lastAsked) > forgetAfter {
			delete(p.lookups, name)
			continue
		}

		_, answered := p.findPod(name, l, l.since)
		l.reschedule(answered, p.lastList.started, now)
	}

	p.boundLookup.reschedule(p.hasCurrentPods(p.boundLookup.since), p.lastList.started, now)

	for id, l := range p.goneLookups {
		if now.Sub(l.lastAsked) > forgetAfter {
			delete(p.goneLookups, id)
			continue
		}

		// The kubelet named this UID, so a list that has it is of the right node.
		_, listed := p.lastList.uids[id.uid]
		p.foundByUID = p.foundByUID || listed
		l.reschedule(p.isProvedGone(id, l.since), p.lastList.started, now)
	}
}

// reschedule decides when a list is due for l next, after a list that began at started. answered is
// whether that list has answered l.
func (l *lookup) reschedule(answered bool, started, now time.Time) {
	switch {
	case answered, now.Sub(l.lastAsked) > recentlyAsked:
		l.due = time.Time{}
	case !l.due.IsZero() && !started.Before(l.firstAsked):
		l.retry.Postpone(now, firstGap, interval)
		l.due = l.retry.Next
	}
}
