package promtest

import (
	"errors"
	"slices"
	"testing"
)

// The documented queries about copies of what is the whole GPU's, word for word.
const (
	slicesByCopies = `count by (GPU_I_PROFILE) (DCGM_FI_DEV_GPU_TEMP)`
	slicesByMemory = `count by (GPU_I_PROFILE) (DCGM_FI_DEV_FB_USED)`
	powerOfBoards  = `sum(DCGM_FI_DEV_POWER_USAGE{GPU_I_ID=""})`
)

// TestSlicesAreCounted runs tables that count instances by profile on the eight GPUs of
// dgx-a100-mixed: 4 without instances, of which one has MIG on, and 14 instances on the others. One
// of these, a 3g.20gb, has no compute instance, and the driver does not report its memory.
func TestSlicesAreCounted(t *testing.T) {
	t.Parallel()

	for _, query := range []string{slicesByCopies, slicesByMemory, powerOfBoards} {
		for _, page := range []string{"../../docs/migration.md", "../../docs/dcgm-names.md"} {
			if !slices.Contains(documentedIn(t, page), query) && (page == "../../docs/migration.md" || query == slicesByCopies) {
				t.Errorf("%s has no %s", page, query)
			}
		}
	}

	scenario := readFile(t, "../../testdata/scenarios/dgx-a100-mixed.yaml")
	counts := func(whole, one, two, three float64) map[string]float64 {
		want := map[string]float64{"map[]": whole}

		for profile, n := range map[string]float64{"1g.5gb": one, "2g.10gb": two, "3g.20gb": three} {
			if n > 0 {
				want["map[GPU_I_PROFILE:"+profile+"]"] = n
			}
		}

		return want
	}
	power := map[string]float64{}

	for _, test := range []struct {
		args             []string
		copies, memories map[string]float64
	}{
		{nil, counts(8, 0, 0, 0), counts(4, 7, 2, 4)},
		{[]string{"--dcgm.repeat-gpu-fields"}, counts(8, 7, 2, 5), counts(4, 7, 2, 4)},
	} {
		n := startNode(t, scenario, append(test.args, "--metrics.names=dcgm")...)
		n.run(scrapeOffset, nil)

		if len(power) == 0 { // without copies every series is of a GPU
			power["map[]"] = n.Query(t, `sum(DCGM_FI_DEV_POWER_USAGE)`)[0].F
		}

		if err := errors.Join(
			expect(n.Prometheus, slicesByCopies, test.copies), expect(n.Prometheus, slicesByMemory, test.memories),
			expect(n.Prometheus, powerOfBoards, power),
		); err != nil {
			t.Errorf("%q: %v", test.args, err)
		}
	}
}
