package migctl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/fleet"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

const (
	commandTop = "top"
	// defaultURL is the metrics listener of an exporter on this node.
	defaultURL = "http://localhost:9401"
)

func addTopCommand(app *kingpin.Application, o *options) {
	c := o.command(app, commandTop, "Watch nodes live: GPUs and their slices on the placement "+
		"axis, load, users, the last 15 minutes. Needs no partition control: it asks the "+
		"listeners that serve the metrics. Keys: arrows or j and k select, Enter opens, / "+
		"filters, s sorts, ? shows all keys, q quits.")
	if o.program == nil {
		addURLFlag(c, o)
	}

	c.Flag("once", "Print the nodes once and end; also if standard output is no terminal.").
		BoolVar(&o.Top.Once)
	addOutputFlag(c, o, formText, formJSON)
}

func addURLFlag(c *kingpin.CmdClause, o *options) {
	c.Flag("url", "The exporter of a node, by its metrics listener (--web.listen-address): "+
		"http://HOST:PORT, https://HOST:PORT, or unix:///PATH of the control socket. Repeatable: "+
		"several nodes.").
		Default(defaultURL).
		Envar("MIGCTL_URL").
		StringsVar(&o.Top.URLs)
}

// topOptions are the flags of top.
type topOptions struct {
	URLs []string
	Once bool
}

// top shows nodes live, or once.
func (s *session) top(ctx context.Context) error {
	feeds, err := s.newFeeds(ctx)
	if err != nil {
		return err
	}

	defer func() {
		for _, f := range feeds {
			f.client.close()
		}
	}()

	term, _ := s.lookup("TERM")

	switch {
	case s.opts.Output == formJSON && s.opts.Top.Once:
		return s.printReadingsOnce(ctx, feeds)
	case s.opts.Output == formJSON:
		return s.printReadings(ctx, feeds)
	case s.opts.Top.Once, !s.outTerminal, term == "dumb":
		return s.drawOnce(ctx, feeds)
	}

	return s.watchNodes(ctx, feeds)
}

// newFeeds returns a feed for each node.
func (s *session) newFeeds(ctx context.Context) ([]*feed, error) {
	if s.opts.program != nil {
		c, err := s.connect(ctx)
		if err != nil {
			return nil, err
		}

		s.opts.Top.URLs = []string{s.opts.Node}

		return []*feed{{client: c, firstPause: s.retry}}, nil
	}

	var feeds []*feed

	for i, address := range s.opts.Top.URLs {
		c, err := newExporterClient(&s.opts, address)
		if err != nil {
			return nil, err
		}

		feeds = append(feeds, &feed{client: c, node: i, firstPause: s.retry})
	}

	return feeds, nil
}

// errNotExporter is the error of an address at which another server than an exporter answers.
var errNotExporter = errors.New(
	"this does not seem to be a mig-exporter that serves its state (--web.state)")

