package sim

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestHistory: it begins without a listener, is bounded, and numbers go on when the oldest are forgotten.
func TestHistory(t *testing.T) {
	n := start(t, "version: 1\ngpus: [{model: A100-40GB, mig: true}, {model: A100-40GB}]\nfaults: [{kind: xid, gpu: 1, xid: 43, at: 5s}]\n")
	advance(t, n, 10*time.Second)
	events, next := n.History(1, 0)
	if len(events) != 1 || next != 1 || events[0].XID != 43 || events[0].Time.Sub(n.Now()) != -5*time.Second {
		t.Errorf("%+v, next %d", events, next)
	}
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
	if events, again := n.History(0, next-1); len(events) != 1 || events[0].Kind != gpu.EventMIGChange || again != next {
		t.Errorf("the last: %+v, next %d", events, again)
	}
	if events, _ := n.History(0, next+5); len(events) != 0 {
		t.Errorf("of the future: %+v", events)
	}
}
