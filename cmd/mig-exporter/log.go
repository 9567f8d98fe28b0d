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
	format := log.NewLogfmtLogger

	if opts.Format == "json" {
		format = log.NewJSONLogger
	}

	logger := format(w)
	if opts.Journal {
		logger = journalLogger{out: w, format: format}
	}

	logger = level.NewFilter(
		orderedLogger{logger},
		level.Allow(level.ParseDefault(opts.Level, level.InfoValue())),
	)

	return log.With(logger, "ts", log.DefaultTimestampUTC)
}

// orderedLogger writes the fields of all lines in one order: ts, level, msg, then the others as
// they were logged.
type orderedLogger struct{ next log.Logger }

// Log implements log.Logger.
func (o orderedLogger) Log(keyvals ...any) error {
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

// stopSignal is the cause with which a signal ends the context of the program.
type stopSignal struct{ os.Signal }

// Error implements error.
func (s stopSignal) Error() string { return s.String() }

// announceStop logs the signal that ends ctx, if one does. Call end before the program ends: it
// waits until the line is written, or gives up waiting for a signal.
func announceStop(ctx context.Context, logger log.Logger) (end func()) {
	logged := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(logged)

		var s stopSignal
		if errors.As(context.Cause(ctx), &s) {
			level.Info(logger).Log("msg", "stopping", "signal", s)
		}
	})

	return func() {
		if !cancel() {
			<-logged
		}
	}
}
