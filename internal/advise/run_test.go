package advise

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// spell sets an activity to that of requests of a few milliseconds, half a minute of which in each
// five keep the device busy for a share of the time; in between, single seconds have requests.
func spell(v *gpu.Activity, second int, busy, width float64) {
	share := 0.
	if second%3 == 0 {
		share = 0.75
	}

	if second%300 < 30 {
		share = busy
	}

	v.GraphicsEngine, v.SM, v.DRAM = gpu.Some(share), gpu.Some(share*width), gpu.Some(0.)
}

// TestRunsThatTheWholeGPUHadNot: what keeps a slice busy without a pause, and did not keep the whole
// GPU so, waits for its turn. The same runs on the whole GPU may have been one long request.
func TestRunsThatTheWholeGPUHadNot(t *testing.T) {
	for about, c := range map[string]struct {
		before float64
		want   answer
	}{
		"pauses on the whole GPU": {0.9, answer{Action: ActionGrow, Reason: ReasonLatency, Profile: "4g.40gb"}},
		"none there either":       {1, answer{Action: ActionKeep, Reason: ReasonLittleEvidence}},
	} {
		o := DefaultOptions()
		o.MaxGap = 2 * time.Minute
		a := New(o)
		h := pod("ml", "Deployment/a")
		h.Rightsizing.ServiceTime = gpu.Some(10 * time.Millisecond)
		g := wholeGPU(t, "H100-80GB", 0, load{gib: 4}, h)
		s := &gpu.Snapshot{Time: start(), GPUs: []gpu.GPU{g}}

		for second := range 3660 {
			spell(&s.GPUs[0].Activity, second, c.before, 0.5)
			s.Time = s.Time.Add(time.Second)
			a.Observe(s)
		}

		moved := slicedGPU(t, "H100-80GB", "3g.40gb", load{gib: 4}, h)
		s = &gpu.Snapshot{Time: s.Time, GPUs: []gpu.GPU{moved}}

		for second := range 3000 {
			spell(&s.GPUs[0].Instances[0].Activity, second, 1, 0.5/1.2*132/60)
			s.Time = s.Time.Add(time.Second)
			a.Observe(s)
		}

		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, about+": "+r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)
	}
}
