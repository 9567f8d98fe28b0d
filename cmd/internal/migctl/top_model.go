package migctl

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/fleet"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// topState holds all that a live view shows. We never change a state: each topMessage makes a new one
// of it, which may share what it doesn't change.
type topState struct {
	nodes         []topNode
	width, height int // of the terminal; a height of 0 is no limit
	now           time.Time

	screen   topScreen
	order    topOrder
	filter   string
	editing  bool // keys are typed into the filter
	openAll  bool // all GPUs show their slices, even if these don't fit on the screen
	selected topKey
	offset   int // how many lines of the list are above the screen
	scrolled int // how many lines of the detail are above the screen
	quit     bool
}

// topNode is what a live view knows of one node.
type topNode struct {
	address string
	view    *nodeView // the last reading; nil before the first
	read    time.Time // when the last reading came

	// lead is how far our clock is ahead of the node's. We take the reading that arrived the fastest
	// since the stream began, as if it had taken no time; nil before the first.
	lead *time.Duration
	// delay is how much longer the last reading took than the fastest one: the link is slow.
	delay time.Duration

	trouble      string // why no readings come now; empty if the stream brings them
	troubleSince time.Time
	retryAfter   time.Duration // from troubleSince to the next attempt
	polled       bool          // we asked for the last reading, since no stream brings one

	past *history.Document // the last 15 minutes; nil if not known
}

// source returns the state of one of the node's sources, absent if the node has no such source.
func (n *topNode) source(name string) gpu.Opt[nodedoc.SourceState] {
	for _, s := range n.view.doc.Node.Sources {
		if s.Name == name {
			return gpu.Some(s)
		}
	}

	return gpu.None[nodedoc.SourceState]()
}

// topScreen is one of the screens of a live view.
type topScreen int

const (
	screenList topScreen = iota
	screenDetail
	screenKeys
)

// topOrder is the order of devices.
type topOrder int

const (
	orderIndex topOrder = iota
	orderMemory
	orderActivity
	orders // how many there are
)

func (o topOrder) String() string { return [...]string{"index", "memory", "activity"}[o] }

// absent stands for an id that a key does not have: the key of a GPU has no instance. 0 is a valid id.
const absent = -1

// topKey identifies a line that can be selected: a node, a GPU, a GPU instance or a compute
// instance. The zero value is no line.
type topKey struct {
	level             topLevel
	node              int    // index of the node
	gpu               string // see gpuKey; empty for a node
	instance, compute int    // ids of the GPU instance and the compute instance
}

type topLevel int

const (
	levelNode topLevel = iota + 1
	levelGPU
	levelInstance
	levelCompute
)

func newTopState(addresses []string) topState {
	state := topState{now: time.Now(), width: tableWidth}
	for _, address := range addresses {
		state.nodes = append(state.nodes, topNode{address: fleet.HidePassword(address)})
	}

	return state
}

// topMessage is something that happens to a live view.
type topMessage interface {
	// apply returns the state after the message. It depends on the message and s alone.
	apply(s topState) topState
}

// The messages of a feed. Field node is the index of the node, at is when the message was made.
type (
	// readingMessage is a reading of a node.
	readingMessage struct {
		node int
		at   time.Time
		doc  nodedoc.Document
	}
	// troubleMessage says why no stream brings readings of a node.
	troubleMessage struct {
		node int
		at   time.Time
		text string

		retryAfter time.Duration // from at to the next attempt
		polled     bool          // a reading was asked for instead, and came
	}
	historyMessage struct {
		node int
		past *history.Document
	}
	// rawMessage is a document as the server wrote it, for -o json.
	rawMessage struct{ data []byte }
)

// The messages of a terminal.
type (
	sizeMessage struct{ width, height int }
	tickMessage struct{ at time.Time }
	// keyMessage is a key: its name, such as "Enter", or its character.
	keyMessage string
)

func (m readingMessage) apply(s topState) topState {
	s.nodes = slices.Clone(s.nodes)
	n := &s.nodes[m.node]
	n.view = newNodeView(m.doc)
	n.read = m.at
	n.trouble = ""
	n.recordTransit(m.at.Sub(m.doc.Time))
	s.now = m.at

	return keepSelection(s)
}

// recordTransit records how long a reading took to reach us: by the node's clock when it left, and by
// ours when it came. That is the lead of our clock and the delay of the link together.
func (n *topNode) recordTransit(took time.Duration) {
	if n.lead == nil || took < *n.lead {
		n.lead = &took
	}

	n.delay = took - *n.lead
}

func (m troubleMessage) apply(s topState) topState {
	s.nodes = slices.Clone(s.nodes)
	n := &s.nodes[m.node]
	n.trouble = m.text
	n.troubleSince = m.at
	n.retryAfter = m.retryAfter
	n.polled = m.polled
	s.now = m.at

	if !m.polled {
		n.lead = nil // one of the clocks may jump before the next stream begins
	}

	return s
}

func (m historyMessage) apply(s topState) topState {
	s.nodes = slices.Clone(s.nodes)
	s.nodes[m.node].past = m.past

	return s
}

func (rawMessage) apply(s topState) topState { return s }

func (m tickMessage) apply(s topState) topState {
	s.now = m.at
	return s
}

func (m sizeMessage) apply(s topState) topState {
	s.width = m.width
	s.height = m.height

	return scrollToSelection(s)
}

func (m keyMessage) apply(s topState) topState {
	if m == "Ctrl+C" {
		s.quit = true
		return s
	}

	if s.editing {
		return editFilter(s, string(m))
	}

	switch s.screen {
	case screenKeys:
		s.screen = screenList
		return s
	case screenDetail:
		return pressInDetail(s, string(m))
	default:
		return pressInList(s, string(m))
	}
}

