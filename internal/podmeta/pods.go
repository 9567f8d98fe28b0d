package podmeta

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// linger is how long a pod is told that is missing in the API server's answers: the kubelet lists an ended pod for a moment
	// longer.
	linger = 10 * time.Second
	// forget is how long a pod or a claim is remembered that nothing asks for.
	forget = 5 * time.Minute
	// current is how recently a pod must have been asked for to be one that the kubelet lists.
	current = time.Minute
	// maxAge is how long PodByUID uses an answer.
	maxAge = 3 * interval
)

// podID identifies a pod by its UID and its name; either may be empty.
type podID struct {
	podName
	uid string
}

// entry is a pod of the last answer, or one that was in an earlier answer.
type entry struct {
	gpu.PodMetadata
	told      time.Time // when the last request was started whose answer had it
	confirmed time.Time // when the last request for a consistent list was, whose answer had it
	gone      time.Time // when the first request was whose answer did not have it any more; zero if it is in the last answer
}

// question is a pod that is asked for.
type question struct {
	since time.Time // an answer must be from a request that was started then or later
	first time.Time // when it was first asked for with this since
	last  time.Time // when it was last asked for
	due   time.Time // when a list is to be started for it; zero if none is needed
	gap   time.Duration
	// Of PodMetadata: the UID that was told last, and the one that was told last with an earlier since.
	uid, former string
}

// before returns the earlier of at and the time when a list is due for q.
func (q *question) before(at time.Time) time.Time {
	if !q.due.IsZero() && q.due.Before(at) {
		return q.due
	}
	return at
}

// renew notes that q is asked for, and reports whether since is later than before.
func (q *question) renew(since, now time.Time) bool {
	q.last = now
	if !q.first.IsZero() && !since.After(q.since) {
		return false
	}
	q.since, q.first, q.due, q.gap = since, now, time.Time{}, 0
	return true
}

// request makes a list due soon, unless one is due already.
func (p *Poller) request(q *question, now time.Time) {
	if q.due.IsZero() {
		q.due = now.Add(gather)
		notify(p.wake)
	}
}

// notify wakes the goroutine that reads c, unless it has been woken already.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// PodMetadata implements podresources.Metadata. A later since than before asks for the pod anew: what was known under the name is
// withheld until an answer has it, and if that is from a cache and has the pod that was told before, until a consistent list
// has it too.
func (p *Poller) PodMetadata(namespace, pod string, since time.Time) (gpu.PodMetadata, bool) {
	name, now := podName{namespace, pod}, time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.asked[name]
	if q == nil {
		q = &question{}
		p.asked[name] = q
	}
	if q.renew(since, now) {
		q.former = q.uid
	}
	known, ok := p.known(name, q, since)
	if !ok {
		p.request(q, now)
		return gpu.PodMetadata{}, false
	}
	p.found = true
	if !since.Before(q.since) {
		q.due, q.uid = time.Time{}, known.UID
	}
	return known.PodMetadata, true
}

// known returns the pod that was in an answer to a request started at since or later.
func (p *Poller) known(name podName, q *question, since time.Time) (entry, bool) {
	e, ok := p.pods[name]
	if !ok || e.told.Before(since) || !since.Before(q.since) && q.doubts(e) {
		return entry{}, false
	}
	return e, true
}

// doubts reports whether e may be the predecessor of the pod that is asked for, which a cache still has.
func (q *question) doubts(e entry) bool {
	return e.UID != "" && e.UID == q.former && e.confirmed.Before(q.since)
}

// succeeded reports whether e is known to have replaced the pod of a UID.
func (q *question) succeeded(e entry, uid string) bool {
	return uid != "" && uid == q.former && e.UID != "" && e.UID != uid && !e.told.Before(q.since)
}

// PodByUID implements podresources.Metadata.
func (p *Poller) PodByUID(uid string) (namespace, pod string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil || time.Since(p.last.started) > maxAge {
		return "", "", false
	}
	name, ok := p.last.uids[uid]
	p.right = p.right || ok
	return name.namespace, name.name, ok
}

// PodGone implements podresources.Metadata. Only a consistent list proves that a pod is gone, since a cache may lag behind; and none
// does before a pod that is known to be on this node has been in an answer, since every pod is missing under a wrong node name.
func (p *Poller) PodGone(namespace, pod, uid string, since time.Time) bool {
	id, now := podID{podName: podName{namespace, pod}, uid: uid}, time.Now()
	if uid == "" && pod == "" {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.leaving[id]
	if q == nil {
		q = &question{}
		p.leaving[id] = q
	}
	q.renew(since, now)
	if p.gone(id, since) {
		return true
	}
	p.request(q, now)
	return false
}

// gone reports whether a consistent list started at since or later has proved that the pod is gone.
func (p *Poller) gone(id podID, since time.Time) bool {
	return p.isRightNode() && p.proof != nil && !p.proof.started.Before(since) && !p.proof.has(id)
}

// isRightNode reports whether a pod that is on this node for sure has been in an answer. A name may be that of another node's pod; it
// counts only if the UID of the own pod is not known.
func (p *Poller) isRightNode() bool {
	return p.right || p.found && p.last.anonymous
}

// needsProof reports whether the next list is to be a consistent one. None is needed for a pod that the last answer still has.
func (p *Poller) needsProof() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.noProof) {
		return false
	}
	for id, q := range p.leaving {
		if !q.due.IsZero() && (p.proof == nil || p.proof.started.Before(q.since) || p.proof.has(id) && !p.last.has(id)) {
			return true
		}
	}
	for name, q := range p.asked {
		if e, ok := p.pods[name]; ok && !q.due.IsZero() && q.doubts(e) {
			return true
		}
	}
	return false
}

// accept takes an answer.
func (p *Poller) accept(got *answer) {
	pods := make(map[podName]entry, len(got.pods))
	for name, e := range p.pods {
		if e.gone.IsZero() {
			e.gone = got.started
		}
		if got.started.Sub(e.gone) < linger {
			pods[name] = e
		}
	}
	for name, m := range got.pods {
		was := p.pods[name]
		if q := p.asked[name]; q != nil && q.succeeded(was, m.UID) {
			pods[name] = was // a cache that lags behind has the predecessor
			continue
		}
		e := entry{PodMetadata: m, told: got.started}
		if was.UID == m.UID {
			e.confirmed = was.confirmed
		}
		if got.consistent {
			e.confirmed = got.started
		}
		pods[name] = e
	}
	p.pods, p.last, p.right = pods, got, p.right || got.own
	if got.consistent {
		p.proof = got
	}
}

// settle plans, after an answer, when to ask for what was not in it, and forgets what nothing asks for any more.
func (p *Poller) settle(now time.Time) {
	for name, q := range p.asked {
		if now.Sub(q.last) > forget {
			delete(p.asked, name)
			continue
		}
		_, ok := p.known(name, q, q.since)
		q.postpone(ok, p.last.started, now)
	}
	for id, q := range p.leaving {
		if now.Sub(q.last) > forget {
			delete(p.leaving, id)
			continue
		}
		_, there := p.last.uids[id.uid]
		p.right = p.right || there
		q.postpone(p.gone(id, q.since), p.last.started, now)
	}
}

// postpone notes that a list which was started at a time has answered q or not.
func (q *question) postpone(answered bool, started, now time.Time) {
	switch {
	case answered, now.Sub(q.last) > current:
		q.due = time.Time{}
	case !q.due.IsZero() && !started.Before(q.first):
		q.gap = nextGap(q.gap)
		q.due = now.Add(q.gap)
	}
}
