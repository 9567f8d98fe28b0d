package podmeta

import (
	"reflect"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	gpuA = "GPU-fb8bbc70-d551-45f9-43d4-9734f9cddb2c"
	migA = "MIG-5f3c8e0a-91d2-5c7b-8b43-0d4c6a7e1f20"
)

func TestMIGDevices(t *testing.T) {
	// As HAMi's scheduler writes an entry, and as its device plugin completes it.
	const (
		reserved = `{"containerIndex": 2, "deviceIndex": 0, "gpuUUID": "` + gpuA +
			`", "profile": "2g.10gb", "placement": {"start": 2, "size": 2}}`
		second = `{"containerIndex": 2, "deviceIndex": 1, "gpuUUID": "` + gpuA +
			`", "profile": "2g.10gb", "placement": {"start": 0, "size": 2}}`
		made = `{"containerIndex": 0, "deviceIndex": 0, "gpuUUID": "` + gpuA + `", "profile": "1g.5gb", "placement": {"start": 6, "size": 1},
			"migUUID": "` + migA + `", "gpuInstanceID": 13, "computeInstanceID": 0}`
	)

	at := func(start int) gpu.DeviceRef { return gpu.DeviceRef{GPU: gpuA, PlacementStart: gpu.Some(start)} }
	for annotation, want := range map[string][][]gpu.DeviceRef{
		"[" + reserved + "]": {{at(2)}},
		"[" + made + "]":     {{{MIG: migA}}},
		"[" + strings.Replace(made, migA, "MIG-"+gpuA+"/13/0", 1) +
			"]": {{{GPU: gpuA, Instance: gpu.Some(gpu.InstanceID(13)), Compute: gpu.Some(gpu.ComputeID(0))}}},
		"[" + second + "," + made + "," + reserved + "]": {{{MIG: migA}}, {at(2), at(0)}},
		"":                            nil,
		"[]":                          nil,
		"garbage":                     nil,
		"{}":                          nil,
		"[{}]":                        nil,
		"[" + made + ", {}]":          nil,
		"[" + made + "," + made + "]": nil,
		`[{"containerIndex": -1, "gpuUUID": "` + gpuA + `", "placement": {"start": 2, "size": 2}}]`:                nil,
		`[{"containerIndex": 0, "gpuUUID": "` + gpuA + `", "placement": {"start": 2}}]`:                            nil,
		`[{"containerIndex": 0, "gpuUUID": "` + gpuA + `", "placement": {"start": -2, "size": 2}}]`:                nil,
		`[{"containerIndex": 0, "gpuUUID": "` + gpuA + `[1-0]", "placement": {"start": 2, "size": 2}}]`:            nil,
		`[{"containerIndex": 0, "gpuUUID": "` + gpuA + `", "migUUID": "x", "placement": {"start": 2, "size": 2}}]`: nil,
	} {
		if got := migDevices(annotation); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", annotation, got, want)
		}
	}
}
