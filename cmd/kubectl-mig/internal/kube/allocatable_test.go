package kube

import (
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
)

const (
	small = "nvidia.com/mig-1g.10gb"
	large = "nvidia.com/mig-3g.40gb"
)

func TestMissing(t *testing.T) {
	type counts map[string]int

	four := counts{small: 3, large: 1}
	seven := counts{small: 7}
	two := counts{small: 2}

	for _, test := range []struct {
		name        string
		devices     counts
		labels      string
		allocatable string
		before      *rollout.Offer
		want        string
	}{
		{"by profile", four, "", `"nvidia.com/mig-1g.10gb": "3", "nvidia.com/mig-3g.40gb": "1"`, nil, ""},
		{"too few", four, "", `"nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-3g.40gb": "1"`, nil,
			"nvidia.com/mig-1g.10gb: 2, of 3 devices"},
		{"others still", four, "", `"nvidia.com/mig-1g.10gb": "3", "nvidia.com/mig-7g.80gb": "1"`, nil,
			"nvidia.com/mig-3g.40gb: 0, of 1 devices, nvidia.com/mig-7g.80gb: still 1"},
		{"too many", four, "", `"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "1"`, nil,
			"nvidia.com/mig-1g.10gb: 7, of 3 devices"},
		{"twice as many, as before the change", two, "", `"nvidia.com/mig-1g.10gb": "4"`, nil,
			"nvidia.com/mig-1g.10gb: 4, of 2 devices (if each is shared by 2"},
		{"each offered twice, by the label", two, `"nvidia.com/mig-1g.10gb.replicas": "2"`,
			`"nvidia.com/mig-1g.10gb": "4"`, nil, ""},
		{"each offered twice, too many", two, `"nvidia.com/mig-1g.10gb.replicas": "2"`,
			`"nvidia.com/mig-1g.10gb": "8"`, nil, "nvidia.com/mig-1g.10gb: 8, of 2 devices"},
		{"each offered twice, still two of them", counts{small: 4}, `"nvidia.com/mig-1g.10gb.replicas": "2"`,
			`"nvidia.com/mig-1g.10gb": "4"`, nil, "nvidia.com/mig-1g.10gb: 4, of 4 devices"},
		{"shared, by the name", four, "",
			`"nvidia.com/mig-1g.10gb.shared": "6", "nvidia.com/mig-3g.40gb": "1", "nvidia.com/mig-7g.80gb": "0"`, nil, ""},
		{"shared, as often as before", two, "", `"nvidia.com/mig-1g.10gb.shared": "4"`,
			&rollout.Offer{Devices: counts{small: 4}, Resources: counts{small + ".shared": 8}}, ""},
		{"shared, still as before", two, "", `"nvidia.com/mig-1g.10gb.shared": "8"`,
			&rollout.Offer{Devices: counts{small: 4}, Resources: counts{small + ".shared": 8}},
			"nvidia.com/mig-1g.10gb: 8, of 2 devices"},
		{"some shared, by the name", four, "",
			`"nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-1g.10gb.shared": "3", "nvidia.com/mig-3g.40gb": "1"`, nil, ""},
		{"some shared, as often as before", four, "",
			`"nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-1g.10gb.shared": "4", "nvidia.com/mig-3g.40gb": "1"`,
			&rollout.Offer{Devices: counts{small: 4}, Resources: counts{small: 3, small + ".shared": 2}},
			"nvidia.com/mig-1g.10gb: 6, of 3 devices"},

		{"single", four, `"nvidia.com/mig.strategy": "single"`, `"nvidia.com/gpu": "4"`, nil, ""},
		{"single, and formerly by profile", four, `"nvidia.com/mig.strategy": "single"`,
			`"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "0"`, nil, ""},
		{"single, too few", four, `"nvidia.com/mig.strategy": "single"`, `"nvidia.com/gpu": "1"`, nil,
			"nvidia.com/gpu: 1, of 4 devices"},
		{"single, still seven", two, `"nvidia.com/mig.strategy": "single"`, `"nvidia.com/gpu": "7"`, nil,
			"nvidia.com/gpu: 7, of 2 devices"},
		{"single, each offered twice", two, `"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.replicas": "2"`,
			`"nvidia.com/gpu": "4"`, nil, ""},
		{"single, none is left", nil, `"nvidia.com/mig.strategy": "single"`, `"nvidia.com/gpu": "7"`, nil,
			"nvidia.com/gpu: 7, of 0 devices"},
		{"single, there was none", nil, `"nvidia.com/mig.strategy": "single"`, `"nvidia.com/gpu": "8"`,
			&rollout.Offer{Devices: counts{}, Resources: counts{"nvidia.com/gpu": 8}}, ""},
		{"single, as before shows", two, "", `"nvidia.com/gpu": "2"`,
			&rollout.Offer{Devices: seven, Resources: counts{"nvidia.com/gpu": 7}}, ""},
		{"single, as before shows, still seven", two, "", `"nvidia.com/gpu": "7"`,
			&rollout.Offer{Devices: seven, Resources: counts{"nvidia.com/gpu": 7}}, "nvidia.com/gpu: 7, of 2 devices"},

		{"mixed, the first MIG devices", seven, `"nvidia.com/mig.strategy": "mixed"`, `"nvidia.com/gpu": "7"`, nil,
			"nvidia.com/mig-1g.10gb: none, of 7 devices (nvidia.com/gpu: 7; "},
		{"the first MIG devices, of a strategy that is not known", seven, "", `"nvidia.com/gpu": "7"`,
			&rollout.Offer{Devices: counts{}, Resources: counts{"nvidia.com/gpu": 8}}, "nvidia.com/mig.strategy=single would say so"},
		{"mixed, the last MIG device is gone", nil, "", `"nvidia.com/gpu": "8"`, nil, ""},

		{"DRA", four, "", `"cpu": "1"`, &rollout.Offer{Resources: counts{}}, ""},
		{"a device plugin that is away", four, "", `"cpu": "1", "nvidia.com/gds": "1"`,
			&rollout.Offer{Resources: counts{small: 7}}, "nvidia.com/mig-1g.10gb: none, of 3 devices"},
		{"a device plugin or none", four, "", `"cpu": "1"`, nil, "nvidia.com/mig-1g.10gb: none, of 3 devices"},
		{"no MIG devices", nil, "", `"cpu": "1"`, nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newFakeAPI(t)
			s.add(t, nodePath, `{"metadata": {"labels": {`+test.labels+`}}, "status": {"allocatable": {`+test.allocatable+`}}}`)

			missing, err := s.cluster(t).Missing(t.Context(), "a", test.devices, test.before)

			got := strings.Join(missing, ", ")
			if err != nil || (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, %v; expected %q", got, err, test.want)
			}
		})
	}
}

// What a node offered before is read from the same resources.
func TestOffered(t *testing.T) {
	s := newFakeAPI(t)
	s.add(t, nodePath, `{"status": {"allocatable": {"cpu": "1", "nvidia.com/gpu": "7", "nvidia.com/gds": "1"}}}`)

	got, err := s.cluster(t).Offered(t.Context(), "a")
	if err != nil || len(got) != 1 || got["nvidia.com/gpu"] != 7 {
		t.Errorf("got %v, %v", got, err)
	}
}
