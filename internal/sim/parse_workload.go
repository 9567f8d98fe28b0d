package sim

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"
)

// readWorkloads reads the workloads, to be referred to by name.
func (p *parser) readWorkloads(top object) {
	p.workloads = make(map[string]*Workload)
	for _, item := range top.list("workloads") {
		o := p.object(item.node, item.key,
			"name", "memory", "sm", "dram", "tensor", "fp64", "fp32", "fp16", "occupancy", "encoder", "decoder", "jpeg", "ofa", "pcie", "nvlink")
		w := &Workload{Name: o.required("name")}
		if p.workloads[w.Name] != nil {
			p.fail(o.at("name"), o.sub("name"), "is %q; a workload with this name stands above", w.Name)
			continue
		}
		share := func(n *yaml.Node, key string) float64 { return p.number(n, key, 1) }
		sms := func(n *yaml.Node, key string) float64 { return p.number(n, key, 1e6) }
		w.Memory = o.signal("memory", p.size)
		w.SM = o.signal("sm", sms)
		w.DRAM = o.signal("dram", share)
		w.Tensor = o.signal("tensor", share)
		w.FP64 = o.signal("fp64", share)
		w.FP32 = o.signalOr("fp32", share, defaultFP32)
		w.FP16 = o.signal("fp16", share)
		w.Occupancy = o.signalOr("occupancy", share, defaultOccupancy)
		for kind, name := range mediaNames() {
			w.Media[kind] = o.signal(name, func(n *yaml.Node, key string) float64 { return p.number(n, key, maxMediaEngines) })
		}
		w.PCIe = o.signal("pcie", p.size)
		w.NVLink = o.signal("nvlink", p.size)
		p.workloads[w.Name] = w
	}
}

// workload finds the workload that a pod or a process names; nil where it names none.
func (o object) workload() *Workload {
	if !o.has("workload") {
		return nil
	}
	name := o.required("workload")
	w := o.p.workloads[name]
	if w == nil && name != "" {
		o.p.fail(o.at("workload"), o.sub("workload"), "is %q; expected the name of one of the workloads", name)
	}
	return w
}

// What a workload does that does not say so: some arithmetic, with half of the warps.
const (
	defaultFP32      = 0.2
	defaultOccupancy = 0.5
)

// maxMediaEngines bounds how many engines of a kind a process can want.
const maxMediaEngines = 64

// signalOr is signal, with what holds where the key is absent.
func (o object) signalOr(name string, value func(*yaml.Node, string) float64, otherwise float64) Signal {
	if o.fields[name] == nil {
		return Constant(otherwise)
	}
	return o.signal(name, value)
}

// signal reads a value over time: a constant, {sine: {min, max, period}}, {steps: [{at, value}], repeat} or
// {trace: file.csv, repeat}.
func (o object) signal(name string, value func(*yaml.Node, string) float64) Signal {
	n := o.fields[name]
	if n == nil {
		return Signal{}
	}
	key := o.sub(name)
	if n.Kind == yaml.ScalarNode {
		return Constant(value(n, key))
	}
	s := o.p.object(n, key, "sine", "steps", "trace", "repeat")
	if s.fields == nil {
		return Signal{}
	}
	signal := Signal{repeat: s.duration("repeat")}
	shapes := 0
	for _, shape := range []string{"sine", "steps", "trace"} {
		if s.has(shape) {
			shapes++
		}
	}
	if shapes != 1 {
		o.p.fail(n, key, "has %d shapes; expected exactly one of sine, steps or trace", shapes)
		return Signal{}
	}
	switch {
	case s.has("sine"):
		signal.sine = s.sine(value)
		if signal.sine == nil {
			return Signal{}
		}
	case s.has("steps"):
		signal.points = s.steps(value)
	default:
		signal.points = s.trace(value)
	}
	return signal
}

func (o object) sine(value func(*yaml.Node, string) float64) *sineWave {
	s := o.p.object(o.fields["sine"], o.sub("sine"), "min", "max", "period")
	for _, name := range []string{"min", "max", "period"} {
		if s.fields != nil && !s.has(name) {
			o.p.fail(s.node, s.sub(name), "is missing")
			return nil
		}
	}
	if s.fields == nil {
		return nil
	}
	wave := &sineWave{
		min:    value(s.fields["min"], s.sub("min")),
		max:    value(s.fields["max"], s.sub("max")),
		period: s.duration("period"),
	}
	if wave.max < wave.min {
		o.p.fail(s.fields["max"], s.sub("max"), "is below min")
	}
	if wave.period <= 0 {
		o.p.fail(s.fields["period"], s.sub("period"), "expected more than no time")
		return nil
	}
	return wave
}

func (o object) steps(value func(*yaml.Node, string) float64) []point {
	points := []point{}
	for _, item := range o.list("steps") {
		s := o.p.object(item.node, item.key, "at", "value")
		if s.fields == nil {
			continue
		}
		if !s.has("value") {
			o.p.fail(item.node, s.sub("value"), "is missing")
			continue
		}
		next := point{at: s.duration("at"), value: value(s.fields["value"], s.sub("value"))}
		if len(points) > 0 && next.at <= points[len(points)-1].at {
			o.p.fail(s.at("at"), s.sub("at"), "is %s; expected a time after the step before", next.at)
			continue
		}
		points = append(points, next)
	}
	return points
}

// maxTracePoints bounds a trace.
const maxTracePoints = 1 << 20

// trace reads a CSV file beside the scenario: seconds and a value in each line, after an optional line of headings.
func (o object) trace(value func(*yaml.Node, string) float64) []point {
	n, key := o.fields["trace"], o.sub("trace")
	name, ok := o.p.text(n, key)
	if !ok {
		return nil
	}
	if !filepath.IsLocal(name) {
		o.p.fail(n, key, "is %q; expected a file below the scenario's folder", name)
		return nil
	}
	f, err := os.Open(filepath.Join(filepath.Dir(o.p.file), name))
	if err != nil {
		o.p.fail(n, key, "%v", err)
		return nil
	}
	defer f.Close()
	points, err := o.p.readTrace(f, n, key, value)
	if err != nil {
		o.p.fail(n, key, "%s: %v", name, err)
	}
	return points
}

// readTrace reads the lines of a trace. What is wrong with a value names the trace's own line.
func (p *parser) readTrace(r io.Reader, n *yaml.Node, key string, value func(*yaml.Node, string) float64) ([]point, error) {
	lines := csv.NewReader(r)
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
		seconds, ok := finite(record[0])
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
		known := len(p.errs)
		cell := &yaml.Node{Kind: yaml.ScalarNode, Value: record[1], Line: n.Line}
		points = append(points, point{at: at, value: value(cell, fmt.Sprintf("%s: line %d", key, line))})
		if len(p.errs) > known {
			return nil, nil
		}
	}
}
