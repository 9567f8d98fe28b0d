package spec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

func TestResolve(t *testing.T) {
	layouts := map[string][]api.LayoutRule{"two": {{
		Devices: api.DeviceList{Indexes: []int{0, 3}}, DeviceFilter: api.Strings{"0x20b010de"}, MIGEnabled: true, MIGDevices: map[string]int{"1g.5gb": 2},
	}, {Devices: api.DeviceList{All: true}}}}

	for _, tt := range []struct {
		spec string
		want mig.Spec
	}{
		{"layout: two", mig.Spec{Rules: []mig.Rule{
			{GPUs: []string{"0", "3"}, PCIDevices: []uint32{0x20B010DE}, Enabled: true, Want: []mig.Want{{Profile: "1g.5gb", Count: 2}}},
			{GPUs: []string{"all"}},
		}}},
		{"version: v1\nmig-configs: {only: [{devices: all, mig-enabled: true, mig-devices: {}}]}", mig.Spec{Rules: []mig.Rule{{GPUs: []string{"all"}, Enabled: true}}}},
		{"layout: b\nversion: v1\nmig-configs: {a: [{devices: [1], mig-enabled: false}], b: [{devices: all, mig-enabled: false}]}", mig.Spec{Rules: []mig.Rule{{GPUs: []string{"all"}}}}},
		{`{"gpus": [0, "GPU-a", "0000:0a:00.0"], "devices": {"19": 2, "3g.40gb": {"compute": ["1c", "2c"]}, "2g.10gb": {"count": 2, "compute": []}}}`, mig.Spec{Rules: []mig.Rule{{
			GPUs: []string{"0", "GPU-a", "0000:0a:00.0"}, Enabled: true,
			Want: []mig.Want{{Profile: "19", Count: 2}, {Profile: "2g.10gb", Count: 2, ComputeInstances: []int{}}, {Profile: "3g.40gb", Count: 1, ComputeInstances: []int{1, 2}}},
		}}}},
		{"demand: [{memory: 12GiB, sms: 20, count: 3}, {memory: 20GB}, {memory: 5}]", mig.Spec{Demand: []mig.Need{
			{MemoryBytes: 12 << 30, SMs: 20, Count: 3}, {MemoryBytes: 20e9, Count: 1}, {MemoryBytes: 5, Count: 1},
		}}},
		// Instances of one profile that are split in different ways.
		{"gpus: [0]\ndevices: {3g.40gb: [{compute: [1c, 2c]}, {count: 1}], 1c.3g.40gb: 1}", mig.Spec{Rules: []mig.Rule{{GPUs: []string{"0"}, Enabled: true, Want: []mig.Want{
			{Profile: "3g.40gb", Count: 1, ComputeInstances: []int{1, 2}}, {Profile: "3g.40gb", Count: 1}, {Profile: "3g.40gb", Count: 1, ComputeInstances: []int{1}},
		}}}}},
		// Compute instances by name share GPU instances, as few as there can be.
		{"gpus: [all]\ndevices: {1c.3g.20gb: 4, 2c.3g.20gb: 1, 3g.20gb: 1}", mig.Spec{Rules: []mig.Rule{{GPUs: []string{"all"}, Enabled: true, Want: []mig.Want{
			{Profile: "3g.20gb", Count: 1}, {Profile: "3g.20gb", Count: 1, ComputeInstances: []int{2, 1}}, {Profile: "3g.20gb", Count: 1, ComputeInstances: []int{1, 1, 1}},
		}}}}},
		{"gpus: [all]\ndevices: {1c.1g.5gb+me: 1}", mig.Spec{Rules: []mig.Rule{{GPUs: []string{"all"}, Enabled: true, Want: []mig.Want{{Profile: "1g.5gb+me", Count: 1, ComputeInstances: []int{1}}}}}}},
	} {
		s, err := Decode([]byte(tt.spec))
		if err != nil {
			t.Errorf("%s: %v", tt.spec, err)
			continue
		}

		got, err := Resolve(s, func() map[string][]api.LayoutRule { return layouts })
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, %v\nwant %+v", tt.spec, got, err, tt.want)
		}
	}
}

