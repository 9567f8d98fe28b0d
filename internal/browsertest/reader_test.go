package browsertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// TestNarrow: at the widths of phones, and of a desktop at 400 %, nothing is wider than the page,
// whatever is open.
func TestNarrow(t *testing.T) {
	b := openBrowser(t, 1440, 900)

	for _, scenario := range []string{"h100-56", "chaos"} {
		n := startNode(t, shipped(scenario))
		n.advance(7 * time.Minute)

		for range 8 { // until check-node's findings are known
			n.advance(time.Second)
		}

		for _, width := range []int64{390, 320} {
			b.run(chromedp.EmulateViewport(width, 800))
			b.open(n.url)
			b.eval(`document.querySelectorAll("details").forEach(d => { d.open = true })`)
			b.eval(`fetchPast()`)
			b.await(`document.querySelector(".card .spark svg") !== null`, "true")

			const tooWide = `[...document.querySelectorAll("#node *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1)
				.slice(0, 5).map(e => e.outerHTML.slice(0, 100)).join("\n")`

			if got := b.eval(`document.documentElement.scrollWidth`); got != fmt.Sprint(width) {
				t.Errorf("%s: %s pixels on a screen of %d:\n%s", scenario, got, width, b.eval(tooWide))
			}
		}
	}

	b.wantSilence()
}

// TestKeysOff: letters do nothing if the reader does not want them as keys, as WCAG 2.1.4 demands;
// the address keeps that.
func TestKeysOff(t *testing.T) {
	n := startNode(t, shipped("h100-single"))
	b := openBrowser(t, 1440, 900)
	b.open(n.url)
	b.press("j")
	b.await(focused, "0")

	b.eval(`document.getElementById("keys").click()`)
	b.await(`location.hash`, "#keys=off")
	b.press("j")
	b.await(focused, "0")

	b.run(chromedp.Reload())
	b.await(`document.getElementById("keys")?.checked`, "false")
	b.press("j")
	b.pressSlash()
	b.await(`document.activeElement.nodeName`, "BODY")
	b.wantSilence()
}

// TestPause: the page stays as it is while the reader does not want it live, as WCAG 2.2.2 demands.
func TestPause(t *testing.T) {
	n := startNode(t, shipped("h100-single"))
	b := openBrowser(t, 1440, 900)
	b.open(n.url)
	b.await(`stream.readyState === EventSource.OPEN`, "true")

	b.eval(`document.getElementById("live").click()`)
	b.await(`stream`, "null")

	before := b.eval(nodeTime)
	n.advance(3 * time.Second)
	b.eval(`check()`) // which would fetch the page, being overdue
	b.await(`fetching`, "false")

	if after := b.eval(nodeTime); after != before {
		t.Errorf("the page went from %s to %s", before, after)
	}

	b.eval(`document.getElementById("live").click()`)
	b.await(nodeTime+` > "`+before+`"`, "true")
	b.wantSilence()
}

// TestTip: what a sparkline says stays while the pointer is on it, and Escape hides it alone, as WCAG
// 1.4.13 demands.
func TestTip(t *testing.T) {
	n := startNode(t, scenarioFile(t, marked))
	for range 12 {
		n.advance(5 * time.Second)
	}

	b := openBrowser(t, 1440, 900)
	b.open(n.url)
	b.await(`document.querySelector(".gauges .spark svg") !== null`, "true")

	const tip = `document.getElementById("tip")`

	var x, y float64

	move := func(element, at string) {
		t.Helper()

		place := b.eval(`(r => [r.left + r.width * .95, r.` + at + `].join(" "))(` + element + `.getBoundingClientRect())`)
		if _, err := fmt.Sscan(place, &x, &y); err != nil {
			t.Fatal(err)
		}

		b.run(chromedp.MouseEvent("mouseMoved", x, y))
	}

	move(`document.querySelector(".gauges .spark")`, "top + 3")
	b.await(tip+`.hidden`, "false")
	move(tip, "bottom - 3")
	b.await(tip+`.hidden`, "false")
	b.press(escape)
	b.await(tip+`.hidden`, "true")
	b.await(`document.querySelector(".gpu").open`, "true")
	b.wantSilence()
}

// TestForcedColors: bars can be seen with colors of the reader's own.
func TestForcedColors(t *testing.T) {
	n := startNode(t, shipped("h100-single"))
	b := openBrowser(t, 1440, 900)
	b.run(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "forced-colors", Value: "active"}},
		})

		return err
	}))
	b.open(n.url)

	const style = `getComputedStyle(document.querySelector("meter"))`

	b.await(`matchMedia("(forced-colors: active)").matches`, "true")
	b.await(style+`.borderTopStyle`, "solid")
	b.await(style+`.getPropertyValue("--fill").trim() !== ""`, "true")
	b.await(style+`.forcedColorAdjust`, "none")
	b.wantSilence()
}
