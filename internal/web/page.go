package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageCSS string
	//go:embed page/*.js
	pageScripts embed.FS
)

// joinScripts returns the page's one script. The files declare functions; start.js, which runs, is
// the last.
func joinScripts() string {
	text := "\"use strict\";\n"

	for _, name := range []string{"morph", "find", "past", "live", "start"} {
		part, err := pageScripts.ReadFile("page/" + name + ".js")
		if err != nil {
			panic(err) // it is a part of the program
		}

		text += string(part)
	}

	return text
}

// pageHandler serves the status page: one document that contains its style and its script, and that
// may load nothing else. A browser without scripts reloads it now and then.
type pageHandler struct {
	opts     Options
	snaps    Snapshots
	logger   log.Logger
	template *template.Template
	script   string
	version  string // hash of the page's sources: the script reloads a page of another version
	policy   string // the content security policy
	pool     *buffers
	advice   adviceSource
}

func newPageHandler(opts Options, snaps Snapshots, pool *buffers, logger log.Logger) *pageHandler {
	script := joinScripts()

	return &pageHandler{
		opts:     opts,
		snaps:    snaps,
		logger:   logger,
		template: parsePage(pageHTML),
		script:   script,
		version:  sourceHash(pageHTML + pageCSS + script),
		policy: strings.Join([]string{
			"default-src 'none'",
			"style-src '" + sourceHash(pageCSS) + "'",
			"script-src '" + sourceHash(script) + "'",
			"connect-src 'self'", // the script fetches the page again
			"img-src data:",      // the icon
			"base-uri 'none'",
			"form-action 'none'",
			"frame-ancestors 'none'",
		}, "; "),
		pool:   pool,
		advice: adviceSource{report: opts.Recommendations},
	}
}

// ServeHTTP renders the page for each request: readers are few, and the ages in it change by the
// second.
func (h *pageHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page := h.newView(h.snaps.Current())
	page.CSS = template.CSS(pageCSS)
	page.JS = template.JS(h.script)

	buf := h.pool.get()
	defer h.pool.put(buf)

	if err := h.template.Execute(buf, page); err != nil {
		_ = level.Error(h.logger).Log("msg", "cannot render the page", "err", err)
		http.Error(w, "the page could not be rendered", http.StatusInternalServerError)

		return
	}

	header := w.Header()
	setDefault(header, "Content-Security-Policy", h.policy)
	setDefault(header, "Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Type", "text/html; charset=utf-8")

	if negotiateCoding(r.Header) == codingIdentity {
		writeEncoded(w, codingIdentity, buf.Bytes())
		return
	}

	packed := h.pool.get()
	defer h.pool.put(packed)
	h.pool.gzip(packed, buf.Bytes())
	writeEncoded(w, codingGzip, packed.Bytes())
}

// renderNode appends the part of the page that changes, for the stream.
func (h *pageHandler) renderNode(dst *bytes.Buffer, s *gpu.Snapshot) error {
	return h.template.ExecuteTemplate(dst, "node", h.newView(s))
}

func (h *pageHandler) newView(s *gpu.Snapshot) pageView {
	page := newPageView(h.opts, s, h.opts.Now(), h.advice.current())
	page.PageVersion = h.version

	return page
}

// sourceHash returns the hash by which a content security policy allows an inline style or script.
func sourceHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

const (
	// refreshEvery is how often the script fetches the page again; its readings change once a second.
	refreshEvery = 5 * time.Second
	// reloadEvery is how often a browser without scripts loads the page again, which closes the
	// cards that the reader has opened.
	reloadEvery = 3 * refreshEvery
)
