package podmeta

import (
	"context"
	"time"
)

// misnamedAfter is how long pods are looked up without success before the name of the node is in
// doubt.
const misnamedAfter = 10 * time.Second

// isNodeNameSuspect reports, after a list, whether no list has ever had a pod that the kubelet
// lists, although all of them have been looked up for misnamedAfter.
func (p *Poller) isNodeNameSuspect(now time.Time) bool {
	listed := false
	recent := false

	for name, l := range p.lookups {
		if _, ok := p.lastList.pods[name]; ok {
			p.foundByName = true
		}

		if now.Sub(l.lastAsked) <= recentlyAsked {
			listed = true
			recent = recent || p.lastList.started.Sub(l.firstAsked) < misnamedAfter
		}
	}

	suspect := listed && !recent && !p.foundByName && !p.foundByUID
	p.misnamed = p.misnamed && suspect

	return suspect
}

// checkNodeName searches all pods of the node for the looked-up pods: a kubelet may list pods that
// have ended, which other lists leave out.
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
