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

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// checkState is the result of a check.
type checkState string

// The states of a check.
const (
	checkOK      checkState = "ok"
	checkMissing checkState = "missing" // the program cannot read it
	checkUnknown checkState = "unknown" // we cannot tell whether the program can read it
	checkOff     checkState = "off"     // the configuration does not ask for it
)

// nodeCheck is one line of the report.
type nodeCheck struct {
	Name  string     `json:"name"`
	State checkState `json:"state"`
	// Asked says whether the configuration asks for what is checked. Only then a check can fail.
	Asked  bool   `json:"asked"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // what to change

	// These are set for a check of a GPU instance. The text report joins checks that say the same of
	// several instances into one line.
	gpu      string // "gpu 0"
	instance gpu.Opt[gpu.InstanceID]
	subject  string // "activity"
}

// about returns a check of a subject, such as "activity", for the device of c.
func (c nodeCheck) about(subject string) nodeCheck {
	c.Name += " " + subject
	c.subject = strings.TrimSpace(c.subject + " " + subject)

	return c
}

// fails reports whether the configuration asks for something that is missing or unknown.
func (c *nodeCheck) fails() bool {
	return c.Asked && (c.State == checkMissing || c.State == checkUnknown)
}

// nodeReport is what check-node reports.
type nodeReport struct {
	Checks      []nodeCheck `json:"checks"`
	CallClasses []classTime `json:"callClasses"` // docs/performance.md says whom each class keeps waiting
	Calls       []callTime  `json:"calls"`
}

// complete reports whether no check fails.
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

// writeText writes a line for each check, each remedy below the first check that has it, and the times
// of the driver's calls.
func (r *nodeReport) writeText(out io.Writer) error {
	var text strings.Builder
	lines := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)

	for _, c := range joinChecks(r.Checks) {
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
		true:  "Nothing that this configuration needs is known to be missing.\n",
		false: "Some of what this configuration needs is missing or unknown: see the lines in capitals.\n",
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
		fmt.Fprintf(
			lines,
			"%s\t%s\t%d\t%.6f\t%.6f",
			printable(c.Function),
			c.Class,
			c.Calls,
			c.Seconds,
			c.MaxSeconds,
		)

		if len(c.Unreturned) > 0 {
			fmt.Fprintf(lines, "\t%s", c.describeUnreturned())
		}

		fmt.Fprintln(lines)
	}

	return lines.Flush()
}

// describeUnreturned says for how long calls have not returned: "not returned for 6.2 s", or "2 not
// returned for up to 6.2 s".
func (c *callTime) describeUnreturned() string {
	if n := len(c.Unreturned); n > 1 {
		return fmt.Sprintf("%d not returned for up to %.1f s", n, c.Unreturned[0])
	}

	return fmt.Sprintf("not returned for %.1f s", c.Unreturned[0])
}

// joinChecks shortens the checks for people: it joins checks that say the same of several instances,
// and leaves each remedy only with the first check that has it.
func joinChecks(checks []nodeCheck) []nodeCheck {
	joined := joinInstances(checks)
	written := map[string]bool{}

	for i := range joined {
		remedy := &joined[i].Remedy
		if written[*remedy] {
			*remedy = ""
		}

		written[*remedy] = true
	}

	return joined
}

// joinInstances joins checks that say the same of several instances of a GPU.
func joinInstances(checks []nodeCheck) []nodeCheck {
	var joined []nodeCheck
	ids := map[int][]gpu.InstanceID{} // by index in joined

	for _, c := range checks {
		id, isOfInstance := c.instance.Get()

		i := slices.IndexFunc(joined, func(other nodeCheck) bool {
			return isOfInstance && other.saysTheSame(&c)
		})
		if i < 0 {
			joined = append(joined, c)
			i = len(joined) - 1
		}

		ids[i] = append(ids[i], id)
	}

	for i, list := range ids {
		if c := &joined[i]; len(list) > 1 {
			c.Name = strings.TrimSpace(
				fmt.Sprintf("%s instances %s %s", c.gpu, describeIDs(list), c.subject),
			)
		}
	}

	return joined
}

// saysTheSame reports whether two checks only differ in the instance, of the same GPU.
func (c *nodeCheck) saysTheSame(other *nodeCheck) bool {
	return c.instance.Present() && c.gpu == other.gpu && c.subject == other.subject && c.State == other.State &&
		c.Asked == other.Asked && c.Found == other.Found &&
		c.Remedy == other.Remedy
}

// describeIDs lists ids in ascending order, with runs of three or more as a range: "1, 3, 7-13".
func describeIDs(list []gpu.InstanceID) string {
	slices.Sort(list)
	var parts []string

	for i := 0; i < len(list); {
		end := i
		for end+1 < len(list) && list[end+1] == list[end]+1 {
			end++
		}

		if end-i >= 2 {
			parts = append(parts, fmt.Sprintf("%d-%d", list[i], list[end]))
		} else {
			for _, id := range list[i : end+1] {
				parts = append(parts, fmt.Sprint(id))
			}
		}

		i = end + 1
	}

	return strings.Join(parts, ", ")
}

// stateText returns the state of a check for the text report: in capitals if the check fails.
func stateText(c nodeCheck) string {
	if c.fails() {
		return strings.ToUpper(string(c.State))
	}

	return string(c.State)
}

// printable returns a text with all characters escaped that do not print: otherwise a text from the
// driver could control the terminal.
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
