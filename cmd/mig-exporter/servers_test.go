package main

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestServersOfASimulatedNode: the program asks the pods of a simulated node, and advises by what
// their servers say and what their starts have shown. Without the flag it asks none.
func TestServersOfASimulatedNode(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		flag   string
		chat   string // the answer for the server that uses little of its cache
		coder  advise.Reason
		server bool
	}{
		{"--advise.server-metrics", "slice 3g.40gb", advise.ReasonMemory, true},
		{"--no-advise.server-metrics", "keep ", advise.ReasonPreallocated, false},
	} {
		p := simulate(t, "h100-servers", "--poll.interval=10s", "--advise.min-evidence=30m", c.flag)
		for range 30 {
			p.advance(10 * time.Second)
		}

		for range 200 {
			p.advance(30 * time.Second)
		}

		report := p.recommendations("")
		assistant := report.Devices[0]
		coder := report.Devices[1]
		draft := report.Devices[2]
		cmptest.Equal(t, "assistant", string(assistant.Action)+" "+assistant.Recommended, c.chat)
		cmptest.Equal(t, "coder", coder.Reason, c.coder)
		cmptest.Equal(t, "server of assistant", assistant.Evidence.Server != nil, c.server)
		cmptest.Equal(t, "draft, while it loads", draft.Reason != advise.ReasonPreallocated, true)

		if !c.server {
			continue
		}

		cmptest.Equal(t, "flag", assistant.Predicted.Server.Flag, "--gpu-memory-utilization")

		if gib := assistant.Evidence.Server.Weights / (1 << 30); gib < 14.4 || gib > 14.6 {
			t.Errorf("weights of %.2f GiB; expected 14.49 with the context", gib)
		}

		cmptest.Equal(t, "weights from", assistant.Evidence.Server.WeightsFrom, advise.WeightsFromStart)
		cmptest.LacksTexts(t, string(p.get("/metrics").body), "vllm", "sglang")
	}
}

// TestServersAreAskedOnce: by their own part of the program, or on a stepped clock by polls alone.
func TestServersAreAskedOnce(t *testing.T) {
	for stepped, want := range map[bool]int{true: 0, false: 1} {
		n := &node{
			clock:      clock{speed: 1, stepped: stepped},
			serverPods: &simulatedServers{},
			logger:     log.NewNopLogger(),
		}
		n.openServers()

		what := fmt.Sprintf("stepped %t", stepped)
		cmptest.Equal(t, what, len(n.parts), want)
		cmptest.Equal(t, what+": by polls", n.polled != nil, want == 0)
	}
}

// TestSimulatedAddresses: a pod of a simulated node has an address that is asked, and only while it
// runs.
func TestSimulatedAddresses(t *testing.T) {
	s := simulatedServers{}

	_, err := s.dial(t.Context(), "tcp", "nowhere")
	if err == nil {
		t.Error("an address that is none was dialed")
	}

	if got := podAddress("uid-1"); !netip.MustParsePrefix("10.0.0.0/8").Contains(got) || got == podAddress("uid-2") {
		t.Errorf("the address of uid-1 is %s", got)
	}
}
