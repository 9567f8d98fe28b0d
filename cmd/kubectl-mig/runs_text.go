package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/mig-exporter/mig-exporter/cmd/internal/migctl"
	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
)

// clean replaces control characters in a text from a node or the API server, which could move the
// terminal's cursor.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}

		return r
	}, text)
}

// writePreview shows what a run would do.
func writePreview(w io.Writer, list []rollout.Preview) {
	for i := range list {
		v := &list[i]
		fmt.Fprintf(w, "%s\n", v.Node)

		switch {
		case isUnreached(v.Err):
			fmt.Fprintf(w, "  not known: %s\n", clean(v.Refused))
		case v.Refused != "":
			fmt.Fprintf(w, "  refused: %s\n", clean(v.Refused))
		case v.Plan != nil && len(v.Plan.Steps) == 0:
			fmt.Fprintln(w, "  has the layout already")
		case v.Plan != nil:
			if err := migctl.WritePlan(w, v.Plan); err != nil {
				fmt.Fprintf(w, "  %v\n", err)
			}
		}

		for _, name := range v.InTheWay {
			fmt.Fprintf(w, "  in the way: %s\n", clean(name))
		}

		for _, p := range v.Evicts {
			fmt.Fprintf(w, "  has to leave: pod %s\n", clean(p.String()))
		}
	}
}

// writeNode shows the state of a node.
func writeNode(w io.Writer, n *rollout.Node) {
	fmt.Fprintf(w, "%s: %s%s\n", n.Name, phaseText(n), failureText(n))
}

func phaseText(n *rollout.Node) string {
	switch {
	case n.Undo && n.Phase == rollout.Done && n.RolledBackBy == "":
		return "done, there was nothing to roll back"
	case n.Undo && n.Phase == rollout.Done:
		return "rolled back"
	case n.Phase == rollout.Evicting && len(n.Pods) > 0:
		return fmt.Sprintf("evicting %d pods", len(n.Pods))
	}

	return string(n.Phase)
}

func failureText(n *rollout.Node) string {
	if n.Failure == "" {
		return ""
	}

	text := ": " + clean(n.Failure)
	if n.Phase == rollout.Failed && n.Cordon == rollout.Own {
		text += " (it stays cordoned)"
	}

	return text
}

// writeRun shows the nodes of a run.
func writeRun(w io.Writer, run *rollout.Run) {
	fmt.Fprintf(w, "Run %s of %s\n", run.Name, run.Created.Format("2006-01-02 15:04:05 UTC"))

	if run.Options.Reason != "" {
		fmt.Fprintf(w, "Says: %q\n", run.Options.Reason)
	}

	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tSTATE\tOPERATION\tROLLED BACK BY")

	for i := range run.Nodes {
		n := &run.Nodes[i]
		state := phaseText(n) + failureText(n)
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", n.Name, state, n.Operation, n.RolledBackBy)
	}

	table.Flush()

	for i := range run.Nodes {
		writePods(w, &run.Nodes[i])
	}
}

// writePods shows the pods that are being evicted from a node.
func writePods(w io.Writer, n *rollout.Node) {
	for _, p := range n.Pods {
		fmt.Fprintf(w, "%s: was evicting pod %s\n", n.Name, clean(p.String()))
	}

	if len(n.Pods) > 0 {
		fmt.Fprintf(w, "%s: the exporter is asked again which pods hold the devices\n", n.Name)
	}
}

// writeRuns lists runs.
func writeRuns(w io.Writer, runs []*rollout.Run) {
	if len(runs) == 0 {
		fmt.Fprintln(w, "No runs yet.")
		return
	}

	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RUN\tDONE\tSKIPPED\tFAILED\tLEFT\tLAST CLIENT")

	for _, run := range runs {
		s := run.Summary()
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%s\n",
			run.Name, s.Done, s.Skipped, s.Failed, s.Left, clean(run.Owner))
	}

	table.Flush()
}
