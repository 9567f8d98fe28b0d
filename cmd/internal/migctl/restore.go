package migctl

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// restoreLayouts shows the named GPUs, or by default all whose layout is not restored; asks the
// operator; and restores them, each by an operation of its own. It goes on if one fails.
func (s *session) restoreLayouts(ctx context.Context) error {
	list, ids, err := s.chooseRestorable(ctx)
	if err != nil {
		return err
	}

	if len(ids) == 0 {
		s.page.paragraph(
			"",
			plain,
			"Nothing to restore: no GPU is known to lack the layout that operations have made.",
		)

		return nil
	}

	for _, id := range ids {
		s.page.line(text("%s", id).in(bold))
		writeUnrestored(s.page, "  ", findUnrestored(list, id))
	}

	s.page.line()

	question := "Restore the layout of "

	if s.opts.Forget {
		s.page.paragraph(
			"! ",
			yellow,
			"Nothing is changed on any GPU. These GPUs are not restored after a reboot any more, "+
				"until an operation gives them a layout again.",
		)

		question = "Forget the layout of "
	} else {
		s.page.paragraph(
			"! ",
			yellow,
			"Nothing is destroyed: what is missing of each layout is created. A GPU that has "+
				"instances of another layout is refused.",
		)
	}

	s.page.line()

	if err := s.askOperator(ctx, question+nodedoc.Count(len(ids), "GPU", "GPUs")+"?"); err != nil {
		return err
	}

	if s.opts.Forget {
		return s.forgetEach(ctx, ids)
	}

	return s.restoreEach(ctx, ids)
}

// chooseRestorable returns the list of GPUs whose layout is not restored, and the UUIDs of the GPUs
// to restore: those that the operator has named, or all of the list if none is named.
func (s *session) chooseRestorable(
	ctx context.Context,
) (list []api.Unrestored, ids []gpu.UUID, err error) {
	var operations api.Operations
	if err := s.client.fetch(ctx, "/operations", &operations); err != nil {
		return nil, nil, err
	}

	list = operations.Unrestored

	if len(s.opts.GPUs) == 0 {
		if s.opts.Forget {
			return nil, nil, usageError{
				"--forget needs the GPUs by name: index, UUID or PCI bus id",
			}
		}

		for i := range list {
			ids = append(ids, list[i].GPU)
		}

		if len(ids) == 0 {
			err = s.checkLayoutsKnown(ctx, &operations)
		}

		return list, ids, err
	}

	var node nodedoc.Document
	if err := s.client.fetch(ctx, "/node", &node); err != nil {
		return nil, nil, err
	}

	// A GPU without its layout may be lost, and not in the node's document.
	uuids := uuidsOf(node.GPUs)
	for i := range list {
		uuids = append(uuids, string(list[i].GPU))
	}

	words, err := completeUUIDs(s.opts.GPUs, uuids)
	if err != nil {
		return nil, nil, err
	}

	for _, word := range words {
		n := slices.IndexFunc(list, func(u api.Unrestored) bool {
			return strings.EqualFold(word, string(u.GPU))
		})
		if n >= 0 {
			ids = append(ids, list[n].GPU)
			continue
		}

		gpus, err := chooseGPUs([]string{word}, &node)
		if err != nil {
			return nil, nil, err
		}

		for i := range gpus {
			ids = append(ids, gpus[i].UUID)
		}
	}

	slices.Sort(ids)

	return list, slices.Compact(ids), nil
}

// checkLayoutsKnown returns an error if an empty list of GPUs to restore says nothing, since the exporter
// does not know yet what the GPUs lack: a script that waits for restore would take it for done.
func (s *session) checkLayoutsKnown(ctx context.Context, operations *api.Operations) error {
	const unknown = "it is not known whether a layout is to be restored: "

	switch {
	case operations.Recovering:
		return errors.New(unknown + "mig-exporter still reads, or finishes, what its last run has left. Try again")
	case operations.State == "read-only":
		return errors.New(unknown + "partition control is read-only: " + operations.Reason)
	}

	var node nodedoc.Document
	if err := s.client.fetch(ctx, "/node", &node); err != nil {
		return err
	}

	if why := whyNoneRead(&node); why != "" {
		return errors.New(unknown + why)
	}

	return nil
}

