package main

import (
	"bytes"
	"fmt"
	"go/format"
	"path/filepath"
	"slices"
	"strings"
)

// output is a generated file with methods of one kind.
type output struct {
	file    string // relative to the folder of driver.go
	pkg     string
	imports []string
	types   []receiver
	method  func(w *bytes.Buffer, r receiver, m method)
	// before, if not nil, writes what precedes the methods.
	before func(w *bytes.Buffer, made []typeMethods) error
}

// receiver is a type that implements an interface of the seam.
type receiver struct {
	name   string // of the variable
	typ    string // a pointer or not
	iface  string
	driver string // the expression for what the call is passed on to
	note   string // the expression with which a fake notes the call, or that of the binding's library
	embeds string // the embedded type that has the methods of an Entity
}

// typeMethods are the methods generated for one type.
type typeMethods struct {
	receiver
	methods []method
}

// What generated files import.
const (
	nvml = `"github.com/NVIDIA/go-nvml/pkg/nvml"`
	seam = `"github.com/mig-exporter/mig-exporter/internal/nvmlsource"`
)

// outputs are the files that belong to the program.
func outputs(constants []constant) []output {
	return []output{
		{
			file: "binding_generated.go", pkg: "nvmlsource", imports: []string{nvml},
			types: []receiver{
				{name: "l", typ: "*library", iface: "Library", driver: "l.nvml", note: "l"},
				{name: "e", typ: "entity", iface: "Entity", driver: "e.dev", note: "e.lib"},
				{
					name:   "d",
					typ:    "device",
					iface:  "Device",
					driver: "d.dev",
					note:   "d.lib",
					embeds: "entity",
				},
				{
					name:   "m",
					typ:    "migDevice",
					iface:  "MIGDevice",
					driver: "m.dev",
					note:   "m.lib",
					embeds: "entity",
				},
				{name: "s", typ: "eventSet", iface: "EventSet", driver: "s.set", note: "s.lib"},
				{
					name:   "s",
					typ:    "gpmSample",
					iface:  "GPMSample",
					driver: "s.sample",
					note:   "s.lib",
				},
			},
			method: writeBound,
		},
		{
			file: "observed_generated.go", pkg: "nvmlsource", imports: []string{nvml},
			types: []receiver{
				{
					name:   "l",
					typ:    "observedLibrary",
					iface:  "Library",
					driver: "l.Library",
					note:   "l.observer",
				},
				{
					name:   "d",
					typ:    "observedDevice",
					iface:  "Device",
					driver: "d.Device",
					note:   "d.observer",
				},
				{
					name:   "d",
					typ:    "observedMutableDevice",
					iface:  "MutableDevice",
					driver: "d.mutable()",
					note:   "d.observer",
				},
				{
					name:   "m",
					typ:    "observedMIG",
					iface:  "MIGDevice",
					driver: "m.MIGDevice",
					note:   "m.observer",
				},
				{
					name:   "i",
					typ:    "observedInstance",
					iface:  "GPUInstance",
					driver: "i.GPUInstance",
					note:   "i.observer",
				},
				{
					name:   "i",
					typ:    "observedMutableInstance",
					iface:  "MutableInstance",
					driver: "i.mutable()",
					note:   "i.observer",
				},
				{
					name:   "c",
					typ:    "observedCompute",
					iface:  "ComputeInstance",
					driver: "c.ComputeInstance",
					note:   "c.observer",
				},
			},
			method: writeObserved,
		},
		{
			file:    "../capture/seam_generated.go",
			pkg:     "capture",
			imports: []string{`"reflect"`, "", nvml, "", seam},
			types: []receiver{
				{name: "l", typ: "*library", iface: "Library", driver: "l.driver"},
				{name: "d", typ: "*device", iface: "Device", driver: "d.driver"},
				{name: "m", typ: "migDevice", iface: "MIGDevice", driver: "m.driver"},
				{name: "g", typ: "gpuInstance", iface: "GPUInstance", driver: "g.driver"},
			},
			method: writeRecorded,
			before: func(w *bytes.Buffer, made []typeMethods) error { return writeCalls(w, made, constants) },
		},
	}
}

