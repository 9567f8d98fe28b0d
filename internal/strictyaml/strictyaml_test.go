package strictyaml_test

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// document has a value of every kind.
type document struct {
	Name     string
	Wait     time.Duration `yaml:"wait_for"`
	Start    time.Time
	Ratio    float64
	Count    uint8
	Offset   int16
	Enabled  bool
	List     []small
	ByIndex  map[int]*small
	CName    [4]int8 `yaml:"c_name"`
	Raw      [2]uint8
	Optional string `yaml:",omitempty"`
	Rest     *yaml.Node
	Limit    even
}

type small struct{ MemorySizeMB uint64 }

type even int

func (e even) Valid(root any) (valid bool, expected string) {
	return e%2 == 0 && len(root.(*document).Name) > 0, "an even number, and a name"
}

const good = `name: "580"
wait_for: 1.5s
ratio: .nan
count: 255
offset: -3
enabled: true
list: [{memory_size_mb: 1}, {memory_size_mb: 18446744073709551615}]
by_index: {7: {memory_size_mb: 2}}
c_name: abcd
raw: 0aff
rest: {anything: 1}
limit: 4
start: 2026-01-01T01:00:00.5+01:00
`

func TestDecode(t *testing.T) {
	var d document
	if err := strictyaml.Decode("f.yaml", []byte(good), &d); err != nil {
		t.Fatal(err)
	}

	if d.Ratio == d.Ratio {
		t.Errorf("ratio %v, want no number", d.Ratio)
	}

	if d.Rest == nil || !strictyaml.HasKey(d.Rest, "anything") {
		t.Errorf("rest %+v", d.Rest)
	}

	d.Ratio = 0
	d.Rest = nil

	want := document{
		Name: "580", Wait: 1500 * time.Millisecond, Count: 255, Offset: -3, Enabled: true,
		List: []small{{1}, {1<<64 - 1}}, ByIndex: map[int]*small{7: {2}},
		Start: time.Date(2026, time.January, 1, 0, 0, 0, 5e8, time.UTC),
		CName: [4]int8{'a', 'b', 'c', 'd'}, Raw: [2]uint8{10, 255}, Limit: 4,
	}
	if !reflect.DeepEqual(d, want) {
		t.Errorf("%+v, want %+v", d, want)
	}
}

// TestMistakes: every mistake of a file is reported, in the order of its lines, with file, line and
// key.
func TestMistakes(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{`"580"`, "580", `f.yaml:1: name: is 580; expected text (in quotes if it looks like something else)`},
		{"1.5s", "soon", `f.yaml:2: wait_for: is "soon"; expected a duration such as 30s`},
		{".nan", "half", `f.yaml:3: ratio: is "half"; expected a number`},
		{"255", "256", `f.yaml:4: count: is 256; expected a whole number from 0 to 2^8-1`},
		{"-3", "0x10", `f.yaml:5: offset: is 0x10; expected a whole number of 16 bits`},
		{"enabled: true", "enabled: yes", `f.yaml:6: enabled: is "yes"; expected true or false`},
		{"memory_size_mb: 1}", "memory: 1}",
			"f.yaml:7: list[0].memory: is not known here; expected one of memory_size_mb\nf.yaml:7: list[0].memory_size_mb: " +
				"is missing"},
		{"[{memory_size_mb: 1}, {memory_size_mb: 18446744073709551615}]", "{}",
			"f.yaml:7: list: is a mapping; expected a list"},
		{"7: {memory_size_mb: 2}", "7: {memory_size_mb: 2}, 7: {memory_size_mb: 2}",
			"f.yaml:8: by_index.7: duplicate key"},
		{"7: {", "seven: {", `f.yaml:8: by_index.seven: is "seven"; expected a whole number`},
		{"abcd", "abcde", "f.yaml:9: c_name: is 5 bytes long; there is room for 4"},
		{"0aff", "0a", `f.yaml:10: raw: is "0a"; expected 2 bytes in hexadecimal`},
		{"limit: 4", "limit: 5", `f.yaml:12: limit: is 5; expected an even number, and a name`},
		{"limit: 4", "limit:", "f.yaml:12: limit: is empty; expected a whole number"},
		{"limit: 4", "limit: 4\nlimit: 4", "f.yaml:13: limit: duplicate key"},
		{"limit: 4\n", "", "f.yaml:1: limit: is missing"},
		{"name: \"580\"\nwait_for: 1.5s", "wait_for: 1\nname: &x 2",
			"f.yaml:1: wait_for: is 1; expected a duration such as 30s or 1h30m\nf.yaml:2: name: is 2"},
		{"limit: 4", "limit: [", "f.yaml:"},
		{"2026-01-01T01", "2026-13-01T01", `f.yaml:13: start: is "2026-13-01T01:00:00.5+01:00"; expected a time such as`},
		{"2026-01-01T01:00:00.5+01:00", "[]", "f.yaml:13: start: is a list; expected a time such as"},
		{good, "", "f.yaml:1: is empty"},
		{"+01:00\n", "+01:00\n---\na: b\n", "f.yaml:14: a second document"},
	} {
		err := strictyaml.Decode("f.yaml", []byte(strings.Replace(good, c.old, c.new, 1)), &document{})

		var mistake *strictyaml.Error
		if !errors.As(err, &mistake) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q for %q: %v\nwant %s", c.new, c.old, err, c.want)
		}
	}
}

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.yaml")
	if _, err := strictyaml.ReadFile(path, 3); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}

	if err := os.WriteFile(path, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}

	if data, err := strictyaml.ReadFile(path, 3); err != nil || string(data) != "abc" {
		t.Errorf("%q, %v", data, err)
	}

	var mistake *strictyaml.Error
	if _, err := strictyaml.ReadFile(path, 2); !errors.As(err, &mistake) || mistake.Line != 1 {
		t.Errorf("a file that is too large: %v", err)
	}
}

