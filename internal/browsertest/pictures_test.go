package browsertest

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

var pictures = flag.Bool("pictures", false, "draw the pictures of the page in docs/images again")

// picture is one of the pictures of the page that the documentation has.
type picture struct {
	name, scenario, scheme string
	width                  int64
	after                  time.Duration // of simulated time
	hash                   string        // what the reader looks for
	open                   string        // index of the GPU that is opened
	args                   []string
}

// TestPictures draws the pictures of the documentation with -pictures: see make pictures.
func TestPictures(t *testing.T) {
	if !*pictures {
		t.Skip("only with -pictures")
	}

	for _, p := range []picture{
		{name: "page", scenario: "dgx-a100-mixed", after: 16 * time.Minute, args: []string{"--dcgm.address=embedded"}},
		{name: "page-slices", scenario: "h100-56", scheme: "dark", after: 16 * time.Minute},
		{name: "page-opened", scenario: "h100-56", after: 16 * time.Minute, open: "0"},
		{name: "page-faults", scenario: "chaos", after: 6*time.Minute + 10*time.Second, hash: "#unhealthy", open: "6"},
		{name: "page-phone", scenario: "mps-and-timeslicing", scheme: "dark", width: 390, after: 16 * time.Minute},
	} {
		t.Run(p.name, func(t *testing.T) { p.draw(t) })
	}
}

func (p *picture) draw(t *testing.T) {
	t.Helper()

	n := startNode(t, shipped(p.scenario), p.args...)
	for passed := time.Duration(0); passed < p.after; passed += 5 * time.Second {
		n.advance(5 * time.Second)
	}

	b := openBrowser(t, 1440, 900)
	b.run(chromedp.EmulateViewport(cmp.Or(p.width, 1440), 900), preferScheme(cmp.Or(p.scheme, "light")))
	b.open(n.url + "/" + p.hash)
	b.eval(`document.querySelectorAll(".gpu").forEach(g => { g.open ||= g.dataset.index === "` + p.open + `" })`)
	b.await(`document.querySelector(".spark svg") !== null`, "true")

	ctx, cancel := context.WithTimeout(b.ctx, pageTimeout)
	defer cancel()

	screen, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatal(err)
	}

	file := filepath.Join("..", "..", "docs", "images", p.name+".png")
	if err := os.WriteFile(file, reduceColors(t, screen), 0o644); err != nil { //nolint:gosec // everybody may see it
		t.Fatal(err)
	}
}

// reduceColors makes a third of a picture's size: of its colors, which are many along the edges of
// letters, it keeps the 256 that are most frequent, and takes the nearest of them for the others.
func reduceColors(t *testing.T, screen []byte) []byte {
	t.Helper()

	picture, err := png.Decode(bytes.NewReader(screen))
	if err != nil {
		t.Fatal(err)
	}

	count := map[color.Color]int{}
	bounds := picture.Bounds()

	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			count[picture.At(x, y)]++
		}
	}

	colors := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return cmp.Compare(count[b], count[a]) })
	reduced := image.NewPaletted(bounds, colors[:min(len(colors), 256)])
	draw.Draw(reduced, bounds, picture, image.Point{}, draw.Src)

	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, reduced); err != nil {
		t.Fatal(err)
	}

	return out.Bytes()
}
