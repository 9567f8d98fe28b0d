package sim

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestHistory: it begins without a listener, is bounded, and numbers go on when the oldest are
// forgotten.
func TestHistory(t *testing.T) {
	n := start(t, "version: 1\ngpus: [{model: A100-40GB, mig: true}, {model: A100-40GB}]\nfaults: [{kind: xid, gpu: 1, "+
		"xid: 43, at: 5s}]\n")
	advance(t, n, 10*time.Second)

	events, next := n.History(1, 0)
	if len(events) != 1 {
		t.Fatalf("%+v, want one event", events)
	}

	cmptest.Equal(t, "number of the next event", next, 1)
	cmptest.Equal(t, "XID", events[0].XID, 43)
	cmptest.Equal(t, "age of the event", n.Now().Sub(events[0].Time), 5*time.Second)

	_, first := n.History(0, 0)
	for range maxHistory {
		id, err := n.CreateGPUInstance(0, 19, gpu.Some(0))
		if err != nil {
			t.Fatal(err)
		}

		if err := n.DestroyGPUInstance(0, id); err != nil {
			t.Fatal(err)
		}
	}

	events, next = n.History(0, first)
	if len(events) != maxHistory || next != first+2*maxHistory {
		t.Errorf("%d events, next %d", len(events), next)
	}

	events, again := n.History(0, next-1)
	if len(events) != 1 {
		t.Fatalf("%+v, want the last event", events)
	}

	cmptest.Equal(t, "kind of the last event", events[0].Kind, gpu.EventMIGChange)
	cmptest.Equal(t, "number of the next event", again, next)

	if events, _ := n.History(0, next+5); len(events) != 0 {
		t.Errorf("of the future: %+v", events)
	}
}
