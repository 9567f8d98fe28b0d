package main

import (
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// progress shows the events of an operation: one line a step, which is begun when the step is and ended when that has ended.
type progress struct {
	page *page
	op   *api.Operation
	open int // the step whose line is not ended yet; -1: none
}

// close ends the line of a step that has not ended.
func (g *progress) close() {
	if g.open >= 0 {
		g.page.line()
		g.open = -1
	}
}

// event is a line of progress: the time since the start, and what happened.
func (g *progress) event(e *api.Event) {
	lead := fmt.Sprintf("%7.1fs  ", max(0, e.Time.Sub(g.op.Started)).Seconds())
	n, isStep := e.Index.Get()
	_, outcome, told := strings.Cut(e.Text, ": ")
	if isStep && told && n >= 0 && n < len(g.op.Steps) {
		lead += fmt.Sprintf("[%d/%d] %s", n+1, len(g.op.Steps), stepText(&g.op.Steps[n].Step))
		g.step(n, lead, outcome, eventColor(e))
		return
	}
	g.close()
	if isStep {
		lead += fmt.Sprintf("[%d/%d] ", n+1, max(n+1, len(g.op.Steps)))
	}
	t := e.Text
	if t == "" {
		t = string(e.State)
	}
	g.page.para(lead, eventColor(e), t)
}

// step tells that a step has begun, or how it ended.
func (g *progress) step(n int, lead, outcome string, c color) {
	if g.open != n {
		g.close()
		g.page.part(text("%s", lead))
		g.open = n
	}
	switch outcome {
	case "begun":
		return
	case "done":
		g.page.line(text(" done").in(green))
	default:
		g.page.line()
		g.page.para("            ", c, outcome)
	}
	g.open = -1
}

func eventColor(e *api.Event) color {
	switch {
	case e.State == api.RollingBack || e.State == api.RolledBack || e.Kind == "note":
		return yellow
	case e.State == api.Failed || e.State == api.Degraded || e.State == api.Stuck:
		return red
	}
	return plain
}
