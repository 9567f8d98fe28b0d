package nodestatus

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

func startRigEarly(t *testing.T) *rig {
	t.Helper()

	r := &rig{cluster: &cluster{}, t: t, early: true, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	writer := NewConditions(ConditionOptions{
		API: r.cluster, Node: "node-1", Read: r.read, Now: time.Now, Logger: log.NewNopLogger(),
	})

	go func() { r.ended <- writer.Run(ctx) }()

	return r
}

// startEvents runs an Events until stop is called, which returns how long that took.
func startEvents(t *testing.T, c *cluster, lines *bytes.Buffer) (events *Events, stop func() time.Duration) {
	t.Helper()

	events = NewEvents(EventOptions{API: c, Node: "node-1", Logger: log.NewLogfmtLogger(log.NewSyncWriter(lines))})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() { ended <- events.Run(ctx) }()

	return events, func() time.Duration {
		began := time.Now()

		cancel()
		cmptest.Equal(t, "end", <-ended, nil)

		return time.Since(began)
	}
}

func ended(operation int) Event {
	return Event{Key: fmt.Sprint(operation), Reason: "MIGOperationSucceeded", Message: "done", Time: time.Now()}
}

// TestEventIsCreated: an Event has what kubectl describe looks for. One that is sent twice is one.
func TestEventIsCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines bytes.Buffer

		c := &cluster{}
		events, stop := startEvents(t, c, &lines)
		events.Add(ended(1))
		events.Add(ended(1))

		warning := ended(2)
		warning.Warning = true
		warning.Message = strings.Repeat("x", 2*maxMessage)
		events.Add(warning)
		synctest.Wait()

		cmptest.Equal(t, "events", len(c.events), 2)
		at := time.Now().UTC().Format(time.RFC3339)
		cmptest.Equal(t, "first", text(t, c.events[0]), `{"apiVersion":"v1","kind":"Event",`+
			`"metadata":{"name":"node-1.6b86b273ff34fce1","namespace":"default"},`+
			`"involvedObject":{"apiVersion":"v1","kind":"Node","name":"node-1","uid":"node-1"},`+
			`"type":"Normal","reason":"MIGOperationSucceeded","message":"done","firstTimestamp":"`+at+`","lastTimestamp":"`+at+
			`","count":1,"source":{"component":"mig-exporter","host":"node-1"},"reportingComponent":"mig-exporter","reportingInstance":"node-1"}`)
		cmptest.Equal(t, "type", c.events[1].Type, "Warning")
		cmptest.Equal(t, "length", len(c.events[1].Message), maxMessage)
		cmptest.Equal(t, "log", lines.String(), "")
		stop()
	})
}

// TestEventsWait: Events wait for an API server that does not answer, and no more of them than there
// is room for. Neither who adds one nor the end waits with them.
func TestEventsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines bytes.Buffer

		c := &cluster{err: gpu.ErrUnavailable}
		events, stop := startEvents(t, c, &lines)
		events.Add(ended(0))
		synctest.Wait()

		for n := range maxEvents + 2 {
			events.Add(ended(1 + n))
		}

		cmptest.Equal(t, "dropped", strings.Count(lines.String(), "too many wait"), 2)
		c.change(func() { c.err = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		cmptest.Equal(t, "events", len(c.events), 1+maxEvents)

		c.change(func() { c.hangs = true })
		events.Add(ended(1000))
		events.Add(ended(1001))
		synctest.Wait()
		cmptest.Equal(t, "time to stop", stop(), stopTimeout)
		cmptest.HasTexts(t, lines.String(), "was not created")
	})
}

// TestEventsLeft: what waits at the end is created before it.
func TestEventsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines bytes.Buffer

		c := &cluster{err: gpu.ErrUnavailable}
		events, stop := startEvents(t, c, &lines)
		events.Add(ended(1))
		events.Add(ended(2))
		synctest.Wait()
		c.change(func() { c.err = nil })
		stop()
		cmptest.Equal(t, "events", len(c.events), 2)
	})
}

// TestEventRefused: an Event that is refused is not sent again. The log names the right.
func TestEventRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines bytes.Buffer

		c := &cluster{err: &kubeapi.RefusedError{Right: "create events"}}
		events, stop := startEvents(t, c, &lines)
		events.Add(ended(1))
		time.Sleep(time.Hour)
		synctest.Wait()
		cmptest.Equal(t, "requests", c.requests, 1)
		cmptest.HasTexts(t, lines.String(), "the right to create events", "reason=MIGOperationSucceeded")
		stop()
	})
}
