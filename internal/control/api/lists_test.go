package api

import (
	"cmp"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// TestListsOnTheWire: what is read, and how it is written again.
func TestListsOnTheWire(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want any
		out  string // as in where empty
	}{
		{`"all"`, Selector("all"), ""},
		{`"GPU-a"`, Selector("GPU-a"), ""},
		{`3`, Selector("3"), `"3"`},
		{`"all"`, DeviceList{All: true}, ""},
		{`[0,2]`, DeviceList{Indexes: []int{0, 2}}, ""},
		{`[]`, DeviceList{Indexes: []int{}}, ""},
		{`"a"`, Strings{"a"}, ""},
		{`["a"]`, Strings{"a"}, `"a"`},
		{`["a","b"]`, Strings{"a", "b"}, ""},
		{`[]`, Strings{}, ""},
		{`12884901888`, Bytes(12 << 30), ""},
		{`"12GiB"`, Bytes(12 << 30), `12884901888`},
		{`"12 GiB"`, Bytes(12 << 30), `12884901888`},
		{`"20GB"`, Bytes(20e9), `20000000000`},
		{`"1kB"`, Bytes(1000), `1000`},
		{`"7B"`, Bytes(7), `7`},
		{`"9223372036854775807"`, Bytes(1<<63 - 1), `9223372036854775807`},
		{`{"memory":"1GiB"}`, Need{Memory: 1 << 30, Count: 1}, `{"memory":1073741824,"count":1}`},
		{`{"sms":20,"count":0}`, Need{SMs: 20}, ""},
		{`4`, DeviceRequest{Count: 4}, ""},
		{`{"count":2}`, DeviceRequest{Count: 2}, `2`},
		{`{"compute":["1c"]}`, DeviceRequest{Count: 1, Compute: []string{"1c"}}, `{"count":1,"compute":["1c"]}`},
		{`{"count":0,"compute":[]}`, DeviceRequest{Compute: []string{}}, ""},
		{`[{"compute":["1c","2c"]},1]`,
			DeviceRequest{Each: []DeviceRequest{{Count: 1, Compute: []string{"1c", "2c"}}, {Count: 1}}},
			`[{"count":1,"compute":["1c","2c"]},1]`},
	} {
		got := reflect.New(reflect.TypeOf(tt.want))
		if err := json.Unmarshal([]byte(tt.in), got.Interface()); err != nil ||
			!reflect.DeepEqual(got.Elem().Interface(), tt.want) {
			t.Errorf("%s: %#v, %v, want %#v", tt.in, got.Elem().Interface(), err, tt.want)
		}

		out, err := json.Marshal(tt.want)
		if want := cmp.Or(tt.out, tt.in); err != nil || string(out) != want {
			t.Errorf("%#v: %s, %v, want %s", tt.want, out, err, want)
		}
	}
}

func TestListsThatAreNone(t *testing.T) {
	for _, tt := range []struct {
		into any
		in   []string
		says string
	}{
		{new(Selector), []string{`null`, `""`, `-1`, `1.5`, `1e3`, `true`, `{}`, `["all"]`, `4294967296`},
			"expected its index, UUID, PCI bus id"},
		{new(DeviceList), []string{`null`, `"ALL"`, `"0"`, `0`, `[-1]`, `["0"]`, `[0.5]`, `[null]`, `{}`},
			`expected "all" or a list of indexes`},
		{new(Strings), []string{`null`, `1`, `[1]`, `["a",null]`, `{}`}, "expected a string or a list of strings"},
		{new(Bytes), []string{`null`, `-1`, `1.5`, `1e9`, `""`, `"GiB"`, `"-1GiB"`, `"+1GiB"`, `"1.5GiB"`, `"12gib"`,
			`"12GiB "`, `"8388608TiB"`, `true`, `18446744073709551616`}, "expected"},
		{new(DeviceRequest), []string{`null`, `"1"`, `-1`, `1.5`, `4294967296`}, "expected a count of 0 or more"},
		{new(Need), []string{`null`, `3`, `[]`}, "expected a need"},
		{new(Need), []string{`{"cores":1}`}, "unknown field"},
		{new(DeviceRequest), []string{`{"counts":1}`}, "unknown field"},
		{new(DeviceRequest), []string{`{"count":"1"}`, `{"compute":["1c",2]}`, `{"compute":"1c"}`}, "cannot unmarshal"},
		{new(DeviceRequest), []string{`[]`, ` []`}, "an empty list: expected counts or objects"},
		{new(DeviceRequest), []string{`[1,[1]]`, `[1,"1"]`, `[1,null]`}, "item 1: expected a count of 0 or more"},
	} {
		for _, in := range tt.in {
			if err := json.Unmarshal([]byte(in), tt.into); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%T of %s: %v, want %q", tt.into, in, err, tt.says)
			}
		}
	}
}