// editFilter changes the filter as a key says.
func editFilter(s topState, key string) topState {
	switch key {
	case "Enter":
		s.editing = false
	case "Esc":
		s.editing = false
		s.filter = ""
	case "Backspace":
		if r := []rune(s.filter); len(r) > 0 {
			s.filter = string(r[:len(r)-1])
		}
	case "Ctrl+U":
		s.filter = ""
	default:
		if len([]rune(key)) == 1 {
			s.filter += key
		}
	}

	return keepSelection(s)
}

func pressInList(s topState, key string) topState {
	switch key {
	case "q":
		s.quit = true
	case "?", "h":
		s.screen = screenKeys
	case "/":
		s.editing = true
	case "Esc":
		s.filter = ""
	case "s":
		s.order = (s.order + 1) % orders
	case "i":
		s.order = orderIndex
	case "m":
		s.order = orderMemory
	case "a":
		s.order = orderActivity
	case "o":
		s.openAll = !s.openAll
	case "Enter":
		if s.selected.level != 0 {
			s.screen = screenDetail
			s.scrolled = 0
		}

		return s
	default:
		return moveSelection(s, key)
	}

	return keepSelection(s)
}

// moveSelection selects the line that a key leads to. Other keys change nothing.
func moveSelection(s topState, key string) topState {
	lines := s.keys()
	if len(lines) == 0 {
		return s
	}

	line := max(0, slices.Index(lines, s.selected))
	page := max(1, s.listHeight()-1)

	switch key {
	case "Down", "j":
		line++
	case "Up", "k":
		line--
	case "PgDn", "Ctrl+F", " ":
		line += page
	case "PgUp", "Ctrl+B":
		line -= page
	case "Home", "g":
		line = 0
	case "End", "G":
		line = len(lines) - 1
	case "Tab", "]":
		line = nextGPU(lines, line, 1)
	case "Backtab", "[":
		line = nextGPU(lines, line, -1)
	default:
		return s
	}

	s.selected = lines[min(max(line, 0), len(lines)-1)]

	return scrollToSelection(s)
}

// nextGPU returns the index of the next line of a GPU, below with step 1 or above with -1. It returns
// line itself if there is none.
func nextGPU(lines []topKey, line, step int) int {
	for next := line + step; next >= 0 && next < len(lines); next += step {
		if lines[next].level == levelGPU {
			return next
		}
	}

	return line
}

func pressInDetail(s topState, key string) topState {
	page := max(1, s.height-4) // the detail has height-2 lines, of which two stay in sight

	switch key {
	case "q":
		s.quit = true
	case "Esc", "Enter", "Left", "Backspace":
		s.screen = screenList
	case "?", "h":
		s.screen = screenKeys
	case "Down", "j":
		s.scrolled++
	case "Up", "k":
		s.scrolled--
	case "PgDn", "Ctrl+F", " ":
		s.scrolled += page
	case "PgUp", "Ctrl+B":
		s.scrolled -= page
	case "Home", "g":
		s.scrolled = 0
	}

	s.scrolled = max(0, s.scrolled)

	return s
}

// keepSelection selects another line if the list does not have the selected one any more: the line of
// its GPU, or else of the first device.
func keepSelection(s topState) topState {
	lines := s.keys()
	if slices.Contains(lines, s.selected) {
		return scrollToSelection(s)
	}

	line := slices.Index(lines, s.selected.ofGPU())
	if line < 0 {
		line = slices.IndexFunc(lines, func(k topKey) bool { return k.level != levelNode })
	}

	// Before the first answer nothing is selected, so that the first reading can select a device.
	switch {
	case line >= 0:
		s.selected = lines[line]
	case len(lines) > 0 && !s.waiting():
		s.selected = lines[0]
	default:
		s.selected = topKey{}
	}

	return scrollToSelection(s)
}

// waiting reports whether no node has answered yet.
func (s topState) waiting() bool {
	return !slices.ContainsFunc(s.nodes, func(n topNode) bool { return n.view != nil })
}

// keys returns the keys of the lines that can be selected, in the order of the list.
func (s topState) keys() []topKey {
	var keys []topKey
	for _, r := range s.allRows() {
		keys = append(keys, r.key)
	}

	return keys
}

// scrollToSelection scrolls the list so that it shows the selected line, and the axis of a selected
// GPU.
func scrollToSelection(s topState) topState {
	height := s.listHeight()
	if height == 0 {
		s.offset = 0
		return s
	}

	first := 0 // where the selected row begins, in lines
	last := 0  // where it ends
	lines := 0 // the length of the list

	for _, r := range s.rows() {
		if r.key == s.selected {
			first = lines
			last = lines + r.height()
		}

		lines += r.height()
	}

	// Scroll as little as possible, and not beyond the end of the list.
	s.offset = min(s.offset, first)
	s.offset = max(s.offset, last-height)
	s.offset = max(0, min(s.offset, lines-height))

	return s
}

// Sizes of the screen, in lines except for the width.
const (
	fixedLines     = 3  // the title and the heads of the columns above the list, the keys below it
	tallHistory    = 5  // the history on a screen of at least tallHeight; 1 on others
	tallHeight     = 36 // chosen: leaves 28 lines for the list
	smallestWidth  = 40 // columns
	smallestHeight = 8
)

// historyHeight returns the number of lines of the history below the list.
func (s topState) historyHeight() int {
	if s.height >= tallHeight {
		return tallHistory
	}

	return 1
}

// listHeight returns how many lines of the list the screen shows; 0 is no limit.
func (s topState) listHeight() int {
	if s.height == 0 {
		return 0
	}

	return max(1, s.height-fixedLines-s.historyHeight())
}
