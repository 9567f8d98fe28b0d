package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// newLogger returns a logger that writes lines to w, each with ts, level and msg first.
func newLogger(w io.Writer, opts logOptions) log.Logger {
	w = log.NewSyncWriter(w)
	logger := log.NewLogfmtLogger(w)
	if opts.Format == "json" {
		logger = log.NewJSONLogger(w)
	}
	logger = level.NewFilter(inOrder{logger}, level.Allow(level.ParseDefault(opts.Level, level.InfoValue())))
	return log.With(logger, "ts", log.DefaultTimestampUTC)
}

// inOrder gives all lines one order of fields, whichever package or library logs them: ts, level, msg, then the others as they
// come.
type inOrder struct{ next log.Logger }

// Log implements log.Logger.
func (o inOrder) Log(keyvals ...any) error {
	ordered := make([]any, 0, len(keyvals))
	first := []any{"ts", level.Key(), "msg"}
	for _, key := range first {
		for i := 0; i+1 < len(keyvals); i += 2 {
			if keyvals[i] == key {
				ordered = append(ordered, key, keyvals[i+1])
			}
		}
	}
	for i := 0; i < len(keyvals); i += 2 {
		if !slices.Contains(first, keyvals[i]) {
			ordered = append(ordered, keyvals[i:min(i+2, len(keyvals))]...)
		}
	}
	return o.next.Log(ordered...)
}

// stopSignal is why the context of the program ends: the operator or the system asked for it.
type stopSignal struct{ os.Signal }

// Error implements error.
func (s stopSignal) Error() string { return s.String() }

// announceStop logs the signal that ends ctx when it does. The caller calls the result once it no longer waits for one.
func announceStop(ctx context.Context, logger log.Logger) (end func()) {
	said := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(said)
		var s stopSignal
		if errors.As(context.Cause(ctx), &s) {
			level.Info(logger).Log("msg", "Stopping", "signal", s)
		}
	})
	return func() {
		if !cancel() {
			<-said
		}
	}
}
