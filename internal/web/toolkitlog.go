package web

import (
	"context"
	stdlog "log"
	"log/slog"
	"time"

	"github.com/go-kit/log"
	sloggokit "github.com/tjhop/slog-gokit"
)

// toolkitHandler passes exporter-toolkit's records to the go-kit logger, which adds time and caller and filters levels.
type toolkitHandler struct{ slog.Handler }

func toolkitLogger(logger log.Logger) *slog.Logger {
	return slog.New(toolkitHandler{sloggokit.NewGoKitHandler(logger, slog.LevelDebug)})
}

// Handle implements slog.Handler.
func (h toolkitHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "Listening on" {
		return nil // serveOn has logged it
	}

	r.Time = time.Time{}
	r.PC = 0

	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h toolkitHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return toolkitHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h toolkitHandler) WithGroup(name string) slog.Handler {
	return toolkitHandler{h.Handler.WithGroup(name)}
}

// serverErrorLog returns the log for errors of net/http, such as failed TLS handshakes and panics of handlers.
func serverErrorLog(logger log.Logger) *stdlog.Logger {
	return slog.NewLogLogger(
		toolkitHandler{sloggokit.NewGoKitHandler(logger, slog.LevelDebug)},
		slog.LevelWarn,
	)
}