// whyNoneRead returns why no GPU of the node can be read; empty if one can, or if the node has none.
func whyNoneRead(node *nodedoc.Document) string {
	if slices.ContainsFunc(node.GPUs, func(g nodedoc.GPU) bool { return g.Up }) {
		return ""
	}

	if why := unreadText(node); why != "" || len(node.GPUs) == 0 {
		return why
	}

	// The error of a GPU that does not answer says more than that another one is released.
	g := &node.GPUs[max(0, slices.IndexFunc(node.GPUs, func(g nodedoc.GPU) bool { return g.Released == nil }))]
	why := "it does not answer"

	switch {
	case g.Released != nil:
		why = "it is released"
	case len(g.Errors) > 0:
		why = g.Errors[0].Message
	}

	return fmt.Sprintf("no GPU can be read: GPU %d: %s", g.Index, why)
}

// restoreEach restores GPUs one after the other, and shows the outcome of each.
func (s *session) restoreEach(ctx context.Context, ids []gpu.UUID) error {
	return s.forEachGPU(ids, func(id gpu.UUID) error {
		request := api.RestoreRequest{TakeOver: s.opts.TakeOver}

		return s.startOperation(
			ctx,
			http.MethodPost,
			"/gpus/"+url.PathEscape(string(id))+"/restore",
			request,
		)
	})
}

func (s *session) forgetEach(ctx context.Context, ids []gpu.UUID) error {
	return s.forEachGPU(ids, func(id gpu.UUID) error {
		var done api.ForgottenLayout

		path := "/gpus/" + url.PathEscape(string(id)) + "/forget-layout"

		err := s.client.sendDocument(ctx, http.MethodPost, path, nil, newKey(), &done)
		if err != nil {
			return err
		}

		s.page.paragraph("  forgotten: ", green, wantedText(done.Forgotten))

		return nil
	})
}

// forEachGPU does something with each GPU. It goes on after a refusal, and after an operation that
// did not succeed; its error has the exit code of the worst of these.
func (s *session) forEachGPU(ids []gpu.UUID, do func(gpu.UUID) error) error {
	var worst *operationError

	for _, id := range ids {
		s.page.line(text("%s", id).in(bold))

		err := do(id)
		if err == nil {
			continue
		}

		var ended *operationError
		var problem *api.Problem

		switch {
		case errors.As(err, &ended):
		case errors.As(err, &problem):
			reportProblem(s.page, problem, &s.opts)

			ended = &operationError{code: exitCodeOf(problem), state: api.Failed}
		default:
			return err
		}

		if worst == nil || severity(ended.code) > severity(worst.code) {
			worst = ended
		}
	}

	if worst == nil {
		return nil
	}

	return worst
}

// severity ranks the exit codes that forEachGPU meets, from a wrong command line to a node on which
// an operator must act.
func severity(code int) int {
	return slices.Index([]int{exitUsage, exitFailed, exitNeither, exitDegraded}, code)
}

func findUnrestored(list []api.Unrestored, id gpu.UUID) *api.Unrestored {
	for i := range list {
		if list[i].GPU == id {
			return &list[i]
		}
	}

	return nil
}

// writeUnrestored shows why the layout of a GPU is not restored. A nil one is no such GPU: nothing
// is shown.
func writeUnrestored(p *page, lead string, u *api.Unrestored) {
	if u == nil {
		return
	}

	t := "the layout is not restored: " + u.Detail
	if u.Next.IsZero() {
		t += "; it is not tried again by itself: migctl restore"
	}

	p.paragraph(lead+"! ", red, t)

	if len(u.Wanted) > 0 {
		p.paragraph(lead+"wanted: ", plain, wantedText(u.Wanted))
	}

	if u.Operation != "" {
		p.command(lead+"To see the last attempt", "migctl operations", u.Operation)
	}
}

// wantedText lists the instances of a layout.
func wantedText(list []api.Instance) string {
	var names []string
	for i := range list {
		names = append(names, fmt.Sprintf("%s at %s", list[i].Profile, list[i].Placement))
	}

	if len(names) == 0 {
		return "no instances"
	}

	return strings.Join(names, ", ")
}
