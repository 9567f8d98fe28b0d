package migctl

import "github.com/mig-exporter/mig-exporter/internal/manpage"

// manPage returns the parts of the man page that do not come from the flags and commands.
func manPage() *manpage.Page {
	environment := []manpage.Variable{
		{Name: "MIGCTL_*", Help: "A flag above, by the variable that is named beside it. " +
			"A flag on the command line goes before."},
		{Name: "TERM, COLUMNS", Help: "The kind of terminal that top draws on, and the width of what " +
			"it prints where there is none."},
		{Name: "NO_COLOR", Help: "Switches colors off, unless --color=always is given."},
	}

	files := []manpage.Variable{
		{
			Name: "/run/mig-exporter/control.sock",
			Help: "The socket of partition control on this node.",
		},
		{
			Name: "/usr/share/doc/mig-exporter/docs",
			Help: "The manual, which messages name as docs/NAME.md.",
		},
	}

	return &manpage.Page{
		Summary:     "show and repartition the GPUs of a node by mig-exporter",
		Environment: environment,
		Files:       files,
		SeeAlso:     []string{"mig-exporter(1)"},
	}
}
