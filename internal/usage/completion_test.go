package usage_test

import (
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/usage"
)

// TestCompletionArgs: short flags and a sign of their own are what kingpin completes; other command
// lines stay.
func TestCompletionArgs(t *testing.T) {
	app := kingpin.New("program", "Does something.")
	app.Flag("token-file", "File.").SetValue(usage.File(new(string)))

	get := app.Command("get", "Gets.")
	get.Flag("output", "Form.").Short('o').HintOptions("json").String()
	get.Flag("file", "File.").Short('f').SetValue(usage.File(new(string)))
	get.Flag("watch", "Again.").Bool()

	for given, want := range map[string]string{
		"get -o j":                            "get -o j",
		"--completion-bash get -o j":          "--completion-bash get --output j",
		"--completion-bash get -":             "--completion-bash get --",
		"--completion-bash get --output = j":  "--completion-bash get --output j",
		"--completion-bash get -o j -x name=": "--completion-bash get --output j -x name=",
		"--completion-bash get --output =":    "--completion-bash get --output ",
		"--completion-bash get --output=":     "--completion-bash get --output ",
		"--completion-bash --output=a get b":  "--completion-bash --output a get b",
		"--completion-bash =":                 "--completion-bash ",
		"--completion-bash --token-file a":    "--completion-bash -- ",
		"--completion-bash get -f a":          "--completion-bash -- ",
		"--completion-bash get -f -":          "--completion-bash get --file --",
		"--completion-bash get -f a b":        "--completion-bash get --file a b",
		"--completion-bash get --watch a":     "--completion-bash get --watch a",
		"--completion-bash get --none a":      "--completion-bash get --none a",
	} {
		cmptest.Equal(t, given, strings.Join(usage.CompletionArgs(app, strings.Fields(given)), " "), want)
	}
}
