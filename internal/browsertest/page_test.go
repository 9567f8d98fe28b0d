package browsertest

import (
	"testing"
	"time"
)

// nodeTime is the time of the reading that the page shows.
const nodeTime = `document.querySelector("#node time").dateTime`

// TestPageIsLive: the page shows the next reading in place: a selected UUID stays selected.
func TestPageIsLive(t *testing.T) {
	n := startNode(t, shipped("dgx-a100-mixed"))
	n.advance(10 * time.Second) // until the kubelet's list is complete

	b := openBrowser(t, 1440, 900)
	b.open(n.url)

	const uuid = `document.querySelector(".gpu[open] .uuid span")`

	b.eval(`document.querySelectorAll(".gpu")[4].open = true`)
	b.eval(`document.querySelectorAll(".gpu > summary")[4].focus()`)
	b.eval(`scrollTo(0, 50)`)
	b.eval(`getSelection().selectAllChildren(` + uuid + `)`)
	want := b.eval(uuid + `.textContent`)

	before := b.eval(nodeTime)
	shown := b.eval(`document.querySelector("#node").textContent`)

	for range 3 {
		n.advance(time.Second)
	}

	b.await(nodeTime+` > "`+before+`"`, "true")
	b.await(`document.querySelector("#node").textContent === `+"`"+shown+"`", "false")

	if got := b.eval(`getSelection().toString()`); got != want {
		t.Errorf("selected is %q, want %q", got, want)
	}

	b.await(`[...document.querySelectorAll(".gpu[open]")].map(g => g.dataset.index).join()`, "4")
	b.await(focused, "4")
	b.await(`scrollY`, "50")
	b.wantSilence()
}

// TestFindingsStayOpen: what check-node finds amiss opens below the other tiles, and stays so.
func TestFindingsStayOpen(t *testing.T) {
	n := startNode(t, shipped("dgx-a100-mixed")) // without DCGM
	for range 10 {
		n.advance(time.Second)
	}

	b := openBrowser(t, 1440, 900)
	b.open(n.url)
	b.eval(`document.querySelector(".findings summary").click()`)
	b.await(`document.querySelector(".findings li").offsetWidth > 1000`, "true")

	before := b.eval(nodeTime)
	n.advance(3 * time.Second)
	b.await(nodeTime+` > "`+before+`"`, "true")
	b.await(`document.querySelector(".findings").open`, "true")
	b.await(`document.querySelectorAll(".gpu[open]").length`, "0")
	b.wantSilence()
}

// TestHiddenTab: a hidden tab watches nothing, and is up to date as soon as it is shown.
func TestHiddenTab(t *testing.T) {
	n := startNode(t, shipped("h100-single"))
	b := openBrowser(t, 1440, 900)
	b.open(n.url)
	b.await(`stream.readyState === EventSource.OPEN`, "true")

	hide := func(hidden string) {
		b.eval(`Object.defineProperty(document, "hidden", { value: ` + hidden + `, configurable: true })`)
		b.eval(`document.dispatchEvent(new Event("visibilitychange", { bubbles: true }))`)
	}

	hide("true")
	b.await(`stream`, "null")

	before := b.eval(nodeTime)
	n.advance(3 * time.Second)
	time.Sleep(2 * time.Second) // longer than an event of an open stream takes

	if after := b.eval(nodeTime); after != before {
		t.Errorf("the hidden tab went from %s to %s", before, after)
	}

	hide("false")
	b.await(nodeTime+` > "`+before+`"`, "true")
	b.wantSilence()
}

// TestLateReadings: what a slow link brings late is as old as it is, although it has just come. A
// reading that is very late means a queue: the page asks for a new stream. The clock of the browser
// may differ from the exporter's.
func TestLateReadings(t *testing.T) {
	n := startNode(t, shipped("h100-single"))
	b := openBrowser(t, 1440, 900)
	b.open(n.url)
	b.await(`stream.readyState === EventSource.OPEN`, "true")

	// The content as it was when the exporter rendered it some time ago.
	b.eval(`window.renderedBefore = (ms) => content().outerHTML.replace(/data-(taken|rendered)="(\d+)"/g,
		(all, name, value) => "data-" + name + '="' + (Number(value) - ms) + '"')`)

	const age = `parseInt(document.querySelector("#node time").textContent)`

	b.eval(`show(renderedBefore(9000), false)`)
	b.await(age+` >= 9 && `+age+` < 60`, "true")

	b.eval(`window.old = stream`)
	b.eval(`stream.dispatchEvent(new MessageEvent("node", { data: renderedBefore(100000) }))`)
	b.await(`stream !== old && stream.readyState === EventSource.OPEN`, "true")

	// An hour that comes with the first content of an answer is one by which a clock was set.
	b.eval(`show(renderedBefore(3600000), true)`)
	b.await(`document.querySelector("#node time").textContent`, "less than 1 s ago")
	b.wantSilence()
}

// TestPageAfterARestart: the page says that the exporter does not answer, and goes on by itself
// once it does.
func TestPageAfterARestart(t *testing.T) {
	n := startNode(t, shipped("h100-single"))
	b := openBrowser(t, 1440, 900)
	b.open(n.url)
	b.await(`document.getElementById("lost").hidden`, "true")

	n.stop()
	b.await(`document.getElementById("lost").hidden`, "false")

	n.start()
	b.await(`document.getElementById("lost").hidden`, "true")

	before := b.eval(nodeTime)
	n.advance(3 * time.Second)
	b.await(nodeTime+` > "`+before+`"`, "true")
	b.wantSilence("net::ERR_CONNECTION_REFUSED", "net::ERR_INCOMPLETE_CHUNKED_ENCODING")
}

// TestPageWithoutAStream: a page whose stream is refused fetches the page again, and loses no
// selection.
func TestPageWithoutAStream(t *testing.T) {
	n := startNode(t, shipped("h100-single"))
	n.occupyStreams()

	b := openBrowser(t, 1440, 900)
	b.open(n.url)
	b.await(`stream.readyState === EventSource.CLOSED`, "true")

	before := b.eval(nodeTime)
	want := b.eval(`(getSelection().selectAllChildren(document.querySelector(".head h2")), getSelection().toString())`)

	n.advance(3 * time.Second)
	b.await(nodeTime+` > "`+before+`"`, "true")

	if got := b.eval(`getSelection().toString()`); got != want {
		t.Errorf("selected is %q, want %q", got, want)
	}

	b.wantSilence("the server responded with a status of 503")
}

// TestPageWithoutScript: the node is there without the script, and the browser is asked to load the
// page again.
func TestPageWithoutScript(t *testing.T) {
	n := startNode(t, shipped("h100-single"))
	b := openBrowser(t, 1440, 900)
	b.run(withoutScript)
	b.open(n.url)

	for _, want := range []struct{ expression, value string }{
		{`document.querySelectorAll(".gpu").length`, "4"},
		{`document.getElementById("find").hidden`, "true"},
		{`document.querySelector("meta[http-equiv=refresh]").content`, "15"},
	} {
		b.await(want.expression, want.value)
	}

	b.wantSilence()
}
