package kube

import (
	"errors"
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
			`"nvidia.com/mig-1g.10gb.shared": "6", "nvidia.com/mig-3g.40gb": "1", "nvidia.com/mig-7g.80gb": "0"`,
			&rollout.Offer{Devices: counts{large: 2}, Resources: counts{large: 2}}, ""},
		{"shared, by the name, and perhaps still as before", two, "", `"nvidia.com/mig-1g.10gb.shared": "8"`, nil,
			"nvidia.com/mig-1g.10gb: 8, of 2 devices (if each is shared by 4, the label nvidia.com/mig-1g.10gb.replicas"},
		{"shared, by the name, of a device plugin that was away", two, "", `"nvidia.com/mig-1g.10gb.shared": "8"`,
			&rollout.Offer{Devices: counts{small: 4}, Resources: counts{}},
			"nvidia.com/mig-1g.10gb: 8, of 2 devices"},
		{"shared, as often as before", two, "", `"nvidia.com/mig-1g.10gb.shared": "4"`,
			&rollout.Offer{Devices: counts{small: 4}, Resources: counts{small + ".shared": 8}}, ""},
		{"shared, still as before", two, "", `"nvidia.com/mig-1g.10gb.shared": "8"`,
			&rollout.Offer{Devices: counts{small: 4}, Resources: counts{small + ".shared": 8}},
			"nvidia.com/mig-1g.10gb: 8, of 2 devices"},
		{"some shared, by the name", four, "",
			`"nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-1g.10gb.shared": "3", "nvidia.com/mig-3g.40gb": "1"`,
			&rollout.Offer{Devices: counts{}, Resources: counts{}}, ""},
		{"some shared, as often as before", four, "",
			`"nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-1g.10gb.shared": "4", "nvidia.com/mig-3g.40gb": "1"`,
			&rollout.Offer{Devices: counts{small: 4}, Resources: counts{small: 3, small + ".shared": 2}},
			"nvidia.com/mig-1g.10gb: 6, of 3 devices"},
		{"some shared, one not offered, and other than before", counts{small: 4}, "",
			`"nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-1g.10gb.shared": "2"`,
			&rollout.Offer{Devices: counts{small: 5}, Resources: counts{small: 1, small + ".shared": 2}}, ""},
		{"some shared, one not offered, still as before", counts{small: 4}, "",
			`"nvidia.com/mig-1g.10gb": "2", "nvidia.com/mig-1g.10gb.shared": "2"`,
			&rollout.Offer{Devices: counts{small: 5}, Resources: counts{small: 2, small + ".shared": 2}},
			"nvidia.com/mig-1g.10gb: 4, of 4 devices"},

		{"a whole GPU, and by profile before", counts{small: 1}, "", `"nvidia.com/gpu": "1", "nvidia.com/mig-7g.80gb": "0"`,
			&rollout.Offer{Devices: counts{"nvidia.com/mig-7g.80gb": 1},
				Resources: counts{"nvidia.com/mig-7g.80gb": 0, "nvidia.com/gpu": 1}},
			"nvidia.com/mig-1g.10gb: none, of 1 devices"},
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
		{"single, shared by the name, as often as before", two, `"nvidia.com/mig.strategy": "single"`,
			`"nvidia.com/gpu.shared": "4"`,
			&rollout.Offer{Devices: seven, Resources: counts{"nvidia.com/gpu.shared": 14}}, ""},
		{"single, shared by the name, still as before", two, `"nvidia.com/mig.strategy": "single"`,
			`"nvidia.com/gpu.shared": "14"`,
			&rollout.Offer{Devices: seven, Resources: counts{"nvidia.com/gpu.shared": 14}},
			"nvidia.com/gpu: 14, of 2 devices"},
		{"single, shared by the name, as before shows", two, "", `"nvidia.com/gpu.shared": "4"`,
			&rollout.Offer{Devices: seven, Resources: counts{"nvidia.com/gpu.shared": 14}}, ""},
		{"single, shared by the name, as before shows, still seven", two, "", `"nvidia.com/gpu.shared": "14"`,
			&rollout.Offer{Devices: seven, Resources: counts{"nvidia.com/gpu.shared": 14}},
			"nvidia.com/gpu: 14, of 2 devices"},
		{"single, shared by the name, the first MIG devices", two, `"nvidia.com/mig.strategy": "single"`,
			`"nvidia.com/gpu.shared": "16"`,
			&rollout.Offer{Devices: counts{}, Resources: counts{"nvidia.com/gpu.shared": 16}},
			"(if each is shared by 8, the label nvidia.com/gpu.replicas would say so)"},

		{"mixed, the first MIG devices", seven, `"nvidia.com/mig.strategy": "mixed"`, `"nvidia.com/gpu": "7"`, nil,
			"nvidia.com/mig-1g.10gb: none, of 7 devices (nvidia.com/gpu: 7; "},
		{"the first MIG devices, of a strategy that is not known", seven, "", `"nvidia.com/gpu": "7"`,
			&rollout.Offer{Devices: counts{}, Resources: counts{"nvidia.com/gpu": 8}}, "nvidia.com/mig.strategy=single would say so"},
		{"mixed, the last MIG device is gone", nil, "", `"nvidia.com/gpu": "8"`, nil, ""},
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

