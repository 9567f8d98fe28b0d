package sim

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// object is a YAML mapping whose keys are known beforehand.
type object struct {
	p      *parser
	node   *yaml.Node
	key    string
	fields map[string]*yaml.Node // nil where the node is no mapping
}

// element is an item of a YAML list and its key in errors.
type element struct {
	node *yaml.Node
	key  string
}

// object reads a mapping. Keys that are not allowed, or stand there twice, are errors.
func (p *parser) object(n *yaml.Node, key string, allowed ...string) object {
	o := object{p: p, node: n, key: key}
	if n.Kind != yaml.MappingNode {
		p.fail(n, key, "is %s; expected a mapping with %s", kindOf(n), strings.Join(allowed, ", "))
		return o
	}
	o.fields = make(map[string]*yaml.Node)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		switch {
		case !slices.Contains(allowed, name.Value):
			p.fail(name, o.sub(name.Value), "is not known here; expected one of %s", strings.Join(allowed, ", "))
		case o.fields[name.Value] != nil:
			p.fail(name, o.sub(name.Value), "stands here twice")
		default:
			o.fields[name.Value] = value
		}
	}
	return o
}

// kindOf says in an author's words what a node is.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias, which scenarios do not use"
	}
	if n.Tag == "!!null" {
		return "empty"
	}
	return strconv.Quote(n.Value)
}

func (o object) sub(name string) string {
	if o.key == "" {
		return name
	}
	return o.key + "." + name
}

func (o object) has(name string) bool { return o.fields[name] != nil }

// at is the node of a key, or the object's where it is absent.
func (o object) at(name string) *yaml.Node {
	if n := o.fields[name]; n != nil {
		return n
	}
	return o.node
}

func (o object) list(name string) []element {
	n := o.fields[name]
	if n == nil {
		return nil
	}
	return o.p.list(n, o.sub(name))
}

func (p *parser) list(n *yaml.Node, key string) []element {
	if n.Kind != yaml.SequenceNode {
		p.fail(n, key, "is %s; expected a list", kindOf(n))
		return nil
	}
	elements := make([]element, 0, len(n.Content))
	for i, c := range n.Content {
		elements = append(elements, element{c, fmt.Sprintf("%s[%d]", key, i)})
	}
	return elements
}

// text reads a string. Numbers and booleans must be quoted: 580.10 would lose its zero.
func (p *parser) text(n *yaml.Node, key string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		p.fail(n, key, "is %s; expected text (in quotes where it looks like a number)", kindOf(n))
		return "", false
	}
	return n.Value, true
}

func (o object) text(name, def string) string {
	n := o.fields[name]
	if n == nil {
		return def
	}
	s, ok := o.p.text(n, o.sub(name))
	if !ok {
		return def
	}
	return s
}

// required reads a string that must be there and must not be empty.
func (o object) required(name string) string {
	if o.fields == nil {
		return ""
	}
	if !o.has(name) {
		o.p.fail(o.node, o.sub(name), "is missing")
		return ""
	}
	errs := len(o.p.errs)
	s := o.text(name, "")
	if s == "" && len(o.p.errs) == errs {
		o.p.fail(o.at(name), o.sub(name), "is empty")
	}
	return s
}

// choice reads one of some words.
func (o object) choice(name, def string, allowed ...string) string {
	s := o.text(name, def)
	if !slices.Contains(allowed, s) {
		o.p.fail(o.at(name), o.sub(name), "is %q; expected one of %s", s, strings.Join(allowed, ", "))
		return def
	}
	return s
}

func (o object) boolean(name string, def bool) bool {
	n := o.fields[name]
	if n == nil {
		return def
	}
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" {
		o.p.fail(n, o.sub(name), "is %s; expected true or false", kindOf(n))
		return def
	}
	return n.Value == "true" || n.Value == "True" || n.Value == "TRUE"
}

func (o object) integer(name string, def, lowest, highest int64) int64 {
	n := o.fields[name]
	if n == nil {
		return def
	}
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || v < lowest || v > highest {
		o.p.fail(n, o.sub(name), "is %s; expected a whole number from %d to %d", kindOf(n), lowest, highest)
		return def
	}
	return v
}

func (o object) duration(name string) time.Duration {
	n := o.fields[name]
	if n == nil {
		return 0
	}
	return o.p.duration(n, o.sub(name))
}

// offset reads a duration that may go backwards.
func (o object) offset(name string) time.Duration {
	n := o.fields[name]
	d, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || d == 0 || d.Abs() > maxDuration {
		o.p.fail(n, o.sub(name), "is %s; expected a duration such as 10m or -10m", kindOf(n))
		return 0
	}
	return d
}

// maxDuration keeps sums of durations far from overflow.
const maxDuration = 10 * 365 * 24 * time.Hour

func (p *parser) duration(n *yaml.Node, key string) time.Duration {
	d, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || d < 0 || d > maxDuration {
		p.fail(n, key, "is %s; expected a duration such as 30s or 1h30m", kindOf(n))
		return 0
	}
	return d
}

// number reads a plain number from 0 to a highest value.
func (p *parser) number(n *yaml.Node, key string, highest float64) float64 {
	v, ok := finite(n.Value)
	if n.Kind != yaml.ScalarNode || !ok || v < 0 || v > highest {
		p.fail(n, key, "is %s; expected a number from 0 to %g", kindOf(n), highest)
		return 0
	}
	return v
}

// size reads an amount of memory, in bytes.
func (p *parser) size(n *yaml.Node, key string) float64 {
	units := []struct {
		name  string
		bytes float64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}
	for _, u := range units {
		if digits, ok := strings.CutSuffix(n.Value, u.name); ok && n.Kind == yaml.ScalarNode {
			if v, ok := finite(strings.TrimSpace(digits)); ok && v >= 0 && v*u.bytes <= 1<<50 {
				return math.Floor(v * u.bytes)
			}
			break
		}
	}
	p.fail(n, key, "is %s; expected a size such as 512MiB or 6GiB", kindOf(n))
	return 0
}

func finite(s string) (float64, bool) {
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)
}
