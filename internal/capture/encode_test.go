package capture

import (
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// TestEncode: what is written is one line, which is read as the same.
func TestEncode(t *testing.T) {
	type small struct{ MemorySizeMB uint64 }
	type part struct {
		Text  string
		Value float64
		Name  [4]int8
		Raw   [2]uint8
		List  []small
	}
	want := part{"580", 0.1, [4]int8{'a'}, [2]uint8{1, 2}, []small{{3}}}

	text, err := yaml.Marshal(encode(want))
	if err != nil {
		t.Fatal(err)
	}

	const line = `{text: "580", value: 0.1, name: a, raw: "0102", list: [{memory_size_mb: 3}]}` + "\n"
	cmptest.Equal(t, "what is written", string(text), line)

	var got part
	if err := strictyaml.Decode("f.yaml", text, &got); err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "what is read", got, want)
}
