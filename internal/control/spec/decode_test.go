package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

func fixtures(t testing.TB, pattern string, atLeast int) map[string][]byte {
	t.Helper()

	paths, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(paths) < atLeast {
		t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
	}

	files := map[string][]byte{}

	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		files[path] = data
	}

	return files
}

// TestGoodSpecs: each .good.yaml is what the .good.json beside it is, by all three ways to read
// that.
func TestGoodSpecs(t *testing.T) {
	for path, data := range fixtures(t, "*.good.yaml", 6) {
		s, err := Decode(data)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}

		want, err := os.ReadFile(strings.TrimSuffix(path, ".yaml") + ".json")
		if err != nil {
			t.Fatal(err)
		}

		got, err := json.Marshal(s)
		if err != nil || !bytes.Equal(append(got, '\n'), want) {
			t.Errorf("%s: %s, %v", path, got, err)
		}

		again, err := Decode(want)
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%s as JSON: %+v, %v\nwant %+v", path, again, err, s)
		}

		var wire api.Spec
		decoder := json.NewDecoder(bytes.NewReader(want))
		decoder.DisallowUnknownFields()

		if err := decoder.Decode(&wire); err != nil || !reflect.DeepEqual(wire, s) {
			t.Errorf("%s on the wire: %+v, %v\nwant %+v", path, wire, err, s)
		}

		layouts := map[string][]api.LayoutRule{"all-balanced": {{Devices: api.DeviceList{All: true}}}}

		if _, err := Resolve(s, func() map[string][]api.LayoutRule { return layouts }); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestBadSpecs: the first line of each .bad.yaml is its error.
func TestBadSpecs(t *testing.T) {
	for path, data := range fixtures(t, "*.bad.yaml", 32) {
		first, _, _ := strings.Cut(string(data), "\n")
		_, err := Decode(data)

		var e *strictyaml.Error
		if !errors.As(err, &e) || "# "+err.Error() != first {
			t.Errorf("%s: %v, want %s", path, err, strings.TrimPrefix(first, "# "))
		}
	}
}

func TestSpecsAreBounded(t *testing.T) {
	var bomb strings.Builder // each alias is small, written out they are not
	bomb.WriteString("version: v1\nlayout: l0\nmig-configs:\n  l: &l\n")

	for range 250 {
		bomb.WriteString("  - &r {devices: [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0], mig-enabled: false}\n")
	}

	for i := range 900 {
		fmt.Fprintf(&bomb, "  l%d: *l\n", i)
	}

	many := func(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	for _, tt := range []struct{ name, spec, says string }{
		{"size", strings.Repeat(" ", maxSpec+1), "262145 bytes; expected at most 262144"},
		{"nothing", " \n", "line 1: is empty"},
		{"aliases", bomb.String(), "the document is too large once its aliases are written out"},
		{"gpus", "gpus: [" + many(257, "0") + "]\ndevices: {}", "line 1: gpus: has 257 entries; expected 0 to 256"},
		{"needs", "demand: [" + many(65, "{sms: 1}") + "]", "line 1: demand: has 65 entries; expected 0 to 64"},
		{"compute", "gpus: [0]\ndevices: {7g.40gb: {compute: [" + many(17, "1c") + "]}}",
			"line 2: devices.7g.40gb.compute: has 17 entries; expected 0 to 16"},
		{"name", "layout: " + strings.Repeat("x", 254), `line 1: layout: is "xxx`},
		{"key", "gpus: [0]\ndevices: {" + strings.Repeat("x", 254) + ": 1}", `line 2: devices.` + strings.Repeat("x", 60) +
			`...: is "xxx`},
		{"null key", "gpus: [0]\ndevices: {null: 1}", "line 2: devices.null: is empty; expected a name"},
		{"depth", "layout: " + strings.Repeat("[", 20000), "exceeded max depth"},
	} {
		_, err := Decode([]byte(tt.spec))

		var e *strictyaml.Error
		if text := fmt.Sprint(err); !errors.As(err, &e) || !strings.Contains(text, tt.says) || len(text) > 400 {
			t.Errorf("%s: %T of %d bytes: %.500s; want a %T of 400 at most with %q", tt.name, err, len(text), text, e, tt.says)
		}
	}
}

// FuzzDecode: nothing panics; what is taken is the same once written as JSON and read again, and
// can be resolved or is refused with an error of this package.
func FuzzDecode(f *testing.F) {
	for _, pattern := range []string{"*.good.yaml", "*.good.json", "*.bad.yaml"} {
		for _, data := range fixtures(f, pattern, 1) {
			f.Add(data)
		}
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Decode(data)

		var e *strictyaml.Error
		if err != nil {
			if !errors.As(err, &e) {
				t.Fatalf("%T %v", err, err)
			}

			return
		}

		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}

		again, err := Decode(text)
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Fatalf("%s: %+v, %v\nwas %+v", text, again, err, s)
		}

		if _, err := Resolve(s, func() map[string][]api.LayoutRule { return nil }); err != nil && !errors.As(err, &e) {
			t.Fatalf("%T %v", err, err)
		}
	})
}
