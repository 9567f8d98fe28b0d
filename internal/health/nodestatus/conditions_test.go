package nodestatus

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

const second = time.Second

// TestConditionLifetime: a condition becomes worse at once and better after five minutes, has a
// heartbeat every minute, and is unknown once the program has stopped. Those of others stay.
func TestConditionLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now().UTC()
		others := nodeCondition{Type: "Ready", Status: True, Reason: "KubeletReady", Heartbeat: began, Transition: began}
		r := startRig(t, &cluster{conditions: []nodeCondition{others}})

		const ready = "Ready=True KubeletReady, "

		r.after(0, ready+"GPUHealthy=True GPUsHealthy")
		r.after(10*time.Minute, ready+"GPUHealthy=True GPUsHealthy")
		cmptest.Equal(t, "heartbeats", len(r.beats), 11)
		cmptest.Equal(t, "transition", r.condition(1).Transition, began)
		cmptest.Equal(t, "heartbeat", r.condition(1).Heartbeat, began.Add(10*time.Minute))
		cmptest.Equal(t, "requests", r.requests, 12) // the first reads

		r.become(unhealthy())
		r.after(second, ready+"GPUHealthy=False GPULost")
		cmptest.Equal(t, "transition when it is worse", r.condition(1).Transition, began.Add(10*time.Minute+second))

		r.become(healthy())
		r.after(4*time.Minute, ready+"GPUHealthy=False GPULost")
		r.become(unhealthy())
		r.after(second, ready+"GPUHealthy=False GPULost")
		r.become(healthy())
		r.after(5*time.Minute, ready+"GPUHealthy=False GPULost")
		r.after(second, ready+"GPUHealthy=True GPUsHealthy")

		cmptest.Equal(t, "took too long to stop", r.stop() > 0, false)
		cmptest.Equal(t, "shown after the end", r.shown(), ready+"GPUHealthy=Unknown ExporterStopped")
		cmptest.Equal(t, "the condition of another", r.condition(0), others)
	})
}

// TestUnknownIsBetweenTheOthers: a condition that was false may become unknown only as it may become
// true, and true only after it was so for five minutes.
func TestUnknownIsBetweenTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, &cluster{})
		r.become(unhealthy())
		r.after(second, "GPUHealthy=False GPULost")

		r.become(healthy())
		r.after(3*time.Minute, "GPUHealthy=False GPULost")
		r.become(unknown())
		r.after(second, "GPUHealthy=False GPULost")
		r.become(healthy())
		r.after(2*time.Minute, "GPUHealthy=Unknown ReadingsStale")
		r.after(4*time.Minute, "GPUHealthy=Unknown ReadingsStale")
		r.after(2*time.Minute, "GPUHealthy=True GPUsHealthy")
		r.become(unknown())
		r.after(second, "GPUHealthy=Unknown ReadingsStale")
		r.stop()
	})
}

// TestEarlierRun: a run goes on with what an earlier one has left on the node.
func TestEarlierRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := time.Now().UTC().Add(-time.Hour)
		c := &cluster{conditions: []nodeCondition{
			{Type: "GPUHealthy", Status: False, Reason: "GPULost", Heartbeat: before, Transition: before},
		}}
		r := startRig(t, c)
		cmptest.Equal(t, "earlier", r.earlier, []string{"False GPULost " + before.Format(time.TimeOnly)})
		r.after(4*time.Minute, "GPUHealthy=False GPULost")
		cmptest.Equal(t, "transition", c.condition(0).Transition, before)
		cmptest.Equal(t, "has a heartbeat", c.condition(0).Heartbeat.After(before), true)
		r.after(2*time.Minute, "GPUHealthy=True GPUsHealthy")
		r.stop()
	})
}

