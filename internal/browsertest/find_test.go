package browsertest

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

const (
	shownRows = `[...document.querySelectorAll(".gpu:not([hidden])")].map(g => g.dataset.index).join()`
	countLine = `document.getElementById("shown").textContent`
	focused   = `document.activeElement.closest(".gpu")?.dataset.index`
)

// TestFind: the reader finds a slice by name, by keys alone; the address has what is looked for,
// and gives it back.
func TestFind(t *testing.T) {
	n := startNode(t, shipped("h100-56"))
	for range 10 { // until the kubelet's list is complete, and check-node's findings are known
		n.advance(time.Second)
	}

	b := openBrowser(t, 1440, 900)
	b.open(n.url)
	b.await(countLine, "8 of 8 GPUs, 56 of 56 slices shown")

	b.await(`document.querySelectorAll(".tiles div").length`, "6") // all that there can be
	b.await(`document.querySelector("#kept").hidden`, "false")

	if height := b.eval(`document.documentElement.scrollHeight <= 900`); height != "true" {
		t.Errorf("a node of 56 slices does not fit the screen: %s pixels", b.eval(`document.documentElement.scrollHeight`))
	}

	b.pressSlash()
	b.press("embedder-01")
	b.await(countLine, "2 of 8 GPUs, 3 of 56 slices shown")
	b.await(shownRows, "1,2")
	b.await(`document.querySelectorAll(".block.found").length`, "3")
	b.await(`location.hash`, "#q=embedder-01")

	// The next reading changes nothing of that.
	before := b.eval(nodeTime)
	n.advance(2 * time.Second)
	b.await(nodeTime+` > "`+before+`"`, "true")
	b.await(shownRows, "1,2")
	b.await(`document.getElementById("query").value`, "embedder-01")

	b.run(chromedp.Reload())
	b.await(shownRows, "1,2")

	b.pressSlash()
	b.press(escape)
	b.await(countLine, "8 of 8 GPUs, 56 of 56 slices shown")
	b.await(`location.hash`, "")

	b.press("jj")
	b.await(focused, "1")
	b.press("k")
	b.await(focused, "0")
	b.press(enter)
	b.await(`document.querySelector(".gpu").open`, "true")
	b.press(escape)
	b.await(`document.querySelector(".gpu").open`, "false")
	b.wantSilence()
}

// TestFindAmongWholeGPUs: a GPU without MIG is found by its pod, and is no slice.
func TestFindAmongWholeGPUs(t *testing.T) {
	n := startNode(t, shipped("h100-underused"))
	n.advance(10 * time.Second)

	b := openBrowser(t, 1440, 900)
	b.open(n.url + "/#q=asr-0")
	b.await(countLine, "1 of 8 GPUs shown")
	b.await(shownRows, "6")
	b.wantSilence()
}

// TestOrder: the busiest GPU comes first, the address says so, and the GPU that has the focus keeps
// it when it moves.
func TestOrder(t *testing.T) {
	n := startNode(t, shipped("chaos"))
	b := openBrowser(t, 1440, 900)
	b.open(n.url + "/#order=busiest")

	const busy = `[...document.querySelectorAll(".gpu")].map(g => Number(g.dataset.busy))`

	b.await(busy+`.every((v, i, all) => i === 0 || all[i-1] >= v)`, "true")
	b.await(shownRows+` === "0,1,2,3,4,5,6,7"`, "false")

	first := b.eval(`(document.querySelector(".gpu > summary").focus(), ` + focused + `)`)

	b.eval(`(document.getElementById("order").value = "index",
		document.getElementById("find").dispatchEvent(new Event("input")))`)
	b.await(shownRows, "0,1,2,3,4,5,6,7")
	b.await(`location.hash`, "")

	b.await(focused, first)

	// Something is wrong with GPU 1 after a minute.
	b.eval(`(document.getElementById("is-unhealthy").click())`)
	b.await(shownRows, "")
	n.advance(65 * time.Second)
	b.await(shownRows, "1")
	b.await(`location.hash`, "#unhealthy")
	b.wantSilence()
}
