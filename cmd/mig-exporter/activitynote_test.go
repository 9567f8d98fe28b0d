package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestNoActivityIsExplained: the log and /-/ready name GPUs that only DCGM can profile, once, if
// DCGM is not asked.
func TestNoActivityIsExplained(t *testing.T) {
	const mixed = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus: [{model: H100-80GB}, {model: A100-40GB, count: 2}]
`

	for name, tt := range map[string]struct {
		args []string
		says string // empty: there is nothing to say
	}{
		"DCGM is off":      {nil, "--dcgm.address=HOST:PORT, or --dcgm.address=embedded"},
		"GPM alone":        {[]string{"--profiling.source=gpm"}, "--profiling.source=auto with --dcgm.address=HOST:PORT"},
		"DCGM is asked":    {[]string{"--dcgm.address=embedded"}, ""},
		"it is not wanted": {[]string{"--profiling.source=off"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := launch(t, append([]string{"--driver=sim", "--sim.clock=step", "--sim.scenario=" + write(t, "s.yaml", mixed)},
				tt.args...)...)
			for range 3 {
				p.advance(time.Second)
			}

			ready := p.get("/-/ready")
			if ready.status != http.StatusOK {
				t.Errorf("/-/ready: %d %s", ready.status, ready.body)
			}

			p.stop()

			lines := strings.Count(p.logText(), "GPUs have no activity")

			want := 1
			if tt.says == "" {
				want = 0
			}

			cmptest.Equal(t, "lines in the log", lines, want)
			cmptest.Equal(t, "is in /-/ready", strings.Contains(string(ready.body), "no activity"), want == 1)

			if want == 1 {
				cmptest.HasTexts(t, p.logText(), tt.says, "gpus=1,2 ")
			}
		})
	}
}
