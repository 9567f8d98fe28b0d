package migctl

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// showOperations lists the operations, or shows or follows the one that the command line names.
func (s *session) showOperations(ctx context.Context) error {
	if s.opts.Operation == "" {
		if s.opts.Follow {
			return usageError{"--follow needs the operation's id; migctl operations lists them"}
		}

		return s.listOperations(ctx)
	}

	data, err := s.client.getDocument(ctx, operationPath(s.opts.Operation))
	if err != nil {
		return err
	}

	var op api.Operation
	if err := s.client.decodeAnswer(data, &op); err != nil {
		return err
	}

	if s.opts.Output != formTable {
		if s.opts.Follow {
			return usageError{"--follow and -o " + s.opts.Output + " exclude each other"}
		}

		return s.printDocument(data)
	}

	if s.opts.Follow {
		s.page.line(text("Operation ").in(dim), text("%s", op.ID).in(bold))
		return s.followOperation(ctx, &op)
	}

	writeOperation(s.page, &op)

	if hasStopped(op.State) {
		writeOutcome(s.page, &op)
		return nil
	}

	s.page.command("To follow it", "migctl operations --follow", op.ID)

	if op.State == api.Settling {
		s.page.command("To end the wait for the kubelet", "migctl settled", op.ID)
	}

	return nil
}

func (s *session) listOperations(ctx context.Context) error {
	data, err := s.client.getDocument(ctx, "/operations")
	if err != nil {
		return err
	}

	if s.opts.Output != formTable {
		return s.printDocument(data)
	}

	var list api.Operations
	if err := s.client.decodeAnswer(data, &list); err != nil {
		return err
	}

	writeControl(s.page, &list)

	for _, id := range sortedKeys(list.Blocked) {
		s.page.paragraph("! ", yellow, string(id)+" is "+blockedText(&list, id))
	}

	for i := range list.Unrestored {
		s.page.line(text("%s", list.Unrestored[i].GPU).in(bold))
		writeUnrestored(s.page, "  ", &list.Unrestored[i])
	}

	if len(list.Operations) == 0 && list.Reason == "" && !list.Recovering {
		s.page.line(text("No operations yet."))
	}

	if len(list.Operations) == 0 {
		return nil
	}

	s.page.line(
		text(
			"%-28s %-9s %-13s %-17s %s",
			"OPERATION",
			"VERB",
			"STATE",
			"STARTED (UTC)",
			"BY",
		).in(dim),
	)

	for i := range list.Operations {
		op := &list.Operations[i]
		state := stateSpan(op.State)
		state.text = s.page.cell(state.text, 13)
		s.page.line(
			text("%-28s %-9s ", op.ID, op.Verb),
			state,
			text(" %-17s %s", formatUTC(op.Started), op.By),
		)
	}

	return nil
}

// writeControl warns if partition control does not work, or not fully.
func writeControl(p *page, list *api.Operations) {
	switch {
	case list.Reason != "":
		p.paragraph("! ", yellow, "Partition control is "+list.State+": "+list.Reason)
	case list.State == "read-only" || list.State == "off":
		p.paragraph(
			"! ",
			yellow,
			"Partition control is "+list.State+": mig-exporter's log has the reason",
		)
	}

	if list.Recovering {
		p.paragraph(
			"! ",
			yellow,
			"mig-exporter is finishing what its last run left: operations may be missing here, and changes "+
				"wait until it is done",
		)
	}
}

// blockedText names the operation that blocks a GPU.
func blockedText(list *api.Operations, id gpu.UUID) string {
	blocking := list.Blocked[id]
	t := "blocked by operation " + blocking

	for i := range list.Operations {
		if op := &list.Operations[i]; op.ID == blocking {
			t += ", which is " + string(op.State)
		}
	}

	return t
}

