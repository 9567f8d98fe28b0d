package migctl

import "github.com/mig-exporter/mig-exporter/internal/manpage"

// manPage returns what the man page has besides flags and commands.
func manPage() *manpage.Page {
	return &manpage.Page{
		Summary: "show and repartition the GPUs of a node by mig-exporter",
		Environment: []manpage.Variable{
			{Name: "MIGCTL_*", Help: "A flag above, by the variable that is named beside it. " +
				"A flag on the command line goes before."},
			{Name: "TERM, COLUMNS", Help: "The kind of terminal that top draws on, and the width of what " +
				"it prints where there is none."},
			{Name: "NO_COLOR", Help: "Switches colors off, unless --color=always is given."},
		},
		Files: []manpage.Variable{
			{
				Name: "/run/mig-exporter/control.sock",
				Help: "The socket of partition control on this node.",
			},
			{
				Name: "/usr/share/doc/mig-exporter/docs",
				Help: "The manual, which messages name as docs/NAME.md.",
			},
		},
		SeeAlso: []string{"mig-exporter(1)"},
	}
}
