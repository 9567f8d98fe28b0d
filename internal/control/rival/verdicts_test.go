package rival

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// answered judges what our program says of its operations after a request.
func (o *oracle) answered(r request, a answer) {
	o.note(r.Kind + " is over: " + a.Operation + refusal(a))

	if a.Error != "" {
		o.fault("%s", a.Error)
	}

	if a.Refused != nil {
		o.refused(a.Refused)
	}

	if a.Operations == nil {
		return
	}

	for _, doc := range slices.Backward(a.Operations.Operations) {
		o.adopt(&doc, a.Operation)
	}

	o.begun = nil
	for id, by := range a.Operations.Blocked {
		if op := o.byID(by); op == nil || op.gpus[slices.Index(o.uuids, id)] == nil ||
			!op.gpus[slices.Index(o.uuids, id)].touched {
			o.fault("%s is blocked by operation %s, which has not touched it", id, by)
		}
	}

	if a.Operations.State == "read-only" {
		o.fault("control is read-only: %s", a.Operations.Reason)
	}
}

func refusal(a answer) string {
	if a.Refused == nil {
		return ""
	}

	return "refused: " + a.Refused.Error()
}

func (o *oracle) byID(id string) *operation {
	for _, op := range o.ops {
		if op.id == id {
			return op
		}
	}

	return nil
}

// refused judges a refusal: an operation that is over, or that has not touched the GPUs in
// question, blocks none.
func (o *oracle) refused(p *api.Problem) {
	if p.Type != api.DegradedNode && p.Type != api.StuckNode || o.begun == nil {
		return
	}

	op := o.byID(p.Operation)
	for index := range o.begun.gpus {
		if op != nil && op.gpus[index] != nil && op.gpus[index].touched {
			return
		}
	}

	o.fault("a plan is refused (%s) for an operation that has touched none of its GPUs", p.Error())
}

// adopt takes in what the program says of an operation.
func (o *oracle) adopt(doc *api.Operation, started string) {
	op := o.byID(doc.ID)
	if op == nil {
		if o.begun == nil {
			o.fault("operation %s (%s) was not asked for", doc.ID, doc.Verb)
			return
		}

		op = o.begun
		o.begun = nil
		op.id = doc.ID
		o.ops = append(o.ops, op)
	}

	if op.closed || doc.State == op.state && doc.ID != started {
		return
	}

	op.state = doc.State
	o.outcomes[string(doc.Verb)+" "+string(doc.State)]++
	o.judge(op, doc)

	if op.end = o.now; doc.State.Final() {
		op.closed = true
	}
}

// judge compares the words of an operation with what is true.
func (o *oracle) judge(op *operation, doc *api.Operation) {
	if !doc.State.Final() && (doc.State != api.Degraded && doc.State != api.Stuck || doc.Error == nil) {
		o.fault("operation %s ends as %s, with the reason %v", doc.ID, doc.State, doc.Error)
	}

	for index, c := range op.gpus {
		state, current, listed := stateOf(doc, o.uuids[index])
		if !listed && doc.State != api.Succeeded && !op.accepted { // it says that it has nothing to do with the GPU
			state = api.Failed
		}

		switch {
		case listed || doc.Verb != api.VerbRollback:
		case c.changes > 0:
			o.fault("GPU %d: operation %s has changed it, and does not say so", index, doc.ID)
			continue
		default:
			continue
		}

		switch state {
		case api.Succeeded:
			if !o.seen[index][c.after] {
				o.fault("GPU %d: operation %s has succeeded, and %s never existed; %s does", index, doc.ID, c.after, o.trees[index])
			}
		case api.RolledBack:
			if !o.seen[index][c.before] {
				o.fault("GPU %d: operation %s is rolled back, and %s never existed again; %s does", index, doc.ID, c.before,
					o.trees[index])
			}
		case api.Failed:
			if c.changes > 0 && !op.accepted && !o.seen[index][c.before] { // if it does, the rival has made our change undone
				o.fault("GPU %d: operation %s has failed, which means that nothing was changed, after %d changes", index, doc.ID,
					c.changes)
			}
		case api.Accepted:
			if current != nil && !o.seen[index][current.String()] {
				o.fault("GPU %d: operation %s was accepted with %s, which never existed; %s does", index, doc.ID, current,
					o.trees[index])
			}
		case api.Interrupted:
			if !c.disturbed {
				o.fault("GPU %d: operation %s is interrupted, and nothing has happened", index, doc.ID)
			}

			if !o.seen[index][current.String()] {
				o.fault("GPU %d: operation %s says that %s exists, which it never did; %s does", index, doc.ID, current,
					o.trees[index])
			}
		}
	}
}

// stateOf is what became of a GPU, and whether the operation lists it; otherwise the operation's
// state is that of all.
func stateOf(doc *api.Operation, id gpu.UUID) (state api.OperationState, current tree, listed bool) {
	at := slices.IndexFunc(doc.GPUs, func(g api.OperationGPU) bool { return g.GPU == id })
	if at < 0 {
		return doc.State, nil, false
	}

	return doc.GPUs[at].State, treeOfAPI(doc.GPUs[at].Current), true
}

// finish judges what is left at the end: what the rival has reported as done and not changed
// itself.
func (o *oracle) finish() {
	for index := range o.uuids {
		now := partsOf(index, o.truth(index))
		for p, from := range o.parts {
			if p.gpu == index && from.claimed && !slices.Contains(now, p) {
				o.fault("GPU %d: what the rival has reported no longer exists: %+v", index, p)
			}
		}
	}
}
