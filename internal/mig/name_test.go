package mig

import (
	"strings"
	"testing"
)

func TestParseName(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Name
	}{
		{"1g.5gb", Name{Slices: 1, MemoryGB: 5}},
		{"7g.141gb", Name{Slices: 7, MemoryGB: 141}},
		{"1g.5gb+me", Name{Slices: 1, MemoryGB: 5, Attributes: "+me"}},
		{"1g.12gb-me", Name{Slices: 1, MemoryGB: 12, Attributes: "-me"}},
		{"2g.48gb+gfx", Name{Slices: 2, MemoryGB: 48, Attributes: "+gfx"}},
		{"1g.24gb+me.all", Name{Slices: 1, MemoryGB: 24, Attributes: "+me.all"}},
		{"1g.24gb+gfx+me", Name{Slices: 1, MemoryGB: 24, Attributes: "+gfx+me"}},
		{"1g.24gb+new2-me", Name{Slices: 1, MemoryGB: 24, Attributes: "+new2-me"}},
		{"1c.3g.20gb", Name{Part: 1, Slices: 3, MemoryGB: 20}},
		{"1c.2g.12gb+me", Name{Part: 1, Slices: 2, MemoryGB: 12, Attributes: "+me"}},
		{"3c.3g.20gb", Name{Part: 3, Slices: 3, MemoryGB: 20}},
		{"3g.0gb+gfx", Name{Slices: 3, Attributes: "+gfx"}},
	} {
		got, err := ParseName(c.in)
		if err != nil || got != c.want {
			t.Errorf("ParseName(%q) = %+v, %v, want %+v", c.in, got, err, c.want)
		}

		if got.String() != c.in {
			t.Errorf("ParseName(%q) prints %q", c.in, got)
		}
	}
}

func TestParseNameErrors(t *testing.T) {
	const attributes = "nothing or attributes"
	for _, c := range []struct{ in, expected string }{
		{"", "compute slices"},
		{"5gb", "compute slices"},
		{"g.5gb", "compute slices"},
		{"0g.5gb", "compute slices"},
		{"01g.5gb", "compute slices"},
		{"+1g.5gb", "compute slices"},
		{" 1g.5gb", "compute slices"},
		{"1G.5GB", "compute slices"},
		{"99999999999999999999g.5gb", "compute slices"},
		{"1g", "compute slices"},
		{"1g.gb", "the memory"},
		{"1g.5", "the memory"},
		{"1g.5g", "the memory"},
		{"1g.5.0gb", "the memory"},
		{"4c.3g.20gb", "1 to 3 slices of the compute instance"},
		{"0c.3g.20gb", "1 to 3 slices of the compute instance"},
		{"c.3g.20gb", "compute slices"},
		{"1g.5gbme", attributes},
		{"1g.5gb+", attributes},
		{"1g.5gb+me+", attributes},
		{"1g.5gb+me.", attributes},
		{"1g.5gb+me..all", attributes},
		{"1g.5gb++me", attributes},
		{"1g.5gb.me", attributes},
		{"1g.5gb +me", attributes},
		{"1g.5gb+ME", attributes},
		{"1g.5gb\n", attributes},
	} {
		n, err := ParseName(c.in)
		if err == nil {
			t.Errorf("ParseName(%q) = %+v, want an error", c.in, n)
			continue
		}

		if !strings.Contains(err.Error(), c.expected) || !strings.HasPrefix(err.Error(), "profile name ") {
			t.Errorf("ParseName(%q): %q does not say that it expected %q", c.in, err, c.expected)
		}
	}
}

func TestNameHas(t *testing.T) {
	n, err := ParseName("1g.24gb+gfx+me.all-dec")
	if err != nil {
		t.Fatal(err)
	}

	for attribute, want := range map[string]bool{
		"+gfx": true, "+me.all": true, "-dec": true, "+me": false, "+dec": false, "gfx": false, "": false,
	} {
		if got := n.Has(attribute); got != want {
			t.Errorf("%s.Has(%q) = %v", n, attribute, got)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, m := range Models() {
		for _, p := range m.Profiles {
			f.Add(p.Name)
		}
	}

	for _, s := range []string{"", "1c.3g.20gb", "0c.1g.5gb", "c.1g.5gb", "1g.5gb+me.all-x", "1g.5gb++", "1048577g.5gb",
		"1g.05gb"} {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseName(s)
		if err != nil {
			if n != (Name{}) {
				t.Errorf("ParseName(%q) gives %+v with an error", s, n)
			}

			return
		}

		// A name has one form only: what is taken is canonical.
		if n.String() != s {
			t.Errorf("ParseName(%q) prints %q", s, n)
		}

		if again, err := ParseName(n.String()); err != nil || again != n {
			t.Errorf("ParseName(%q) = %+v, %v, want %+v", n, again, err, n)
		}
	})
}
