package main

import "github.com/mig-exporter/mig-exporter/internal/manpage"

// manPage returns the parts of the man page that do not come from the flags and commands.
func manPage() *manpage.Page {
	return &manpage.Page{
		Summary: "export metrics of NVIDIA GPUs and their MIG instances to Prometheus",
		Environment: []manpage.Variable{
			{
				Name: "MIG_EXPORTER_*",
				Help: "Each flag above, by the variable that is named beside it. " +
					"A flag on the command line goes before.",
			},
			{
				Name: "NODE_NAME",
				Help: "The node's name in what is served, as dcgm-exporter has it.",
			},
			{
				Name: "POD_NAMESPACE, POD_NAME",
				Help: "The pod of this process, from the downward API.",
			},
			{
				Name: stateVariable,
				Help: "A file in which a simulated node is shared with other processes.",
			},
			{
				Name: startVariable,
				Help: "When a stepped clock begins, such as 2026-05-01T00:00:00Z.",
			},
		},

		Files: []manpage.Variable{
			{Name: "/etc/default/mig-exporter", Help: "The variables of the service."},
			{
				Name: "/var/lib/mig-exporter",
				Help: "Evidence of right-sizing, and the state of partition control.",
			},
			{
				Name: "/usr/share/doc/mig-exporter/docs",
				Help: "The manual, which messages name as docs/NAME.md.",
			},
		},
		SeeAlso: []string{"migctl(1)"},
	}
}
