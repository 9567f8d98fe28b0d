package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

const someUUID = "5f65f8d5-d4b3-5c36-b975-c901d71a2c3a"

func TestParseUUID(t *testing.T) {
	if id, err := ParseUUID("GPU-" + someUUID); err != nil || id != UUID("GPU-"+someUUID) {
		t.Errorf("got %q, %v", id, err)
	}

	for _, bad := range []string{"", "GPU-", someUUID, "gpu-" + someUUID, "MIG-" + someUUID, "GPU-" + someUUID + "0",
		"GPU-5f65f8d5xd4b3-5c36-b975-c901d71a2c3a", "GPU-zf65f8d5-d4b3-5c36-b975-c901d71a2c3a"} {
		if _, err := ParseUUID(bad); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", bad)) {
			t.Errorf("%q: error %v, want one that names it", bad, err)
		}
	}
}

func TestParseMIGUUID(t *testing.T) {
	for _, tt := range []struct {
		text   string
		legacy Opt[LegacyMIG]
		ok     bool
	}{
		{"MIG-" + someUUID, None[LegacyMIG](), true},
		{"MIG-GPU-" + someUUID + "/1/0", Some(LegacyMIG{UUID("GPU-" + someUUID), 1, 0}), true},
		{"MIG-GPU-" + someUUID + "/13/2", Some(LegacyMIG{UUID("GPU-" + someUUID), 13, 2}), true},
		{"GPU-" + someUUID, None[LegacyMIG](), false},
		{"MIG-", None[LegacyMIG](), false},
		{"MIG-GPU-" + someUUID, None[LegacyMIG](), false},
		{"MIG-GPU-" + someUUID + "/1", None[LegacyMIG](), false},
		{"MIG-GPU-" + someUUID + "/1/0/0", None[LegacyMIG](), false},
		{"MIG-GPU-" + someUUID + "/01/0", None[LegacyMIG](), false},
		{"MIG-GPU-" + someUUID + "/1/-1", None[LegacyMIG](), false},
		{"MIG-GPU-" + someUUID + "/4294967296/0", None[LegacyMIG](), false},
	} {
		id, legacy, err := ParseMIGUUID(tt.text)
		cmptest.Equal(t, tt.text+": valid", err == nil, tt.ok)
		cmptest.Equal(t, tt.text+": legacy", legacy, tt.legacy)

		if tt.ok {
			cmptest.Equal(t, "UUID", string(id), tt.text)
		}
	}
}

func FuzzParseMIGUUID(f *testing.F) {
	f.Add("MIG-" + someUUID)
	f.Add("MIG-GPU-" + someUUID + "/1/0")
	f.Fuzz(func(t *testing.T, s string) {
		id, legacy, err := ParseMIGUUID(s)
		if err != nil {
			return
		}

		want := string(id)
		if l, ok := legacy.Get(); ok {
			want = fmt.Sprintf("MIG-%s/%d/%d", l.GPU, l.Instance, l.Compute)
		}

		if s != want {
			t.Errorf("%q was read as %q", s, want)
		}
	})
}

func TestPlacements(t *testing.T) {
	p, err := ParsePlacement("4:4")
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "placement", p, Placement{4, 4})
	cmptest.Equal(t, "text", p.String(), "4:4")
	cmptest.Equal(t, "end", p.End(), 8)

	for _, bad := range []string{"", "4", "4:", ":4", "4:0", "-1:4", "04:4", "4:4:4", "1000:1"} {
		if _, err := ParsePlacement(bad); err == nil {
			t.Errorf("%q is taken for a placement", bad)
		}
	}

	for _, tt := range []struct {
		a, b Placement
		want bool
	}{
		{Placement{0, 4}, Placement{4, 4}, false},
		{Placement{0, 4}, Placement{3, 1}, true},
		{Placement{2, 2}, Placement{0, 8}, true},
		{Placement{6, 1}, Placement{6, 2}, true},
	} {
		if tt.a.Overlaps(tt.b) != tt.want || tt.b.Overlaps(tt.a) != tt.want {
			t.Errorf("%v overlaps %v: want %v either way", tt.a, tt.b, tt.want)
		}
	}
}

func TestOptIsAbsentOrAValue(t *testing.T) {
	type reading struct {
		A Opt[float64] `json:"a,omitzero"`
		B Opt[float64] `json:"b,omitzero"`
	}

	text, err := json.Marshal(reading{A: Some(0.0)})
	if err != nil || string(text) != `{"a":0}` {
		t.Errorf("got %s, %v; want the present zero and nothing else", text, err)
	}

	if null, err := json.Marshal([]Opt[int]{None[int]()}); err != nil || string(null) != "[null]" {
		t.Errorf("absent in a list: %s, %v", null, err)
	}

	v, ok := None[int]().Get()
	cmptest.Equal(t, "value of None", v, 0)
	cmptest.Equal(t, "None is present", ok, false)
	cmptest.Equal(t, "Or of None", None[int]().Or(7), 7)
	cmptest.Equal(t, "Or of Some", Some(1).Or(7), 1)
}

func TestReasonOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want Reason
	}{
		{fmt.Errorf("nvmlDeviceGetPowerUsage: %w", ErrLost), ReasonLost},
		{fmt.Errorf("a: %w", fmt.Errorf("b: %w", ErrNoPermission)), ReasonNoPermission},
		{ErrTimeout, ReasonTimeout},
		{ErrResetRequired, ReasonResetRequired},
		{ErrNotFound, ReasonNotFound},
		{errors.New("something else"), ReasonOther},
	} {
		if got := (ReadError{Err: tt.err}).Reason(); got != tt.want {
			t.Errorf("%v: reason %q, want %q", tt.err, got, tt.want)
		}
	}
}
