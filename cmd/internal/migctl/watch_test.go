package migctl

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// frames answers as the node's stream does, with one reading after the other.
func frames(t *testing.T, names ...string) http.HandlerFunc {
	t.Helper()
	var text strings.Builder

	for _, name := range names {
		data, err := os.ReadFile(testdata + name)
		if err != nil {
			t.Fatal(err)
		}

		var line bytes.Buffer
		if err := json.Compact(&line, data); err != nil {
			t.Fatal(err)
		}

		fmt.Fprintf(&text, "event: node\ndata: %s\n\n: no new reading\n\n", line.String())
	}

	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "retry: 3000\n\n"+text.String()+"event: end\ndata: the exporter stops\n\n")
	}
}

// thenInterrupt ends ctx, as Ctrl-C does, and refuses.
func thenInterrupt(interrupt context.CancelFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		interrupt()
		refuse(api.Problem{Type: api.Unavailable, Title: "Stopping", Status: 503})(w, r)
	}
}

// watch runs get --watch with args: one stream of readings, another, and Ctrl-C.
func watch(t *testing.T, r runner, args ...string) outcome {
	t.Helper()

	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()

	_, address := serve(t, map[string]http.HandlerFunc{
		"GET /node/stream": inTurn(frames(t, "node-a30.json", "node-rtxpro.json"), frames(t, "node-rtxpro.json"),
			thenInterrupt(interrupt)),
	})
	r.ctx = ctx
	got := r.run(t, address, append([]string{"get", "--watch"}, args...)...)
	cmptest.Equal(t, "exit code", got.code, exitOK)

	return got
}

func TestWatchDrawsEachReading(t *testing.T) {
	piped := watch(t, runner{}).out
	cmptest.Equal(t, "frames in a pipe", strings.Count("\n"+piped, "\nNode "), 3)
	cmptest.LacksTexts(t, piped, "\x1b", "the exporter stops")

	over := watch(t, runner{terminal: true, columns: 120, rows: 10}).out
	frames := strings.Split(over, cursorHome)[1:]
	live := slices.DeleteFunc(slices.Clone(frames), func(f string) bool { return strings.Contains(f, " ago: ") })
	cmptest.Equal(t, "frames on a terminal that show a new reading", len(live), 3)
	cmptest.HasTexts(t, over, "more lines: enlarge the terminal", clearBelow)

	for _, f := range frames {
		if lines := strings.Count(f, "\n"); lines > 9 {
			t.Errorf("%d lines on ten rows", lines)
		}
	}

	cmptest.Equal(t, "documents", strings.Count(watch(t, runner{}, "-o", "json").out, `"hostname"`), 3)
	cmptest.Equal(t, "documents", strings.Count(watch(t, runner{}, "-o", "yaml").out, "---\n"), 2)
}

// TestWatchSaysThatTheExporterIsGone: the last frame says how old it is and why, and so does standard
// error if the frames go to a pipe.
func TestWatchSaysThatTheExporterIsGone(t *testing.T) {
	r := runner{terminal: true, columns: 120, rows: 40, env: map[string]string{"NO_COLOR": "1"}}
	over := strings.Split(watch(t, r).out, cursorHome)
	last := over[len(over)-1]
	cmptest.HasTexts(t, last, "! read ", "s ago: the exporter has ended the stream", "Node rtx-pro-6")

	for _, form := range []string{"table", "json"} {
		piped := watch(t, runner{}, "-o", form)
		cmptest.HasTexts(t, piped.err, "migctl: read ", "s ago: the exporter has ended the stream")
		cmptest.LacksTexts(t, piped.out, "ago: ")
	}

	w, out := watching24()
	start := time.Date(2026, 1, 8, 0, 0, 0, 0, time.UTC)
	w.node = topNode{view: newNodeView(nodedoc.Document{}), read: start}

	for _, at := range []time.Duration{time.Second, staleAfter, staleAfter + time.Second} {
		if err := w.showLate(start.Add(at)); err != nil {
			t.Fatal(err)
		}
	}

	cmptest.Equal(t, "frames of a stream that is quiet", strings.Count(out.String(), cursorHome), 2)
	cmptest.HasTexts(t, out.String(), "! read 10s ago: the stream is quiet", "! read 11s ago")
}

// watching24 returns a watcher on a terminal of 80x24.
func watching24() (*watcher, *bytes.Buffer) {
	out := new(bytes.Buffer)
	s := &session{
		out: out, outTerminal: true,
		size:   func() (columns, rows int) { return 80, 24 },
		lookup: func(string) (string, bool) { return "", false },
	}
	s.opts.Color = "never"

	return s.newWatcher(), out
}

