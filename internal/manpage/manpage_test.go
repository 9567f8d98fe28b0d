package manpage

import (
	"bytes"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// render returns the man page of a small program.
func render(t *testing.T, page *Page) string {
	t.Helper()

	app := kingpin.New("prog", "Does things.")
	app.Terminate(nil)

	var out bytes.Buffer
	app.UsageWriter(&out)
	app.ErrorWriter(io.Discard)
	app.Flag("size", "Size in bytes.").Envar("PROG_SIZE").Default("1").Int()
	app.Flag("force", "Do it anyway.").Bool()
	app.Command("run", "Run it.").Flag("twice", "Run it twice.").Envar("PROG_TWICE").Bool()

	context, err := app.ParseContext(nil)
	if err != nil {
		t.Fatal(err)
	}

	if err := app.UsageForContextWithTemplate(context, 2, page.Template(kingpin.ManPageTemplate)); err != nil {
		t.Fatal(err)
	}

	return out.String()
}

func TestTemplate(t *testing.T) {
	page := render(t, &Page{
		Summary:     "do things to GPU-like devices",
		Environment: []Variable{{"NODE_NAME", "The node's name."}},
		Files:       []Variable{{"/etc/default/prog", "Flags as variables, {{such}} as these."}},
		SeeAlso:     []string{"other(1)", "more(8)"},
	})

	cmptest.HasTexts(t, page,
		".SH \"NAME\"\nprog \\- do things to GPU\\-like devices\n.SH",
		"\nSize in bytes. ($PROG_SIZE)\n", "\nDo it anyway.\n", "\nRun it twice. ($PROG_TWICE)\n",
		".SH \"ENVIRONMENT\"\n.TP\n\\fBNODE_NAME\\fR\nThe node's name.\n",
		".SH \"FILES\"\n.TP\n\\fB/etc/default/prog\\fR\nFlags as variables, {\\&{such}} as these.\n",
		".SH \"SEE ALSO\"\nother(1), more(8)\n")
	cmptest.LacksTexts(t, render(t, &Page{Summary: "x"}), "ENVIRONMENT", "FILES", "SEE ALSO")
}

// TestWhatisReadsTheName: the program that fills the database of whatis and apropos finds name and summary.
func TestWhatisReadsTheName(t *testing.T) {
	lexgrog, err := exec.LookPath("lexgrog")
	if err != nil {
		t.Skip("NOT TESTED: there is no lexgrog")
	}

	cmd := exec.Command(lexgrog, "-")
	cmd.Stdin = strings.NewReader(render(t, &Page{Summary: "do things to GPU-like devices"}))

	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"prog - do things to GPU-like devices"`) {
		t.Errorf("lexgrog: %v\n%s", err, out)
	}
}
