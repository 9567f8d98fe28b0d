package podmeta

import (
	"context"
	"time"
)

// misnamedAfter is how long we look up pods without success before we doubt the name of the node.
const misnamedAfter = 10 * time.Second

// isNodeNameSuspect reports whether the configured name of the node may be wrong: callers have
// looked up pods of the kubelet for at least misnamedAfter, and no list has ever had one of them.
// It also updates foundByName by the last list, and clears misnamed once the name is above
// suspicion.
func (p *Poller) isNodeNameSuspect(now time.Time) bool {
	anyAsked := false
	anyTooNew := false // a caller has asked for less than misnamedAfter

	for name, l := range p.lookups {
		if _, ok := p.lastList.pods[name]; ok {
			p.foundByName = true
		}

		if now.Sub(l.lastAsked) <= recentlyAsked {
			anyAsked = true
			anyTooNew = anyTooNew || p.lastList.started.Sub(l.firstAsked) < misnamedAfter
		}
	}

	suspect := anyAsked && !anyTooNew && !p.foundByName && !p.foundByUID
	p.misnamed = p.misnamed && suspect

	return suspect
}

// checkNodeName sets misnamed. It searches all pods of the node for the pods that callers look up:
// the kubelet may list pods that have ended, which other lists leave out.
func (p *Poller) checkNodeName(ctx context.Context) {
	if p.limit.Wait(ctx) != nil {
		return // ctx has ended
	}

	all, err := p.api.listPodNames(ctx)
	if err != nil {
		return // the next list fails for the same reason
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	for name := range p.lookups {
		if all[name] {
			p.foundByName = true
		}
	}

	p.misnamed = !p.foundByName && !p.foundByUID
}
