// Package manpage writes the man pages of the programs: kingpin's, with what it leaves out.
package manpage

import (
	"strings"
)

// Page is what a program's man page has besides its flags and commands.
type Page struct {
	// Summary is one line, in small letters and without a full stop. whatis and apropos show it.
	Summary string
	// Environment are variables that no flag has.
	Environment []Variable
	// Files are the paths that a package installs, or the program creates.
	Files []Variable
	// SeeAlso are other pages, such as migctl(1).
	SeeAlso []string
}

// Variable is a name with what it is.
type Variable struct{ Name, Help string }

// Template returns kingpin's template of a man page, changed so that its NAME has the summary,
// flags name their variables, and further sections follow.
func (p *Page) Template(kingpin string) string {
	const name = ".SH \"NAME\"\n{{.App.Name}}"

	page := strings.Replace(kingpin, name+"\n", name+" \\- "+escape(p.Summary)+"\n", 1)
	page = strings.Replace(page, "\\fR\n{{.Help}}\n{{end", "\\fR\n{{.HelpWithEnvar}}\n{{end", 1)

	var b strings.Builder
	b.WriteString(page)
	addSection(&b, "ENVIRONMENT", p.Environment)
	addSection(&b, "FILES", p.Files)

	if len(p.SeeAlso) > 0 {
		b.WriteString(".SH \"SEE ALSO\"\n" + escape(strings.Join(p.SeeAlso, ", ")) + "\n")
	}

	return b.String()
}

func addSection(b *strings.Builder, title string, list []Variable) {
	if len(list) == 0 {
		return
	}

	b.WriteString(".SH \"" + title + "\"\n")

	for _, v := range list {
		b.WriteString(".TP\n\\fB" + escape(v.Name) + "\\fR\n" + escape(v.Help) + "\n")
	}
}

// escape keeps roff and the template from reading anything in a text as their own.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "{{", `{\&{`).Replace(text)
}
