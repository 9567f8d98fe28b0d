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
	open stepRef // the step whose line is not complete; the zero value if there is none
	used int     // columns of that line
}

// stepRef names a step of an operation or of its rollback. Number counts from 1.
type stepRef struct {
	rollback bool
	number   int
}

// closeLine completes the line of a step that has not ended.
func (g *progress) closeLine() {
	if g.open != (stepRef{}) {
		g.page.line()
		g.open = stepRef{}
	}
}

// showEvent shows an event with the time since the start of the operation.
func (g *progress) showEvent(e *api.Event) {
	lead := fmt.Sprintf("%7.1fs  ", max(0, e.Time.Sub(g.op.Started)).Seconds())
	if e.Kind == api.EventStep && e.Step != nil {
		g.showStep(lead, e)
		return
	}

	g.closeLine()

	if e.Kind == api.EventHook && e.Hook != nil {
		writeHook(g.page, lead, e.Hook)
		return
	}

	g.page.para(lead, eventColor(e), cmp.Or(e.Text, string(e.State)))
}

// showStep shows that a step has begun, or how it ended.
func (g *progress) showStep(lead string, e *api.Event) {
	ref := stepRef{e.Rollback, e.Index.Or(0) + 1}
	if g.open != ref {
		g.closeLine()
		head := lead + g.stepNumber(ref) + " " + stepText(&e.Step.Step)
		g.page.part(text("%s", head))
		g.open = ref
		g.used = utf8.RuneCountInString(head)
	}

	switch e.Step.State {
	case api.StepPending, api.StepRunning:
		return
	case api.StepDone:
		g.completeLine("done", green)
	case api.StepUndone:
		g.completeLine("rolled back", yellow)
	default:
		g.page.line()
		g.page.para("            ", red, cmp.Or(e.Step.Error, string(e.Step.State)))
	}

	g.open = stepRef{}
}

// stepNumber returns the number of a step, with their total if it is known: that of a rollback is
// not.
func (g *progress) stepNumber(ref stepRef) string {
	switch total := len(g.op.Steps); {
	case ref.rollback:
		return fmt.Sprintf("rollback [%d]", ref.number)
	case ref.number > total: // the event is newer than the operation as it was fetched
		return fmt.Sprintf("[%d]", ref.number)
	default:
		return fmt.Sprintf("[%d/%d]", ref.number, total)
	}
}

// completeLine completes the line of a step, on the next line if the text does not fit.
func (g *progress) completeLine(t string, c color) {
	if g.page.width > 0 && g.used+1+len(t) > g.page.width {
		g.page.line()
		g.page.line(text("           "), text(" %s", t).in(c))

		return
	}

	g.page.line(text(" %s", t).in(c))
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
