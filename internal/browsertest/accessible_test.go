package browsertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// axeVersion is the release of axe-core, which checks pages for barriers.
const axeVersion = "4.10.3"

// axe returns the source of axe-core, or skips the test if it cannot be had.
func axe(t *testing.T) string {
	t.Helper()

	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("NOT TESTED: the page by axe-core: there is no npm")
	}

	folder := t.TempDir()
	install := exec.Command(npm, "install", "--no-save", "--no-audit", "--no-fund", "axe-core@"+axeVersion)
	install.Dir = folder

	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED: the page by axe-core: %v: %.500s", err, out)
	}

	source, err := os.ReadFile(filepath.Join(folder, "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}

	return string(source)
}

// TestAccessible: axe-core finds no barrier in the page, closed and opened, light and dark, wide
// and narrow.
func TestAccessible(t *testing.T) {
	source := axe(t)
	b := openBrowser(t, 1440, 900)

	for _, scenario := range []string{"h100-56", "chaos", "mps-and-timeslicing"} {
		n := startNode(t, shipped(scenario))
		n.advance(65 * time.Second)

		for range 8 { // until check-node's findings are known
			n.advance(time.Second)
		}

		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{1440, 390} {
				b.run(chromedp.EmulateViewport(width, 900), preferScheme(scheme))
				b.open(n.url)
				b.eval(`document.querySelectorAll(".gpu").forEach((g, i) => { g.open = i % 2 === 1 })`)
				b.eval(`document.querySelectorAll(".findings").forEach(f => { f.open = true })`)
				b.eval(`fetchPast()`)
				b.await(`document.querySelector(".spark svg") !== null`, "true")
				b.eval(`(() => {` + source + `})()`)
				b.eval(`(window.found = undefined, axe.run().then(r => { window.found = r.passes.length < 15 ? "axe checked little" :
					r.violations.map(v =>
					v.id + ": " + v.help + "\n" + v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + "\n" + n.failureSummary)
					.join("\n")).join("\n") }))`)
				b.await(`window.found !== undefined`, "true")

				if found := b.eval(`window.found`); found != "" {
					t.Errorf("%s, %s, %d pixels:\n%s", scenario, scheme, width, found)
				}
			}
		}
	}

	b.wantSilence()
}
