package usage_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/usage"
)

// TestGroups: each flag is under the title of its group, once; a name counts more than a prefix.
func TestGroups(t *testing.T) {
	var out bytes.Buffer
	app := kingpin.New("program", "Does something.").UsageWriter(&out).Terminate(nil)
	usage.Install(app, []usage.Group{
		{Title: "Web", Names: []string{"web."}},
		{Title: "Files", Names: []string{"web.file", "help"}},
		{Title: "Nothing", Names: []string{"none."}},
	}, usage.Table{Title: "Parts", Rows: [][2]string{{"+one", "the first"}}})

	for _, name := range []string{"web.address", "web.file", "website"} {
		app.Flag(name, "Help of "+name+".").String()
	}

	app.Flag("web.hidden", "Not shown.").Hidden().String()
	app.Command("run", "Runs.")
	app.Usage(nil)

	cmptest.LacksTexts(t, out.String(), "Nothing:", "hidden")

	at := 0

	for _, part := range []string{
		"usage: program", "Does something.", "\nWeb:\n", "--web.address", "\nFiles:\n", "--[no-]help",
		"--web.file", "\n" + usage.Other + ":\n", "--website", "\nParts:\n", "  +one  the first",
		"\nCommands:\n", "Runs.",
	} {
		next := strings.Index(out.String()[at:], part)
		if next < 0 {
			t.Fatalf("no %q after the first %d bytes of\n%s", part, at, out.String())
		}

		at += next
	}
}