// settings has every tag.
type settings struct {
	Limits   limits         `yaml:",omitempty" default:"{}"`
	Mode     string         `default:"fast" oneof:"fast safe"`
	Names    []string       `yaml:",omitempty" range:"1..2"`
	Counts   map[string]int `yaml:",omitempty" range:"0..1"`
	Hash     [2]uint8       `yaml:",omitempty" expected:"4 digits of a hash"`
	Wait     time.Duration  `yaml:",omitempty" nonzero:"more than no time"`
	Label    string         `yaml:",omitempty" match:"[a-z]+" expected:"lower-case letters"`
	Required string         `expected:"anything"`
	common
}

type limits struct {
	Jobs int  `default:"3" range:"1..64"`
	Port *int `yaml:",omitempty" range:"1..65535" expected:"a port"`
}

type common struct {
	Version string `default:"'1.0'"`
}

func TestTags(t *testing.T) {
	port := 80
	for _, c := range []struct {
		text string
		want settings
	}{
		{"required: x", settings{Limits: limits{Jobs: 3}, Mode: "fast", Required: "x", common: common{Version: "1.0"}}},
		{"{version: '2', limits: {jobs: 64, port: 80}, mode: safe, required: ''}",
			settings{Limits: limits{64, &port}, Mode: "safe", common: common{Version: "2"}}},
		{"{required: &a x, names: [*a, b], counts: {*a : 7}}", settings{
			Limits: limits{Jobs: 3}, Mode: "fast", Names: []string{"x", "b"}, Counts: map[string]int{"x": 7},
			Required: "x", common: common{Version: "1.0"},
		}},
	} {
		var got settings
		if err := strictyaml.Decode("f.yaml", []byte(c.text), &got); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v (%v), want %+v", c.text, got, err, c.want)
		}
	}

	for text, want := range map[string]string{
		"mode: slow\nrequired: x":           `f.yaml:1: mode: is "slow"; expected one of fast, safe`,
		"mode: safe":                        "f.yaml:1: required: is missing; expected anything",
		"required: x\nlimits: {jobs: 65}":   "f.yaml:2: limits.jobs: is 65; expected a whole number from 1 to 64",
		"required: x\nlimits: {jobs: many}": `f.yaml:2: limits.jobs: is "many"; expected a whole number from 1 to 64`,
		"required: x\nlimits: {jobs: 010}":  "f.yaml:2: limits.jobs: is 010; expected a whole number from 1 to 64",
		"required: x\nlimits: {jobs: {}}":   "f.yaml:2: limits.jobs: is a mapping; expected a whole number from 1 to 64",
		"required: x\nlimits: {port: 0}":    "f.yaml:2: limits.port: is 0; expected a port",
		"required: x\nnames: []":            "f.yaml:2: names: has 0 entries; expected 1 to 2",
		"required: x\nnames: a":             `f.yaml:2: names: is "a"; expected a list`,
		"required: x\nnames: [1]":           "f.yaml:2: names[0]: is 1; expected text (in quotes if it looks like something else)",
		"required: x\ncounts: {a: 1, b: 2}": "f.yaml:2: counts: has 2 entries; expected 0 to 1",
		"required: x\nhash: 12345":          "f.yaml:2: hash: is 12345; expected 4 digits of a hash",
		"required: x\nwait: 0s":             `f.yaml:2: wait: is "0s"; expected more than no time`,
		"required: x\nwait: soon":           `f.yaml:2: wait: is "soon"; expected a duration such as 30s or 1h30m`,
		"required: x\nlabel: aB":            `f.yaml:2: label: is "aB"; expected lower-case letters`,
		"required: x\ncommon: {}": "f.yaml:2: common: is not known here; expected one of limits, " +
			"mode, names, counts, hash, wait, label, required, version",
		"required: x\n" + strings.Repeat("y", 100) + ": 1": "f.yaml:2: " + strings.Repeat("y", 60) +
			"...: is not known here; expected one of limits, mode, names, counts, hash, wait, label, required, version",
	} {
		if err := strictyaml.Decode("f.yaml", []byte(text), &settings{}); err == nil || err.Error() != want {
			t.Errorf("%s: %v\nwant %s", text, err, want)
		}
	}
}

