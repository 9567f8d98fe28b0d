package capture

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds a recording; three polls of the largest node are a thousandth of it.
const maxFileBytes = 256 << 20

// IsRecording tells whether a scenario file is a recording. One that cannot be read or is no YAML is none; who reads it as
// a scenario says why.
func IsRecording(path string) bool {
	data, err := readFile(path)
	if err != nil {
		return false
	}
	root, err := (&reader{file: path}).document(data)
	return err == nil && hasKey(root, "recorded")
}

// Load reads a recording.
func Load(path string) (*Recording, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	if len(data) > maxFileBytes {
		return nil, &ParseError{File: path, Line: 1, Message: fmt.Sprintf("is larger than %d bytes", maxFileBytes)}
	}
	return data, nil
}

// Parse reads a recording. The path names it in errors. The error joins every *ParseError found, in the order of their
// lines.
func Parse(path string, data []byte) (*Recording, error) {
	r := &reader{file: path}
	root, err := r.document(data)
	if err != nil {
		return nil, err
	}
	rec := r.recording(root)
	if len(r.errs) == 0 {
		return rec, nil
	}
	slices.SortStableFunc(r.errs, func(a, b *ParseError) int { return a.Line - b.Line })
	errs := make([]error, 0, len(r.errs))
	for _, e := range r.errs {
		errs = append(errs, e)
	}
	return nil, errors.Join(errs...)
}

// recording reads the file's top level.
func (r *reader) recording(root *yaml.Node) *Recording {
	rec := &Recording{}
	o := r.object(root, "", "version", "node", "recorded")
	if v := o.fields["version"]; v != nil && v.Value != "1" {
		r.fail(v, "version", "is %s; expected 1, the version of the scenario format", kindOf(v))
	}
	if n := o.fields["node"]; n != nil {
		node := r.object(n, "node", "hostname", "kubernetes")
		rec.Hostname = node.text("hostname")
		if k := node.fields["kubernetes"]; k != nil && r.boolean(k, "node.kubernetes") {
			r.fail(k, "node.kubernetes", "is true; the kubelet of a node is not recorded")
		}
	}
	if n := o.fields["recorded"]; n != nil {
		r.recorded(n, rec)
	}
	return rec
}

func (r *reader) recorded(n *yaml.Node, rec *Recording) {
	o := r.object(n, "recorded", "by", "start", "moments", "identities", "node", "?events", "gpus")
	rec.By = o.text("by")
	if at := o.fields["start"]; at != nil {
		start, err := time.Parse(time.RFC3339Nano, o.text("start"))
		if err != nil {
			r.fail(at, o.sub("start"), "is %s; expected a time such as 2026-01-31T12:00:00Z", kindOf(at))
		}
		rec.Start = start.UTC()
	}
	rec.Moments = o.moments()
	if at := o.fields["identities"]; at != nil {
		switch o.text("identities") {
		case identitiesPseudonyms:
			rec.Pseudonyms = true
		case identitiesKept:
		default:
			r.fail(at, o.sub("identities"), "is %s; expected %s or %s", kindOf(at), identitiesPseudonyms, identitiesKept)
		}
	}
	said := answerReader{reader: r, rec: rec}
	for i, at := range o.list("gpus") {
		g := said.gpu(at, fmt.Sprintf("recorded.gpus[%d]", i))
		if slices.ContainsFunc(rec.gpus, func(o gpuRecord) bool { return o.name == g.name }) {
			r.fail(at, fmt.Sprintf("recorded.gpus[%d].gpu", i), "is %q, which stands here twice", g.name)
		}
		rec.gpus = append(rec.gpus, g)
	}
	if at := o.fields["node"]; at != nil { // after the GPUs that its answers name
		rec.node = said.answers(at, o.sub("node"), nodeQuestions())
	}
	for i, at := range o.list("events") {
		rec.events = append(rec.events, said.event(at, fmt.Sprintf("recorded.events[%d]", i)))
	}
}

// moments reads the times of the polls.
func (o object) moments() []time.Duration {
	var list []time.Duration
	for i, n := range o.list("moments") {
		key := fmt.Sprintf("%s[%d]", o.sub("moments"), i)
		d, err := time.ParseDuration(o.r.text(n, key))
		switch {
		case err != nil:
			o.r.fail(n, key, "is %s; expected a duration such as 1.5s", kindOf(n))
		case i == 0 && d != 0:
			o.r.fail(n, key, "is %s; expected 0s: the first poll is the start", d)
		}
		list = append(list, d)
	}
	if n := o.fields["moments"]; n != nil && len(list) == 0 {
		o.r.fail(n, o.sub("moments"), "is empty; expected the time of one poll or more")
	}
	return list
}

func (rec *Recording) has(gpu string) bool {
	return slices.ContainsFunc(rec.gpus, func(g gpuRecord) bool { return g.name == gpu })
}
