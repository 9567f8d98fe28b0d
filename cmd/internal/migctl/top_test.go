package migctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// readAt is when the readings of these tests came.
var readAt = time.Date(2026, 3, 4, 5, 6, 8, 0, time.UTC)

func readNode(t *testing.T, name string) nodedoc.Document {
	t.Helper()

	data, err := os.ReadFile(testdata + "node-" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}

	var doc nodedoc.Document
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}

	return doc
}

// busyNode is a node whose held slices are busy, a little each, with one of each mark.
func busyNode(t *testing.T) nodedoc.Document {
	t.Helper()

	doc := readNode(t, "dgx-a100-mixed")

	for i := range doc.GPUs {
		for j := range doc.GPUs[i].GPUInstances {
			inst := &doc.GPUs[i].GPUInstances[j]
			inst.Activity.SM = gpu.Some(0.0)

			if inst.Evidence(doc.HasKubelet()).State() == nodedoc.Held {
				inst.Activity.SM = gpu.Some(float64((3*i+2*j)%10) / 9)
			}
		}
	}

	g := &doc.GPUs[1]
	g.Memory.Used = gpu.Some(g.Memory.Total.Or(0) * 97 / 100)
	g.Power.Watts = g.Power.LimitWatts
	g.Temperature.MarginCelsius = gpu.Some(2.0)
	g.XIDs = &nodedoc.XIDs{Total: 3, ByXID: []nodedoc.XID{{XID: 94, Count: 3, Last: readAt}}}

	return doc
}

// pastOfNode has the last ten minutes of all GPUs and GPU instances of a node.
func pastOfNode(doc *nodedoc.Document) *history.Document {
	past := &history.Document{Since: doc.Time.Add(-10 * time.Minute), Until: doc.Time, StepSeconds: history.Step.Seconds()}
	series := func(scale float64, shift int) history.Series {
		s := make(history.Series, 120)
		for i := range s {
			s[i] = float32(scale * (0.5 + 0.4*math.Sin(float64(i+shift)/8)))
		}

		s[60] = float32(math.NaN())

		return s
	}

	for i := range doc.GPUs {
		g := &doc.GPUs[i]
		device := history.Device{
			Index: g.Index, UUID: g.UUID, MemoryUsedBytes: series(float64(g.Memory.Total.Or(0)), i),
			SMActivityRatio: series(1, i+9), PowerWatts: series(g.Power.LimitWatts.Or(0), i+4),
		}
		past.Devices = append(past.Devices, device)

		for j := range g.GPUInstances {
			inst := &g.GPUInstances[j]
			device.GPUInstance = gpu.Some(inst.ID)
			device.Generation = inst.Generation
			device.MemoryUsedBytes = series(float64(inst.Memory.Total.Or(0)), i+j)
			device.SMActivityRatio = series(1, 2*j)
			past.Devices = append(past.Devices, device)
		}

		past.Marks = append(past.Marks,
			history.Mark{Time: doc.Time.Add(-4 * time.Minute), Kind: history.MarkLayout, UUID: g.UUID},
			history.Mark{Time: doc.Time.Add(-time.Minute), Kind: history.MarkXID, UUID: g.UUID, XID: 94},
		)
	}

	return past
}

// watching is the state of a view that has read some nodes.
func watching(width, height int, docs ...nodedoc.Document) topState {
	var addresses []string
	for i := range docs {
		addresses = append(addresses, fmt.Sprintf("http://node-%d:9401", i))
	}

	s := sizeMessage{width, height}.apply(newTopState(addresses))
	for i := range docs {
		s = readingMessage{node: i, at: readAt, doc: docs[i]}.apply(s)
		s = historyMessage{node: i, past: pastOfNode(&docs[i])}.apply(s)
	}

	return s
}

// press applies keys, which are separated by spaces.
func press(s topState, keys string) topState {
	for _, k := range strings.Fields(keys) {
		s = keyMessage(k).apply(s)
	}

	return s
}

// frameText returns what a terminal shows of a state.
func frameText(t *testing.T, s topState, utf8 bool) string {
	t.Helper()
	var out bytes.Buffer

	p := newPage(&out, false, utf8)
	p.width = s.width

	lines := newTopView(p).frame(s)
	if s.height > 0 && len(lines) > s.height {
		t.Errorf("%d lines on a screen of %d", len(lines), s.height)
	}

	for _, l := range lines {
		p.line(l.spans...)
	}

	if err := p.flush(); err != nil {
		t.Fatal(err)
	}

	for _, line := range strings.Split(out.String(), "\n") {
		if n := columnsOf(line); n > s.width {
			t.Errorf("%d columns on a screen of %d: %s", n, s.width, line)
		}
	}

	return out.String()
}

