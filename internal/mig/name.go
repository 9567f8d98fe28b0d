package mig

import (
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Name is a profile's name taken apart: of a GPU instance ("1g.5gb+me") or of a compute instance
// that is a part of one ("1c.3g.20gb"). Names are comparable. The memory in a name is rounded: take
// the size from the profile.
type Name struct {
	// Part is the number of compute slices of a compute instance ("2c"); 0 in a GPU instance's
	// name.
	Part int
	// Slices is the number of compute slices of the GPU instance ("3g").
	Slices int
	// MemoryGB is the memory that the name states; 0 if the GPU shares its memory with the system
	// (Jetson Thor).
	MemoryGB int
	// Attributes is the rest of the name, with signs: "+me", "-me", "+gfx", "+me.all", or several;
	// empty for a plain profile.
	Attributes string
}

// The attributes that decide whether a profile has media extensions.
const (
	attributeMedia    = "+me"     // with the media extensions (JPEG, OFA)
	attributeAllMedia = "+me.all" // with all media engines of the GPU
)

// ParseName reads a profile's name in the driver's form.
func ParseName(s string) (Name, error) {
	bad := func(expected string) (Name, error) {
		return Name{}, fmt.Errorf(
			"profile name %q: expected %s, in a form such as 1g.5gb, 1g.5gb+me or 1c.3g.20gb",
			s,
			expected,
		)
	}
	var n Name

	rest := s
	if part, after, ok := cutNumber(rest, "c."); ok {
		n.Part = part
		rest = after
	}

	var ok bool
	if n.Slices, rest, ok = cutNumber(rest, "g."); !ok || n.Slices == 0 {
		return bad(`the number of compute slices as "<n>g."`)
	}

	if n.Part > n.Slices || (n.Part == 0 && strings.Contains(s, "c.")) {
		return bad(fmt.Sprintf("1 to %d slices of the compute instance", n.Slices))
	}

	if n.MemoryGB, rest, ok = cutNumber(rest, "gb"); !ok {
		return bad(`the memory as "<n>gb"`)
	}

	if !areAttributes(rest) {
		return bad("nothing or attributes such as +me, -me, +gfx or +me.all after the memory")
	}

	n.Attributes = rest

	return n, nil
}

// String is the name as the driver prints it.
func (n Name) String() string {
	s := fmt.Sprintf("%dg.%dgb%s", n.Slices, n.MemoryGB, n.Attributes)
	if n.Part > 0 {
		s = fmt.Sprintf("%dc.%s", n.Part, s)
	}

	return s
}

// Has reports whether the attribute, given with its sign, is one of the name's.
func (n Name) Has(attribute string) bool {
	for rest := n.Attributes; rest != ""; {
		end := len(rest)
		if i := strings.IndexAny(rest[1:], "+-"); i >= 0 {
			end = i + 1
		}

		if rest[:end] == attribute {
			return true
		}

		rest = rest[end:]
	}

	return false
}

// cutNumber takes a decimal number and the unit behind it off the front of s.
func cutNumber(s, unit string) (n int, rest string, ok bool) {
	digits, rest, ok := strings.Cut(s, unit)
	if !ok {
		return 0, s, false
	}

	value, ok := gpu.ParseDecimal(digits)
	if !ok || value > maxNameNumber {
		return 0, s, false
	}

	return int(value), rest, true
}

// maxNameNumber bounds the numbers of a name; the largest known is 278 (GB).
const maxNameNumber = 1 << 20

// areAttributes reports whether s is a sequence of attributes: a sign and words of lower-case
// letters and digits joined by single dots. Drivers add new ones, so any word is taken.
func areAttributes(s string) bool {
	afterWord := true // the start of s is like the end of a word: a sign may follow

	for i := range len(s) {
		switch c := s[i]; {
		case c == '+' || c == '-' || c == '.' && i > 0:
			if !afterWord {
				return false
			}

			afterWord = false
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9':
			if i == 0 {
				return false
			}

			afterWord = true
		default:
			return false
		}
	}

	return afterWord
}
