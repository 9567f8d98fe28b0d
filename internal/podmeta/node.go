package podmeta

import (
	"context"
	"time"
)

// misnamedAfter is how long pods are looked for before their absence speaks against the name of the node.
const misnamedAfter = 10 * time.Second

// isNodeNameSuspect reports, after an answer, whether no pod that the kubelet lists has ever been in one, and all have been asked for
// long enough.
func (p *Poller) isNodeNameSuspect(now time.Time) bool {
	listed, recent := false, false
	for name, q := range p.lookups {
		if _, ok := p.lastList.pods[name]; ok {
			p.foundByName = true
		}
		if now.Sub(q.lastAsked) <= recentlyAsked {
			listed = true
			recent = recent || p.lastList.started.Sub(q.firstAsked) < misnamedAfter
		}
	}
	suspect := listed && !recent && !p.foundByName && !p.foundByUID
	p.misnamed = p.misnamed && suspect
	return suspect
}

// checkNodeName looks for the pods that are asked for among all pods of the node: a kubelet may list pods that have ended, which
// other answers leave out.
func (p *Poller) checkNodeName(ctx context.Context) {
	if p.limit.Wait(ctx) != nil {
		return // ctx has ended
	}
	all, err := p.api.listPodNames(ctx)
	if err != nil {
		return // the next list says why
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