func TestTopFrames(t *testing.T) {
	busy := busyNode(t)
	sick := readNode(t, "sick")
	other := readNode(t, "rtxpro")

	for _, c := range []struct {
		name          string
		width, height int
		keys          string
		docs          []nodedoc.Document
	}{
		{"80x24", 80, 24, "", []nodedoc.Document{busy}},
		{"200x60", 200, 60, "Tab Tab j", []nodedoc.Document{busy}},
		{"250x60", 250, 60, "", []nodedoc.Document{busy, sick, other}},
		{"40x10", 40, 10, "", []nodedoc.Document{busy}},
		{"memory", 100, 24, "m j", []nodedoc.Document{busy, other}},
		{"activity", 100, 24, "a", []nodedoc.Document{busy}},
		{"filter", 80, 24, "/ e m b e d Enter", []nodedoc.Document{busy}},
		{"nothing", 80, 12, "/ n o n e", []nodedoc.Document{busy}},
		{"gpu", 100, 40, "Tab Enter", []nodedoc.Document{busy}},
		{"slice", 100, 30, "Tab Tab j Enter", []nodedoc.Document{busy}},
		{"sick", 100, 40, "", []nodedoc.Document{sick}},
		{"sick-node", 80, 24, "Home Enter", []nodedoc.Document{sick}},
		{"keys", 80, 24, "?", []nodedoc.Document{busy}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := press(watching(c.width, c.height, c.docs...), c.keys)
			golden(t, "top-"+c.name+".txt", frameText(t, s, true))

			ascii := frameText(t, s, false)
			if i := strings.IndexFunc(ascii, func(r rune) bool { return r > unicode.MaxASCII }); i >= 0 {
				t.Errorf("not ASCII: %s", ascii[i:])
			}
		})
	}
}

// TestTopFitsEverySize: on no screen is a line too wide, a line too many, or the selected line
// out of sight.
func TestTopFitsEverySize(t *testing.T) {
	for _, screen := range []string{"", "Enter", "?", "s", "o", "/ e"} {
		for _, width := range []int{1, smallestWidth - 1, smallestWidth, 80, 137, 250} {
			for _, height := range []int{1, smallestHeight - 1, smallestHeight, 24, 60} {
				s := press(watching(width, height, busyNode(t)), "G k k "+screen)
				out := frameText(t, s, true)

				if width >= smallestWidth && height >= smallestHeight && s.screen == screenList && !strings.Contains(out, "\n>") {
					t.Fatalf("%dx%d, %q: the selected line is not on the screen:\n%s", width, height, screen, out)
				}
			}
		}
	}
}

func TestTopKeys(t *testing.T) {
	start := watching(80, 24, busyNode(t))

	selected := func(s topState) string {
		if r := s.selectedRow(); r != nil && r.gpu != nil {
			return r.shortTitle()
		}

		return ""
	}

	for keys, want := range map[string]string{
		"":                        "GPU 0",
		"j":                       "GPU 1",
		"Down Down":               "GPU 2",
		"j j j":                   "GPU 2 3g.20gb@0",
		"j j j k":                 "GPU 2",
		"Tab Tab Tab":             "GPU 3",
		"Tab Tab Tab Backtab":     "GPU 2",
		"k":                       "",
		"k k k":                   "",
		"G":                       "GPU 7",
		"G g":                     "",
		"/ t r a i n":             "GPU 2",
		"/ t r a i n Enter j":     "GPU 2 3g.20gb@0",
		"/ t r a i n Esc":         "GPU 2",
		"/ x Backspace":           "GPU 0",
		"/ n o t h i n g":         "",
		"/ 3 g Ctrl+U Enter":      "GPU 2",
		"j Enter j j Esc":         "GPU 1",
		"Enter ? x":               "GPU 0",
		"s i":                     "GPU 0",
		"PgDn PgUp":               "GPU 0",
		"/ e m b e d - 3 Enter G": "GPU 3 1g.5gb@3",
	} {
		if got := selected(press(start, keys)); got != want {
			t.Errorf("after %q, %q is selected, want %q", keys, got, want)
		}
	}

	for keys, want := range map[string]bool{"q": true, "Ctrl+C": true, "Enter q": true, "/ q": false, "/ Ctrl+C": true, "? q": false} {
		cmptest.Equal(t, keys, press(start, keys).quit, want)
	}

	cmptest.Equal(t, "a state is not modified", frameText(t, start, true), frameText(t, watching(80, 24, busyNode(t)), true))
}

