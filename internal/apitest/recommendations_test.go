package apitest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// fullReport has every field.
func fullReport() *advise.Report {
	stretch := advise.Stretch{Low: 1, Expected: 1.25, High: 1.5}
	place := gpu.Placement{Start: 4, Size: 4}
	kernels := advise.Kernels{Width: 0.25, Bandwidth: 0.125}

	return &advise.Report{
		APIVersion: "mig-exporter/v1", Time: time.Unix(1, 5).UTC(), Node: "node-1", Strict: true, SingleStrategy: true,
		WithoutKubernetes: true, GPUsUnknown: "no NVIDIA driver",
		NotJudged: []advise.NotJudged{{GPU: gpu0, Index: 1, Model: "A100", Why: "it could not be read: GPU is lost"}},
		Notes:     []string{"a note"},
		Devices: []advise.Recommendation{{
			GPU: gpu0, Index: 1, Instance: gpu.Some(gpu.InstanceID(2)), Placement: gpu.Some(place), MIGDevice: mig0,
			Model: "A100", Profile: "3g.20gb",
			Pod: &advise.Pod{Namespace: "ml", Name: "train-0", Container: "main", Resource: "nvidia.com/gpu"},
			Workload: &advise.Key{Namespace: "ml", Owner: "Job/train", Container: "main", Shared: true, Model: "A100",
				Profile: "3g.20gb"},
			Action: advise.ActionShrink, Reason: advise.ReasonBusy, Explanation: "a sentence", Recommended: "1g.5gb",
			Provisional: true, NotChecked: true,
			Reclaimable: 0.5, Confidence: 0.25, Gain: &advise.Gain{FreedGPUs: 0.5, Room: "1g.5gb"},
			Evidence: &advise.Evidence{
				Since: time.Unix(1, 0).UTC(), ObservedHours: 1, KnownDays: 1, CoverageRatio: 1, MemoryBytes: 1, MemoryTrend: 1, BusyMean: 1,
				StartMemory: 1, Starts: 1, BusyMinutes: 1,
				BusyP50: 1, BusyP99: 1,
				Busy10Minutes: 1, Median: kernels, P95: kernels, PowerP95: gpu.Some(1.), PCIeMax: gpu.Some(1.), MediaEngines: []string{"decoder"},
				MediaUse:    []advise.MediaUse{{Engine: "decoder", Count: 7, BusyP99: 0.5, BusyMaxMinute: 0.75, Unknown: true}},
				MediaUnread: true, MemoryUnread: true, ActivityUnread: true, ActivityHours: 1, NeverBusy: true,
				Server: &advise.ServerEvidence{Kind: gpu.ServerVLLM, Reservation: 1, Fraction: 1, Weights: 1,
					WeightsFrom: advise.WeightsFromStart, Activations: 1, CacheBytes: 1, CacheTokens: 1, AskedHours: 1, CacheUse: 1,
					Running: 1, Waiting: 1, ServiceSeconds: 1, Need: 1},
				ThrottledRatio: 1, BusyHistogram: [10]float64{1}, WidthHistogram: [10]float64{1},
			},
			Predicted: &advise.Predicted{
				StretchMedian: stretch, StretchP95: stretch,
				Latency: advise.Latency{Low: 1, Expected: 1, High: 1, Figure: 1, Load: 1}, BusyP99: 1, Busy10Minutes: 1, SMActivity: 1, ThroughputRatio: 1,
				MemoryFree: 1, Decided: advise.Decided{Figure: advise.FigureStretch, Ratio: 1.5, Limit: 2},
				MediaEngines: []advise.PredictedEngines{{Engine: "decoder", Needed: 6.25, Count: 7}},
				Server: &advise.PredictedServer{Flag: "--gpu-memory-utilization", Value: 0.9, CacheBytes: 1, CacheTokens: 1,
					CacheUse: 1, Waiting: 1},
			},
			Considered: []advise.Considered{{Profile: "1g.5gb", Reason: advise.ReasonMemory, StretchP95: stretch}},
		}},
		Packing: &advise.Packing{
			GPUs: []advise.PackedGPU{{GPU: gpu0, Index: 1, Slices: []advise.PackedSlice{
				{Profile: "1g.5gb", From: 1, Exists: true}}}},
			InUse: 2, Needed: 1, FreedGPUs: []int{1}, FreeSlices: 7, Proven: true,
		},
	}
}

// recommendations returns the report about the node; there is none about one GPU.
func recommendations(id gpu.UUID) any {
	if id != "" {
		return nil
	}

	return fullReport()
}

// TestFullReport: fullReport has every field of its types set, so that the document, which allows
// no other fields, has all of them; and an empty report of the advisor is valid too.
func TestFullReport(t *testing.T) {
	for _, path := range unset(reflect.ValueOf(*fullReport()), "") {
		t.Errorf("%s is not set", path)
	}

	d := load(t)

	for _, report := range []*advise.Report{fullReport(), advise.New(advise.DefaultOptions()).Recommend(&gpu.Snapshot{
		Time: time.Unix(1, 0), GPUs: []gpu.GPU{{Facts: gpu.Facts{UUID: gpu0}, Device: gpu.Device{Up: true}}},
	})} {
		text, err := json.Marshal(report)
		if err != nil {
			t.Fatal(err)
		}

		if err := d.validate("#/components/schemas/Recommendations", text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// unset lists the fields with a JSON name that have their zero value. Numbers in lists, and
// coordinates, may be zero.
func unset(v reflect.Value, path string) []string {
	var list []string

	switch v.Kind() {
	case reflect.Pointer:
		return unset(v.Elem(), path)
	case reflect.Slice:
		for i := range v.Len() {
			list = append(list, unset(v.Index(i), fmt.Sprintf("%s[%d]", path, i))...)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.Tag.Get("json") == "" {
				continue
			}

			name := path + "." + field.Name
			if v.Field(i).IsZero() {
				list = append(list, name)
			} else {
				list = append(list, unset(v.Field(i), name)...)
			}
		}
	}

	return list
}
