package web

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string
)

// pageHandler serves the page that people look at. It is one document: style and script are in it, and nothing else
// may be loaded. Without the script it is the same page, refreshed by the browser.
type pageHandler struct {
	opts     Options
	snaps    Snapshots
	logger   log.Logger
	template *template.Template
	policy   string
	pool     *buffers
}

func newPageHandler(opts Options, snaps Snapshots, pool *buffers, logger log.Logger) *pageHandler {
	return &pageHandler{
		opts:     opts,
		snaps:    snaps,
		logger:   logger,
		template: template.Must(template.New("page").Parse(pageHTML)),
		policy: strings.Join([]string{
			"default-src 'none'",
			"style-src '" + sourceHash(pageCSS) + "'",
			"script-src '" + sourceHash(pageJS) + "'",
			"connect-src 'self'", // the script fetches the page anew
			"img-src data:",      // the icon
			"base-uri 'none'",
			"form-action 'none'",
			"frame-ancestors 'none'",
		}, "; "),
		pool: pool,
	}
}

// ServeHTTP renders the page for each request: people are few, and the ages in it change by the second.
func (h *pageHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page := pageOf(h.opts, h.snaps.Current(), h.opts.Now())
	page.CSS, page.JS = template.CSS(pageCSS), template.JS(pageJS)
	buf := h.pool.get()
	defer h.pool.put(buf)
	if err := h.template.Execute(buf, page); err != nil {
		_ = level.Error(h.logger).Log("msg", "The page could not be rendered", "err", err)
		http.Error(w, "the page could not be rendered", http.StatusInternalServerError)
		return
	}
	header := w.Header()
	setDefault(header, "Content-Security-Policy", h.policy)
	setDefault(header, "Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Type", "text/html; charset=utf-8")
	if negotiateCoding(r.Header) == codingIdentity {
		answer(w, codingIdentity, buf.Bytes())
		return
	}
	packed := h.pool.get()
	defer h.pool.put(packed)
	h.pool.gzip(packed, buf.Bytes())
	answer(w, codingGzip, packed.Bytes())
}

// sourceHash names inline text in a content security policy.
func sourceHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// refreshEvery is how often the page asks for itself; the readings behind it change once a second.
const refreshEvery = 5 * time.Second
