package control

import (
	"crypto/rand"
	"slices"
	"strings"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

const (
	maxPlansPerCaller = 32
	maxPlanCallers    = 32
)

// planned is a plan, and what we need to apply it.
type planned struct {
	plan  *api.Plan
	facts []string // that the plan was made from, see collectFacts
	after []layout // the planned layouts of the plan's GPUs
}

// plans keeps the latest plans of the latest callers. A caller with maxPlansPerCaller plans loses
// its oldest one with the next. If there are maxPlanCallers and another one plans, the caller that
// has not planned for the longest time loses all of its plans. Callers are identities that the
// operator has given the right to plan, so a single one of them cannot pose as many.
type plans struct {
	mu      sync.Mutex
	byID    map[string]*planned
	callers []callerPlans // the one that has planned last is at the end
}

// callerPlans are the ids of a caller's plans, the oldest first.
type callerPlans struct {
	name string
	ids  []string
}

func (p *plans) add(caller string, n *planned) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.byID == nil {
		p.byID = map[string]*planned{}
	}

	own := callerPlans{name: caller}

	i := slices.IndexFunc(p.callers, func(c callerPlans) bool { return c.name == caller })
	if i >= 0 {
		own = p.callers[i]
		p.callers = slices.Delete(p.callers, i, i+1)
	}

	if len(p.callers) == maxPlanCallers {
		p.remove(p.callers[0].ids)
		p.callers = slices.Delete(p.callers, 0, 1)
	}

	if len(own.ids) == maxPlansPerCaller {
		p.remove(own.ids[:1])
		own.ids = slices.Delete(own.ids, 0, 1)
	}

	own.ids = append(own.ids, n.plan.ID)
	p.callers = append(p.callers, own)
	p.byID[n.plan.ID] = n
}

func (p *plans) remove(ids []string) {
	for _, id := range ids {
		delete(p.byID, id)
	}
}

func (p *plans) get(id string) (*planned, *api.Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()

	n, ok := p.byID[id]
	if !ok {
		return nil, problemf(
			api.NotFound,
			"this node has no plan %q: it was made for another node, before a restart, or many "+
				"plans of its caller ago; plan again",
			id,
		)
	}

	return n, nil
}

// newID returns an unguessable id: only a caller that was given a plan's id can know it.
func newID() string { return strings.ToLower(rand.Text()) }
