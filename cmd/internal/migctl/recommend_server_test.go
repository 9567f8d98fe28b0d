package migctl

import (
	"bytes"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestServerTexts: what is known of an inference server is said, and what is not.
func TestServerTexts(t *testing.T) {
	const gib = 1 << 30
	known := advise.ServerEvidence{Reservation: 72 * gib, Weights: 14 * gib, WeightsFrom: advise.WeightsFromStart,
		Activations: 1.4 * gib, CacheBytes: 56.6 * gib, AskedHours: 190, CacheUse: 0.1, Running: 8, Waiting: 2}
	cmptest.Equal(t, "known", serverText(&known), "reserves 72.00 GiB: weights 14.00 GiB (seen at its start), 1.40 GiB taken "+
		"for activations, cache 56.60 GiB; by its own word, of 190.0 h, at most 10% of its cache is used, 8 requests run "+
		"and 2 wait")
	cmptest.Equal(t, "unknown", serverText(&advise.ServerEvidence{Reservation: 32 * gib}), "reserves 32.00 GiB; the memory "+
		"of its model's weights is not known; how much of its cache is used is not known")
	cmptest.Equal(t, "predicted", predictedServerText(&advise.PredictedServer{Flag: "--gpu-memory-utilization", Value: 0.9,
		CacheBytes: 20 * gib, CacheTokens: 141000, CacheUse: 0.28}), "start it with --gpu-memory-utilization=0.90: "+
		"20.00 GiB for its cache, room for 141000 tokens, at most 28% of it used, 0 requests wait")
}

// TestProcedureSetsTheFraction: the owner of an inference server changes its request and what it
// reserves at once; that of another workload its request alone.
func TestProcedureSetsTheFraction(t *testing.T) {
	for _, c := range []struct {
		server *advise.PredictedServer
		says   bool
	}{{&advise.PredictedServer{Flag: "--gpu-memory-utilization", Value: 0.85}, true}, {nil, false}} {
		var out bytes.Buffer
		p := newPage(&out, false, true)
		newProcedure(p, &advise.Report{Node: "n"}).writeOwnerChange(&advise.Recommendation{
			Recommended: "3g.40gb", Workload: &advise.Key{Namespace: "chat", Owner: "Deployment/chat", Container: "main"},
			Predicted: &advise.Predicted{Server: c.server},
		})

		if err := p.flush(); err != nil {
			t.Fatal(err)
		}

		const note = "In the same change, set --gpu-memory-utilization to 0.85, of 3g.40gb."
		if c.says {
			cmptest.HasTexts(t, flat(out.String()), note)
		} else {
			cmptest.LacksTexts(t, flat(out.String()), "reserves a fraction")
		}
	}
}