// sections are read in their order, so that a later one can look at those before.
type sections struct {
	First  []string
	Second later
}

type later string

func (l *later) DecodeYAML(r *strictyaml.Reader, n *yaml.Node, key string) {
	var text string
	if r.Decode(n, key, &text) && !slices.Contains(r.Root().(*sections).First, text) {
		r.Expected(n, key, "one of first")
	}

	*l = later(text)
}

func TestOrderOfSections(t *testing.T) {
	var s sections
	if err := strictyaml.Decode("f.yaml", []byte("second: b\nfirst: [a, b]"), &s); err != nil || s.Second != "b" {
		t.Errorf("second %q, %v", s.Second, err)
	}

	if err := strictyaml.Decode("f.yaml", []byte("second: c\nfirst: [a, b]"), &s); err == nil ||
		err.Error() != `f.yaml:1: second: is "c"; expected one of first` {
		t.Errorf("a value that is not in first: %v", err)
	}
}

type color string

// span is finished when both of its ends have been read.
type span struct {
	From, To int
	Width    int `yaml:"-"`
}

func (s *span) FinishYAML(r *strictyaml.Reader, n *yaml.Node, key string) {
	if s.Width = s.To - s.From; s.Width < 0 {
		r.FailAt(n, key, "to", "is before from")
	}
}

func TestFormsAndFinishers(t *testing.T) {
	type drawing struct {
		Color color
		Spans []span
		Title *url.URL `yaml:",omitempty"`
	}
	forms := []strictyaml.Form{
		strictyaml.OneOf(map[string]color{"red": "red", "blue": "blue"}),
		strictyaml.FormOf(func(r *strictyaml.Reader, n *yaml.Node, key string, into **url.URL) {
			if *into, _ = url.Parse(n.Value); *into == nil {
				r.Expected(n, key, "a URL")
			}
		}),
	}
	var got drawing
	err := strictyaml.Decode("f.yaml", []byte("color: blue\nspans: [{from: 1, to: 3}]\ntitle: //a"), &got, forms...)

	want := drawing{"blue", []span{{1, 3, 2}}, &url.URL{Host: "a"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v (%v), want %+v", got, err, want)
	}

	bad := "color: gray\nspans: [{from: 3, to: 1}, {to: 1}]\ntitle: ':'"

	err = strictyaml.Decode("f.yaml", []byte(bad), &got, forms...)
	if text := `f.yaml:1: color: is "gray"; expected one of blue, red
f.yaml:2: spans[0].to: is before from
f.yaml:2: spans[1].from: is missing
f.yaml:3: title: is ":"; expected a URL`; err == nil || err.Error() != text {
		t.Errorf("%v\nwant %s", err, text)
	}
}

// counted finds its mistake in what has been read, by its key.
type counted struct {
	Counts map[string][]int
	wrong  string
}

func (c *counted) FinishYAML(r *strictyaml.Reader, n *yaml.Node, key string) {
	r.FailFound(n, key, &strictyaml.Error{Key: c.wrong, Message: "is wrong"})
}

// TestLinesOfWhatIsFoundLater: names may have dots, and what is missing is in the nearest node that
// is there.
func TestLinesOfWhatIsFoundLater(t *testing.T) {
	const text = "counts:\n  1g: [1]\n  1g.10gb: [1,\n    2]\n"
	for key, line := range map[string]int{
		"counts.1g": 2, "counts.1g[0]": 2, "counts.1g.10gb": 3, "counts.1g.10gb[1]": 4, "counts.2g": 2, "other": 1, "": 1,
	} {
		err := strictyaml.Decode("", []byte(text), &counted{wrong: key})

		var mistake *strictyaml.Error
		if !errors.As(err, &mistake) {
			t.Fatalf("%s: %v, want a mistake in line %d", key, err, line)
		}

		cmptest.Equal(t, key, *mistake, strictyaml.Error{Line: line, Key: key, Message: "is wrong"})
	}
}

// TestAliasesAreBounded: a small file whose aliases are large once they are written out, or contain
// themselves.
func TestAliasesAreBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("a: &a [" + strings.Repeat("x,", 999) + "x]\n")

	for i := range 1000 {
		fmt.Fprintf(&text, "b%d: *a\n", i)
	}

	for document, line := range map[string]int{text.String(): 201, "a: &a [*a]\n": 1} {
		err := strictyaml.Decode("", []byte(document), &map[string][]string{})

		want := fmt.Sprintf("line %d: the document is too large once its aliases are written out", line)
		if err == nil || err.Error() != want {
			t.Errorf("%.20q: got %.200v, want %s", document, err, want)
		}
	}
}