// TestResolveChecksWhatDidNotComeFromAFile: a client's JSON goes past Decode.
func TestResolveChecksWhatDidNotComeFromAFile(t *testing.T) {
	all := []api.Selector{"all"}
	everywhere := api.DeviceList{All: true}
	rule := func(r api.LayoutRule) api.Spec {
		return api.Spec{Version: "v1", MIGConfigs: map[string][]api.LayoutRule{"x": {r}}}
	}

	counts := func(profile string, r api.DeviceRequest) api.Spec {
		return api.Spec{GPUs: all, Devices: map[string]api.DeviceRequest{profile: r}}
	}
	for _, tt := range []struct {
		spec api.Spec
		says string
	}{
		{api.Spec{}, "nothing is asked for; expected exactly one of layout (or version and mig-configs), gpus with devices, and demand"},
		{api.Spec{Layout: "a", GPUs: all}, "a layout and gpus with devices at once; expected exactly one of"},
		{api.Spec{Layout: "none"}, `layout: this node has no layout "none"; migctl layouts lists those that it has`},
		{api.Spec{Layout: "b", Version: "v1", MIGConfigs: map[string][]api.LayoutRule{"a": nil}}, `layout: "b" is not known; expected one of: a`},
		{api.Spec{Version: "v2"}, `version: is "v2"; expected v1`},
		{api.Spec{Version: "v1"}, "mig-configs: is empty"},
		{api.Spec{Version: "v1", MIGConfigs: map[string][]api.LayoutRule{"a": nil, "b": nil}}, "layout: is missing; expected which of the mig-configs: a, b"},
		{rule(api.LayoutRule{}), "mig-configs.x[0].devices: is missing"},
		{rule(api.LayoutRule{MIGEnabled: true}), "mig-configs.x[0].mig-devices: is missing"},
		{rule(api.LayoutRule{MIGDevices: map[string]int{"1g.5gb": 1}}), "mig-configs.x[0].mig-devices: has instances while mig-enabled is false"},
		{rule(api.LayoutRule{Devices: everywhere, DeviceFilter: api.Strings{"20B010DE"}}), `mig-configs.x[0].device-filter: has "20B010DE"; expected a PCI device id`},
		{rule(api.LayoutRule{Devices: everywhere, MIGEnabled: true, MIGDevices: map[string]int{"1g.5gb": -1}}), "mig-configs.x[0].mig-devices.1g.5gb: is -1; expected a count of 0 to 64"},
		{api.Spec{GPUs: all}, "devices: is missing"},
		{api.Spec{Devices: map[string]api.DeviceRequest{}}, "gpus: is empty"},
		{api.Spec{GPUs: []api.Selector{""}, Devices: map[string]api.DeviceRequest{}}, `gpus[0]: is ""`},
		{api.Spec{GPUs: all, Devices: map[string]api.DeviceRequest{"1g.5gb": {Count: 65}}}, "devices.1g.5gb: is 65; expected a count of 0 to 64"},
		{api.Spec{GPUs: all, Devices: map[string]api.DeviceRequest{"1c.3g.20gb": {Count: 1, Compute: []string{}}}}, "devices.1c.3g.20gb.compute: is for a GPU instance"},
		{api.Spec{GPUs: all, Devices: map[string]api.DeviceRequest{"5c.7g.40gb": {Count: 1}}}, "devices.5c.7g.40gb: is a compute instance of 5 slices of 7; expected 1, 2, 3, 4, 7 or all, of at most 16"},
		{api.Spec{GPUs: all, Devices: map[string]api.DeviceRequest{"1c.17g.40gb": {Count: 1}}}, "devices.1c.17g.40gb: is a compute instance of 1 slices of 17"},
		{api.Spec{GPUs: all, Devices: map[string]api.DeviceRequest{"1c.7g.40gb": {Count: 7}, "2c.7g.40gb": {Count: 5}}}, "devices: has compute instances of 7g.40gb with 17 slices; expected at most 16"},
		{api.Spec{GPUs: all, Devices: map[string]api.DeviceRequest{"3g.20gb": {Count: 1, Compute: []string{"1c", "+2c"}}}}, `devices.3g.20gb.compute[1]: is "+2c"`},
		{counts("3g.20gb", api.DeviceRequest{Each: []api.DeviceRequest{}}), "devices.3g.20gb: has 0 items; expected 1 to 64"},
		{counts("3g.20gb", api.DeviceRequest{Each: []api.DeviceRequest{{Count: 1}, {Each: []api.DeviceRequest{{Count: 1}}}}}), "devices.3g.20gb[1]: is a list; expected a count"},
		{counts("3g.20gb", api.DeviceRequest{Each: []api.DeviceRequest{{Count: 1}, {Count: -1}}}), "devices.3g.20gb[1]: is -1; expected a count of 0 to 64"},
		{counts("3g.20gb", api.DeviceRequest{Each: []api.DeviceRequest{{Count: 64}, {Count: 1}}}), "devices.3g.20gb: has 65 instances; expected at most 64"},
		{counts("3g.20gb", api.DeviceRequest{Each: []api.DeviceRequest{{Count: 1, Compute: []string{"x"}}}}), `devices.3g.20gb[0].compute[0]: is "x"; expected the slices`},
		{counts("1c.3g.20gb", api.DeviceRequest{Each: []api.DeviceRequest{{Count: 1}}}), "devices.1c.3g.20gb: is a list; 1c.3g.20gb is a compute instance, expected a count of 0 to 64"},
		{api.Spec{Demand: []api.Need{}}, "demand: is empty"},
		{api.Spec{Demand: []api.Need{{Count: -1}}}, "demand[0]: count -1"},
		{api.Spec{Demand: []api.Need{{Count: 40}, {Count: 40}}}, "demand: asks for 80 instances; expected 1 to 64"},
		{api.Spec{Demand: []api.Need{{}}}, "demand: asks for 0 instances"},
	} {
		_, err := Resolve(tt.spec, func() map[string][]api.LayoutRule {
			return map[string][]api.LayoutRule{"all": nil, "half": nil}
		})

		var e *strictyaml.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%+v: %v, want %q", tt.spec, err, tt.says)
		}
	}
}

