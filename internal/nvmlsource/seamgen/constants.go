package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// constant is a constant of go-nvml. Its type may be "".
type constant struct {
	name, typ string
	value     int64
}

// nvmlConstants returns the constants of nvml.h from go-nvml's const.go. That is generated: each constant has a
// literal value, or is the first of its declaration with the value iota.
func nvmlConstants(dir string) ([]constant, error) {
	pkg, err := build.Import("github.com/NVIDIA/go-nvml/pkg/nvml", dir, build.FindOnly)
	if err != nil {
		return nil, err
	}

	file, err := parser.ParseFile(
		token.NewFileSet(),
		filepath.Join(pkg.Dir, "const.go"),
		nil,
		parser.SkipObjectResolution,
	)
	if err != nil {
		return nil, err
	}

	var list []constant

	for _, d := range file.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}

		for at, spec := range group.Specs {
			c, ok := spec.(*ast.ValueSpec)
			if !ok || len(c.Values) != 1 {
				continue
			}

			value, ok := intValue(c.Values[0], at)
			if !ok {
				continue
			}

			typ := ""
			if id, ok := c.Type.(*ast.Ident); ok {
				typ = id.Name
			}

			list = append(list, constant{c.Names[0].Name, typ, value})
		}
	}

	return list, nil
}

func intValue(e ast.Expr, at int) (int64, bool) {
	switch e := e.(type) {
	case *ast.Ident:
		return int64(at), e.Name == "iota"
	case *ast.BasicLit:
		v, err := strconv.ParseInt(e.Value, 0, 64)
		return v, err == nil
	}

	return 0, false
}

// table has the names of the values of one type in a recording.
type table struct {
	name    string // of the Go constant
	about   string
	entries []constant
}

// tables returns the tables of the types that are arguments at the seam, and of values in its structs.
func tables(constants []constant, arguments []string) ([]table, error) {
	list := []table{
		{
			"returnNames",
			"NVML's return codes",
			shortened(
				constants,
				func(c constant) bool { return c.typ == "Return" && c.value != 0 },
				"ERROR_",
			),
		},
		{
			"fieldNames",
			"the ids of nvmlDeviceGetFieldValues",
			shortened(constants, prefixed("FI_DEV_"), "FI_DEV_"),
		},
		{
			"metricNames",
			"nvmlGpmMetricId_t",
			shortened(constants, prefixed("GPM_METRIC_"), "GPM_METRIC_"),
		},
		{
			"valueTypeNames",
			"nvmlValueType_t",
			shortened(constants, func(c constant) bool { return c.typ == "ValueType" }),
		},
		{
			"eventNames",
			"the types of NVML's events",
			shortened(constants, prefixed("Event"), "EventType", "Event"),
		},
	}
	for _, typ := range arguments {
		entries := shortened(constants, func(c constant) bool { return c.typ == typ })
		if len(entries) == 0 {
			return nil, fmt.Errorf("go-nvml has no constants of type nvml.%s", typ)
		}

		list = append(list, table{tableName(typ), "nvml." + typ, entries})
	}

	return list, nil
}

func prefixed(prefix string) func(constant) bool {
	return func(c constant) bool { return strings.HasPrefix(c.name, prefix) }
}

// tableName returns the name of a type's table: clockTypeNames for nvml.ClockType.
func tableName(typ string) string { return strings.ToLower(typ[:1]) + typ[1:] + "Names" }

// shortened returns the wanted constants in the order of their values, with names without a prefix: one of those
// given, or else their common one. Of two names of one value it keeps the later; counts and bounds are left out.
func shortened(all []constant, wanted func(constant) bool, prefixes ...string) []constant {
	var list []constant

	for _, c := range all {
		last := c.name[strings.LastIndex(c.name, "_")+1:]
		if !wanted(c) || c.value < 0 ||
			slices.Contains([]string{"COUNT", "MAX", "EventTypeNone", "EventTypeAll"}, last) {
			continue
		}

		list = slices.DeleteFunc(list, func(o constant) bool { return o.value == c.value })
		list = append(list, c)
	}

	if len(prefixes) == 0 && len(list) > 0 {
		prefixes = []string{commonPrefix(list)}
	}

	for i := range list {
		for _, prefix := range prefixes {
			if short, ok := strings.CutPrefix(list[i].name, prefix); ok {
				list[i].name = upperSnake(short)
				break
			}
		}
	}

	slices.SortFunc(list, func(a, b constant) int { return int(a.value - b.value) })

	return list
}

// commonPrefix returns the longest common prefix of all names that ends in an underscore.
func commonPrefix(list []constant) string {
	prefix := list[0].name
	for _, c := range list {
		for !strings.HasPrefix(c.name, prefix) {
			prefix = prefix[:len(prefix)-1]
		}
	}

	return prefix[:strings.LastIndex(prefix, "_")+1]
}

// upperSnake returns XID_CRITICAL_ERROR for XidCriticalError; names in capitals stay.
func upperSnake(name string) string {
	var out strings.Builder

	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) && unicode.IsLower(rune(name[i-1])) {
			out.WriteByte('_')
		}

		out.WriteRune(unicode.ToUpper(r))
	}

	return out.String()
}
