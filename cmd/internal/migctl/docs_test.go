package migctl

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

func docPage(t *testing.T, name string) string {
	t.Helper()

	data, err := os.ReadFile("../../../" + name)
	if err != nil {
		t.Fatal(err)
	}

	return string(data)
}

// shellWords splits a command as a shell does: quotes, backslashes, comments.
func shellWords(t *testing.T, command string) []string {
	t.Helper()
	var words []string

	for _, m := range regexp.MustCompile(`(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\#])(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])*|#.*`).
		FindAllString(command, -1) {
		if strings.HasPrefix(m, "#") {
			continue
		}

		words = append(words, regexp.MustCompile(`'([^']*)'|"([^"]*)"|\\(.)`).ReplaceAllString(m, "$1$2$3"))
	}

	return words
}

// commands are those of migctl in a page: lines of fenced blocks, a prompt before them or not, and
// code within the text that is more than a command's name.
func commands(text string) []string {
	var all []string
	fenced := false
	joined := ""
	text = regexp.MustCompile("(?ms)^```text$.*?^```$").ReplaceAllString(text, "") // what programs print

	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
			continue
		}

		if !fenced {
			for _, m := range regexp.MustCompile("`(migctl [a-z-]+ [^`]+)`").FindAllStringSubmatch(line, -1) {
				all = append(all, m[1])
			}

			continue
		}

		joined += regexp.MustCompile(`^(\$ )?(sudo )?(bin/)?`).ReplaceAllString(line, "")
		if more, ok := strings.CutSuffix(joined, `\`); ok {
			joined = more
			continue
		}

		if strings.HasPrefix(joined, "migctl ") {
			all = append(all, joined)
		}

		joined = ""
	}

	return all
}

// TestCommandsOfThePagesParse: the commands in the docs parse, and their specs are valid.
func TestCommandsOfThePagesParse(t *testing.T) {
	for name, least := range map[string]int{"docs/partition-control.md": 25, "docs/threat-model.md": 0, "docs/top.md": 5, "README.md": 2} {
		all := commands(docPage(t, name))
		if len(all) < least {
			t.Errorf("%s: only %d commands", name, len(all))
		}

		for _, command := range all {
			command, _, _ = strings.Cut(command, " | ") // what follows is another program

			s := session{out: io.Discard, errOut: io.Discard, in: strings.NewReader("{gpus: [0], devices: {}}")}
			if _, err := s.parseCommandLine(shellWords(t, command)[1:]); err != nil {
				t.Errorf("%s: %s: %v", name, command, err)
				continue
			}

			if o := &s.opts.Spec; o.File != "" && o.File != "-" || o.isEmpty() {
				continue
			}

			if _, err := s.planRequest(t.Context()); err != nil {
				t.Errorf("%s: %s: %v", name, command, err)
			}
		}
	}
}

// TestPageHasTheControlFlags: every flag of partition control is in the page, with its default, and
// none that is not there.
func TestPageHasTheControlFlags(t *testing.T) {
	text := docPage(t, "docs/partition-control.md")
	source := docPage(t, "cmd/mig-exporter/flags_control.go")

	defined := map[string]bool{}
	for _, m := range regexp.MustCompile(`[(,\s]"(control\.[a-z.-]+)",`).FindAllStringSubmatch(source, -1) {
		defined["--"+m[1]] = true
		if !strings.Contains(text, "\n| `--"+m[1]+"` |") {
			t.Errorf("the table of flags lacks --%s", m[1])
		}
	}

	pages := text + docPage(t, "docs/threat-model.md") + docPage(t, "README.md")
	for _, m := range regexp.MustCompile(`--control\.[a-z]+(?:[.-][a-z]+)*`).FindAllString(pages, -1) {
		if !defined[m] {
			t.Errorf("there is no flag %s", m)
		}
	}

	for _, m := range regexp.MustCompile("\n\\| `--(control\\.[a-z.-]+)` \\| `([^`]+)` \\|").FindAllStringSubmatch(text, -1) {
		_, at, _ := strings.Cut(source, `"`+m[1]+`"`)

		at, _, _ = strings.Cut(at, "\n\t}")
		if at, _, _ = strings.Cut(at, `"control.`); !strings.Contains(at, `"`+m[2]+`"`) && m[2] != "plan" {
			t.Errorf("--%s: the default is not %s", m[1], m[2])
		}
	}

	if len(defined) < 14 {
		t.Errorf("%d flags found", len(defined))
	}
}
