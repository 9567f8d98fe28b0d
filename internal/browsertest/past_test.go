package browsertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// marked is a node on which another client changes the layout, and an XID occurs.
const marked = `
version: 1
node: {hostname: marked, kubernetes: true, privileged: true}
gpus:
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
workloads:
  - {name: serve, memory: 5GiB, width: 20, busy: 0.5}
pods:
  - {namespace: prod, name: serve-0, resource: nvidia.com/mig-3g.40gb, device: "0/3g.40gb@0", workload: serve}
faults:
  - {at: 30s, gpu: 0, kind: xid, xid: 94, gi: 1, ci: 0}
  - {at: 60s, gpu: 0, kind: external-reconfigure, layout: ["3g.40gb@0", "1g.10gb@4"]}
`

// TestMarks: the sparklines of a GPU mark a layout change and an XID by shapes of their own, and
// tell time and value to the keyboard.
func TestMarks(t *testing.T) {
	n := startNode(t, scenarioFile(t, marked))
	b := openBrowser(t, 1440, 900)
	b.open(n.url)

	for range 18 {
		n.advance(5 * time.Second)
	}

	b.eval(`fetchPast()`)

	const spark = `.gauges .spark[data-past=smActivityRatio]`

	b.await(`document.querySelectorAll("`+spark+` .mark.layout").length`, "1")
	b.await(`document.querySelectorAll("`+spark+` .mark.xid").length`, "1")
	b.await(`document.querySelector("`+spark+` .line").getAttribute("d").length > 100`, "true")
	b.await(`/kept since/.test(document.getElementById("kept").textContent)`, "true")

	for of, want := range map[string]string{
		`.gauges`:    "GPU 0, SM activity, the last minutes",
		`.instances`: "GPU 0, 3g.40gb GI 1 at 0:4, SM activity, the last minutes",
	} {
		b.await(`document.querySelector("`+of+` .spark[data-past=smActivityRatio]").getAttribute("aria-label")`, want)
	}

	const said = `document.querySelector("` + spark + `").getAttribute("aria-valuetext")`

	b.eval(`document.querySelector("` + spark + `").focus()`)
	b.await(`document.getElementById("tip").hidden`, "false")

	if tip := b.eval(`document.getElementById("tip").textContent`); tip != b.eval(said) {
		t.Errorf("shown is %q, said %q", tip, b.eval(said))
	}

	seen := ""
	for range 16 {
		seen += b.eval(said) + "\n"

		b.press(left)
	}

	for _, want := range []string{"XID 94, Contained memory error", "layout changed", " %"} {
		if !strings.Contains(seen, want) {
			t.Errorf("no %q in\n%s", want, seen)
		}
	}

	b.wantSilence()
}

// hostile has a name that would be a program if it were not text.
const hostile = `
version: 1
node: {hostname: "<img src=x onerror=alert(1)>", privileged: true}
gpus:
  - {model: H100-80GB}
`

// TestUnknownLimit: the line of a GPU whose limit is not known goes up to its largest value, and is
// not drawn as if it were always at the limit.
func TestUnknownLimit(t *testing.T) {
	n := startNode(t, scenarioFile(t, marked))
	b := openBrowser(t, 1440, 900)
	b.open(n.url)

	for range 6 {
		n.advance(5 * time.Second)
	}

	b.eval(`fetchPast()`)

	const spark = `document.querySelector(".gauges .spark[data-past=powerWatts]")`

	b.await(`Boolean(`+spark+`.chart)`, "true")
	b.eval(spark + `.dataset.max = "0"`)
	b.await(`newScale(`+spark+`, `+spark+`.chart.values).y(Math.max(...`+spark+`.chart.values) / 2) > 5`, "true")
	b.wantSilence()
}

// TestHostileNames: names are text, at first and as they come by the stream. The simulated kubelet
// has no such pods: a scheduler's job does instead.
func TestHostileNames(t *testing.T) {
	const job = `"><script>alert(2)</script>`

	jobs := t.TempDir()
	n := startNode(t, scenarioFile(t, hostile), "--hpc.job-mapping-dir="+jobs)
	b := openBrowser(t, 1440, 900)
	b.open(n.url)

	if err := os.WriteFile(filepath.Join(jobs, "0"), []byte(job+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	n.advance(30 * time.Second)
	b.await(`document.querySelector(".card .holder .pod")?.textContent`, "job "+job)
	b.await(`document.querySelector(".block .pod").textContent`, "job "+job)
	b.await(`document.querySelector("h1").textContent`, "<img src=x onerror=alert(1)>")
	b.await(`document.querySelectorAll("img, main script").length`, "0")
	b.wantSilence()
}
