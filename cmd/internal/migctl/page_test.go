package migctl

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

func drawn(draw func(p *page)) string {
	var out bytes.Buffer
	p := newPage(&out, false, true)
	draw(p)
	p.flush()

	return out.String()
}

// TestDocumentsAreSafeForATerminal: JSON and YAML say the same as the server, and have no character
// that a terminal could take for a command.
func TestDocumentsAreSafeForATerminal(t *testing.T) {
	var op api.Operation
	op.ID = "op-1"
	op.By = "x\x1b[31m\x1b]0;owned\x07\u202eevil\u2066\n\u009b5m\x7f\U000e0041 müller: #"
	_, address := serve(t, map[string]http.HandlerFunc{"GET /operations/op-1": answer(op)})

	for form, decode := range map[string]func([]byte, any) error{"json": json.Unmarshal, "yaml": yaml.Unmarshal} {
		got := runner{}.run(t, address, "operations", "op-1", "-o", form)
		if at := strings.IndexFunc(strings.ReplaceAll(got.out, "\n", ""), isUnprintable); at >= 0 {
			t.Errorf("%s: unprintable:\n%q", form, got.out)
		}

		var decoded struct{ By string }
		if err := decode([]byte(got.out), &decoded); err != nil || decoded.By != op.By {
			t.Errorf("%s: %v, %q", form, err, decoded.By)
		}

		cmptest.HasTexts(t, got.out, "müller")
	}
}

func TestAxesOfAllLengthsFit(t *testing.T) {
	for units := 1; units <= unitsDrawn; units++ {
		for start := range units {
			for size := 1; start+size <= units; size++ {
				one := []slot{{reported: gpu.Some(at(start, size)), label: "1g.24gb+me.all", note: "a-pod-with-a-long-name-0"}}
				first := []gpu.Profile{{Name: "1g", Placements: []gpu.Placement{at(0, 1)}}}
				axis := nodedoc.Axis{Units: units, Profiles: first}
				out := drawn(func(p *page) { p.drawAxis(units, layOutSlots(axis, one)) })
				lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
				fits(t, out)

				if len(lines) != 4 {
					t.Fatalf("%d units, %d:%d: %d lines, want 4:\n%s", units, start, size, len(lines), out)
				}

				for _, i := range []int{1, 3} {
					if got, want := utf8.RuneCountInString(lines[i]), utf8.RuneCountInString(lines[0]); got != want {
						t.Fatalf("%d units, %d:%d: line %d has %d columns, want %d:\n%s", units, start, size, i, got, want, out)
					}
				}
			}
		}
	}

	if out := drawn(func(p *page) { p.drawAxis(64, layOutSlots(nodedoc.Axis{Units: 64}, nil)) }); out != "" {
		t.Errorf("an axis that is too long to draw:\n%s", out)
	}
}

func TestPlacementsThatCannotBe(t *testing.T) {
	for _, slots := range [][]slot{
		{{reported: gpu.Some(at(0, 4))}, {reported: gpu.Some(at(3, 1))}},
		{{reported: gpu.Some(at(6, 4))}},
		{{reported: gpu.Some(at(-1, 2))}},
	} {
		if got := layOutSlots(nodedoc.Axis{Units: 8}, slots); got != nil {
			t.Errorf("%v: drawn as %v", slots, got)
		}
	}
}

func TestTextsAreCutAndBroken(t *testing.T) {
	out := drawn(func(p *page) {
		p.line(text("%s", strings.Repeat("é", 200)))
		p.paragraph("! ", plain, strings.Repeat("x", 200)+" and\x1b[2J\x07 more\nlines "+strings.Repeat("word ", 40))
	})
	fits(t, out)
	cmptest.LacksTexts(t, out, "\x1b", "\x07")
	cmptest.HasTexts(t, out, "…")
	cmptest.Equal(t, "letters of the long word", strings.Count(out, "x"), 200)
	cmptest.Equal(t, "short words", strings.Count(out, "word"), 40)
}