// TestTopOrders: the busiest device is first.
func TestTopOrders(t *testing.T) {
	for _, key := range []string{"m", "a"} {
		last := math.Inf(1)

		for _, r := range press(watching(80, 24, busyNode(t)), key).rows() {
			if r.key.level == levelNode {
				continue
			}

			ratio := r.memoryRatio()
			if key == "a" {
				ratio, _ = r.activityRatio()
			}

			if v := ratio.Or(-1); v > last {
				t.Errorf("order %s: %s with %g comes after %g", key, r.title(), v, last)
			} else {
				last = v
			}
		}
	}
}

// TestTopSelectionStays: a reading without the selected slice leaves the selection on its GPU.
func TestTopSelectionStays(t *testing.T) {
	doc := busyNode(t)
	s := press(watching(80, 24, doc), "Tab Tab j j")
	cmptest.Equal(t, "before", s.selectedRow().shortTitle(), "GPU 2 3g.20gb@4")

	s = readingMessage{at: readAt, doc: busyNode(t)}.apply(s)
	cmptest.Equal(t, "the same layout", s.selectedRow().shortTitle(), "GPU 2 3g.20gb@4")

	doc.GPUs[2].GPUInstances = doc.GPUs[2].GPUInstances[:1]
	s = readingMessage{at: readAt, doc: doc}.apply(s)
	cmptest.Equal(t, "another layout", s.selectedRow().shortTitle(), "GPU 2")
}

// TestTopSaysHowOldItIs: a reading that is not of now says so, and why.
func TestTopSaysHowOldItIs(t *testing.T) {
	s := watching(120, 24, busyNode(t))
	if out := frameText(t, s, true); strings.Contains(out, "ago") {
		t.Errorf("a live reading: %s", out)
	}

	quiet := tickMessage{readAt.Add(12 * time.Second)}.apply(s)
	cmptest.HasTexts(t, frameText(t, quiet, true), "! read 12s ago: the stream is quiet")

	slow := busyNode(t)
	slow.Node.ReadEvery = &nodedoc.ReadEvery{FastSeconds: 20}
	between := tickMessage{readAt.Add(59 * time.Second)}.apply(watching(120, 24, slow))

	if out := frameText(t, between, true); strings.Contains(out, "ago") {
		t.Errorf("the last reading of a node that is read every 20 s: %s", out)
	}

	late := tickMessage{readAt.Add(60 * time.Second)}.apply(between)
	cmptest.HasTexts(t, frameText(t, late, true), "! read 1m0s ago: the stream is quiet")

	broken := troubleMessage{at: readAt.Add(3 * time.Second), text: "connection refused", retryAfter: 4 * time.Second}.apply(s)
	broken = tickMessage{readAt.Add(5 * time.Second)}.apply(broken)
	cmptest.HasTexts(t, frameText(t, broken, true), "! read 5s ago: connection refused", "GPU 3")
	cmptest.HasTexts(t, frameText(t, press(broken, "Home Enter"), true), "next attempt        in 2s")

	polled := troubleMessage{at: readAt, text: "too many streams", polled: true}.apply(s)
	cmptest.HasTexts(t, frameText(t, polled, true), "! polled 0s ago: too many streams")

	again := readingMessage{at: readAt.Add(6 * time.Second), doc: busyNode(t)}.apply(broken)
	if out := frameText(t, again, true); strings.Contains(out, "ago") {
		t.Errorf("a live reading retryAfter: %s", out)
	}

	first := troubleMessage{at: readAt, text: "connection refused"}.apply(sizeMessage{80, 24}.apply(newTopState([]string{"http://h"})))
	cmptest.HasTexts(t, frameText(t, first, true), "http://h  ! no reading: connection refused")
}

// takeover is a text that would take over a terminal: colors, a title, a screen that is cleared,
// text from right to left, lines.
const takeover = "x\x1b[31m\x1b]0;owned\x07\x1b[2J\u202eevil\u2066\r\n\tname\u009b5m\x00\x7f"

