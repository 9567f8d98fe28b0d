package truth

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// TestFailedMovesAreNoticed: every workload that dies while it starts in some slice is moved there.
// Within an hour it is said that it must grow, for as long as it goes on, and never that it is
// idle. The others are never said not to have come up.
func TestFailedMovesAreNoticed(t *testing.T) {
	t.Parallel()
	failed := map[string]int{}
	fine := 0

	for index := range 60 {
		n := newNode(7, index)
		var list []slice

		for _, s := range n.subjects() {
			if c := worstMove(s); c != nil {
				list = append(list, *c)
			}
		}

		a := advise.New(options(false))

		before := n.snapshot()
		for minute := observedMinutes - watchedBefore; minute < observedMinutes; minute++ {
			n.advance(before, minute)
			a.Observe(before)
		}

		s := n.sliced(list)
		for minute := observedMinutes; minute < observedMinutes+2*dayMinutes; minute++ {
			n.advanceSlices(s, list, minute)

			if a.Observe(s); minute%15 != 14 {
				continue
			}

			for _, r := range a.Recommend(s).Devices {
				if r.Instance.Present() {
					checkMoved(t, n, &list[r.Index], &r, minute-observedMinutes)
				}
			}
		}

		for i := range list {
			if _, killed := list[i].killedAfter(); killed {
				failed[list[i].work.start.name]++
			} else {
				fine++
			}
		}
	}

	for _, name := range startNames()[1:] {
		if failed[name] == 0 {
			t.Errorf("%s: no start was killed", name)
		}
	}

	if fine == 0 {
		t.Error("no start came up")
	}
}

// worstMove returns the move of a workload whose pod stays to the largest slice in which it dies
// while it starts; to the largest of all if it dies in none.
func worstMove(s *subject) *slice {
	if !s.work.cuttable() || s.work.lifetime > 0 || s.work.start.every > 0 {
		return nil
	}

	var move *slice

	for i := range s.candidates {
		one := slice{index: s.gpu, work: s.work, profile: s.candidates[i].profile, moved: observedMinutes}
		if _, killed := one.killedAfter(); killed || move == nil || i == len(s.candidates)-1 && !isKilled(move) {
			move = &one
		}
	}

	return move
}

func isKilled(s *slice) bool {
	_, killed := s.killedAfter()
	return killed
}

// checkMoved checks the answer for a workload that was moved some minutes ago.
func checkMoved(t *testing.T, n *node, s *slice, r *advise.Recommendation, since int) {
	t.Helper()
	after, killed := s.killedAfter()

	isDown := r.Action == advise.ActionGrow && r.Reason == advise.ReasonNotUp
	switch {
	case killed && r.Action == advise.ActionIdle,
		killed && since >= after+noticeWithin && !isDown,
		!killed && r.Reason == advise.ReasonNotUp:
		t.Errorf("%s GPU %d (%s, %s) in %s, killed %v after %d minutes: %s %s after %d",
			n.name, s.index, s.work.kind, s.work.start.name, s.profile.Name, killed, after, r.Action, r.Reason, since)
	}
}
