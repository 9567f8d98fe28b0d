package manpage

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// given has what Template changes in kingpin's template. The programs' tests hold that kingpin has
// it.
const given = `{{define "FormatFlags" -}}
\fB--{{.Name}}\fR
{{.Help}}
{{end -}}
.SH "NAME"
{{.App.Name}}
.SH "SYNOPSIS"
`

func TestTemplate(t *testing.T) {
	page := Page{
		Summary:     "do things to GPU-like devices",
		Environment: []Variable{{"NODE_NAME", "The node's name."}},
		Files:       []Variable{{"/etc/default/prog", "Flags as variables, {{such}} as these."}},
		SeeAlso:     []string{"other(1)", "more(8)"},
	}

	cmptest.HasTexts(t, page.Template(given),
		".SH \"NAME\"\n{{.App.Name}} \\- do things to GPU\\-like devices\n.SH",
		"\\fR\n{{.HelpWithEnvar}}\n{{end",
		".SH \"ENVIRONMENT\"\n.TP\n\\fBNODE_NAME\\fR\nThe node's name.\n",
		".SH \"FILES\"\n.TP\n\\fB/etc/default/prog\\fR\nFlags as variables, {\\&{such}} as these.\n",
		".SH \"SEE ALSO\"\nother(1), more(8)\n")

	page = Page{Summary: "x"}
	cmptest.LacksTexts(t, page.Template(given), "ENVIRONMENT", "FILES", "SEE ALSO")
}