// A node without any of the device plugin's resources has DRA if its ResourceSlices say so. Otherwise
// its device plugin may be away, perhaps since before the cordon.
func TestMissingWithoutResources(t *testing.T) {
	type counts map[string]int

	const (
		gpus  = "gpu.nvidia.com"
		other = "compute-domain.nvidia.com"
		away  = "nvidia.com/mig-1g.10gb: none, of 3 devices"
	)

	for _, test := range []struct {
		name                    string
		allocatable             string
		before                  *rollout.Offer
		version, driver, ofNode string // of the only ResourceSlice; none without a version
		devices                 int
		want                    string
	}{
		{"DRA", "", &rollout.Offer{Resources: counts{}}, "v1", gpus, "a", 3, ""},
		{"DRA of an older API", "", &rollout.Offer{Resources: counts{}}, "v1beta1", gpus, "a", 3, ""},
		{"DRA, and it is not known what was before", "", nil, "v1", gpus, "a", 3, ""},
		{"DRA, formerly with a device plugin", `"nvidia.com/gpu": "0"`,
			&rollout.Offer{Resources: counts{"nvidia.com/gpu": 0}}, "v1", gpus, "a", 3, ""},
		{"DRA of another node", "", &rollout.Offer{Resources: counts{}}, "v1", gpus, "b", 3, away},
		{"another DRA driver", "", &rollout.Offer{Resources: counts{}}, "v1", other, "a", 3, away},
		{"away before the cordon", "", &rollout.Offer{Resources: counts{}}, "", "", "", 3, away},
		{"away before the cordon, on a node that had it", `"nvidia.com/mig-1g.10gb": "0"`,
			&rollout.Offer{Resources: counts{small: 0}}, "", "", "", 3, away},
		{"away since the cordon", `"nvidia.com/gds": "1"`, &rollout.Offer{Resources: counts{small: 7}}, "v1", gpus, "a", 3,
			away},
		{"a device plugin or none", "", nil, "", "", "", 3, away},
		{"no MIG devices", "", nil, "", "", "", 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newFakeAPI(t)
			s.add(t, nodePath, `{"status": {"allocatable": {`+test.allocatable+`}}}`)

			if test.version != "" {
				s.add(t, "/apis/resource.k8s.io/"+test.version+"/resourceslices/s",
					`{"spec": {"driver": "`+test.driver+`", "nodeName": "`+test.ofNode+`"}}`)
			}

			missing, err := s.cluster(t).Missing(t.Context(), "a", map[string]int{small: test.devices}, test.before)

			got := strings.Join(missing, ", ")
			if err != nil || (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, %v; expected %q", got, err, test.want)
			}
		})
	}
}

// Whether a node has DRA is not known without the right to list ResourceSlices, or without an answer.
func TestMissingWithUnreadResourceSlices(t *testing.T) {
	const slices = "GET /apis/resource.k8s.io/v1/resourceslices"

	for _, isForbidden := range []bool{true, false} {
		s := newFakeAPI(t)
		s.add(t, nodePath, `{"status": {}}`)

		want := "list resourceslices.resource.k8s.io"
		s.Forbidden[slices] = isForbidden
		s.Unavailable = slices // if it is not forbidden

		if isForbidden {
			want = "you may not " + want + " (docs/kubectl-mig-runs.md#rights): Forbidden"
		}

		_, err := s.cluster(t).Missing(t.Context(), "a", map[string]int{small: 3},
			&rollout.Offer{Resources: map[string]int{}})
		if err == nil || !strings.Contains(err.Error(), want) ||
			errors.Is(err, rollout.ErrRefused) != isForbidden {
			t.Errorf("forbidden %t: got %v", isForbidden, err)
		}
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
