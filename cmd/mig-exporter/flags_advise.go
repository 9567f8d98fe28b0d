package main

import (
	"errors"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/usage"
)

// AdviseConfig is the configuration of right-sizing.
type AdviseConfig struct {
	Enabled       bool
	StateDir      string // empty: the evidence ends with the process
	Strategy      string
	ServerMetrics bool // whether we ask the pods' inference servers for their metrics
	Options       advise.Options
}

// The device plugin's MIG strategies.
const (
	strategyMixed  = "mixed"
	strategySingle = "single"
)

func declareAdviseFlags(app *kingpin.Application, cfg *AdviseConfig, workloadLabel *string) {
	initial := advise.DefaultOptions()

	app.Flag("advise.enabled", "Observe what workloads need of their GPUs and slices, and "+
		"recommend smaller or larger ones (docs/rightsizing.md). Nothing is ever changed by it.").
		Default("true").
		BoolVar(&cfg.Enabled)
	app.Flag("advise.state-dir", "Folder that keeps the evidence, and XIDs for the health of GPUs, "+
		"across restarts; created if it is missing. By default there is none: a restart loses what was "+
		"observed.").
		SetValue(usage.File(&cfg.StateDir))

	cfg.Options.Headroom = initial.Headroom
	cfg.Options.TargetBusy = initial.TargetBusy

	floatFlag(app, "advise.max-stretch", "How many times as long as now a request may take in a "+
		"slice, at p95. A pod's annotation mig-exporter.io/max-stretch overrides it.",
		initial.MaxStretch, &cfg.Options.MaxStretch)
	durationFlag(app, "advise.min-evidence", "Observed time before anything is recommended for "+
		"a workload.",
		strconv.Itoa(int(initial.MinEvidence.Hours()))+"h", &cfg.Options.MinEvidence)
	app.Flag("advise.strict", "Decide by the worst mix of kernels that the evidence allows, "+
		"instead of the expected one.").
		BoolVar(&cfg.Options.Strict)

	app.Flag("advise.workload-label", "Pod label that names the workload of the pods that have "+
		"it, in place of their owners: pods of one workload add up. Needs "+
		"--kubernetes.node-name.").
		StringVar(workloadLabel)
	app.Flag("advise.server-metrics", "Ask the inference servers of pods for their metrics, at "+
		"the pod's address and the port and path of its annotation "+
		`mig-exporter.io/server-metrics (":8000/metrics"). Needs --kubernetes.node-name.`).
		BoolVar(&cfg.ServerMetrics)

	enumFlag(app, "advise.strategy", "The device plugin's MIG strategy on this node: mixed, or "+
		"single (all GPUs have one profile).",
		strategyMixed, &cfg.Strategy, strategyMixed, strategySingle)
}

// gapIntervals is how many poll intervals two Snapshots may be apart. If they are further apart, what
// lies between them does not count as observed.
const gapIntervals = 3

// options returns the options of the advisor, for Snapshots that are an interval apart.
func (c *AdviseConfig) options(interval time.Duration) advise.Options {
	o := c.Options
	o.SingleStrategy = c.Strategy == strategySingle
	o.MaxGap = max(advise.DefaultOptions().MaxGap, gapIntervals*interval)

	return o
}

func (c *AdviseConfig) validate(errs *flagErrors) {
	var bad *advise.OptionError
	if err := c.Options.Validate(); errors.As(err, &bad) {
		errs.check(false, "%s=%v: expected %s",
			flagName("advise."+bad.Option), bad.Value, bad.Expected)
	}
}

func (c *KubernetesConfig) validate(errs *flagErrors) {
	errs.check(c.WitnessPod == "" || isWitness(c.WitnessPod),
		"%s=%s: expected NAMESPACE/NAME, or a prefix of it that ends in *",
		flagName("kubernetes.witness-pod"), c.WitnessPod)
	errs.check(c.Checkpoint == "" || filepath.IsAbs(c.Checkpoint),
		"%s=%s: expected an absolute path, or none",
		flagName("kubernetes.checkpoint"), c.Checkpoint)
	errs.check(isLabelKey(c.WorkloadLabel),
		"%s=%.100q: expected the key of a label, as in app.kubernetes.io/name",
		flagName("advise.workload-label"), c.WorkloadLabel)
}

// isLabelKey reports whether a text is empty or can be the key of a pod's label: a name of at most 63
// characters, optionally with a DNS subdomain and a slash before it.
func isLabelKey(text string) bool {
	prefix, name, hasPrefix := strings.Cut(text, "/")
	if !hasPrefix {
		prefix = "a" // any valid one
		name = text
	}

	subdomain := regexp.MustCompile(
		`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`,
	)
	qualified := regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

	return text == "" ||
		len(prefix) <= 253 && subdomain.MatchString(prefix) && qualified.MatchString(name)
}
