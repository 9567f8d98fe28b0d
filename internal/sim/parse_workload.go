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

// workloadEntry is a workload, to be referred to by name. One that does not say so does some arithmetic, with half of
// the warps.
type workloadEntry struct {
	Name   string
	Memory signalEntry[memorySize] `yaml:",omitempty"`
	demandEntry
	Tensor    signalEntry[share]       `yaml:",omitempty"`
	FP64      signalEntry[share]       `yaml:"fp64,omitempty"`
	FP32      signalEntry[share]       `yaml:"fp32" default:"0.2"`
	FP16      signalEntry[share]       `yaml:"fp16,omitempty"`
	Occupancy signalEntry[share]       `default:"0.5"`
	Encoder   signalEntry[engineCount] `yaml:",omitempty"`
	Decoder   signalEntry[engineCount] `yaml:",omitempty"`
	JPEG      signalEntry[engineCount] `yaml:"jpeg,omitempty"`
	OFA       signalEntry[engineCount] `yaml:"ofa,omitempty"`
	PCIe      signalEntry[memorySize]  `yaml:"pcie,omitempty"`
	NVLink    signalEntry[memorySize]  `yaml:"nvlink,omitempty"`
}

// DecodeYAML reads an entry and adds its workload.
func (e *workloadEntry) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	type plain workloadEntry
	if !r.Decode(n, key, (*plain)(e)) {
		return
	}
	f := fileOf(r)
	switch {
	case e.Name == "":
		r.FailAt(n, key, "name", "is empty")
	case f.workloads[e.Name] != nil:
		r.FailAt(n, key, "name", "is %q; a workload above has this name", e.Name)
	}
	f.workloads[e.Name] = &Workload{
		Name: e.Name, Memory: e.Memory.Signal, Demand: e.demand(r, n, key), DRAM: e.DRAM.Signal, Tensor: e.Tensor.Signal,
		FP64: e.FP64.Signal, FP32: e.FP32.Signal, FP16: e.FP16.Signal, Occupancy: e.Occupancy.Signal,
		Media: [mediaEngines]Signal{e.Encoder.Signal, e.Decoder.Signal, e.JPEG.Signal, e.OFA.Signal},
		PCIe:  e.PCIe.Signal, NVLink: e.NVLink.Signal,
	}
}

// signalEntry is a value over time: a constant, or a signalShape.
type signalEntry[V ~float64] struct{ Signal }

// signalShape is {sine: {min, max, period}}, {steps: [{at, value}], repeat} or {trace: file.csv, repeat}.
type signalShape[V ~float64] struct {
	Sine   *sineEntry[V]  `yaml:",omitempty"`
	Steps  []stepEntry[V] `yaml:",omitempty"`
	Trace  string         `yaml:",omitempty"`
	Repeat time.Duration  `yaml:",omitempty"`
}

type sineEntry[V ~float64] struct {
	Min, Max V
	Period   time.Duration
}

type stepEntry[V ~float64] struct {
	At    time.Duration `yaml:",omitempty"`
	Value V
}

// DecodeYAML reads both forms.
func (e *signalEntry[V]) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
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
	e.repeat = shape.Repeat
	var shapes []string
	for _, name := range []string{"sine", "steps", "trace"} {
		if strictyaml.HasKey(n, name) {
			shapes = append(shapes, name)
		}
	}
	if len(shapes) != 1 {
		r.Fail(n, key, "has %d shapes; expected exactly one of sine, steps or trace", len(shapes))
		return
	}
	switch at, key := strictyaml.Value(n, shapes[0]), key+"."+shapes[0]; shapes[0] {
	case "sine":
		e.sine = shape.Sine.wave(r, at, key)
	case "steps":
		e.points = points(r, at, key, shape.Steps)
	default:
		e.points = readTrace[V](r, at, key, shape.Trace)
	}
}

func (s *sineEntry[V]) wave(r *strictyaml.Reader, n *strictyaml.Node, key string) *sineWave {
	if s.Max < s.Min {
		r.FailAt(n, key, "max", "is below min")
	}
	if s.Period == 0 {
		r.FailAt(n, key, "period", "expected more than no time")
	}
	return &sineWave{min: float64(s.Min), max: float64(s.Max), period: s.Period}
}

func points[V ~float64](r *strictyaml.Reader, n *strictyaml.Node, key string, steps []stepEntry[V]) []point {
	points := []point{}
	for i, s := range steps {
		if i > 0 && s.At <= steps[i-1].At {
			r.FailAt(n.Content[i], fmt.Sprintf("%s[%d]", key, i), "at", "is %s; expected a time after the step before", s.At)
		}
		points = append(points, point{at: s.At, value: float64(s.Value)})
	}
	return points
}

// maxTracePoints bounds a trace.
const maxTracePoints = 1 << 20

// readTrace reads a CSV file beside the scenario: seconds and a value in each line, after an optional line of headings.
func readTrace[V ~float64](r *strictyaml.Reader, n *strictyaml.Node, key, name string) []point {
	if !filepath.IsLocal(name) {
		r.Expected(n, key, "a file below the scenario's folder")
		return nil
	}
	file, err := os.Open(filepath.Join(filepath.Dir(fileOf(r).path), name))
	if err != nil {
		r.Fail(n, key, "%v", err)
		return nil
	}
	defer file.Close()
	points, err := readTraceLines[V](file, r, n, key)
	if err != nil {
		r.Fail(n, key, "%s: %v", name, err)
	}
	return points
}

// readTraceLines reads the lines of a trace. What is wrong with a value is reported with the trace's own line.
func readTraceLines[V ~float64](file io.Reader, r *strictyaml.Reader, n *strictyaml.Node, key string) ([]point, error) {
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
		if !ok || seconds < 0 || at > maxDuration || (len(points) > 0 && at <= points[len(points)-1].at) {
			return nil, fmt.Errorf("line %d: time %q; expected seconds, more than the line before", line, record[0])
		}
		if len(points) == maxTracePoints {
			return nil, fmt.Errorf("line %d: more than %d lines", line, maxTracePoints)
		}
		var value V
		cell := &strictyaml.Node{Kind: strictyaml.ScalarNode, Tag: "!!str", Value: record[1], Line: n.Line}
		if !r.Decode(cell, fmt.Sprintf("%s: line %d", key, line), &value) {
			return nil, nil
		}
		points = append(points, point{at: at, value: float64(value)})
	}
}
