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
	app.Command("get", "Gets.").Flag("output", "Form.").Short('o').String()

	for given, want := range map[string]string{
		"get -o j":                            "get -o j",
		"--completion-bash get -o j":          "--completion-bash get --output j",
		"--completion-bash get -":             "--completion-bash get --",
		"--completion-bash get --output = j":  "--completion-bash get --output j",
		"--completion-bash get -o j -x name=": "--completion-bash get --output j -x name=",
		"--completion-bash =":                 "--completion-bash",
	} {
		cmptest.Equal(t, given, strings.Join(usage.CompletionArgs(app, strings.Fields(given)), " "), want)
	}
}
