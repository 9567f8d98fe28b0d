package advise

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestWhyNotFinal: complete evidence comes by itself. What the engines do does not, so that it is the
// reason if both are missing.
func TestWhyNotFinal(t *testing.T) {
	for _, c := range []struct {
		provisional, notChecked bool
		want                    Reason
	}{
		{false, false, ReasonNone}, {true, false, ReasonProvisional}, {false, true, ReasonMediaNotChecked},
		{true, true, ReasonMediaNotChecked},
	} {
		r := Recommendation{Action: ActionSlice, Provisional: c.provisional, NotChecked: c.notChecked}
		cmptest.Equal(t, "reason", r.WhyNotFinal(), c.want)
		cmptest.Equal(t, "candidate", r.Candidate(), c.want == ReasonNone)
	}
}
