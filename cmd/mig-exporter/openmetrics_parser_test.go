package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A strict parser of OpenMetrics 1.0 text, as the specification at
// https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md has it.
// Prometheus reads far more than is allowed; other clients, such as prometheus_client's own parser,
// do not. Exemplars and timestamps of samples, which this program does not write, are refused.

// suffixesOf has what a sample's name has behind its family's, by type.
var suffixesOf = map[string][]string{
	"counter":        {"_total", "_created"},
	"gauge":          {""},
	"gaugehistogram": {"_bucket", "_gcount", "_gsum"},
	"histogram":      {"_bucket", "_count", "_sum", "_created"},
	"info":           {"_info"},
	"stateset":       {""},
	"summary":        {"", "_count", "_sum", "_created"},
	"unknown":        {""},
}

var (
	strictMetricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	strictNumber     = regexp.MustCompile(`^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:inf|infinity)$|^(?i:nan)$`)
	strictLabel      = regexp.MustCompile(`^([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"([,}])`)
)

type strictFamily struct {
	name, kind string
	metadata   map[string]bool // TYPE, HELP, UNIT
	samples    []strictSample
}

type strictSample struct {
	suffix string
	labels map[string]string
	value  float64
}

// metric returns the labels that tell the metrics of a family apart.
func (s strictSample) metric() string {
	var list []string

	for _, name := range slices.Sorted(maps.Keys(s.labels)) {
		if s.suffix == "_bucket" && name == "le" {
			continue
		}

		list = append(list, name+"="+strconv.Quote(s.labels[name]))
	}

	return strings.Join(list, ",")
}

// parseStrictly returns the families of an exposition, and everything that a strict parser refuses.
func parseStrictly(text string) ([]*strictFamily, error) {
	body, ok := strings.CutSuffix(text, "# EOF\n")
	if !ok {
		return nil, errors.New(`the last line: expected "# EOF"`)
	}

	var errs []error
	var families []*strictFamily

	for number, line := range strings.Split(strings.TrimSuffix(body, "\n"), "\n") {
		var err error
		if families, err = addStrictly(families, line); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w: %s", number+1, err, line))
		}
	}

	for _, f := range families {
		if err := f.check(); err != nil {
			errs = append(errs, fmt.Errorf("family %s: %w", f.name, err))
		}
	}

	return families, errors.Join(append(errs, checkNames(families))...)
}

// addStrictly adds a line to the last family, or begins another one.
func addStrictly(families []*strictFamily, line string) ([]*strictFamily, error) {
	if !strings.HasPrefix(line, "#") {
		if len(families) == 0 {
			return families, errors.New("expected the type of its family before")
		}

		return families, families[len(families)-1].addSample(line)
	}

	fields := strings.SplitN(line, " ", 4)
	if len(fields) < 4 || fields[0] != "#" || !slices.Contains([]string{"TYPE", "HELP", "UNIT"}, fields[1]) {
		return families, errors.New("expected # TYPE, # HELP or # UNIT with a name and a text")
	}

	// TYPE or HELP of another name begins a family, and so does another type of the same name.
	about := fields[1]

	name := fields[2]
	if len(families) == 0 || families[len(families)-1].name != name || len(families[len(families)-1].samples) > 0 {
		if !strictMetricName.MatchString(name) {
			return families, errors.New("not a metric name")
		}

		families = append(families, &strictFamily{name: name, metadata: map[string]bool{}})
	}

	f := families[len(families)-1]
	if f.metadata[about] {
		return families, errors.New("given twice")
	}

	f.metadata[about] = true
	switch about {
	case "TYPE":
		if f.kind = fields[3]; suffixesOf[f.kind] == nil {
			return families, errors.New("not a type")
		}
	case "UNIT":
		if fields[3] != "" && !strings.HasSuffix(name, "_"+fields[3]) {
			return families, errors.New("the name does not end with the unit")
		}
	}

	return families, nil
}

