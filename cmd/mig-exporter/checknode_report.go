package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// checkState is how a check came out.
type checkState string

// The states of a check.
const (
	checkOK      checkState = "ok"
	checkMissing checkState = "missing" // it cannot be had
	checkUnknown checkState = "unknown" // nothing here says whether it can be had
	checkOff     checkState = "off"     // not asked for
)

// nodeCheck is one line of the report.
type nodeCheck struct {
	Name  string     `json:"name"`
	State checkState `json:"state"`
	// Asked is whether the configuration asks for it: without it nothing is amiss.
	Asked  bool   `json:"asked"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // what to change
}

// fails reports whether the configuration asks for something that is not known to be there.
func (c *nodeCheck) fails() bool {
	return c.Asked && (c.State == checkMissing || c.State == checkUnknown)
}

// nodeReport is what check-node reports.
type nodeReport struct {
	Checks      []nodeCheck `json:"checks"`
	CallClasses []classTime `json:"callClasses"` // docs/performance.md says whom each class keeps waiting
	Calls       []callTime  `json:"calls"`
}

// complete reports whether all that the configuration asks for is known to be there.
func (r *nodeReport) complete() bool {
	return !slices.ContainsFunc(r.Checks, func(c nodeCheck) bool { return c.fails() })
}

func (r *nodeReport) writeJSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(struct {
		Complete bool `json:"complete"`
		*nodeReport
	}{r.complete(), r})
}

// writeText writes a line for each check, the remedies below what they are for, and the times of the driver's calls.
func (r *nodeReport) writeText(out io.Writer) error {
	var text strings.Builder
	lines := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, c := range r.Checks {
		fmt.Fprintf(lines, "%s\t%s\t%s\n", stateText(c), c.Name, printable(c.Found))
		if c.Remedy != "" {
			fmt.Fprintf(lines, "\t\t-> %s\n", printable(c.Remedy))
		}
	}
	if err := lines.Flush(); err != nil {
		return err
	}

	if err := r.writeCalls(lines); err != nil {
		return err
	}

	text.WriteString("\n" + map[bool]string{
		true:  "All that this configuration asks for can be had.\n",
		false: "Not all that this configuration asks for can be had: see the lines in capitals.\n",
	}[r.complete()])
	_, err := io.WriteString(out, text.String())
	return err
}

// writeCalls writes how long the calls of the driver took, by class and by function.
func (r *nodeReport) writeCalls(lines *tabwriter.Writer) error {
	if len(r.Calls) == 0 {
		return nil
	}

	fmt.Fprintf(lines, "\nclass\tcalls\tseconds\n")
	for _, c := range r.CallClasses {
		fmt.Fprintf(lines, "%s\t%d\t%.6f\n", c.Class, c.Calls, c.Seconds)
	}

	fmt.Fprintf(lines, "\nfunction of the driver\tclass\tcalls\tseconds\tlongest\n")
	for _, c := range r.Calls {
		fmt.Fprintf(lines, "%s\t%s\t%d\t%.6f\t%.6f", printable(c.Function), c.Class, c.Calls, c.Seconds, c.MaxSeconds)
		if c.Unreturned > 0 {
			fmt.Fprintf(lines, "\t%s not returned", countOf(c.Unreturned, "call"))
		}
		fmt.Fprintln(lines)
	}

	return lines.Flush()
}

// stateText is the state of a check in the text: in capitals if that is what makes the exit code 1.
func stateText(c nodeCheck) string {
	if c.fails() {
		return strings.ToUpper(string(c.State))
	}
	return string(c.State)
}

// printable returns a text on one line, with what is not printed escaped: a driver's text could control a terminal.
func printable(text string) string {
	var out strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			out.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		out.WriteString(quoted[1 : len(quoted)-1])
	}
	return out.String()
}
