package gpu

import (
	"encoding/json"
	"testing"
)

func TestOptFromJSON(t *testing.T) {
	type document struct {
		A Opt[int]       `json:"a,omitzero"`
		B Opt[int]       `json:"b,omitzero"`
		C Opt[Placement] `json:"c,omitzero"`
		D Opt[int]       `json:"d,omitzero"`
	}

	var d document
	if err := json.Unmarshal([]byte(`{"a":0,"b":null,"c":{"start":4,"size":2}}`), &d); err != nil {
		t.Fatal(err)
	}

	if want := (document{A: Some(0), C: Some(Placement{Start: 4, Size: 2})}); d != want {
		t.Errorf("got %+v, want %+v", d, want)
	}

	back, err := json.Marshal(d)
	if err != nil || string(back) != `{"a":0,"c":{"start":4,"size":2}}` {
		t.Errorf("written again: %s, %v", back, err)
	}

	if err := json.Unmarshal([]byte(`{"a":"x"}`), &d); err == nil {
		t.Error("a string was taken for a number")
	}
}
