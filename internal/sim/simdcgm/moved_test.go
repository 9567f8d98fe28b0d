package simdcgm

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestMovedInstanceGetsNothingOfTheOneBefore: an instance is destroyed and another of the same
// profile made at another place, which gets its id. For a while the engine's hierarchy shows the
// one before, which is alike in every id, and its entity goes on delivering what it had.
func TestMovedInstanceGetsNothingOfTheOneBefore(t *testing.T) {
	r := newRig(t, `version: 1
node: {kubernetes: false, giIDs: creation}
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@0"]}]
workloads: [{name: before, memory: 1GiB, sm: 30}, {name: after, memory: 1GiB, sm: 6}]
processes:
- {device: 0/3g.20gb@0, workload: before, for: 10s}
- {device: 0/3g.20gb@4, workload: after, at: 11s}
`, false)
	id := r.snapshot.GPUs[0].Instances[0].ID

	ratio := func() gpu.Opt[float64] {
		t.Helper()

		if err := r.node.Advance(500 * time.Millisecond); err != nil {
			t.Fatal(err)
		}

		r.look()

		answer, err := r.source.Profile(r.snapshot)
		if err != nil {
			t.Fatal(err)
		}

		return answer[r.snapshot.GPUs[0].UUID].Instances[id].SM
	}
	for range 20 {
		ratio()
	}

	if got := ratio(); got.Or(0) < 0.1 {
		t.Fatalf("before the move: %v, want what it did in its last second", got)
	}

	for _, err := range []error{r.node.DestroyComputeInstance(0, id, 0), r.node.DestroyGPUInstance(0, id)} {
		if err != nil {
			t.Fatal(err)
		}
	}

	made, err := r.node.CreateGPUInstance(0, 9, gpu.Some(4))
	if err != nil {
		t.Fatal(err)
	}

	if _, err := r.node.CreateComputeInstance(0, made, 3); err != nil || made != id {
		t.Fatalf("made instance %d, want %d again: %v", made, id, err)
	}

	seen := false

	for range 20 {
		got, ok := ratio().Get()
		if ok && got > 6.0/42+1e-6 {
			t.Fatalf("%v is of the instance before: this one does 0 or 6 of 42", got)
		}

		seen = seen || ok && got > 0.1
	}

	if !seen {
		t.Error("nothing of the new instance was ever reported")
	}
}
