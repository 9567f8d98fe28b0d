package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"
)

// printMan prints the man page, in the macros of man(7).
func (s *session) printMan() error {
	out := bufio.NewWriter(s.out)
	writeMan(out, newApp(&options{}).Model())
	return out.Flush()
}

func writeMan(w io.Writer, model *kingpin.ApplicationModel) {
	put := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	about, _, _ := strings.Cut(programHelp, "\n\n")
	put(`.TH MIGCTL 1 "" "mig-exporter %s" "User Commands"`, roff(version.Version))
	put(".SH NAME\nmigctl \\- show and repartition the GPUs of a node")
	put(".SH SYNOPSIS\n.B migctl\n[\\fIflags\\fR] \\fIcommand\\fR [\\fIarguments\\fR]")
	put(".SH DESCRIPTION\n%s", roff(about))
	put(".SH OPTIONS")
	manFlags(put, model.Flags)
	put(".SH COMMANDS")
	for _, c := range model.Commands {
		if c.Hidden || c.Name == "help" {
			continue
		}
		usage := ""
		for _, a := range c.Args {
			usage += " " + manArg(a)
		}
		put(".SS \"%s%s\"", roff(c.Name), usage)
		put("%s", roff(c.Help))
		manFlags(put, c.Flags)
	}
	put(".SH EXIT STATUS")
	for _, e := range []struct {
		code int
		text string
	}{
		{exitOK, "Done, or nothing to do."},
		{exitFailed, "Refused by the server, declined by the operator, or failed and rolled back."},
		{exitUsage, "The command line or the spec is wrong."},
		{exitUnreachable, "The server cannot be reached, does not answer in time, or is none of mig-exporter's."},
		{exitDegraded, "A GPU is degraded (a rollback failed: see migctl rollback and migctl accept) or stuck (a driver call hangs)."},
		{exitNeither, "The operation has ended with a layout that is neither the previous nor the planned one, and blocks no GPU: another client changed a GPU meanwhile (interrupted), or the layout was accepted as it stands. Plan again."},
		{exitInterrupted, "Interrupted by a signal. An operation goes on without migctl: see migctl operations --follow."},
	} {
		put(".TP\n.B %d\n%s", e.code, roff(e.text))
	}
	put(".SH ENVIRONMENT")
	for _, f := range model.Flags {
		if f.Envar != "" {
			put(".TP\n.B %s\nAs %s.", roff(f.Envar), roff("--"+f.Name))
		}
	}
	put(".TP\n.B NO_COLOR\nIf set, %s means no colours.", roff("--color=auto"))
	put(".SH FILES\n.TP\n.I /run/mig\\-exporter/control.sock\nThe socket of mig\\-exporter's control, for root and the group of %s.", roff("--control.allow-gid"))
	put(".SH EXAMPLES")
	for _, e := range []struct{ text, command string }{
		{"What the node has:", "migctl get"},
		{"What a change would do:", "migctl plan --gpus 0 --devices 3g.40gb=1,1g.10gb=4"},
		{"Three further instances of at least 12 GiB and 20 SMs, wherever they fit:", "migctl apply --demand memory=12GiB,sms=20,count=3"},
		{"A named layout of a file of mig-parted:", "migctl apply -f config.yaml --layout all-1g.10gb"},
		{"No instances on GPU 2:", "migctl apply --gpus 2 --devices none"},
	} {
		put(".PP\n%s\n.PP\n.RS 4\n.nf\n%s\n.fi\n.RE", roff(e.text), roff(e.command))
	}
	put(".SH SEE ALSO\nnvidia\\-smi(1), docs/partition\\-control.md of mig\\-exporter")
}

func manFlags(put func(string, ...any), flags []*kingpin.FlagModel) {
	for _, f := range flags {
		if f.Hidden {
			continue
		}
		name := "--" + f.Name
		if f.Short != 0 {
			name = "-" + string(f.Short) + ", " + name
		}
		value := ""
		if !f.IsBoolFlag() {
			value = `=\fI` + roff(strings.Trim(f.FormatPlaceHolder(), `"`)) + `\fR`
		}
		put(".TP\n\\fB%s\\fR%s\n%s", roff(name), value, roff(f.Help))
	}
}

func manArg(a *kingpin.ArgModel) string {
	arg := `\fI` + roff(a.Name) + `\fR`
	if a.Name == "gpu" || a.Name == "device" {
		arg += "..."
	}
	if !a.Required {
		arg = "[" + arg + "]"
	}
	return arg
}

// roff makes a text safe in a page: hyphens can be copied, and no line is taken for a request.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n\n", "\n.PP\n").Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
