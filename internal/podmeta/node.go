package podmeta

import (
	"context"
	"time"
)

// misnamedAfter is how long pods are looked for before their absence speaks against the name of the node.
const misnamedAfter = 10 * time.Second

// suspectNode reports, after an answer, whether no pod that the kubelet lists has ever been in one, and all have been asked for
// long enough.
func (p *Poller) suspectNode(now time.Time) bool {
	listed, recent := false, false
	for name, q := range p.asked {
		if _, ok := p.last.pods[name]; ok {
			p.found = true
		}
		if now.Sub(q.last) <= current {
			listed = true
			recent = recent || p.last.started.Sub(q.first) < misnamedAfter
		}
	}
	suspect := listed && !recent && !p.found && !p.right
	p.misnamed = p.misnamed && suspect
	return suspect
}

// checkNode looks for the pods that are asked for among all pods of the node: a kubelet may list pods that have ended, which
// other answers leave out.
func (p *Poller) checkNode(ctx context.Context) {
	if p.limit.Wait(ctx) != nil {
		return // ctx has ended
	}
	all, err := p.api.names(ctx)
	if err != nil {
		return // the next list says why
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.asked {
		if all[name] {
			p.found = true
		}
	}
	p.misnamed = !p.found && !p.right
}