func (f *strictFamily) addSample(line string) error {
	rest, ok := strings.CutPrefix(line, f.name)
	if !ok {
		return fmt.Errorf("not of the family %s", f.name)
	}

	end := strings.IndexAny(rest, "{ ")
	if end < 0 || !slices.Contains(suffixesOf[f.kind], rest[:end]) {
		return fmt.Errorf("not a sample of a %s", cmp.Or(f.kind, "family without a type"))
	}

	s := strictSample{suffix: rest[:end], labels: map[string]string{}}

	rest, err := s.addLabels(rest[end:])
	if err != nil {
		return err
	}

	number, ok := strings.CutPrefix(rest, " ")
	if !ok || !strictNumber.MatchString(number) {
		return errors.New("expected one space and a number, and nothing else")
	}

	s.value, _ = strconv.ParseFloat(number, 64)
	f.samples = append(f.samples, s)

	return nil
}

// addLabels adds the labels at the beginning of a text, if there are any, and returns the rest of
// it.
func (s *strictSample) addLabels(text string) (string, error) {
	list, ok := strings.CutPrefix(text, "{")
	if !ok {
		return text, nil
	}

	for {
		m := strictLabel.FindStringSubmatch(list)
		if m == nil {
			return "", errors.New("not a list of labels")
		}

		if _, twice := s.labels[m[1]]; twice {
			return "", fmt.Errorf("the label %s twice", m[1])
		}

		s.labels[m[1]] = m[2]

		list = list[len(m[0]):]
		if m[3] == "}" {
			return list, nil
		}
	}
}

// check checks what does not show in one line.
func (f *strictFamily) check() error {
	if f.kind == "" {
		return errors.New("no type")
	}

	seen := map[string]bool{}
	last := ""

	for i, s := range f.samples {
		metric := s.metric()
		if metric != last && seen[metric] {
			return fmt.Errorf("{%s} again, behind another metric", metric)
		}

		if i > 0 && metric == last && s.suffix == f.samples[i-1].suffix && s.suffix != "_bucket" {
			return fmt.Errorf("{%s} twice", metric)
		}

		seen[metric] = true
		last = metric

		if f.kind == "counter" && !(s.value >= 0) {
			return fmt.Errorf("{%s}: a counter of %v", metric, s.value)
		}

		if s.suffix == "_created" && (!(s.value > 0) || math.IsInf(s.value, 0)) {
			return fmt.Errorf("{%s}: created at %v", metric, s.value)
		}

		if f.kind == "counter" && s.suffix == "_created" &&
			(i == 0 || f.samples[i-1].suffix != "_total" || f.samples[i-1].metric() != metric) {
			return fmt.Errorf("{%s}: created, but without a total before it", metric)
		}
	}

	if f.kind == "histogram" {
		return f.checkBuckets()
	}

	return nil
}

// checkBuckets checks that the buckets of a histogram ascend to +Inf, and that its count is that
// bucket's.
func (f *strictFamily) checkBuckets() error {
	bound := math.Inf(-1)
	below := 0.0

	for _, s := range f.samples {
		switch s.suffix {
		case "_bucket":
			le := s.labels["le"]

			next, err := strconv.ParseFloat(le, 64)
			if err != nil || le != "+Inf" && !strings.ContainsAny(le, ".e") {
				return fmt.Errorf("the bound %q: expected a number with a point, or +Inf", le)
			}

			if next <= bound || s.value < below {
				return fmt.Errorf("the bucket %s is not above the one before", le)
			}

			bound = next
			below = s.value
		case "_count":
			if !math.IsInf(bound, 1) || s.value != below {
				return fmt.Errorf("a count of %v, and %v up to %v", s.value, below, bound)
			}

			bound = math.Inf(-1)
			below = 0
		}
	}

	return nil
}

// checkNames checks that no name of a family, or that a sample of it can have, is another family's.
func checkNames(families []*strictFamily) error {
	var errs []error
	taken := map[string]string{}

	for _, f := range families {
		names := map[string]bool{f.name: true}
		for _, suffix := range suffixesOf[f.kind] {
			names[f.name+suffix] = true
		}

		for _, name := range slices.Sorted(maps.Keys(names)) {
			if other, clash := taken[name]; clash {
				errs = append(errs, fmt.Errorf("%s %s: the name %s is that of the %s, too", f.kind, f.name, name, other))
			}

			taken[name] = f.kind + " " + f.name
		}
	}

	return errors.Join(errs...)
}
