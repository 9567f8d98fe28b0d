package web

import (
	"context"
	stdlog "log"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/go-kit/log"
	sloggokit "github.com/tjhop/slog-gokit"
)

// toolkitHandler passes exporter-toolkit's records to the go-kit logger, which adds time and caller
// and filters levels.
type toolkitHandler struct{ slog.Handler }

func toolkitLogger(logger log.Logger) *slog.Logger {
	return slog.New(toolkitHandler{sloggokit.NewGoKitHandler(logger, slog.LevelDebug)})
}

// Handle implements slog.Handler.
func (h toolkitHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "Listening on" {
		return nil // serveOn has logged it
	}

	// Only the toolkit knows whether the web configuration turns TLS on. We turn its line about that
	// into one with the URL to open in a browser.
	switch r.Message {
	case "TLS is enabled.":
		r = servingRecord(&r, "https")
	case "TLS is disabled.":
		r = servingRecord(&r, "http")
	}

	// The go-kit logger adds both.
	r.Time = time.Time{}
	r.PC = 0

	return h.Handler.Handle(ctx, r)
}

// servingRecord returns the record with the URL of the status page, as one would open it on this
// machine. r is the toolkit's record about the same listener, which has its address.
func servingRecord(r *slog.Record, scheme string) slog.Record {
	serving := slog.NewRecord(r.Time, r.Level, "serving the status page and the metrics", 0)

	r.Attrs(func(a slog.Attr) bool {
		listener, err := netip.ParseAddrPort(a.Value.String())

		switch {
		case a.Key == "address" && err == nil:
			serving.AddAttrs(slog.String("url", pageURL(scheme, listener)))
		case a.Key == "http2" && scheme == "http": // left out: the toolkit has HTTP/2 only over TLS
		default:
			serving.AddAttrs(a)
		}

		return true
	})

	return serving
}

// pageURL returns the URL of the status page, such as http://localhost:9401/ for a listener on
// [::]:9401.
func pageURL(scheme string, listener netip.AddrPort) string {
	host := listener.String()
	if listener.Addr().IsUnspecified() {
		host = net.JoinHostPort("localhost", strconv.Itoa(int(listener.Port())))
	}

	return (&url.URL{Scheme: scheme, Host: host, Path: "/"}).String()
}

// WithAttrs implements slog.Handler.
func (h toolkitHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return toolkitHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h toolkitHandler) WithGroup(name string) slog.Handler {
	return toolkitHandler{h.Handler.WithGroup(name)}
}

// serverErrorLog returns the log for errors of net/http, such as failed TLS handshakes and panics
// of handlers.
func serverErrorLog(logger log.Logger) *stdlog.Logger {
	return slog.NewLogLogger(
		toolkitHandler{sloggokit.NewGoKitHandler(logger, slog.LevelDebug)},
		slog.LevelWarn,
	)
}
