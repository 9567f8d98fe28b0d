package migctl

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/version"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/fleet"
	"github.com/mig-exporter/mig-exporter/internal/usage"
)

const commandFleet = "fleet"

// The forms that only fleet has.
const (
	formCSV      = "csv"
	formMarkdown = "markdown"
)

// queryTimeout is how long an answer of Prometheus may take without --timeout. It is the default of
// Prometheus' own limit (--query.timeout): over weeks of many GPUs a query can take longer than any request
// to an exporter.
const queryTimeout = 2 * time.Minute

// fleetOptions are the flags of fleet, not parsed yet.
type fleetOptions struct {
	URL, ConfigFile     string
	Window, MinEvidence string
	Time                string
	Match, Prices       []string
	ClusterLabel        string
	MaxStretch          float64
	Strict              bool
}

// addFleetCommand declares the command fleet.
func addFleetCommand(app *kingpin.Application, o *options) {
	f := &o.Fleet
	defaults := advise.DefaultOptions()
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

	c := o.command(app, commandFleet, "Find the whole GPUs of a fleet that could be slices, in "+
		"Prometheus' history of mig-exporter or dcgm-exporter. Asks no mig-exporter and changes "+
		"nothing.")

	c.Flag("prometheus.url", "Prometheus, or a server with the same API (Thanos, Mimir, "+
		"VictoriaMetrics), with its path prefix.").
		Required().
		PlaceHolder("URL").
		StringVar(&f.URL)
	c.Flag("prometheus.config.file", "File with TLS and authentication, as in Prometheus' HTTP "+
		"client configuration.").
		PlaceHolder("FILE").
		SetValue(usage.File(&f.ConfigFile))

	// What is read.
	c.Flag("window", "How far back the history is read: 1h to 35d, in whole hours.").
		Default("7d").
		StringVar(&f.Window)
	c.Flag("time", "The end of the window; by default now.").
		PlaceHolder("RFC3339").
		StringVar(&f.Time)
	c.Flag("match", `Only series with these labels: cluster="a". Repeatable.`).
		PlaceHolder("MATCHER").
		StringsVar(&f.Match)
	c.Flag("cluster-label", "The label that names a GPU's cluster.").
		Default("cluster").
		StringVar(&f.ClusterLabel)

	// How it is judged.
	c.Flag("price", "What a GPU costs an hour, by words of its model: H100=2.50. Repeatable; "+
		"the longest name counts.").
		PlaceHolder("MODEL=NUMBER").
		StringsVar(&f.Prices)
	c.Flag("max-stretch", "How many times as long as on the whole GPU a request may take in a "+
		"slice, at p95.").
		Default(number(defaults.MaxStretch)).
		SetValue(numberValue("--max-stretch", &f.MaxStretch))
	c.Flag("min-evidence", "Time for which a GPU must have been held and observed.").
		Default("1d").
		StringVar(&f.MinEvidence)
	c.Flag("strict", "Decide by the worst mix of kernels that the means allow.").BoolVar(&f.Strict)

	outputFlag(c, o, "Form of the output: text, json, csv, markdown; or spec, the slices that are final as "+
		"layouts of nodes, for kubectl mig apply -f.", formText, formJSON, formCSV, formMarkdown, formSpec)
}

// parse parses and checks the flags.
func (f *fleetOptions) parse(now time.Time) (fleet.Options, error) {
	o := fleet.Options{
		End:          now,
		Match:        f.Match,
		ClusterLabel: f.ClusterLabel,
		Advise:       advise.DefaultOptions(),
	}
	o.Advise.MaxStretch = f.MaxStretch
	o.Advise.Strict = f.Strict

	window, err := model.ParseDuration(f.Window)
	if err != nil {
		return o, fmt.Errorf("--window is %q; expected a time such as 7d", f.Window)
	}

	evidence, err := model.ParseDuration(f.MinEvidence)
	if err != nil {
		return o, fmt.Errorf("--min-evidence is %q; expected a time such as 1d", f.MinEvidence)
	}

	o.Window = time.Duration(window)
	o.Advise.MinEvidence = time.Duration(evidence)

	if f.Time != "" {
		if o.End, err = time.Parse(time.RFC3339, f.Time); err != nil {
			return o, fmt.Errorf(
				"--time is %q; expected a time such as 2026-03-04T12:00:00Z",
				f.Time,
			)
		}
	}

	if o.Prices, err = fleet.ParsePrices(f.Prices); err != nil {
		return o, err
	}

	err = o.Validate()

	return o, err
}

// fleet shows which GPUs of a fleet could be slices.
func (s *session) fleet(ctx context.Context) error {
	o, err := s.opts.Fleet.parse(time.Now())
	if err != nil {
		return usageError{err.Error()}
	}

	f := &s.opts.Fleet

	client, err := fleet.NewClient(fleet.ClientOptions{
		URL:        f.URL,
		ConfigFile: f.ConfigFile,
		Timeout:    s.opts.requestTimeout(),
		UserAgent:  "migctl/" + version.Version,
	})
	if err != nil {
		return usageError{err.Error()}
	}
	defer client.Close()

	bar := &progressBar{}
	if s.errTerminal {
		bar.w = s.errOut
		o.Progress = bar.show
	}

	report, err := fleet.Analyze(ctx, client, o)
	bar.clear()

	if err != nil {
		return err
	}

	switch s.opts.Output {
	case formJSON:
		return writeFleetJSON(s.out, report)
	case formSpec:
		return writeFleetSpec(s.out, report)
	case formCSV:
		return writeFleetCSV(s.out, report)
	case formMarkdown:
		writeFleetMarkdown(s.page, report)
	default:
		writeFleet(s.page, report)
	}

	return nil
}

