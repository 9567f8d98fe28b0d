package migctl

import (
	"cmp"
	"fmt"
	"unicode/utf8"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// progress shows the events of an operation. The line of a step is begun when the step begins, and
// completed when it has ended.
type progress struct {
	page *page
	op   *api.Operation
	// open is the step whose line is not complete, or the zero value; openWidth is how many columns
	// of the line are written.
	open      stepRef
	openWidth int
}

// stepRef identifies a step of an operation or, with rollback, of the operation's rollback.
type stepRef struct {
	rollback bool
	number   int // counted from 1
}

// closeLine completes the line of a step that has not ended.
func (p *progress) closeLine() {
	if p.open != (stepRef{}) {
		p.page.line()
		p.open = stepRef{}
	}
}

// showEvent shows an event with the time since the start of the operation.
func (p *progress) showEvent(e *api.Event) {
	lead := fmt.Sprintf("%7.1fs  ", max(0, e.Time.Sub(p.op.Started)).Seconds())
	if e.Kind == api.EventStep && e.Step != nil {
		p.showStep(lead, e)
		return
	}

	p.closeLine()

	if e.Kind == api.EventHook && e.Hook != nil {
		writeHook(p.page, lead, e.Hook)
		return
	}

	p.page.paragraph(lead, eventColor(e), cmp.Or(e.Text, string(e.State)))
}

// showStep shows that a step has begun, or how it ended.
func (p *progress) showStep(lead string, e *api.Event) {
	ref := stepRef{e.Rollback, e.Index.Or(0) + 1}
	if p.open != ref {
		p.closeLine()
		head := lead + p.stepNumber(ref) + " " + stepText(&e.Step.Step)
		p.page.writeSpans(text("%s", head))
		p.open = ref
		p.openWidth = utf8.RuneCountInString(head)
	}

	switch e.Step.State {
	case api.StepPending, api.StepRunning:
		return
	case api.StepDone:
		p.completeLine("done", green)
	case api.StepUndone:
		p.completeLine("rolled back", yellow)
	default:
		p.page.line()
		p.page.paragraph("            ", red, cmp.Or(e.Step.Error, string(e.Step.State)))
	}

	p.open = stepRef{}
}

// stepNumber returns the number of a step, and the number of all steps if the document has it:
// "[2/5]". How many steps a rollback has is in no document.
func (p *progress) stepNumber(ref stepRef) string {
	switch total := len(p.op.Steps); {
	case ref.rollback:
		return fmt.Sprintf("rollback [%d]", ref.number)
	case ref.number > total: // the event is newer than the operation as it was fetched
		return fmt.Sprintf("[%d]", ref.number)
	default:
		return fmt.Sprintf("[%d/%d]", ref.number, total)
	}
}

// completeLine completes the line of a step, on the next line if the text does not fit.
func (p *progress) completeLine(t string, c color) {
	if p.page.width > 0 && p.openWidth+1+len(t) > p.page.width {
		p.page.line()
		p.page.line(text("           "), text(" %s", t).in(c))

		return
	}

	p.page.line(text(" %s", t).in(c))
}

func eventColor(e *api.Event) color {
	switch {
	case e.Kind == api.EventNote || e.State == api.RollingBack || e.State == api.RolledBack:
		return yellow
	case stateColor(e.State) == red:
		return red
	}

	return plain
}