// testOutputs are the fakes of this module's tests.
func testOutputs() []output {
	return []output{
		{
			file: "noise_generated_test.go", pkg: "nvmlsource_test", imports: []string{nvml},
			types: []receiver{
				{name: "n", typ: "noise", iface: "Library"},
				{name: "n", typ: "noise", iface: "Device"},
				{name: "n", typ: "noise", iface: "MIGDevice"},
			},
			method: writeNoisy,
		},
		{
			file:    "spy_generated_test.go",
			pkg:     "nvmlsource_test",
			imports: []string{nvml, "", seam},
			types: []receiver{
				{name: "s", typ: "*spy", iface: "Library", driver: "s.Library", note: "s"},
				{name: "d", typ: "spyDevice", iface: "Device", driver: "d.Device", note: "d.spy"},
				{
					name:   "d",
					typ:    "spyDevice",
					iface:  "MutableDevice",
					driver: "d.mutable()",
					note:   "d.spy",
				},
				{
					name:   "m",
					typ:    "spyMIG",
					iface:  "MIGDevice",
					driver: "m.MIGDevice",
					note:   "m.spy",
				},
				{
					name:   "i",
					typ:    "spyInstance",
					iface:  "GPUInstance",
					driver: "i.GPUInstance",
					note:   "i.spy",
				},
				{
					name:   "i",
					typ:    "spyInstance",
					iface:  "MutableInstance",
					driver: "i.mutable()",
					note:   "i.spy",
				},
				{
					name:   "c",
					typ:    "spyCompute",
					iface:  "ComputeInstance",
					driver: "c.ComputeInstance",
					note:   "c.spy",
				},
			},
			method: writeSpied,
		},
		{
			file:    "counted_generated_test.go",
			pkg:     "nvmlsource_test",
			imports: []string{nvml, "", seam},
			types: []receiver{
				{
					name:   "l",
					typ:    "countedLibrary",
					iface:  "Library",
					driver: "l.Library",
					note:   "l.note(ofNode, ",
				},
				{
					name:   "d",
					typ:    "countedDevice",
					iface:  "Device",
					driver: "d.Device",
					note:   "d.calls.note(d.name, ",
				},
				{
					name:   "d",
					typ:    "countedDevice",
					iface:  "MutableDevice",
					driver: "d.mutable()",
					note:   "d.calls.note(d.name, ",
				},
				{
					name:   "m",
					typ:    "countedMIG",
					iface:  "MIGDevice",
					driver: "m.MIGDevice",
					note:   "m.calls.note(m.name, ",
				},
				{
					name:   "i",
					typ:    "countedInstance",
					iface:  "GPUInstance",
					driver: "i.GPUInstance",
					note:   "i.calls.note(i.name, ",
				},
				{
					name:   "i",
					typ:    "countedInstance",
					iface:  "MutableInstance",
					driver: "i.mutable()",
					note:   "i.calls.note(i.name, ",
				},
				{
					name:   "c",
					typ:    "countedCompute",
					iface:  "ComputeInstance",
					driver: "c.ComputeInstance",
					note:   "c.calls.note(c.name, ",
				},
			},
			method: writeCounted,
		},
	}
}