// reportQuery reports why Prometheus gave no answer, and returns the exit code.
func reportQuery(p *page, e *fleet.QueryError) int {
	p.paragraph("migctl: ", red, e.Error())
	writeHint(p, e.Hint)

	if e.Reached {
		return exitFailed
	}

	return exitUnreachable
}

// progressBar shows the progress of an analysis on a terminal.
type progressBar struct {
	w     io.Writer // nil: there is no terminal
	shown int       // the length of the longest line so far, to clear it
}

func (b *progressBar) show(done, total int) {
	const columns = 30
	filled := columns * done / max(total, 1)
	line := fmt.Sprintf("\rasking Prometheus [%s%s] %d/%d GPUs", strings.Repeat("#", filled),
		strings.Repeat(".", columns-filled), done, total)
	b.shown = max(b.shown, len(line))
	io.WriteString(b.w, line) //nolint:errcheck // a bar that cannot be shown is not missed
}

func (b *progressBar) clear() {
	if b.shown > 0 {
		io.WriteString(b.w, "\r"+strings.Repeat(" ", b.shown)+"\r") //nolint:errcheck // as above
	}
}

// writeFleetJSON writes the report as JSON, with characters escaped that a terminal could take for a
// command.
func writeFleetJSON(w io.Writer, r *fleet.Report) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}

	_, err = io.WriteString(w, escapeUnprintable(string(data), escapeForJSON)+"\n")

	return err
}

// writeFleetCSV writes a line for each GPU.
func writeFleetCSV(w io.Writer, r *fleet.Report) error {
	out := csv.NewWriter(w)
	p := &page{utf8: true}
	text := func(s string) string { return noFormula(p.clean(s)) }
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	rows := [][]string{
		{
			"cluster",
			"node",
			"uuid",
			"model",
			"namespace",
			"namespaces",
			"action",
			"reason",
			"recommended_profile",
			"provisional",
			"media_not_checked",
			"idle",
			"stretch_p95_low",
			"stretch_p95_expected",
			"stretch_p95_high",
			"busy_mean",
			"busy_p99",
			"busy_max_10m",
			"freed_gpus",
			"room",
			"decided_by",
			"decided_ratio",
			"decided_limit",
			"width_p95",
			"bandwidth_p95",
			"memory_max_bytes",
			"memory_trend_bytes_per_day",
			"observed_hours",
			"coverage",
			"held_hours_per_week",
			"exporter",
			"explanation",
			"media_use",
		},
	}

	for i := range r.GPUs {
		g := &r.GPUs[i]

		stretch := [3]string{}
		gain := [2]string{}
		decided := [3]string{}
		kernels := [2]string{}

		if g.StretchP95 != nil {
			stretch = [3]string{
				fleetStretchText(g.StretchP95.Low),
				fleetStretchText(g.StretchP95.Expected),
				fleetStretchText(g.StretchP95.High),
			}
		}

		if g.Gain != nil {
			gain = [2]string{number(g.Gain.FreedGPUs), g.Gain.Room}
		}

		if d := g.Decided; d != nil {
			decided = [3]string{d.Figure, number(d.Ratio), number(d.Limit)}
		}

		if g.Kernels != nil {
			kernels = [2]string{number(g.Kernels.Width), number(g.Kernels.Bandwidth)}
		}

		rows = append(
			rows,
			[]string{
				text(g.Cluster),
				text(g.Node),
				text(g.UUID),
				text(g.Model),
				text(g.Namespace),
				strconv.Itoa(g.Namespaces),
				string(g.Action),
				text(string(g.Reason)),
				text(g.Profile),
				strconv.FormatBool(g.Provisional),
				strconv.FormatBool(g.NotChecked),
				strconv.FormatBool(g.Idle),
				stretch[0],
				stretch[1],
				stretch[2],
				number(g.BusyMean),
				number(g.BusyP99),
				number(g.BusyMax),
				gain[0],
				gain[1],
				decided[0],
				decided[1],
				decided[2],
				kernels[0],
				kernels[1],
				number(g.MemoryBytes),
				number(g.MemoryTrend),
				number(g.ObservedHours),
				number(g.Coverage),
				number(g.HeldHoursPerWeek),
				g.Exporter,
				text(g.Explanation),
				text(fleetMediaText(g.MediaUse)),
			},
		)
	}

	return errors.Join(out.WriteAll(rows), out.Error())
}

// fleetMediaText says how many media engines were used, for each kind that was used.
func fleetMediaText(list []advise.MediaUse) string {
	var uses []string
	for i := range list {
		uses = append(uses, list[i].String())
	}

	return strings.Join(uses, "; ")
}

// noFormula keeps a spreadsheet from taking a text for a formula.
func noFormula(s string) string {
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}

	return s
}