// TestWatchFitsNarrowTerminals: a frame takes no more rows than the terminal has, although it breaks
// long lines, and ends in a row that says what is left out.
func TestWatchFitsNarrowTerminals(t *testing.T) {
	for _, c := range []struct {
		columns, rows int
		args          []string
	}{{60, 20, nil}, {80, 14, []string{"-o", "wide"}}, {40, 10, nil}, {20, 3, nil}} {
		r := runner{terminal: true, columns: c.columns, rows: c.rows}
		for i, f := range strings.Split(watch(t, r, c.args...).out, cursorHome)[1:] {
			if rows := rowsOnTerminal(f, c.columns); rows > c.rows {
				t.Errorf("%dx%d: frame %d takes %d rows:\n%s", c.columns, c.rows, i, rows, f)
			}

			cmptest.HasTexts(t, f, " more lines")
		}
	}
}

// rowsOnTerminal returns the rows of a frame with the row of the cursor. Its characters are narrow.
func rowsOnTerminal(frame string, columns int) int {
	rows := 1

	for line := range strings.Lines(regexp.MustCompile("\x1b\\[[0-9;]*[a-zA-Z]").ReplaceAllString(frame, "")) {
		n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n"))
		rows += max(1, (n+columns-1)/columns)
	}

	return rows
}

// TestFullRowsAreNotCleared: a terminal that has a full row keeps the cursor on its last character,
// which must not be cleared.
func TestFullRowsAreNotCleared(t *testing.T) {
	full := strings.Repeat("x", 80)
	got := overLastFrame(newPage(nil, false, true), []string{full, full + "y", "\x1b[1m日本\x1b[0m"}, 80, 24)
	cmptest.Equal(t, "frame", got, cursorHome+full+"\n"+full+"y"+clearToLineEnd+"\n"+
		"\x1b[1m日本\x1b[0m"+clearToLineEnd+"\n"+clearBelow)

	rows, used := rowsOf(strings.Repeat("日", 3), 5)
	cmptest.Equal(t, "rows of wide characters", [2]int{rows, used}, [2]int{2, 2})
}

func TestWatchEnds(t *testing.T) {
	_, address := serve(t, map[string]http.HandlerFunc{"GET /node/stream": frames(t, "node-a30.json")})
	got := runner{}.run(t, address, "get", "--watch", "7")
	cmptest.Equal(t, "a GPU that is not there: exit code", got.code, exitUsage)

	got = runner{}.run(t, "unix:///no/such/socket", "get", "--watch")
	cmptest.Equal(t, "no server: exit code", got.code, exitUnreachable)
}

// TestGetUsesTheWidthOfTheTerminal: what 80 columns cut is whole on 200, and no line is wider than
// the terminal.
func TestGetUsesTheWidthOfTheTerminal(t *testing.T) {
	_, address := serve(t, map[string]http.HandlerFunc{"GET /node": file(t, "node-dgx-a100-mixed.json")})

	for _, columns := range []int{60, 80, 100, 132, 144, 200, 250} {
		r := runner{terminal: true, columns: columns, env: map[string]string{"LANG": "C.UTF-8", "NO_COLOR": "1"}}
		got := r.run(t, address, "get")

		for line := range strings.Lines(got.out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > max(columns, tableWidth) {
				t.Errorf("%d columns on a terminal of %d: %s", n, columns, line)
			}
		}

		if columns == 200 {
			cmptest.HasTexts(t, got.out, "search/rerank-5d8b-kq9zl", "MIG-2ded0f32-64f7-5d1d-b324-d8f3fe1ee0e2",
				"│rerank-5d8b-kq9zl")
			golden(t, "get-dgx-a100-mixed.200.txt", got.out)
		}
	}
}

// TestWatchOfAnotherServer: what another server streams is not a node without GPUs.
func TestWatchOfAnotherServer(t *testing.T) {
	_, address := serve(t, map[string]http.HandlerFunc{"GET /node/stream": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "event: node\ndata: {\"gpus\":[]}\n\n")
	}})

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()

	got := runner{ctx: ctx}.run(t, address, "get", "--watch")
	cmptest.Equal(t, "exit code", got.code, exitUnreachable)
	cmptest.HasTexts(t, flat(got.err), "its answer has no apiVersion")
	cmptest.Equal(t, "standard output", got.out, "")
}
