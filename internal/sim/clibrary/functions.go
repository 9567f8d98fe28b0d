// Package clibrary reads the headers of NVIDIA's libraries. From the functions in them it generates
// the exported C functions of their simulations, cmd/nvml-sim and cmd/dcgm-sim.
package clibrary

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Function is a function that a header declares.
type Function struct {
	Name   string
	Params []Param
}

// Param is an argument of a function.
type Param struct {
	Type string // as declared, without the name: "unsigned int *"
	Kind Kind
}

// Kind is how an argument is passed.
type Kind byte

// The kinds of arguments.
const (
	Pointer Kind = 'P' // a pointer, an array, a function, or a handle of NVML
	Word    Kind = 'U' // 32 bits: an int or an enum
	Long    Kind = 'L' // 64 bits, or a handle of DCGM, which is a number
	Double  Kind = 'D'
)

// Functions lists the functions of a header that return nvmlReturn_t or dcgmReturn_t, in its order.
// The text is the header's.
func Functions(text string) ([]Function, error) {
	text = regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`//[^\n]*|(?m)^#.*$`).ReplaceAllString(text, "")
	kinds := kindsOf(text)
	declaration := regexp.MustCompile(
		`(?:nvmlReturn_t\s+DECLDIR|dcgmReturn_t\s+DCGM_PUBLIC_API|DCGM_PUBLIC_API\s+dcgmReturn_t)` +
			`\s+(\w+)\s*\(([^)]*)\)\s*;`,
	)
	var list []Function

	for _, m := range declaration.FindAllStringSubmatch(text, -1) {
		f := Function{Name: m[1]}
		for p := range strings.SplitSeq(m[2], ",") {
			p = strings.Join(strings.Fields(p), " ")
			if p == "void" {
				continue
			}

			param, err := parseParam(p, kinds)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}

			f.Params = append(f.Params, param)
		}

		list = append(list, f)
	}

	if len(list) == 0 {
		return nil, errors.New("no functions in the header")
	}

	return list, nil
}

// kindsOf returns the kinds of types that are neither Word nor, by a "*" at their end, Pointer. The
// handles of NVML are among them; the text declares them.
func kindsOf(text string) map[string]Kind {
	kinds := map[string]Kind{"double": Double}
	for _, long := range []string{
		"unsigned long long",
		"long long",
		"uint64_t",
		"dcgmHandle_t",
		"dcgmGpuGrp_t",
		"dcgmFieldGrp_t",
		"dcgmStatus_t",
	} {
		kinds[long] = Long
	}

	for _, function := range []string{"dcgmFieldValueEnumeration_f", "dcgmFieldValueEntityEnumeration_f",
		"fpRecvUpdates"} {
		kinds[function] = Pointer
	}

	handle := regexp.MustCompile(
		`typedef struct(?: \w+)?\s*\*\s*(\w+)\s*;|typedef struct\s*\{\s*struct \w+\s*\*\s*handle;\s*\}\s*(\w+)\s*;`,
	)
	for _, m := range handle.FindAllStringSubmatch(text, -1) {
		kinds[m[1]+m[2]] = Pointer
	}

	return kinds
}

// parseParam reads a type and a name, such as "unsigned int *count". An array such as "char name[16]"
// is passed as a pointer.
func parseParam(p string, kinds map[string]Kind) (Param, error) {
	m := regexp.MustCompile(`^(.*[ *])\w+(\[\w*\])?$`).FindStringSubmatch(p)
	if m == nil {
		return Param{}, fmt.Errorf("parameter %q: expected a type and a name", p)
	}

	t := strings.TrimSpace(m[1])
	if m[2] != "" {
		t += " *"
	}

	kind, known := kinds[t]
	switch {
	case strings.HasSuffix(t, "*"):
		kind = Pointer
	case !known:
		kind = Word
	}

	return Param{t, kind}, nil
}