// TestPackTakesTheFewest: against trying everything.
func TestPackTakesTheFewest(t *testing.T) {
	for _, tt := range []struct {
		sizes []int
		room  int
		want  int
	}{
		{nil, 3, 0}, {[]int{1, 1, 1}, 3, 1}, {[]int{2, 2, 1, 1}, 3, 2}, {[]int{1, 1, 1, 1}, 3, 2}, {[]int{2, 2}, 3, 2},
		{[]int{3, 3, 2, 2, 2, 2}, 7, 2}, {[]int{4, 3, 2, 2, 2, 1}, 7, 2}, {[]int{1}, 1, 1}, {[]int{6, 1, 7}, 7, 2},
	} {
		got := pack(tt.sizes, tt.room)
		var all []int

		for _, instance := range got {
			sum := 0
			for _, size := range instance {
				sum += size
			}

			all = append(all, instance...)
			if sum > tt.room {
				t.Errorf("%v: %v is too much", tt.sizes, instance)
			}
		}

		if len(got) != tt.want || len(all) != len(tt.sizes) {
			t.Errorf("%v in %d: %v, want %d", tt.sizes, tt.room, got, tt.want)
		}
	}
}

// BenchmarkPack is the most that a spec can ask for.
func BenchmarkPack(b *testing.B) {
	var sizes []int
	for size, n := range map[int]int{1: 16, 2: 8, 3: 5, 4: 4} {
		sizes = append(sizes, slices.Repeat([]int{size}, n)...)
	}

	for b.Loop() {
		pack(sizes, maxSlices)
	}
}

func TestLoadLayoutsNamesTheFile(t *testing.T) {
	if _, err := LoadLayouts(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}

	for text, says := range map[string]string{
		"{}":                           ":1: version: is missing; expected v1",
		"version: v2\nmig-configs: {}": `:1: version: is "v2"; expected v1`,
		"mig-configs: {a: [{devices: all, mig-enabled: false}]}": ":1: version: is missing; expected v1",
		"version: v1\n":                        ":1: mig-configs: is empty; expected layouts by name",
		"version: v1\nlayout: x\n":             ":2: layout: is not known here; expected one of version, mig-configs",
		"version: v1\nmig-configs:\n  a: []\n": ":3: mig-configs.a: has 0 rules; expected 1 to 256",
		"version: v1\nmig-configs:\n  a: [{devices: all, mig-enabled: true, mig-devices: {5c.7g.40gb: 1}}]\n": ":3: mig-configs.a[0].mig-devices.5c.7g.40gb: is a compute instance of 5 slices",
		strings.Repeat("#", maxFile+1): ":1: is larger than 4194304 bytes",
	} {
		path := filepath.Join(t.TempDir(), "layouts.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		_, err := LoadLayouts(path)

		var e *strictyaml.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), "layouts: "+path+says) {
			t.Errorf("%.80s: %v, want %q", text, err, says)
		}
	}
}

// The dearest layout that there can be: every rule packs compute instances of as many profiles as
// it can name.
func BenchmarkManyPacks(b *testing.B) {
	var rules []api.LayoutRule

	for range maxRules {
		devices := map[string]int{}

		for k := range maxKinds / 4 {
			for size, count := range map[int]int{1: 4, 2: 3, 3: 2} {
				devices[fmt.Sprintf("%dc.7g.%dgb", size, 10+k)] = count
			}
		}

		rules = append(rules, api.LayoutRule{Devices: api.DeviceList{All: true}, MIGEnabled: true, MIGDevices: devices})
	}

	for b.Loop() {
		if _, err := Rules(rules); err != nil {
			b.Fatal(err)
		}
	}
}