// write returns the file: the methods of each interface that are not written by hand.
func (o output) write(dir string, s *seamTypes) ([]byte, error) {
	known, err := handwritten(
		filepath.Join(dir, filepath.Dir(o.file)),
		strings.HasSuffix(o.file, "_test.go"),
	)
	if err != nil {
		return nil, err
	}

	var made []typeMethods

	for _, r := range o.types {
		methods, err := s.methods(r.iface)
		if err != nil {
			return nil, err
		}

		methods = slices.DeleteFunc(methods, func(m method) bool {
			return m.handles || known[strings.TrimPrefix(r.typ, "*")+"."+m.name] ||
				known[r.embeds+"."+m.name]
		})
		for _, m := range methods {
			known[strings.TrimPrefix(r.typ, "*")+"."+m.name] = true
		}

		made = append(made, typeMethods{r, methods})
	}

	var w bytes.Buffer
	fmt.Fprintf(
		&w,
		"// Code generated by seamgen from the interfaces of driver.go. DO NOT EDIT.\n\n"+
			"package %s\n\nimport (\n\t%s\n)\n",
		o.pkg,
		strings.Join(o.imports, "\n\t"),
	)

	if o.before != nil {
		if err := o.before(&w, made); err != nil {
			return nil, err
		}
	}

	for _, t := range made {
		for _, m := range t.methods {
			fmt.Fprintf(&w, "\nfunc (%s %s) %s {\n", t.name, t.typ, m.signature())
			o.method(&w, t.receiver, m)
			w.WriteString("}\n")
		}
	}

	text := w.Bytes()
	if o.pkg == "nvmlsource" {
		text = bytes.ReplaceAll(text, []byte("nvmlsource."), nil)
	}

	return format.Source(text)
}

// writeBound: go-nvml has a method of the same name, which calls the newest version that the library has.
func writeBound(w *bytes.Buffer, r receiver, m method) {
	missing := names(slices.Concat(m.results, []variable{{name: "nvml.ERROR_FUNCTION_NOT_FOUND"}}))
	function := nvmlName(r.iface, m.name)
	symbols := fmt.Sprintf("%q", function)

	for version := 2; version <= newestVersion(function); version++ {
		symbols += fmt.Sprintf(", %q", fmt.Sprintf("%s_v%d", function, version))
	}

	fmt.Fprintf(w, "\tif !%s.has(%s) {\n\t\treturn %s\n\t}\n", r.note, symbols, missing)
	fmt.Fprintf(w, "\treturn %s.%s(%s)\n", r.driver, m.name, names(m.params))
}

// writeObserved: the call is reported to an observer before it and after it.
func writeObserved(w *bytes.Buffer, r receiver, m method) {
	function := nvmlName(r.iface, m.name)
	fmt.Fprintf(w, "\tdefer %[1]s.EndCall(%[2]q, %[1]s.BeginCall(%[2]q))\n", r.note, function)
	fmt.Fprintf(w, "\treturn %s.%s(%s)\n", r.driver, m.name, names(m.params))
}

// writeNoisy: any value, with any code.
func writeNoisy(w *bytes.Buffer, r receiver, m method) {
	values := joined(
		m.results,
		func(v variable) string { return fmt.Sprintf("random[%s](%s), ", v.typ, r.name) },
	)
	fmt.Fprintf(w, "\treturn %s%s.ret()\n", strings.ReplaceAll(values, ", , ", ", "), r.name)
}

// writeSpied: the call is counted by its name, and may be made to fail.
func writeSpied(w *bytes.Buffer, r receiver, m method) {
	prefixes := map[string]string{
		"MIGDevice":       "MIG.",
		"GPUInstance":     "Instance.",
		"MutableInstance": "Instance.",
		"ComputeInstance": "Compute.",
	}
	name := prefixes[r.iface] + m.name
	failed := names(slices.Concat(m.results, []variable{{name: "ret"}}))
	fmt.Fprintf(w, "\tif ret, ok := %s.passes(%q); !ok {\n\t\treturn %s\n\t}\n\treturn %s.%s(%s)\n",
		r.note, name, failed, r.driver, m.name, names(m.params))
}

// writeCounted: the call is noted by NVML's name of it, with those arguments that are no buffers.
func writeCounted(w *bytes.Buffer, r receiver, m method) {
	arguments := fmt.Sprintf("%q", nvmlName(r.iface, m.name))
	for _, p := range m.params {
		if !strings.HasPrefix(p.typ, "[]") {
			arguments += ", " + p.name
		}
	}

	fmt.Fprintf(
		w,
		"\t%s%s)\n\treturn %s.%s(%s)\n",
		r.note,
		arguments,
		r.driver,
		m.name,
		names(m.params),
	)
}