func TestProgressIsOneLineAStep(t *testing.T) {
	out := drawn(func(p *page) {
		g := progress{page: p, op: operation(api.Running)}
		show := func(e api.Event) {
			e.Time = began.Add(time.Second)
			g.showEvent(&e)
		}
		show(stepEvent(1, false, api.StepRunning, ""))
		show(stepEvent(1, false, api.StepDone, ""))
		show(stepEvent(3, false, api.StepRunning, ""))
		show(stepEvent(3, false, api.StepFailed, "create GPU instance: INSUFFICIENT_RESOURCES"))
		show(stepEvent(4, false, api.StepRunning, ""))
		show(api.Event{Kind: api.EventState, State: api.RollingBack, Text: "rolling back"})
		show(stepEvent(0, true, api.StepRunning, ""))
		show(stepEvent(0, true, api.StepDone, ""))
		show(stepEvent(1, true, api.StepRunning, ""))
		show(stepEvent(1, false, api.StepUndone, ""))
		show(api.Event{Kind: api.EventStep, State: api.Running, Index: gpu.Some(7),
			Text: "a server that does not type its steps"})
		newer := stepEvent(5, false, api.StepDone, "")
		newer.Index = gpu.Some(77)
		show(newer)
		show(api.Event{Kind: api.EventHook, State: api.Settling,
			Hook: &api.HookResult{Argv: []string{"restart", "plugin"}, OK: true, Seconds: 0.4}})
		show(api.Event{Kind: api.EventHook, State: api.Settling,
			Hook: &api.HookResult{Argv: []string{"notify"}, ExitCode: 7, Seconds: 1, Error: "no route"}})
		show(stepEvent(5, false, api.StepRunning, ""))
		g.closeLine()
	})

	want := `    1.0s  [2/9] destroy GI 3g.20gb at 0:4 on GPU-00811850 done
    1.0s  [4/9] create GI 2g.10gb at 0:2 on GPU-00811850
            create GPU instance: INSUFFICIENT_RESOURCES
    1.0s  [5/9] create CI 2g.10gb at 0:2 on GPU-00811850
    1.0s  rolling back
    1.0s  rollback [1] destroy CI 0:3 of 3g.20gb at 0:4 on GPU-00811850 done
    1.0s  rollback [2] destroy GI 3g.20gb at 0:4 on GPU-00811850
    1.0s  [2/9] destroy GI 3g.20gb at 0:4 on GPU-00811850 rolled back
    1.0s  a server that does not type its steps
    1.0s  [78] create GI 1g.5gb at 2:1 on GPU-00811850 done
    1.0s  hook done: restart plugin (0.4 s)
    1.0s  hook failed: notify (exit code 7, 1.0 s) no route
    1.0s  [6/9] create GI 1g.5gb at 2:1 on GPU-00811850
`
	if out != want {
		t.Errorf("got\n%s", out)
	}

	fits(t, out)
}

// TestProgressOfLongNamesFits: the outcome of a step goes to the next line if there is no room for
// it.
func TestProgressOfLongNamesFits(t *testing.T) {
	e := stepEvent(0, true, api.StepRunning, "")
	e.Step.Profile, e.Time, e.Index = "1g.24gb+me.all", began, gpu.Some(11)
	out := drawn(func(p *page) {
		g := progress{page: p, op: operation(api.Running)}
		g.showEvent(&e)
		e.Step.State = api.StepDone
		g.showEvent(&e)
	})
	fits(t, out)

	if !strings.HasSuffix(out, "on GPU-00811850\n            done\n") {
		t.Errorf("got\n%s", out)
	}
}

func TestWhatIsNoTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()

	for _, f := range []*os.File{null, r, w} {
		if isTerminal(f) {
			t.Errorf("%s is no terminal", f.Name())
		}
	}
}

func TestLocales(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want bool
	}{
		{map[string]string{"LANG": "de_DE.UTF-8"}, true},
		{map[string]string{"LANG": "C.utf8"}, true},
		{map[string]string{"LANG": "en_US.UTF-8", "LC_ALL": "C"}, false},
		{map[string]string{"LANG": "C", "LC_CTYPE": "en_US.UTF-8"}, true},
		{map[string]string{"LANG": "en_US.UTF-8", "LC_ALL": ""}, true},
		{map[string]string{"LANG": "de_DE@euro"}, false},
		{nil, false},
	} {
		if got := usesUTF8(func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }); got != c.want {
			t.Errorf("%v: %v", c.env, got)
		}
	}
}

// TestWrapCountsColumns: no line of wide characters is cut by the page that it was broken for, and
// none of its characters is lost.
func TestWrapCountsColumns(t *testing.T) {
	for _, s := range []string{
		strings.Repeat("日", 80), "job " + strings.Repeat("日本語 ", 30), strings.Repeat("e\u0301", 90), "日",
		strings.Repeat("\U0001f469\u200d\U0001f4bb", 20),
	} {
		for _, width := range []int{1, 20, 60} {
			lines := wrap(s, width)
			cmptest.Equal(t, "characters", strings.ReplaceAll(strings.Join(lines, ""), " ", ""), strings.ReplaceAll(s, " ", ""))

			for _, l := range lines {
				if n := columnsOf(l); n > max(2, width) {
					t.Errorf("%d columns, want at most %d: %s", n, width, l)
				}
			}
		}
	}

	job := strings.Repeat("計", 80)
	detail := detailOf(t, func(_ *nodedoc.Document, g *nodedoc.GPU) { g.Use.Jobs = []string{job} })
	cmptest.Equal(t, "characters of the job in a detail", strings.Count(detail, "計"), 80)
}
