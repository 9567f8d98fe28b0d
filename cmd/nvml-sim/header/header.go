// Package header reads what NVIDIA's nvml.h declares: which functions a library must export, and how their arguments are
// passed.
package header

import (
	"fmt"
	"regexp"
	"strings"
)

// Function is a function that nvml.h declares.
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
	Pointer Kind = 'P' // a pointer or an opaque handle
	Word    Kind = 'U' // 32 bits: an int or an enum
	Long    Kind = 'L' // 64 bits
)

// Functions lists what a header declares and returns nvmlReturn_t, in its order.
func Functions(text string) ([]Function, error) {
	text = regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`//[^\n]*`).ReplaceAllString(text, "")
	declaration := regexp.MustCompile(`nvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(([^)]*)\)\s*;`)
	handle := regexp.MustCompile(`typedef struct(?: \w+)?\s*\*\s*(\w+)\s*;|typedef struct\s*\{\s*struct \w+\s*\*\s*handle;\s*\}\s*(\w+)\s*;`)
	handles := make(map[string]bool)
	for _, m := range handle.FindAllStringSubmatch(text, -1) {
		handles[m[1]+m[2]] = true
	}
	var list []Function
	for _, m := range declaration.FindAllStringSubmatch(text, -1) {
		f := Function{Name: m[1]}
		for _, p := range strings.Split(m[2], ",") {
			p = strings.Join(strings.Fields(p), " ")
			if p == "void" {
				continue
			}
			param, err := parse(p, handles)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			f.Params = append(f.Params, param)
		}
		list = append(list, f)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no functions in the header")
	}
	return list, nil
}

func parse(p string, handles map[string]bool) (Param, error) {
	cut := strings.LastIndexAny(p, " *")
	if cut < 0 || strings.Contains(p, "[") {
		return Param{}, fmt.Errorf("parameter %q: expected a type and a name", p)
	}
	t := strings.TrimSpace(p[:cut+1])
	switch {
	case strings.HasSuffix(t, "*") || handles[t]:
		return Param{t, Pointer}, nil
	case t == "unsigned long long":
		return Param{t, Long}, nil
	}
	return Param{t, Word}, nil
}