// writeRecorded: the call goes through a recording, and several results are one answer.
func writeRecorded(w *bytes.Buffer, r receiver, m method) {
	call := fmt.Sprintf("%q", nvmlName(r.iface, m.name))
	if len(m.params) > 0 {
		arguments := joined(m.params, func(p variable) string {
			return fmt.Sprintf("%s.name(uint64(%s))", namesOf(p.typ), p.name)
		})
		call = fmt.Sprintf("callOf(%s, %s)", call, arguments)
	}

	passed := fmt.Sprintf("%s.%s(%s)", r.driver, m.name, names(m.params))
	switch len(m.results) {
	case 0:
		fmt.Fprintf(
			w,
			"\treturn queryCode(%s.entity, %s, func() nvml.Return { return %s })\n",
			r.name,
			call,
			passed,
		)
	case 1:
		fmt.Fprintf(w, "\treturn query(%s.entity, %s, func() (%s, nvml.Return) { return %s })\n",
			r.name, call, m.results[0].typ, passed)
	default:
		all := joined(m.results, func(v variable) string { return "answer." + fieldName(v.name) })
		fmt.Fprintf(
			w,
			"\tanswer, ret := query(%s.entity, %s, func() (answer %s, ret nvml.Return) {\n",
			r.name,
			call,
			answerType(r, m),
		)
		fmt.Fprintf(
			w,
			"\t\t%s, ret = %s\n\t\treturn answer, ret\n\t})\n\treturn %s, ret\n",
			all,
			passed,
			all,
		)
	}
}

// answerType returns the type of the answer of a recorded call.
func answerType(r receiver, m method) string {
	switch len(m.results) {
	case 0:
		return "none"
	case 1:
		return m.results[0].typ
	}

	return strings.ToLower(r.iface[:1]) + r.iface[1:] + m.name
}

func fieldName(name string) string { return strings.ToUpper(name[:1]) + name[1:] }

// namesOf returns the table of names of an argument's type, or numbers if the type is not NVML's.
func namesOf(typ string) string {
	if enum, ok := strings.CutPrefix(typ, "nvml."); ok {
		return tableName(enum)
	}

	return "numbers"
}

// writeCalls writes the generated calls with the types of their arguments and answers, the types of answers that are
// several results, and the names of NVML's constants.
func writeCalls(w *bytes.Buffer, made []typeMethods, constants []constant) error {
	var enums []string

	for _, t := range made {
		fmt.Fprintf(
			w,
			"\n// generated%sCalls are the calls of a %s that seamgen has written the methods of.\n",
			t.iface,
			t.iface,
		)
		fmt.Fprintf(w, "func generated%sCalls() []callType {\n\treturn []callType{\n", t.iface)

		for _, m := range t.methods {
			arguments := "nil"

			if len(m.params) > 0 {
				names := joined(m.params, func(p variable) string { return namesOf(p.typ) })
				arguments = "[]names{" + names + "}"
			}

			fmt.Fprintf(w, "\t\t{%q, %s, reflect.TypeFor[%s]()},\n",
				nvmlName(t.iface, m.name), arguments, answerType(t.receiver, m))

			for _, p := range m.params {
				enum, ok := strings.CutPrefix(p.typ, "nvml.")
				if ok && !slices.Contains(enums, enum) {
					enums = append(enums, enum)
				}
			}
		}

		w.WriteString("\t}\n}\n")

		for _, m := range t.methods {
			if len(m.results) > 1 {
				fields := joined(
					m.results,
					func(v variable) string { return fieldName(v.name) + " " + v.typ },
				)
				fields = strings.ReplaceAll(fields, ", ", "; ")
				fmt.Fprintf(w, "\ntype %s struct{ %s }\n", answerType(t.receiver, m), fields)
			}
		}
	}

	all, err := tables(constants, enums)
	if err != nil {
		return err
	}

	for _, t := range all {
		fmt.Fprintf(w, "\n// %s names %s.\nconst %s names = \" \" +\n", t.name, t.about, t.name)

		for i, c := range t.entries {
			end := " +"
			if i == len(t.entries)-1 {
				end = ""
			}

			fmt.Fprintf(w, "\t\"%d:%s \"%s\n", c.value, c.name, end)
		}
	}

	return nil
}
