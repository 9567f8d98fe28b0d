package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ParseError is one thing wrong with a scenario file.
type ParseError struct {
	File    string
	Line    int
	Key     string // such as "gpus[2].layout[0]"
	Message string // what stands there and what was expected
}

func (e *ParseError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
	}
	return fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, e.Key, e.Message)
}

// maxScenarioBytes bounds a scenario file; the largest useful one is far below.
const maxScenarioBytes = 16 << 20

// Load reads a scenario file.
func Load(path string) (*Scenario, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxScenarioBytes+1))
	if err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}
	return Parse(path, data)
}

// Parse reads a scenario. The path names it in errors, and its directory is where traces are looked for. The error joins
// every *ParseError found, in the order of their lines.
func Parse(path string, data []byte) (*Scenario, error) {
	p := &parser{file: path, models: make(map[string]gpuModel)}
	if len(data) > maxScenarioBytes {
		return nil, &ParseError{File: path, Line: 1, Message: fmt.Sprintf("is larger than %d bytes", maxScenarioBytes)}
	}
	root, err := p.document(data)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(path)
	sum := sha256.Sum256(data)
	s := &Scenario{Name: strings.TrimSuffix(name, filepath.Ext(name)), digest: hex.EncodeToString(sum[:])}
	p.scenario(root, s)
	if len(p.errs) > 0 {
		slices.SortStableFunc(p.errs, func(a, b *ParseError) int { return a.Line - b.Line })
		errs := make([]error, 0, len(p.errs))
		for _, e := range p.errs {
			errs = append(errs, e)
		}
		return nil, errors.Join(errs...)
	}
	return s, nil
}

// parser collects what is wrong with one file, so that an author sees everything at once.
type parser struct {
	file      string
	errs      []*ParseError
	models    map[string]gpuModel
	workloads map[string]*Workload
}

func (p *parser) fail(n *yaml.Node, key, format string, args ...any) {
	p.errs = append(p.errs, &ParseError{File: p.file, Line: n.Line, Key: key, Message: fmt.Sprintf(format, args...)})
}

// document reads the one YAML document of a file.
func (p *parser) document(data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, &ParseError{File: p.file, Line: 1, Message: "is empty; expected a scenario with version, node and gpus"}
		}
		return nil, p.syntaxError(err)
	}
	var more yaml.Node
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, p.syntaxError(err)
		}
		return nil, &ParseError{File: p.file, Line: more.Line, Message: "a second document; expected one scenario in a file"}
	}
	if len(doc.Content) != 1 {
		return nil, &ParseError{File: p.file, Line: 1, Message: "is empty; expected a scenario with version, node and gpus"}
	}
	return doc.Content[0], nil
}

// syntaxError puts file and line where the YAML library tells only a line, inside its text.
func (p *parser) syntaxError(err error) error {
	line := 1
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if n, scanErr := fmt.Sscanf(text, "line %d:", &line); n == 1 && scanErr == nil {
		_, text, _ = strings.Cut(text, ": ")
	}
	return &ParseError{File: p.file, Line: line, Message: "not YAML: " + text}
}

// scenario reads the file's top level.
func (p *parser) scenario(root *yaml.Node, s *Scenario) {
	if at := recordedKey(root); at != nil {
		p.fail(at, "recorded", "this is a recording of a node (mig-exporter capture), which mig-exporter alone replays; expected a scenario")
		return
	}
	o := p.object(root, "", "version", "node", "seed", "gpus", "workloads", "pods", "processes", "faults")
	if o.fields == nil {
		return
	}
	if v := o.integer("version", 0, 0, 1<<30); v != 1 {
		p.fail(o.at("version"), "version", "expected 1, the version of the scenario format")
	}
	s.Node = p.node(o)
	s.Seed = uint64(o.integer("seed", 1, 0, 1<<53))
	if !o.has("gpus") {
		p.fail(root, "gpus", "is missing; expected a list of GPUs such as {model: A100-40GB, count: 2}")
	}
	p.gpus(o, s)
	p.readWorkloads(o)
	for _, item := range o.list("pods") {
		p.pod(item.node, item.key, s)
	}
	if n := o.fields["pods"]; n != nil && !s.Node.Kubernetes && len(s.Pods) > 0 {
		p.fail(n, "pods", "the node has kubernetes: false; expected processes instead of pods")
	}
	for _, item := range o.list("processes") {
		p.process(item.node, item.key, s)
	}
	for _, item := range o.list("faults") {
		p.fault(item.node, item.key, s)
	}
}

// recordedKey finds the key that only a recording has, nil where the file is none.
func recordedKey(root *yaml.Node) *yaml.Node {
	for i := 0; root.Kind == yaml.MappingNode && i < len(root.Content); i += 2 {
		if root.Content[i].Value == "recorded" {
			return root.Content[i]
		}
	}
	return nil
}
