package podresources

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestReadUsesWhatHAMiReserved(t *testing.T) {
	const migB = "MIG-0a1b2c3d-0000-1111-2222-333344445555"
	placed := gpu.DeviceRef{GPU: gpuB, PlacementStart: gpu.Some(4)}
	reserved := [][]gpu.DeviceRef{{{MIG: migA}}, {{MIG: migB}, placed}}
	// HAMi may give a container another GPU than the id's.
	one := container("one", devices("nvidia.com/gpu", gpuA+"-3"))
	two := container("two", devices("nvidia.com/gpu", gpuA+"-1", gpuA+"-2"))
	none := container("none", nil)
	own := container("own", devices("nvidia.com/mig-1g.5gb", migA))

	kept := []string{"one hami 3 GPU", "two hami 1 GPU", "two hami 2 GPU"}
	for _, tc := range []struct {
		name     string
		pod      string
		reserved [][]gpu.DeviceRef
		want     []string
	}{
		{"as many containers with as many devices", "p", reserved,
			[]string{"one exclusive  MIG", "two exclusive  placed", "two exclusive  MIG"}},
		{"a container more", "p", append(reserved[:2:2], reserved[0]), kept},
		{"a container less", "p", reserved[:1], kept},
		{"other numbers of devices", "p", [][]gpu.DeviceRef{reserved[1], reserved[0]}, kept},
		{"another pod's", "q", reserved, kept},
		{"nothing", "p", nil, kept},
	} {
		g := newTestLedger(t, &fakeCluster{pods: map[string]gpu.PodMetadata{"ns/" + tc.pod: {MIGDevices: tc.reserved}},
			asked: time.Unix(9999, 0)})
		var got []string

		for _, a := range g.list(pod("ns", "p", none, one, own, two)).List {
			device := "GPU"

			switch {
			case a.Holder.Name == "own":
				if a.Device != (gpu.DeviceRef{MIG: migA}) || a.Holder.Sharing != gpu.SharingExclusive {
					t.Errorf("%s: a device that is not HAMi's became %+v", tc.name, a)
				}

				continue
			case a.Device.MIG != "":
				device = "MIG"
			case a.Device == placed:
				device = "placed"
			}

			got = append(got, fmt.Sprintf("%s %s %s %s", a.Holder.Name, a.Holder.Sharing, a.Holder.Replica, device))
		}

		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(tc.want))) {
			t.Errorf("%s: got\n%s\nwant\n%s", tc.name, strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
		}
	}
}
