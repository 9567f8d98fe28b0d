package promtest

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var writeSamples = flag.Bool("samples", false, "write what programs print into the pages that show it")

// page is a page of the docs with samples: fenced blocks without a language.
type page struct{ path string }

func (p page) text(t *testing.T) string {
	t.Helper()
	return readFile(t, p.path)
}

// sample returns the only sample that has a text, without its fences.
func (p page) sample(t *testing.T, has string) string {
	t.Helper()
	var found []string

	for _, block := range regexp.MustCompile("(?ms)^```\n(.*?)^```$").FindAllStringSubmatch(p.text(t), -1) {
		if strings.Contains(block[1], has) {
			found = append(found, block[1])
		}
	}

	if len(found) != 1 {
		t.Fatalf("%s: %d samples have %q, want one", p.path, len(found), has)
	}

	return found[0]
}

// expect checks that the sample with a text is what was printed, from a text on and up to another
// one.
func (p page) expect(t *testing.T, has, printed, from, to string) {
	t.Helper()
	sample := p.sample(t, has)

	begin := strings.Index(printed, from)
	if begin < 0 {
		t.Errorf("%s: %q is not printed:\n%s", p.path, from, printed)
		return
	}

	want := printed[begin:]
	if end := strings.Index(want, to); to != "" && end >= 0 {
		want = want[:end]
	}

	if want = strings.TrimRight(want, "\n") + "\n"; sample == want {
		return
	}

	if !*writeSamples {
		t.Errorf("%s shows\n%s\nand the program prints (-samples writes it)\n%s", p.path, sample, want)
		return
	}

	text := strings.Replace(p.text(t), "```\n"+sample+"```", "```\n"+want+"```", 1)
	if err := os.WriteFile(p.path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// expectLines checks that each line of the sample with a text is a line that was printed, in this
// order. The sample may leave lines out, and has the user's own.
func (p page) expectLines(t *testing.T, has, printed string) {
	t.Helper()
	// These are others each time: times, ids, watts, degrees.
	varying := regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:]+Z|\b[a-z0-9]{26}\b|MIG-[0-9a-f-]+|\d+\.\ds|after \d+s|\d+W|\d+C`)
	plain := func(line string) string { return varying.ReplaceAllString(strings.TrimSpace(line), "*") }

	var lines []string
	for line := range strings.Lines(printed) {
		lines = append(lines, plain(line))
	}

	for line := range strings.Lines(p.sample(t, has)) {
		if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "Apply? ") {
			continue
		}

		at := slices.Index(lines, plain(line))
		if at < 0 {
			t.Errorf("%s: the line %q is not printed there:\n%s", p.path, strings.TrimSpace(line), printed)
			return
		}

		lines = lines[at+1:]
	}
}

// TestTryItWithoutAGPU: the first session of the page on partition control, on the scenario that
// the page writes.
func TestTryItWithoutAGPU(t *testing.T) {
	t.Parallel()
	control := page{"../../docs/partition-control.md"}
	_, scenario, _ := strings.Cut(control.sample(t, "cat > try.yaml"), "\n")
	scenario, _, _ = strings.Cut(scenario, "EOF\n")
	dir := t.TempDir()
	socket := filepath.Join(dir, "control.sock")
	startNode(t, scenario, "--control.enabled", "--control.mode=apply", "--control.socket="+socket,
		"--control.state-dir="+dir)

	session := printed(t, socket, "get")
	session += printed(t, socket, "apply", "--gpus", "0", "--devices", "2g.10gb=1,3g.20gb=1", "--yes")
	control.expectLines(t, "$ migctl get", session)
}

// printed returns what migctl prints on a terminal of UTF-8, 80 columns wide.
func printed(t *testing.T, socket string, args ...string) string {
	t.Helper()

	path, err := program()
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(path), "migctl"), args...)
	cmd.Env = append(os.Environ(), "MIGCTL_ADDRESS=unix://"+socket, "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "LC_CTYPE=C.UTF-8")

	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("migctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}

	return string(out)
}