// hostileNode has hostile texts wherever foreign ones are shown.
func hostileNode(t *testing.T) nodedoc.Document {
	t.Helper()

	doc := busyNode(t)
	doc.Node.Hostname += takeover
	doc.Node.DriverVersion += takeover
	doc.Node.Sources = append(doc.Node.Sources, nodedoc.SourceState{Name: "s" + takeover, Error: takeover})
	doc.Node.HoldersIncomplete = takeover
	doc.Node.UnmatchedDevices = []nodedoc.Unmatched{{ID: takeover, Namespace: takeover, Pod: takeover, Container: takeover}}

	use := nodedoc.Use{
		Jobs: []string{takeover, "計算-任務-漢字-e\u0301"},
		Holders: []nodedoc.Holder{{
			Namespace: takeover, Pod: takeover, Container: takeover, Workload: takeover, Resource: takeover, Replica: takeover,
			Sharing: takeover, Confirmed: gpu.Some(false), UnconfirmedReason: takeover,
		}},
	}

	for i := range doc.GPUs {
		g := &doc.GPUs[i]
		g.Name += takeover
		g.Serial += takeover
		g.ClockEvents = []nodedoc.ClockEvent{{Reason: takeover, Active: true}}
		g.Errors = []nodedoc.Error{{Reading: takeover, Reason: takeover, Message: takeover}}
		g.ECC = []gpu.ECCCount{{Severity: takeover, Location: takeover, Lifetime: takeover, Count: 1}}
		g.RecoveryAction = gpu.Some(gpu.RecoveryAction(takeover))
		g.Use = use
		g.ProcessList = []nodedoc.Process{{PID: 7, Type: takeover, Name: takeover, User: takeover, Namespace: takeover,
			Pod: takeover, Container: takeover}, {PID: 8, Job: takeover}}

		for j := range g.GPUInstances {
			inst := &g.GPUInstances[j]
			inst.Profile += takeover
			inst.Use = use
			inst.Errors = g.Errors

			for k := range inst.ComputeInstances {
				inst.ComputeInstances[k].UUID += takeover
				inst.ComputeInstances[k].Use = use
			}
		}
	}

	return doc
}

// TestTopNamesSlicesOfXIDs: the detail of a GPU says which slices an XID was about.
func TestTopNamesSlicesOfXIDs(t *testing.T) {
	doc := busyNode(t)
	g := &doc.GPUs[2]
	g.XIDs = &nodedoc.XIDs{Total: 2, ByXID: []nodedoc.XID{{XID: 13, Count: 1}, {XID: 79, Count: 1}}}
	g.GPUInstances[1].XIDErrors = []nodedoc.XID{{XID: 13, Count: 1}}

	shown := frameText(t, press(watching(120, 40, doc), "Tab Tab Enter"), true)
	cmptest.HasTexts(t, shown, "1 time, of 3g.20gb@4\n")
	cmptest.Equal(t, "slices named", strings.Count(shown, ", of 3g.20gb@"), 1)
}

// TestTopCountsHeldSlices: a slice of which it is not known whether it is held is not called free.
func TestTopCountsHeldSlices(t *testing.T) {
	doc := busyNode(t)
	cmptest.HasTexts(t, frameText(t, watching(120, 40, doc), true), "2 of 2 held\n")

	inst := &doc.GPUs[2].GPUInstances[1]
	inst.Activity.SM = gpu.Some(0.0)
	inst.Use = nodedoc.Use{}
	inst.ComputeInstances[0].Use = nodedoc.Use{}
	cmptest.HasTexts(t, frameText(t, watching(120, 40, doc), true), "1 of 2 held, 1 unknown\n")
}

// TestTopProcesses: the detail of a GPU has all its processes that the node serves, that of a slice
// its own.
func TestTopProcesses(t *testing.T) {
	doc := busyNode(t)
	i := slices.IndexFunc(doc.GPUs, func(g nodedoc.GPU) bool { return len(g.GPUInstances) > 1 })
	g := &doc.GPUs[i]
	g.ProcessList = []nodedoc.Process{
		{PID: 4711, Type: "compute", Name: "python3", User: "ada", MemoryUsedBytes: gpu.Some[uint64](3 << 30), Job: "90210",
			GPUInstance: gpu.Some(g.GPUInstances[0].ID)},
		{PID: 4712, Type: "mps", Name: "server", Namespace: "ml", Pod: "train-0",
			GPUInstance: gpu.Some(g.GPUInstances[1].ID)},
	}

	keys := "Home" + strings.Repeat(" Tab", i+1) + " Enter"
	all := frameText(t, press(watching(200, 90, doc), keys), true)
	cmptest.HasTexts(t, all, "Processes", "python3, user ada, compute, 3.00 GiB, job 90210", "server, mps, ml/train-0")

	slice := frameText(t, press(watching(200, 90, doc), "Home"+strings.Repeat(" Tab", i+1)+" j Enter"), true)
	cmptest.HasTexts(t, slice, "python3, user ada")
	cmptest.LacksTexts(t, slice, "4712")

	cmptest.LacksTexts(t, frameText(t, press(watching(200, 90, busyNode(t)), keys), true), "Processes")
}