// newExporterClient returns a client of the exporter at an address of --url: that of its metrics listener,
// or of its control socket.
func newExporterClient(o *options, address string) (*client, error) {
	c, err := newClientOf(o, address, "http", "https")
	if errors.Is(err, errAddress) {
		expected := "http://HOST:PORT or https://HOST:PORT"
		if o.Command == commandTop {
			expected = "http://HOST:PORT, https://HOST:PORT or unix:///PATH"
		}

		return nil, usageError{fmt.Sprintf("%s %q: expected %s", urlName, fleet.HidePassword(address), expected)}
	}

	if err != nil {
		return nil, err
	}

	c.foreign = errNotExporter

	u, err := url.Parse(address)
	if err != nil {
		return nil, usageError{fmt.Sprintf("%s %q is no URL", urlName, fleet.HidePassword(address))}
	}

	if c.token != "" && u.Scheme == "http" && !isLoopback(u.Hostname()) {
		return nil, usageError{fmt.Sprintf(
			"--token-file: the token would travel unencrypted to %s: use https", u.Host)}
	}

	return c, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// topHint returns what to do about an exporter that does not answer.
func topHint() string {
	return "is mig-exporter running there? --url (or MIGCTL_URL) is its metrics listener, " +
		"--web.listen-address; with TLS, --ca-file has the CA that signed its certificate."
}

// askAll calls ask for all nodes at the same time, and returns when all calls have returned.
func askAll(ctx context.Context, feeds []*feed, ask func(context.Context, *feed, int)) {
	var wait sync.WaitGroup

	for i, f := range feeds {
		wait.Go(func() { ask(ctx, f, i) })
	}

	wait.Wait()
}

// drawOnce prints the nodes that answer, once. It returns the error of the first node that does not.
func (s *session) drawOnce(ctx context.Context, feeds []*feed) error {
	state := newTopState(s.opts.Top.URLs)
	state.openAll = true
	failures := make([]error, len(feeds))
	messages := make([][]topMessage, len(feeds))
	now := time.Now()

	askAll(ctx, feeds, func(ctx context.Context, f *feed, i int) {
		var doc nodedoc.Document
		if failures[i] = f.client.fetch(ctx, "/node", &doc); failures[i] != nil {
			trouble := troubleMessage{node: i, at: now, text: troubleText(failures[i])}
			messages[i] = append(messages[i], trouble)

			return
		}

		messages[i] = append(messages[i], readingMessage{node: i, at: now, doc: doc})
	})

	answered := false

	for i := range feeds {
		for _, m := range messages[i] {
			state = m.apply(state)
		}

		answered = answered || failures[i] == nil
	}

	if answered {
		state.width = max(smallestWidth, s.outputWidth())
		s.page.width = state.width

		for _, l := range newTopView(s.page).frame(state) {
			s.page.line(l.spans...)
		}
	}

	return cmp.Or(failures...)
}

// outputWidth returns the width of the terminal, or of COLUMNS if standard output is none.
func (s *session) outputWidth() int {
	if width, _ := s.terminalSize(); width > 0 {
		return width
	}

	columns, _ := s.lookup("COLUMNS")
	if n, err := strconv.Atoi(columns); err == nil && n > 0 {
		return n
	}

	return tableWidth
}

// printReadingsOnce prints the document of each node that answers as a line. It returns the error of
// the first node that does not.
func (s *session) printReadingsOnce(ctx context.Context, feeds []*feed) error {
	documents := make([][]byte, len(feeds))
	failures := make([]error, len(feeds))

	askAll(ctx, feeds, func(ctx context.Context, f *feed, i int) {
		documents[i], failures[i] = f.client.getDocument(ctx, "/node")
	})

	for i, data := range documents {
		if failures[i] != nil {
			continue
		}

		if err := printLine(s.out, data); err != nil {
			return err
		}
	}

	return cmp.Or(failures...)
}

// printReadings prints each document of the nodes as a line, until ctx ends.
func (s *session) printReadings(ctx context.Context, feeds []*feed) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	messages := make(chan topMessage)

	for _, f := range feeds {
		f.raw = true
		go f.run(ctx, messages)
	}

	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-messages:
			switch m := m.(type) {
			case rawMessage:
				if err := printLine(s.out, m.data); err != nil {
					return err
				}
			case troubleMessage:
				colors := wantsColor(s.opts.Color, s.errTerminal, s.lookup)
				p := newPage(s.errOut, colors, usesUTF8(s.lookup))
				p.paragraph("migctl: ", red, feeds[m.node].client.address+": "+m.text)

				if err := p.flush(); err != nil {
					return err
				}
			}
		}
	}
}

// printLine prints a document as one line. Characters that a terminal could take for a command are
// escaped.
func printLine(w io.Writer, data []byte) error {
	var document json.RawMessage
	if err := json.Unmarshal(data, &document); err != nil {
		return fmt.Errorf("print the document: %w", err)
	}

	line, err := json.Marshal(document) // it drops spaces and line ends
	if err != nil {
		return fmt.Errorf("print the document: %w", err)
	}

	_, err = io.WriteString(w, escapeUnprintable(string(line), escapeForJSON)+"\n")

	return err
}
