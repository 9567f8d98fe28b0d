package migctl

import (
	"context"
	"fmt"
	"net/http"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// acceptOperation asks the operator, and closes an operation that could not be rolled back. The layout
// stays as it is.
func (s *session) acceptOperation(ctx context.Context) error {
	var op api.Operation
	if err := s.client.fetch(ctx, operationPath(s.opts.Operation), &op); err != nil {
		return err
	}

	switch {
	case op.State == api.Accepted:
		s.page.line(
			text("Operation ").in(dim),
			text("%s", op.ID).in(bold),
			text(" is accepted already."),
		)

		return s.printOutcome(&op)
	case op.State.Final():
		return &api.Problem{Type: api.BadSpec, Title: "Nothing to accept",
			Detail: fmt.Sprintf("operation %s is %s, and blocks no GPU", op.ID, op.State)}
	}

	writeTitle(s.page, &op)
	writeError(s.page, &op)
	writeGPUs(s.page, &op)
	s.page.line()
	s.page.paragraph(
		"! ",
		yellow,
		"Nothing is changed on the GPUs. They keep the layout that they have now, which may be "+
			"neither the previous nor the planned one. The operation cannot be rolled back afterwards.",
	)

	if err := s.askOperator(ctx, fmt.Sprintf("Accept the current layout and close operation %s?",
		op.ID)); err != nil {
		return err
	}

	var closed api.Operation

	err := s.client.sendDocument(
		ctx,
		http.MethodPost,
		operationPath(op.ID)+"/accept",
		nil,
		newKey(),
		&closed,
	)
	if err != nil {
		return err
	}

	s.page.line(text("Operation ").in(dim), text("%s", closed.ID).in(bold), text(" is accepted."))
	writeAdvice(s.page, &closed)

	return s.printOutcome(&closed)
}

// endSettling asks the operator, ends an operation's wait for the kubelet or for a hook, and
// follows the operation to its end.
func (s *session) endSettling(ctx context.Context) error {
	var op api.Operation
	if err := s.client.fetch(ctx, operationPath(s.opts.Operation), &op); err != nil {
		return err
	}

	switch op.State {
	case api.Settling, api.Unsettled:
	case api.Succeeded:
		s.page.line(
			text("Operation ").in(dim),
			text("%s", op.ID).in(bold),
			text(" has succeeded already."),
		)

		return s.printOutcome(&op)
	default:
		return &api.Problem{
			Type:  api.BadSpec,
			Title: "Nothing to wait for",
			Detail: fmt.Sprintf(
				"operation %s is %s, and does not wait for the kubelet",
				op.ID,
				op.State,
			),
		}
	}

	writeOperation(s.page, &op)
	s.page.line()
	s.page.paragraph(
		"! ",
		yellow,
		"The operation ends as if the kubelet offered exactly the devices that exist. Until it "+
			"does, it may give pods devices that were destroyed, and none that were created.",
	)

	err := s.askOperator(ctx, fmt.Sprintf("End the wait for the kubelet of operation %s?", op.ID))
	if err != nil {
		return err
	}

	return s.startOperation(ctx, http.MethodPost, operationPath(op.ID)+"/settled", nil)
}