func formatUTC(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") }

// writeOperation shows an operation and its steps.
func writeOperation(p *page, op *api.Operation) {
	writeTitle(p, op)
	writeSteps(p, op.Steps)

	if len(op.Rollback) > 0 {
		p.line(text("Rollback").in(dim))
		writeSteps(p, op.Rollback)
	}

	if hasStopped(op.State) { // writeOutcome says what it waits for
		return
	}

	for _, w := range op.WaitsFor {
		p.paragraph("Waits for ", yellow, w)
	}
}

func writeTitle(p *page, op *api.Operation) {
	p.line(
		text("Operation ").in(dim),
		text("%s", op.ID).in(bold),
		text("  %s  ", op.Verb),
		stateSpan(op.State),
	)
	p.line(text("Started   ").in(dim), text("%s UTC", op.Started.UTC().Format(time.DateTime)))
	p.line(text("By        ").in(dim), text("%s", op.By))

	if op.StatedReason != "" {
		p.line(text("Says      ").in(dim), text("%q", op.StatedReason)) // the user in the line above
	}

	if op.RollbackOf != "" {
		p.line(text("Undoes    ").in(dim), text("%s", op.RollbackOf))
	}

	if op.Plan != "" {
		p.line(text("Plan      ").in(dim), text("%s", op.Plan))
	}
}

func writeSteps(p *page, steps []api.OperationStep) {
	for i := range steps {
		st := &steps[i]
		mark, c := stepMark(st.State)
		p.line(
			span{fmt.Sprintf("  %s %d. %s", mark, i+1, stepText(&st.Step)), c},
			text("  %s", st.State).in(dim),
		)

		if st.UUID != "" {
			p.line(text("       was %s", st.UUID).in(dim))
		}

		if st.Done != nil && st.Done.UUID != "" && !st.Destroys() {
			p.line(text("       is  %s", st.Done.UUID).in(dim))
		}

		if st.Error != "" {
			p.paragraph("       ", red, st.Error)
		}
	}
}

func stepMark(state api.StepState) (string, color) {
	switch state {
	case api.StepDone:
		return "+", green
	case api.StepFailed:
		return "!", red
	case api.StepRunning:
		return ">", yellow
	case api.StepUndone:
		return "<", yellow
	}

	return " ", plain
}

// stepText describes a step: "create GI 3g.20gb at 4:4 on GPU-5f65f8d5".
func stepText(st *mig.Step) string {
	return stepPlace(st) + " on " + shortUUID(string(st.GPU))
}

// stepPlace is stepText without the GPU.
func stepPlace(st *mig.Step) string {
	what := map[mig.StepOp]string{
		mig.DestroyCompute: "destroy CI", mig.DestroyInstance: "destroy GI",
		mig.CreateInstance: "create GI", mig.CreateCompute: "create CI",
	}[st.Op]
	if what == "" {
		what = string(st.Op)
	}

	if c, ok := st.Compute.Get(); ok {
		what += " " + c.String() + " of"
	}

	return fmt.Sprintf("%s %s at %s", what, st.Profile, st.Placement)
}

// showLayouts lists the named layouts of the node.
func (s *session) showLayouts(ctx context.Context) error {
	data, err := s.client.getDocument(ctx, "/layouts")
	if err != nil {
		return err
	}

	if s.opts.Output != formTable {
		return s.printDocument(data)
	}

	var list api.NamedLayouts
	if err := s.client.decodeAnswer(data, &list); err != nil {
		return err
	}

	if len(list.Layouts) == 0 {
		s.page.paragraph(
			"",
			plain,
			"No layouts: no GPU of this node has MIG, and mig-exporter was given no file of layouts. "+
				"migctl plan -f FILE --layout NAME takes one from a file of your own.",
		)

		return nil
	}

	s.page.line(text("%-26s %-8s %-5s %s", "LAYOUT", "FROM", "GPUS", "INSTANCES OF EACH").in(dim))

	for i := range list.Layouts {
		l := &list.Layouts[i]

		from := "file"
		if l.BuiltIn {
			from = "built in"
		}

		lead := fmt.Sprintf("%s %-8s %-5d ", s.page.cell(l.Name, 26), from, len(l.Applies))

		for j := range l.Rules {
			rule := &l.Rules[j]
			// The server lists only those built-in rules that are for the node's GPUs.
			if l.BuiltIn && len(l.Rules) == 1 {
				rule.DeviceFilter = nil
			}

			s.page.paragraph(lead, plain, ruleText(rule))
			lead = strings.Repeat(" ", len([]rune(lead)))
		}
	}

	return nil
}

func ruleText(r *api.LayoutRule) string {
	var parts []string
	for _, profile := range sortedKeys(r.MIGDevices) {
		parts = append(parts, fmt.Sprintf("%d x %s", r.MIGDevices[profile], profile))
	}

	what := strings.Join(parts, ", ")
	switch {
	case !r.MIGEnabled:
		what = "MIG off"
	case what == "":
		what = "no instances"
	}

	var where []string
	if !r.Devices.All {
		where = append(
			where,
			"GPUs "+strings.Trim(strings.ReplaceAll(fmt.Sprint(r.Devices.Indexes), " ", ","), "[]"),
		)
	}

	if len(r.DeviceFilter) > 0 {
		where = append(where, "devices "+strings.Join(r.DeviceFilter, ", "))
	}

	if len(where) > 0 {
		what += " (" + strings.Join(where, "; ") + ")"
	}

	return what
}
