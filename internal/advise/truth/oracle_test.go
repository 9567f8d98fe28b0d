package truth

import "testing"

// TestOraclesForetellGrowth: the oracle that knows what can be observed has no slice that memory
// outgrows in the week after, where nothing but growth that was seen makes it more.
func TestOraclesForetellGrowth(t *testing.T) {
	t.Parallel()
	outgrown := 0

	for index := range 30 {
		n := newNode(7, index)

		for _, s := range n.subjects() {
			if k := s.work.kind; k != "growing-memory" && k != "leaking" {
				continue
			}

			for minute := range observedMinutes {
				s.foresee(n, minute)
			}

			for minute := observedMinutes; minute < observedMinutes+appliedMinutes; minute++ {
				s.apply(n, minute)
			}

			for i := range s.candidates {
				c := &s.candidates[i]
				if !s.next.outOfMemory(c.profile) {
					continue
				}

				if s.keepsNothing(n, c) {
					outgrown++
				}

				if s.knowsPast(n, c) {
					t.Errorf("%s GPU %d (%s): %s, which its memory outgrows", n.name, s.gpu, s.work.kind, c.profile.Name)
				}
			}
		}
	}

	if outgrown == 0 {
		t.Error("no memory grows out of a slice: nothing was tested")
	}
}