// TestTopHostileNames: foreign texts cannot move the cursor or turn the text around.
func TestTopHostileNames(t *testing.T) {
	for _, keys := range []string{"", "Enter", "Home Enter", "Tab Tab j Enter", "Tab Tab Tab Tab j j Enter", "m", "o", "/ e v i l"} {
		for _, width := range []int{80, 200} {
			out := frameText(t, press(watching(width, 60, hostileNode(t)), keys), true)
			if i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
				t.Errorf("%q: %q", keys, out[i:i+20])
			}
		}
	}

	golden(t, "top-hostile.txt", frameText(t, press(watching(100, 24, hostileNode(t)), "Tab Tab j"), true))
	golden(t, "top-hostile-slice.txt", frameText(t, press(watching(100, 40, hostileNode(t)), "Tab Tab j Enter"), true))
}

// TestTopSlowConnection: a reading that came late is as old as it is, even if it has just come. What
// the clocks differ by is no age.
func TestTopSlowConnection(t *testing.T) {
	doc := busyNode(t)
	doc.Time = readAt.Add(-time.Hour) // by the node's clock
	s := watching(120, 40, doc)

	late := func(wait, delay time.Duration) string {
		next := doc
		next.Time = doc.Time.Add(wait)
		s = readingMessage{node: 0, at: readAt.Add(wait + delay), doc: next}.apply(s)

		return frameText(t, s, true)
	}

	cmptest.LacksTexts(t, late(time.Second, 0)+late(2*time.Second, 3*time.Second), "ago")
	cmptest.HasTexts(t, late(3*time.Second, 26*time.Second), "! read 26s ago: the connection is slow")

	s = tickMessage{at: readAt.Add(31 * time.Second)}.apply(s)
	cmptest.HasTexts(t, frameText(t, s, true), "! read 28s ago: the connection is slow")
	cmptest.LacksTexts(t, late(40*time.Second, 0), "ago")
}

// TestTopTwoGPUsOfOneIndex: a GPU that is lost stays for a while beside the one that has its index
// now. Both can be selected, and passed.
func TestTopTwoGPUsOfOneIndex(t *testing.T) {
	doc := busyNode(t)
	lost := doc.GPUs[0]
	lost.UUID = "GPU-lost"
	lost.Up = false
	doc.GPUs = append([]nodedoc.GPU{lost}, doc.GPUs...)
	s := press(watching(120, 40, doc), "Home")

	var passed []string

	for range 3 {
		s = press(s, "Tab")
		passed = append(passed, s.selectedRow().uuid())
	}

	cmptest.Equal(t, "selected", passed, []string{"GPU-lost", string(doc.GPUs[1].UUID), string(doc.GPUs[2].UUID)})
}

// TestTopIdUsedAgain: a slice has neither the history nor the XIDs of another one that had its id.
func TestTopIdUsedAgain(t *testing.T) {
	doc := busyNode(t)
	inst := &doc.GPUs[2].GPUInstances[0]
	past := pastOfNode(&doc)
	past.Marks = []history.Mark{{Time: doc.Time.Add(-time.Minute), Kind: history.MarkXID, UUID: doc.GPUs[2].UUID, XID: 94,
		GPUInstance: gpu.Some(inst.ID), Generation: inst.Generation}}

	shown := func() string {
		s := historyMessage{node: 0, past: past}.apply(press(watching(120, 40, doc), "Tab Tab j"))
		return frameText(t, s, true)
	}

	cmptest.HasTexts(t, shown(), "memory  ", "events  ", "X\n")

	past.Marks[0].Generation++
	cmptest.HasTexts(t, shown(), "memory  ")
	cmptest.LacksTexts(t, shown(), "events  ")

	inst.Generation += 2
	cmptest.HasTexts(t, shown(), "no history of GPU 2 3g.20gb@0")
}

// TestTopECCTotal: errors that the driver counts without their locations are errors.
func TestTopECCTotal(t *testing.T) {
	total := gpu.ECCCount{Severity: "uncorrected", Lifetime: "volatile", Location: "total", Count: 2}
	cmptest.Equal(t, "a total", eccFact([]gpu.ECCCount{total}), "2 uncorrected total (volatile)")

	total.Count = 0
	cmptest.Equal(t, "none", eccFact([]gpu.ECCCount{total}), "none")
}
