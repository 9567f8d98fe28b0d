// Package usage prints --help with the flags in groups, and completes command lines, where kingpin
// cannot.
package usage

import (
	"slices"
	"strings"
	"text/template"

	"github.com/alecthomas/kingpin/v2"
)

// Group is a group of flags. An entry that ends in a dot is a prefix of names: "web." stands for
// all flags of the web server. A name of its own counts more than a prefix, so that "dcgm.address"
// can be in another group than "dcgm.".
type Group struct {
	Title string
	Names []string
}

// Table is a list that follows the flags, in two columns.
type Table struct {
	Title string
	Rows  [][2]string
}

// Other is the title of the flags that no group has.
const Other = "Other flags"

// FlagGroup is a group with its flags.
type FlagGroup struct {
	Title string
	Flags []*kingpin.FlagModel
}

// Install makes app print its flags in groups, and tables after them.
func Install(app *kingpin.Application, groups []Group, tables ...Table) {
	app.UsageTemplate(usageTemplate).UsageFuncs(template.FuncMap{
		"FlagGroups": func(flags []*kingpin.FlagModel) []FlagGroup { return Arrange(flags, groups) },
		"Tables":     func() []Table { return tables },
	})
}

// Arrange puts flags into groups, in the order of both. Hidden flags and empty groups are left out.
func Arrange(flags []*kingpin.FlagModel, groups []Group) []FlagGroup {
	list := make([]FlagGroup, len(groups)+1)
	for i, g := range groups {
		list[i].Title = g.Title
	}

	list[len(groups)].Title = Other

	for _, f := range flags {
		if !f.Hidden {
			at := groupIndex(groups, f.Name)
			list[at].Flags = append(list[at].Flags, f)
		}
	}

	return slices.DeleteFunc(list, func(g FlagGroup) bool { return len(g.Flags) == 0 })
}

// groupIndex returns the index of a flag's group; the number of groups if no group has the flag.
func groupIndex(groups []Group, name string) int {
	at := slices.IndexFunc(groups, func(g Group) bool { return slices.Contains(g.Names, name) })
	if at >= 0 {
		return at
	}

	at = slices.IndexFunc(groups, func(g Group) bool {
		return slices.ContainsFunc(g.Names, func(entry string) bool {
			return strings.HasSuffix(entry, ".") && strings.HasPrefix(name, entry)
		})
	})
	if at >= 0 {
		return at
	}

	return len(groups)
}

// usageTemplate is kingpin's default template, with groups of flags, and tables.
const usageTemplate = `{{define "FormatCommand" -}}
{{if .FlagSummary}} {{.FlagSummary}}{{end -}}
{{range .Args}}{{if not .Hidden}} {{if not .Required}}[{{end -}}
{{if .PlaceHolder}}{{.PlaceHolder}}{{else}}<{{.Name}}>{{end -}}
{{if .Value|IsCumulative}}...{{end}}{{if not .Required}}]{{end}}{{end}}{{end -}}
{{end -}}

{{define "FormatCommands" -}}
{{range .FlattenedCommands -}}
{{if not .Hidden -}}
  {{.FullCommand}}{{if .Default}}*{{end}}{{template "FormatCommand" .}}
{{.Help|Wrap 4}}
{{end -}}
{{end -}}
{{end -}}

{{define "FormatUsage" -}}
{{template "FormatCommand" .}}{{if .Commands}} <command> [<args> ...]{{end}}
{{if .Help}}
{{.Help|Wrap 0 -}}
{{end -}}

{{end -}}

{{if .Context.SelectedCommand -}}
usage: {{.App.Name}} {{.Context.SelectedCommand}}{{template "FormatUsage" .Context.SelectedCommand}}
{{ else -}}
usage: {{.App.Name}}{{template "FormatUsage" .App}}
{{end}}
{{range .Context.Flags|FlagGroups -}}
{{.Title}}:
{{.Flags|FlagsToTwoColumns|FormatTwoColumns}}
{{end -}}
{{range Tables -}}
{{.Title}}:
{{.Rows|FormatTwoColumns}}
{{end -}}
{{if .Context.Args -}}
Args:
{{.Context.Args|ArgsToTwoColumns|FormatTwoColumns}}
{{end -}}
{{if .Context.SelectedCommand -}}
{{if len .Context.SelectedCommand.Commands -}}
Subcommands:
{{template "FormatCommands" .Context.SelectedCommand}}
{{end -}}
{{else if .App.Commands -}}
Commands:
{{template "FormatCommands" .App}}
{{end -}}
`
