package nvmlsource

import (
	"context"

	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// MaxSetGap is how long the other GPUs may be in no set before events count as lost.
const MaxSetGap = maxSetGap

// Do is PerformStep for the instances that the GPU has now.
func (a *Actuator) Do(ctx context.Context, s mig.Step) (mig.Done, error) {
	g, err := runQueued(ctx, a, queueKey{id: s.GPU, changes: true},
		func() (mig.GPULayout, error) { return a.readLayout(s.GPU) })
	if err != nil {
		return mig.Done{}, err
	}

	out, err := a.PerformStep(ctx, s, g.Instances)
	if err != nil {
		return mig.Done{}, err
	}

	return out.Done, nil
}

// IsPausing reports whether a change of the session waits for calls under way to end.
func (s *Source) IsPausing() bool { return s.session.blocked.Load() }