// TestOrderlyRestart: a run goes on with what another one has shown before it stopped: what was well
// is so at once, and what was not becomes better after five minutes.
func TestOrderlyRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{}
		r := startRig(t, c)
		r.after(time.Hour, "GPUHealthy=True GPUsHealthy")
		r.stop()
		cmptest.Equal(t, "shown", c.shown(), "GPUHealthy=Unknown ExporterStopped")
		cmptest.Equal(t, "message", c.condition(0).Message,
			"mig-exporter has stopped on this node; before that it was True, GPUsHealthy: fine")

		ended := time.Now()
		time.Sleep(time.Minute)

		r = startRig(t, c)
		r.after(0, "GPUHealthy=True GPUsHealthy")
		cmptest.Equal(t, "earlier", r.earlier, []string{"True GPUsHealthy " + ended.UTC().Format(time.TimeOnly)})
		cmptest.Equal(t, "transition", c.condition(0).Transition, time.Now().UTC())
		r.become(unhealthy())
		r.after(second, "GPUHealthy=False GPULost")
		r.stop()
		cmptest.Equal(t, "shown", c.shown(), "GPUHealthy=Unknown ExporterStopped")

		r = startRig(t, c)
		r.after(4*time.Minute, "GPUHealthy=False GPULost")
		r.stop()

		r = startRig(t, c)
		r.after(4*time.Minute, "GPUHealthy=False GPULost")
		r.after(2*time.Minute, "GPUHealthy=True GPUsHealthy")
		r.stop()

		// What is worse than before is shown at once. A stop that says nothing of before is no history.
		r = startRigOf(t, c, unhealthy())
		r.after(0, "GPUHealthy=False GPULost")
		r.stop()

		c.conditions[0].Message = "mig-exporter has stopped on this node"
		r = startRig(t, c)
		r.after(4*time.Minute, "GPUHealthy=Unknown ExporterStopped")
		r.after(2*time.Minute, "GPUHealthy=True GPUsHealthy")
		r.stop()
	})
}

// TestLongMessage: a message is cut between two characters.
func TestLongMessage(t *testing.T) {
	cmptest.Equal(t, "message", shorten(strings.Repeat("°", maxMessage)), strings.Repeat("°", maxMessage/2))
	cmptest.Equal(t, "odd", shorten("x"+strings.Repeat("°", maxMessage)), "x"+strings.Repeat("°", maxMessage/2-1))
}

// TestFlush: after it what was seen is written. It ends with its context.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, &cluster{})
		r.become(unhealthy())
		r.writer.Flush(t.Context())
		cmptest.Equal(t, "shown", r.shown(), "GPUHealthy=False GPULost")
		r.stop()

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.writer.Flush(ctx)
	})
}

// TestTooEarly: nothing is written before it can be said how the node is, at the end neither.
func TestTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		early := startRigEarly(t)
		early.after(time.Minute, "")
		early.stop()
		cmptest.Equal(t, "requests", early.requests, 0)
	})
}

// TestRefused: a refusal is logged once, with the right, and asked again less and less often. When
// the right is granted, all goes on.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{err: &kubeapi.RefusedError{Right: "patch nodes/status"}}
		r := startRig(t, c)
		r.after(time.Hour, "")
		cmptest.Equal(t, "lines", strings.Count(r.log.String(), "\n"), 1)
		cmptest.HasTexts(t, r.log.String(), "the right to patch nodes/status", "cannot write the conditions of the node")
		cmptest.Equal(t, "few requests", c.requests < 70, true)
		cmptest.Equal(t, "beats", len(r.beats), 0)

		c.change(func() { c.err = nil })
		r.after(time.Minute, "GPUHealthy=True GPUsHealthy")
		cmptest.HasTexts(t, r.log.String(), "written again")

		// A failure in between loses no change.
		c.change(func() { c.err = gpu.ErrUnavailable })
		r.become(unhealthy())
		r.after(time.Minute, "GPUHealthy=True GPUsHealthy")
		c.change(func() { c.err = nil })
		r.after(time.Minute, "GPUHealthy=False GPULost")
		r.stop()
	})
}

// TestHangingCluster: an API server that does not answer holds up the end for a moment only.
func TestHangingCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{}
		r := startRig(t, c)
		c.change(func() { c.hangs = true })
		time.Sleep(time.Hour)
		synctest.Wait()
		cmptest.Equal(t, "time to stop", r.stop(), stopTimeout)
	})
}

// TestClockSetBack: a clock that was set back neither stops the heartbeats nor makes a condition
// better.
func TestClockSetBack(t *testing.T) {
	now := time.Now()
	tr := &track{}
	tr.update(unhealthy(), now)
	cmptest.Equal(t, "better", tr.update(healthy(), now.Add(time.Hour)), false)
	cmptest.Equal(t, "an hour back", tr.update(healthy(), now), false)
	cmptest.Equal(t, "four minutes later", tr.update(healthy(), now.Add(4*time.Minute)), false)
	cmptest.Equal(t, "five minutes later", tr.update(healthy(), now.Add(5*time.Minute)), true)
	cmptest.Equal(t, "status", tr.Status, True)
}
