package migctl

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// topState is all that a live view shows. A message makes the next state of it; nothing else
// changes.
type topState struct {
	nodes         []topNode
	width, height int // 0 is no limit
	now           time.Time

	screen   topScreen
	order    topOrder
	filter   string
	editing  bool // the keys are the filter's text
	openAll  bool // all GPUs show their slices, even if they don't fit
	selected topKey
	offset   int // of the first line of the list
	scrolled int // lines of the detail
	quit     bool
}

// topNode is one node.
type topNode struct {
	address string
	view    *nodeView // nil before the first reading
	read    time.Time // when the reading came
	trouble string    // why none comes; empty if the stream lives
	since   time.Time // when the trouble came
	again   time.Duration
	polled  bool // the reading was asked for, since no stream brings it
	past    *history.Document
}

// topScreen is what a live view shows.
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
	orders
)

func (o topOrder) String() string { return [...]string{"index", "memory", "activity"}[o] }

// whole stands for the instance in the key of a device that is none.
const whole = -1

// topKey names a line that can be selected: a node, a GPU, a GPU instance or a compute instance.
// Its zero value names none.
type topKey struct {
	level             topLevel
	node, gpu         int // index of the node, and of the GPU on it
	instance, compute int // whole, if the device is not one
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
		state.nodes = append(state.nodes, topNode{address: hidePassword(address)})
	}

	return state
}

// topMessage is something that happens to a live view.
type topMessage interface {
	// apply returns the state after the message, which depends on nothing else.
	apply(s topState) topState
}

// The messages of a feed.
type (
	// readingMessage is a reading of a node.
	readingMessage struct {
		node int
		at   time.Time
		doc  nodedoc.Document
	}
	// troubleMessage says why no reading comes.
	troubleMessage struct {
		node  int
		at    time.Time
		text  string
		again time.Duration // until the next attempt

		polled bool // the last reading was asked for instead
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
	s.now = m.at

	return keepSelection(s)
}

func (m troubleMessage) apply(s topState) topState {
	s.nodes = slices.Clone(s.nodes)
	n := &s.nodes[m.node]
	n.trouble = m.text
	n.since = m.at
	n.again = m.again
	n.polled = m.polled
	s.now = m.at

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

// editFilter adds a key to the filter's text.
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
		return move(s, key)
	}

	return keepSelection(s)
}

// move selects another line.
func move(s topState, key string) topState {
	keys := s.keys()
	if len(keys) == 0 {
		return s
	}

	at := max(0, slices.Index(keys, s.selected))
	page := max(1, s.listHeight()-1)

	switch key {
	case "Down", "j":
		at++
	case "Up", "k":
		at--
	case "PgDn", "Ctrl+F", " ":
		at += page
	case "PgUp", "Ctrl+B":
		at -= page
	case "Home", "g":
		at = 0
	case "End", "G":
		at = len(keys) - 1
	case "Tab", "]":
		at = nextGPU(keys, at, 1)
	case "Backtab", "[":
		at = nextGPU(keys, at, -1)
	default:
		return s
	}

	s.selected = keys[min(max(at, 0), len(keys)-1)]

	return scrollToSelection(s)
}

// nextGPU returns the place of the next GPU's line in a direction.
func nextGPU(keys []topKey, at, step int) int {
	for next := at + step; next >= 0 && next < len(keys); next += step {
		if keys[next].level == levelGPU {
			return next
		}
	}

	return at
}

func pressInDetail(s topState, key string) topState {
	page := max(1, s.height-4)

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

// keepSelection selects another line if the selected one is not shown any more: the line of its
// GPU, or of the first device.
func keepSelection(s topState) topState {
	keys := s.keys()
	if slices.Contains(keys, s.selected) {
		return scrollToSelection(s)
	}

	at := slices.Index(keys, s.selected.ofGPU())
	if at < 0 {
		at = slices.IndexFunc(keys, func(k topKey) bool { return k.level != levelNode })
	}

	// While a node has not answered yet, its line is not worth a selection that a first reading
	// would move.
	switch {
	case at >= 0:
		s.selected = keys[at]
	case len(keys) > 0 && !s.waiting():
		s.selected = keys[0]
	default:
		s.selected = topKey{}
	}

	return scrollToSelection(s)
}

// waiting reports whether no node has answered yet.
func (s topState) waiting() bool {
	return !slices.ContainsFunc(s.nodes, func(n topNode) bool { return n.view != nil })
}

// keys returns the lines that can be selected, in the order of the list.
func (s topState) keys() []topKey {
	var keys []topKey
	for _, r := range s.allRows() {
		keys = append(keys, r.key)
	}

	return keys
}

// scrollToSelection moves the list so that the selected line, and the axis of a selected GPU, are
// in it.
func scrollToSelection(s topState) topState {
	height := s.listHeight()
	if height == 0 {
		s.offset = 0
		return s
	}

	first := 0
	last := 0
	lines := 0

	for _, r := range s.rows() {
		if r.key == s.selected {
			first = lines
			last = lines + r.height()
		}

		lines += r.height()
	}

	s.offset = min(s.offset, first)
	s.offset = max(s.offset, last-height)
	s.offset = max(0, min(s.offset, lines-height))

	return s
}

// The lines around the list: the title and the heads of the columns above, the history and the
// keys below.
const (
	linesAround   = 4
	historyLines  = 5  // on a screen with room for them
	roomyHeight   = 36 // from which on a screen has that
	smallestWidth = 40
	smallest      = 8 // lines
)

// historyHeight returns the lines of the history below the list.
func (s topState) historyHeight() int {
	if s.height >= roomyHeight {
		return historyLines
	}

	return 1
}

// listHeight returns the lines of the list; 0 is no limit.
func (s topState) listHeight() int {
	if s.height == 0 {
		return 0
	}

	return max(1, s.height-linesAround+1-s.historyHeight())
}
