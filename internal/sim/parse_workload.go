package sim

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// workloadEntry is a workload in a scenario file. Pods and processes refer to it by its name.
type workloadEntry struct {
	Workload
	SM      signalOf[smCount]     `yaml:"sm,omitempty"`
	Encoder signalOf[engineCount] `yaml:",omitempty"`
	Decoder signalOf[engineCount] `yaml:",omitempty"`
	JPEG    signalOf[engineCount] `yaml:"jpeg,omitempty"`
	OFA     signalOf[engineCount] `yaml:"ofa,omitempty"`
}

// FinishYAML adds the workload of an entry.
func (e *workloadEntry) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	workloads := fileOf(r).workloads
	if workloads[e.Name] != nil {
		r.FailAt(n, key, "name", "is %q; a workload above has this name", e.Name)
	}

	e.checkDemand(r, n, key)

	if e.Server != nil && strictyaml.HasKey(n, "memory") {
		r.FailAt(
			n,
			key,
			"memory",
			"is set together with server; expected either, as a server takes a fraction of the device",
		)
	}

	e.Media = [mediaEngines]Signal{e.Encoder.Signal, e.Decoder.Signal, e.JPEG.Signal, e.OFA.Signal}
	workloads[e.Name] = &e.Workload
}

// signalOf is a signal whose values scenarios write as V, such as memorySize. It is a constant, as
// in 6GiB, or a signalShape.
type signalOf[V ~float64] struct{ Signal }

// signalShape is {sine: {min, max, period}}, {steps: [{at, value}], repeat} or {trace: file.csv,
// repeat}.
type signalShape[V ~float64] struct {
	Sine   *sineEntry[V] `yaml:",omitempty"`
	Steps  stepList[V]   `yaml:",omitempty"`
	Trace  traceFile[V]  `yaml:",omitempty"`
	Repeat time.Duration `yaml:",omitempty"`
}

// DecodeYAML reads both forms: a constant, or a signalShape.
func (e *signalOf[V]) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if n.Kind == strictyaml.ScalarNode {
		var value V
		r.Decode(n, key, &value)
		e.Signal = Constant(float64(value))

		return
	}

	var shape signalShape[V]
	if !r.Decode(n, key, &shape) {
		return
	}

	shapes := 0

	for _, name := range []string{"sine", "steps", "trace"} {
		if strictyaml.HasKey(n, name) {
			shapes++
		}
	}

	if shapes != 1 {
		r.Fail(n, key, "has %d shapes; expected exactly one of sine, steps or trace", shapes)
		return
	}

	e.points = append(shape.Steps, shape.Trace...)
	e.repeat = shape.Repeat

	if s := shape.Sine; s != nil {
		e.sine = &sineWave{min: float64(s.Min), max: float64(s.Max), period: s.Period}
	}
}

type sineEntry[V ~float64] struct {
	Min, Max V
	Period   time.Duration `nonzero:"more than no time"`
}

// FinishYAML checks that max is not below min.
func (s *sineEntry[V]) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if s.Max < s.Min {
		r.FailAt(n, key, "max", "is below min")
	}
}

// stepList is a list of steps in a scenario.
type stepList[V ~float64] []point

type stepEntry[V ~float64] struct {
	At    time.Duration `yaml:",omitempty"`
	Value V
}

// DecodeYAML reads steps in the order of their times.
func (l *stepList[V]) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	var steps []stepEntry[V]
	if !r.Decode(n, key, &steps) {
		return
	}

	*l = stepList[V]{}

	for i, s := range steps {
		if i > 0 && s.At <= steps[i-1].At {
			r.FailAt(
				n.Content[i],
				fmt.Sprintf("%s[%d]", key, i),
				"at",
				"is %s; expected a time after the step before",
				s.At,
			)
		}

		*l = append(*l, point{at: s.At, value: float64(s.Value)})
	}
}

// maxTracePoints bounds the lines of a trace.
const maxTracePoints = 1 << 20

// traceFile is the points of a trace: a CSV file beside the scenario.
type traceFile[V ~float64] []point

// DecodeYAML reads the name of a CSV file, and then the file. Each of its lines has seconds and a
// value; the first may be a line of headings.
func (l *traceFile[V]) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	var name string
	if !r.Decode(n, key, &name) {
		return
	}

	if !filepath.IsLocal(name) {
		r.Expected(n, key, "a file below the scenario's folder")
		return
	}

	file, err := os.Open(filepath.Join(filepath.Dir(fileOf(r).path), name))
	if err != nil {
		r.Fail(n, key, "%v", err)
		return
	}
	defer file.Close()

	if *l, err = readTraceLines[V](file, r, n, key); err != nil {
		r.Fail(n, key, "%s: %v", name, err)
	}
}

// readTraceLines reads the lines of a trace. It reports invalid values to r, with their line in the
// trace, and returns nil then.
func readTraceLines[V ~float64](
	file io.Reader,
	r *strictyaml.Reader,
	n *strictyaml.Node,
	key string,
) ([]point, error) {
	lines := csv.NewReader(file)
	lines.FieldsPerRecord = 2
	lines.TrimLeadingSpace = true
	points := []point{}

	for first := true; ; first = false {
		record, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return points, nil
		}

		if err != nil {
			return nil, err
		}

		line, _ := lines.FieldPos(0)

		seconds, ok := parseFinite(record[0])
		if !ok && first {
			continue // headings
		}

		at := time.Duration(seconds * float64(time.Second))
		if !ok || seconds < 0 || at > maxDuration ||
			(len(points) > 0 && at <= points[len(points)-1].at) {
			return nil, fmt.Errorf(
				"line %d: time %q; expected seconds, more than the line before",
				line,
				record[0],
			)
		}

		if len(points) == maxTracePoints {
			return nil, fmt.Errorf("line %d: more than %d lines", line, maxTracePoints)
		}

		var value V

		// As a YAML node the value is read, and checked, like a value in the scenario itself.
		cell := &strictyaml.Node{
			Kind:  strictyaml.ScalarNode,
			Tag:   "!!str",
			Value: record[1],
			Line:  n.Line,
		}
		if !r.Decode(cell, fmt.Sprintf("%s: line %d", key, line), &value) {
			return nil, nil
		}

		points = append(points, point{at: at, value: float64(value)})
	}
}
